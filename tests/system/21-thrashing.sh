#!/bin/bash
# Far more in use than fits on the SSD, at every open wanted there: files must not go up and down for ever. And what fits comes up.
# TIMEOUT: 180
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

fs_of_size ssd 64M -m 0
SSD=$SCRATCH/ssd/pool
mkdir "$SSD" "$HDD"
total=0
for n in $(seq 1 200); do
    head -c 2M /dev/zero | tr '\0' "\\$(printf %o $((33 + n % 90)))" >"$HDD/f$n"
    total=$((total + (2 << 20)))
done

# load PROCESSES OPENS: each opens, reads or writes a little, and closes files at random; prints the bytes moved and seconds taken.
load() {
    local before
    before=$(field moved_bytes)
    python3 - "$MNT" "$@" <<'PYTHON'
import os, random, sys
mount, processes, opens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def work(seed):
    rng = random.Random(seed)
    for _ in range(opens):
        path = f"{mount}/f{rng.randint(1, 200)}"
        with open(path, "r+b") as file:
            file.seek(rng.randrange(0, 2 << 20, 4096))
            if rng.random() < 0.3:
                value = file.read(1)
                file.seek(-1, 1)
                file.write(value)
            else:
                file.read(4096)
children = []
for n in range(processes):
    pid = os.fork()
    if pid == 0:
        work(n)
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
PYTHON
    echo $(($(field moved_bytes) - before))
}

begin() { date +%s%N; }
took_ms() { echo $((($(date +%s%N) - $1) / 1000000)); }

# The same load with files that stay on the HDD: what it costs without moves.
mount_pair --promotion never
t=$(begin)
load 8 500 >/dev/null
alone=$(took_ms "$t")
unmount_pair

mount_pair --promotion on-open
load 8 250 >/dev/null
(($(field promotion_opens_wanted) > 0)) || fail "promotions are not held back: $("$HOTSHELF" status "$MNT")"
says 'more is in use than fits' || fail "status does not say so"
t=$(begin)
moved=$(load 8 500)
thrashing=$(took_ms "$t")
# Without it some 80 % of 4,000 opens move 2 MiB up and 2 MiB down.
((moved < 4000 * (2 << 20) / 10)) || fail "$moved bytes moved for 4,000 opens"
echo "NOTE: 4,000 opens took $thrashing ms, with all files on the HDD $alone ms; $((moved >> 20)) MiB moved"
unmount_pair
clean_check
for n in $(seq 1 200); do
    file=$HDD/f$n
    [[ -e $file ]] || file=$SSD/f$n
    head -c 2M /dev/zero | tr '\0' "\\$(printf %o $((33 + n % 90)))" | cmp -s - "$file" || fail "f$n differs"
done

# A working set that fits comes up at its first open, as before.
mount_pair --promotion on-open
for round in 1 2 3; do
    for n in $(seq 1 15); do
        cat "$MNT/f$n" >/dev/null
    done
done
for n in $(seq 1 15); do
    on "$MNT/f$n" ssd || fail "f$n, which fits, is not on the SSD in round $round"
done
[[ $(field promotion_opens_wanted) == 0 ]] || fail "promotions are held back though all fits"
unmount_pair
clean_check
unmount_disks
