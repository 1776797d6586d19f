#!/bin/bash
# Which file leaves a small SSD is the policy's choice; how many leave is for the marks to say.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need cc
# What is used must be exact: while ext4 allocates what it had delayed it counts those blocks twice, a mark seems to be passed too
# early, and another file would leave after that, or none.
FS_OPTIONS=nodelalloc

# small_pair NAME FLAGS: a pair with a small SSD, of which about 44 MB may be used.
small_pair() {
    local name=$1
    shift
    fs_of_size "$name" 64M
    SSD=$SCRATCH/$name/pool HDD=$SCRATCH/hdd-$name
    mount_pair --high 80% --low 70% "$@"
}

make() { head -c "$2" /dev/urandom >"$MNT/$1"; }

on_hdd() { (cd "$HDD" && find . -type f ! -path './.hotshelf/*' -printf '%P\n' | sort | paste -sd' '); }

used() { df --output=used -B1 "$SSD" | tail -n1; }
settled() { (($(field demotions) > 0 && $(used) <= $(field low_bytes))) && [[ $(field queue) == 0 ]]; }

# Six files of 5 MB, the first one used most but first; three more, and somebody has to leave.
fill() {
    local file
    make a 5M
    cat "$MNT/a" "$MNT/a" "$MNT/a" >/dev/null
    for file in b c d e f g h i; do
        make $file 5M
    done
    wait_until 10 settled
}

small_pair lru
fill
[[ $(on_hdd) == "a b" ]] || fail "lru let $(on_hdd) leave, not those that were used longest ago"
# Between the marks nothing more leaves.
(($(used) > $(field low_bytes) - 6000000)) || fail "more left than had to"
before=$(field demotions)
make small 1M
cat "$MNT"/[c-i] >/dev/null
[[ $(field demotions) == "$before" ]] || fail "a file left between the marks"
unmount_pair
clean_check

for policy in lfu s3-fifo; do
    small_pair "$policy" --policy "$policy"
    [[ $(field policy) == "$policy" ]] || fail "status does not name $policy"
    fill
    [[ $(on_hdd) == "b c" ]] || fail "$policy let $(on_hdd) leave, not those that were used once"
    # Also of a file that the kernel has forgotten, as it does when memory is short.
    echo 2 >/proc/sys/vm/drop_caches
    "$HOTSHELF" why "$MNT/b" | grep -q 'moved to the hdd: the SSD was above its high mark' || fail "why b left"
    unmount_pair
    clean_check
done

cc -shared -fPIC -O2 -I"$ROOT/crates/base/policy/include" -o "$SCRATCH/largest.so" "$ROOT/crates/base/policy/examples/largest_first.c"
small_pair plugin --policy "$SCRATCH/largest.so"
make a 5M
make b 14M
make c 5M
make d 12M
make e 5M
make f 6M
wait_until 10 settled
[[ $(on_hdd) == b ]] || fail "the largest first let $(on_hdd) leave"
"$HOTSHELF" why "$MNT/d" | grep -q 'rank     0.00' || fail "the next largest is not the next to leave"
unmount_pair
clean_check

# What does not move by itself must not keep the others from leaving, however much of it there is.
fs_of_size many 64M -N 10000
SSD=$SCRATCH/many/pool HDD=$SCRATCH/hdd-many
mount_pair --high 80% --low 70% --min-file-size 64KiB
mkdir "$MNT/tiny"
(cd "$MNT/tiny" && seq 1 5000 | xargs touch)
for file in a b c d e f g h i; do
    make $file 5M
done
wait_until 15 settled
[[ $(on_hdd) == "a b" ]] || fail "with many small files $(on_hdd) left"
"$HOTSHELF" why "$MNT/tiny/1" | grep -q 'next .*smaller than files that move by themselves' || fail "why tiny/1 stays"
unmount_pair
clean_check
unmount_disks
