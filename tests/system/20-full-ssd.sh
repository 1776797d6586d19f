#!/bin/bash
# A full SSD never surprises: one file larger than the SSD, many files, both sides full.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

fs_of_size ssdfs 128M
fs_of_size hddfs 700M
SSD=$SCRATCH/ssdfs/pool HDD=$SCRATCH/hddfs/pool
mount_pair
head -c 300M /dev/urandom >"$SCRATCH/source"

dd if="$SCRATCH/source" of="$MNT/big" bs=1M status=none || fail "a write found the SSD full and failed"
cmp "$SCRATCH/source" "$MNT/big" || fail "big differs"
wait_until 20 on "$MNT/big" hdd

for n in $(seq 1 30); do
    head -c 8M "$SCRATCH/source" >"$MNT/f$n" || fail "file $n could not be written"
done
for n in $(seq 1 30); do
    cmp -n 8M "$SCRATCH/source" "$MNT/f$n" || fail "f$n differs"
done
(($(field demotions) > 5)) || fail "nothing was demoted"

# A file created on the SSD, closed, then extended in one open far beyond the size of the SSD: a full SSD does not stop it.
rm "$MNT"/f*
head -c 20M "$SCRATCH/source" >"$MNT/grown"
dd if="$SCRATCH/source" of="$MNT/grown" bs=1M skip=20 seek=20 count=180 conv=notrunc status=none || fail "a grown file found the SSD full"
cmp -n 200M "$SCRATCH/source" "$MNT/grown" || fail "grown differs"
rm "$MNT/grown"
for n in $(seq 1 30); do
    head -c 8M "$SCRATCH/source" >"$MNT/f$n" || fail "file $n could not be written again"
done

# Both full: ENOSPC, nothing lost, and removing makes room again.
cat "$SCRATCH/source" "$SCRATCH/source" >"$MNT/toomuch" 2>"$SCRATCH/err" && fail "both sides full gave no error"
grep -q 'No space left' "$SCRATCH/err" || fail "another error: $(cat "$SCRATCH/err")"
cmp "$SCRATCH/source" "$MNT/big" || fail "big differs after the disks were full"
rm "$MNT/toomuch"
for n in $(seq 1 30); do
    cmp -n 8M "$SCRATCH/source" "$MNT/f$n" || fail "f$n differs after the disks were full"
done
rm "$MNT"/f*
head -c 20M "$SCRATCH/source" >"$MNT/again" || fail "no room after removing"
unmount_pair
clean_check
unmount_disks
