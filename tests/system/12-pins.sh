#!/bin/bash
# TIMEOUT: 600
# A pinned tree comes up as a whole: while the kernel forgets files, after a kill of the daemon, and what has no room when there is.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4
trap unmount_disks EXIT

many=300
[[ $FULL == 0 ]] || many=5000

# make_tree DIR: files in directories, three deep, each with its own name in it.
make_tree() {
    local n at
    for ((n = 0; n < many; n++)); do
        at=$1/$((n % 7))/$((n % 31))
        [[ -d $at ]] || mkdir -p "$at"
        echo "$n" >"$at/$n"
    done
}
on_hdd() { find "$HDD/$1" -type f | wc -l; }
# all_up DIR: the daemon has nothing left to do, and nothing is on the HDD. The kernel forgets what it knows before each look.
all_up() {
    echo 2 >/proc/sys/vm/drop_caches
    [[ $(field queue) == 0 && $(on_hdd "$1") == 0 ]]
}
# half_up DIR: some files are up, not all.
half_up() { (($(on_hdd "$1") < many * 3 / 4)); }
same() {
    local sums
    sums=$(cd "$MNT/$1" && find . -type f -printf '%f ' -exec cat {} \; | awk '$1 != $2' | wc -l)
    [[ $sums == 0 && $(find "$MNT/$1" -type f | wc -l) == "$many" ]] || fail "files of $1 are not what they were"
}

mkdir -p "$HDD"
make_tree "$HDD/tree"
mount_pair
find "$MNT/tree" -type f -exec stat -c %i {} + >"$SCRATCH/inodes"
"$HOTSHELF" pin "$MNT/tree" | grep -q 'pinned to the SSD'
wait_until 200 all_up tree
same tree
[[ $(field promotions) == "$many" ]] || fail "$(field promotions) moves for $many files"
find "$MNT/tree" -type f -exec stat -c %i {} + | cmp -s - "$SCRATCH/inodes" || {
    find "$MNT/tree" -type f -exec stat -c %i {} + | sort | cmp -s - <(sort "$SCRATCH/inodes") || fail "inode numbers changed"
}

# Killed in the middle: the next mount goes on.
make_tree "$HDD/second"
"$HOTSHELF" pin "$MNT/second" >/dev/null
wait_until 100 half_up second
pid=$(daemon_pid)
kill -KILL "$pid"
umount -l "$MNT"
wait_until 10 mount_pair 2>"$SCRATCH/err"
wait_until 200 all_up second
same second
unmount_pair
clean_check

# A pinned file that has no room is reported, and promoted when there is room.
fs_of_size small 64M
SSD=$SCRATCH/small/ssd HDD=$SCRATCH/hdd2
mkdir -p "$HDD/big"
head -c 30M /dev/urandom >"$SCRATCH/small/in-the-way"
for n in 1 2 3; do head -c 9M /dev/urandom >"$HDD/big/$n"; done
head -c 5000 /dev/urandom >"$HDD/big/small"
(cd "$HDD/big" && sha256sum -- *) >"$SCRATCH/sums"
mount_pair
"$HOTSHELF" pin "$MNT/big" >/dev/null
wait_until 60 says 'still on the HDD.*big/[123]: the SSD has no room for it; they are tried again'
[[ -e $SSD/big/small ]] || wait_until 20 test -e "$SSD/big/small"
rm "$SCRATCH/small/in-the-way"
wait_until 60 all_up big
says 'still on the HDD' && fail "status still says that files were left out"
(cd "$MNT/big" && sha256sum --quiet -c "$SCRATCH/sums") || fail "files are not what they were"
unmount_pair
clean_check
