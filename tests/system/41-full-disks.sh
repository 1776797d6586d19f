#!/bin/bash
# ENOSPC on either side and on both, of bytes and of inodes: clear errors, nothing lost, and on it goes when there is room.
# TIMEOUT: 400
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

head -c 64M /dev/urandom >"$SCRATCH/source"

# piece N: four MiB of the source, another part for every N.
piece() { dd if="$SCRATCH/source" bs=1M skip=$((($1 * 3) % 60)) count=4 status=none; }
same_piece() { piece "$2" | cmp -s - "$1" || fail "$1 differs: $3"; }
count_is() { [[ $(field "$1") == "$2" ]]; }
at_least() { (($(field "$1") >= $2)); }
pair_on() {
    SSD=$SCRATCH/$1/pool HDD=$SCRATCH/$2/pool
    mount_pair "${@:3}"
}

# The HDD is full while files should be demoted.
fs_of_size ssd1 128M -m 0
fs_of_size hdd1 64M -m 0
pair_on ssd1 hdd1 --high 60% --low 50% --reserve 4MiB
mkdir "$HDD/fill" "$MNT/d"
# What fills the HDD is a file of the mount, so that it can be removed through it.
fallocate -l 40M "$HDD/fill/1"
free=$(df --output=avail -B1 "$HDD" | tail -1)
fallocate -l $((free - (2 << 20))) "$HDD/fill/2"
for n in $(seq 1 24); do
    piece "$n" >"$MNT/d/f$n" || fail "file $n could not be written"
done
wait_until 20 says 'is full: files that should be demoted stay on the SSD'
at_least moves_failed 1 || fail "no move failed"
for n in $(seq 1 24); do
    on "$MNT/d/f$n" ssd || fail "f$n left for a full HDD"
    same_piece "$MNT/d/f$n" "$n" "the HDD is full"
done
fails_with 'No space left' "$HOTSHELF" migrate --to hdd "$MNT/d"
no_temporaries || fail "failed demotions left temporaries"
truncate -s 1M "$MNT/d/f1" || fail "truncate on the SSD"
rm "$MNT/d/f2" || fail "delete on the SSD"
truncate -s 30M "$MNT/fill/1" || fail "truncate on the HDD"
rm "$MNT/fill/2" "$MNT/fill/1" || fail "delete on the HDD"
wait_until 40 at_least demotions 5
wait_until 20 count_is scan_done true
says 'is full' && wait_until 10 bash -c "! '$HOTSHELF' status '$MNT' | grep -q 'is full'"
for n in $(seq 3 24); do
    same_piece "$MNT/d/f$n" "$n" "demotions went on"
done
unmount_pair
clean_check

# Both are full: ENOSPC, what was written before is whole, delete works, and then writes again.
mount_pair --reserve 1MiB
piece 30 >"$MNT/kept" || fail "kept could not be written"
exec 7>"$MNT/open"
piece 31 >&7
for n in $(seq 1 100); do
    piece "$n" >"$MNT/more$n" 2>"$SCRATCH/err" || break
done
((n < 100)) || fail "both sides are full and there was no error"
grep -q 'No space left' "$SCRATCH/err" || fail "another error: $(cat "$SCRATCH/err")"
wait_until 20 bash -c "[[ -z \$(find '$SSD/.hotshelf/tmp' '$HDD/.hotshelf/tmp' -mindepth 1) ]]"
for m in $(seq 1 $((n - 1))); do
    same_piece "$MNT/more$m" "$m" "both are full"
done
same_piece "$MNT/kept" 30 "both are full"
same_piece "$MNT/open" 31 "both are full"
ln -s target "$MNT/link" 2>/dev/null || true
rm "$MNT/more$n" "$MNT"/more1 "$MNT"/more2 "$MNT"/more3 || fail "delete when both are full"
piece 32 >&7 || fail "an open file cannot grow after there is room"
exec 7>&-
piece 33 >"$MNT/again" || fail "no room after removing"
same_piece "$MNT/again" 33 "written after both were full"
cmp <(piece 31; piece 32) "$MNT/open" || fail "the open file differs"
for m in $(seq 4 $((n - 1))); do
    same_piece "$MNT/more$m" "$m" "both were full"
done
unmount_pair
clean_check

# Filled up behind our back to the last byte, while it was not mounted: it mounts, reads, and makes room.
rm -f "$HDD"/more* "$HDD"/d/*
dd if=/dev/zero of="$SSD/brim" bs=64K status=none 2>/dev/null || true
mount_pair
same_piece "$MNT/again" 33 "the SSD is full to the brim"
wait_until 40 at_least demotions 1
piece 34 >"$MNT/after" || fail "no write with a full SSD and room on the HDD"
same_piece "$MNT/after" 34 "written with a full SSD"
unmount_pair
clean_check

# ENOSPC in the middle of a promotion: the file stays where it is, whole.
fs_of_size ssd2 64M -m 0
fs_of_size hdd2 128M -m 0
pair_on ssd2 hdd2 --move-rate 4MiB --promotion never
cp "$SCRATCH/source" "$HDD/huge"
head -c 30M "$SCRATCH/source" >"$HDD/big"
piece 1 >"$MNT/small"
fails_with 'No space left' "$HOTSHELF" migrate --to ssd "$MNT/huge"
on "$MNT/small" ssd || fail "a file had to leave for one that cannot fit"
"$HOTSHELF" migrate --to ssd "$MNT/big" >"$SCRATCH/migrate" 2>&1 &
migrate=$!
tmp_bytes() { (($(find "$SSD/.hotshelf/tmp" -type f -printf '%b\n' | awk '{s += $1 * 512} END {print s + 0}') > $1)); }
wait_until 20 tmp_bytes 4000000
dd if=/dev/zero of="$SSD/intruder" bs=64K status=none 2>/dev/null && fail "the SSD did not fill up"
wait $migrate && fail "a promotion succeeded without room"
grep -q 'No space left' "$SCRATCH/migrate" || fail "migrate does not say why: $(cat "$SCRATCH/migrate")"
# Files that leave the full SSD have temporaries for a moment.
wait_until 20 no_temporaries
on "$MNT/big" hdd || fail "big is not where it was"
head -c 30M "$SCRATCH/source" | cmp - "$MNT/big" || fail "big differs after a failed promotion"
says degraded && fail "a full SSD is not a degraded one"
rm "$MNT/intruder"
"$HOTSHELF" migrate --to ssd "$MNT/big" || fail "no promotion after there is room"
head -c 30M "$SCRATCH/source" | cmp - "$MNT/big" || fail "big differs on the SSD"
unmount_pair
clean_check

# No inodes left on the SSD: files, directories, links and moves.
fs_of_size ssd3 64M -m 0 -N 64
fs_of_size hdd3 64M -m 0
pair_on ssd3 hdd3 --promotion never
mkdir "$MNT/dir"
for n in $(seq 1 100); do
    echo "$n" >"$MNT/dir/f$n" || fail "file $n: the SSD has no inodes, the HDD has"
done
(($(df --output=iavail "$SSD" | tail -1) == 0)) || fail "the test did not use up the inodes"
[[ -e $HDD/dir/f100 && $(cat "$MNT/dir/f100") == 100 ]] || fail "f100 is not on the HDD"
mkdir -p "$MNT/new/deep" && echo x >"$MNT/new/deep/file" || fail "no directory without inodes on the SSD"
ln -s nowhere "$MNT/new/link" && mkfifo "$MNT/new/pipe" || fail "no link or pipe"
fails_with 'No space left' "$HOTSHELF" migrate --to ssd "$MNT/dir/f100"
[[ $(cat "$MNT/dir/f100") == 100 ]] || fail "f100 is gone after a failed promotion"
mv "$MNT/dir/f99" "$MNT/dir/f1" && [[ $(cat "$MNT/dir/f1") == 99 ]] || fail "rename over a file on the other side"
says degraded && fail "a side without inodes is not a degraded one"
rm "$MNT"/dir/f[2-4]
echo y >"$MNT/dir/back" && on "$MNT/dir/back" ssd || fail "new files do not go to the SSD again"
(($(find "$MNT/dir" -type f | wc -l) == 97)) || fail "files are missing"
unmount_pair
clean_check
unmount_disks
