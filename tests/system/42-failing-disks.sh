#!/bin/bash
# EIO and read-only file systems on either side: never wrong data, the other side goes on, and status says which it is.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need filefrag xfs_io

drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# degraded SIDE WORDS: status says it of that side, and of that side only.
degraded() {
    "$HOTSHELF" status --json "$MNT" >"$SCRATCH/status" || return 1
    python3 - "$SCRATCH/status" "$1" "$2" <<'PY'
import json, re, sys
status, side, words = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
other = "hdd" if side == "ssd" else "ssd"
sys.exit(0 if re.search(words, status[side].get("degraded") or "") and not status[other].get("degraded") else 1)
PY
}
is_degraded() { degraded "$@" || fail "status does not say that the $1 alone '$2': $(grep degraded "$SCRATCH/status")"; }
sound() { "$HOTSHELF" status "$MNT" | grep degraded && fail "a side is degraded that is not"; true; }

# pair_of NAME: a pair on two small file systems.
pair_of() {
    fs_of_size "$1-ssd" 64M -b 4096 -m 0
    fs_of_size "$1-hdd" 64M -b 4096 -m 0
    SSD=$SCRATCH/$1-ssd/pool HDD=$SCRATCH/$1-hdd/pool
    mkdir "$SSD" "$HDD"
}

# break_reads FILE IMAGE: truncates the image where the file's data begins: reading the file is an I/O error from now on.
break_reads() {
    local at
    at=$(filefrag -v "$1" | awk '$1 == "0:" { sub(/\.\..*/, "", $4); print $4 }')
    [[ -n $at ]] || skip "filefrag does not tell where files are"
    drop_caches
    truncate -s $((at * 4096)) "$2"
    drop_caches
    cat "$1" >/dev/null 2>&1 && skip "a loop device reads beyond the end of its image here"
    true
}

head -c 2M /dev/urandom >"$SCRATCH/two"

# Reading fails on one side. Nothing moves by itself here.
still=(--high 100% --low 100% --reserve 0 --promotion never)
for side in ssd hdd; do
    pair_of "read-$side"
    [[ $side == ssd ]] && bad=$SSD good=$HDD || bad=$HDD good=$SSD
    # Our own files are made first; then the disk is filled, so that nothing is written behind the broken file later.
    mount_pair "${still[@]}"
    unmount_pair
    free=$(df --output=avail -B1 "$bad" | tail -1)
    fallocate -l $((free - (3 << 20))) "$bad/filler"
    cp "$SCRATCH/two" "$bad/broken"
    sync -f "$bad"
    dd if=/dev/zero of="$bad/rest" bs=4K status=none 2>/dev/null || true
    cp "$SCRATCH/two" "$good/good"
    mount_pair "${still[@]}"
    break_reads "$bad/broken" "$SCRATCH/read-$side-$side.img"
    fails_with 'Input/output error' cmp "$SCRATCH/two" "$MNT/broken"
    fails_with 'Input/output error' cat "$MNT/broken"
    [[ $(stat -c %s "$MNT/broken") == 2097152 ]] || fail "the size of a broken file"
    cmp "$SCRATCH/two" "$MNT/good" || fail "the other side does not work"
    to=hdd
    [[ $side == hdd ]] && to=ssd
    fails_with 'Input/output error' "$HOTSHELF" migrate --to $to "$MNT/broken"
    is_degraded $side 'I/O errors'
    on "$MNT/broken" $side || fail "a failed move moved the file"
    [[ -e $bad/broken && ! -e $good/broken ]] || fail "a failed move left something"
    no_temporaries || fail "a failed move left its copy"
    fails_with 'Input/output error' cat "$MNT/broken"
    echo new >"$MNT/new"
    on "$MNT/new" "$([[ $side == ssd ]] && echo hdd || echo ssd)" || fail "a new file went to the broken $side"
    [[ $(ls "$MNT" | wc -l) == 5 ]] || fail "the listing: $(ls "$MNT")"
    unmount_pair
    mount_pair "${still[@]}"
    fails_with 'Input/output error' cat "$MNT/broken"
    cmp "$SCRATCH/two" "$MNT/good"
    rm "$MNT/broken" || fail "a broken file cannot be removed"
    unmount_pair
    truncate -s 64M "$SCRATCH/read-$side-$side.img"
done

# A side is gone altogether, in the middle of use.
for side in ssd hdd; do
    pair_of "gone-$side"
    mkdir "$SSD/s" "$HDD/h"
    cp "$SCRATCH/two" "$SSD/s/file"
    cp "$SCRATCH/two" "$HDD/h/file"
    mount_pair
    cmp "$SCRATCH/two" "$MNT/s/file" && cmp "$SCRATCH/two" "$MNT/h/file" || fail "before"
    xfs_io -x -c shutdown "$SCRATCH/gone-$side-$side" || skip "ext4 cannot be shut down here"
    echo 3 >/proc/sys/vm/drop_caches
    lost=$MNT/${side:0:1}/file kept=$MNT/$([[ $side == ssd ]] && echo h || echo s)/file
    fails_with 'Input/output error' cat "$lost"
    cmp "$SCRATCH/two" "$kept" || fail "files on the side that is left cannot be read"
    echo more >>"$kept" || fail "files on the side that is left cannot be written"
    fails_with 'Input/output error' rm "$lost"
    is_degraded $side 'I/O errors'
    echo new >"$(dirname "$kept")/new" || fail "no new file on the side that is left"
    fails_with 'Input/output error\|degraded' "$HOTSHELF" migrate --to $side "$kept"
    cmp -n 2097152 "$SCRATCH/two" "$kept" || fail "a failed move harmed the file"
    "$HOTSHELF" unmount "$MNT"
    [[ $(cat "$([[ $side == ssd ]] && echo "$HDD/h" || echo "$SSD/s")/new") == new ]] || fail "what was written is not there"
    disk_again "gone-$side-$side"
    mount_pair
    cmp "$SCRATCH/two" "$lost" || fail "the disk is back, the file is not"
    sound
    unmount_pair
    clean_check
done

# Write-back fails: fsync says so to the open handle, again and again, until it is opened anew.
mkdir "$SCRATCH/thin"
mount -t tmpfs -o size=80M thin "$SCRATCH/thin"
for side in ssd hdd; do
    SSD=$SCRATCH/back-$side/ssd HDD=$SCRATCH/back-$side/hdd
    image=$SCRATCH/thin/$side.img bad=$SCRATCH/back-$side/$side
    mkdir -p "$SSD" "$HDD"
    truncate -s 48M "$image"
    mkfs.ext4 -q -b 4096 "$image"
    fallocate -l 48M "$image"
    mount -o loop "$image" "$bad"
    cp "$SCRATCH/two" "$bad/file"
    for mode in passthrough daemon; do
        [[ $mode == daemon ]] && mount_pair --promotion never --no-passthrough || mount_pair --promotion never
        at=$(filefrag -v "$bad/file" | awk '$1 == "0:" { sub(/\.\..*/, "", $4); print $4 }')
        drop_caches
        # The image loses the file's blocks, and there is no room for others: only writing fails.
        fallocate --punch-hole -o $((at * 4096)) -l 2M "$image"
        dd if=/dev/zero of="$SCRATCH/thin/rest" bs=4K status=none 2>/dev/null || true
        python3 - "$MNT/file" <<'PY' || fail "fsync after a failed write-back, $mode on the $side"
import os, sys, errno
def fsync(fd):
    try:
        os.fsync(fd)
        return 0
    except OSError as e:
        return e.errno
fd = os.open(sys.argv[1], os.O_RDWR)
assert fsync(fd) == 0, "before"
os.pwrite(fd, b"x" * (1 << 20), 0)
# Which of the two it is, the loop device decides.
got = [fsync(fd) for _ in range(3)]
assert got == [errno.EIO] * 3 or got == [errno.ENOSPC] * 3, got
os.close(fd)
PY
        is_degraded $side 'I/O errors|lost what was written'
        rm "$SCRATCH/thin/rest"
        python3 - "$MNT/file" <<'PY' || fail "opened anew after a failed write-back, $mode on the $side"
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(fd, b"y" * (2 << 20), 0)
os.fsync(fd)
PY
        unmount_pair
        umount "$bad"
        mount -o loop "$image" "$bad"
        cmp -n 2097152 "$bad/file" <(head -c 2M /dev/zero | tr '\0' y) || fail "what was flushed is not there"
    done
    clean_check
    umount "$bad"
    rm "$image"
done

# The disk below a side goes away while data is not flushed: EIO.
fs_of_size below 128M
for side in ssd hdd; do
    SSD=$SCRATCH/below-$side/ssd HDD=$SCRATCH/below-$side/hdd
    image=$SCRATCH/below/$side.img bad=$SCRATCH/below-$side/$side
    mkdir -p "$SSD" "$HDD"
    truncate -s 48M "$image"
    mkfs.ext4 -q -b 4096 "$image"
    mount -o loop "$image" "$bad"
    cp "$SCRATCH/two" "$bad/file"
    mount_pair
    python3 - "$MNT/file" "$SCRATCH/below" <<'PY' || fail "fsync after the disk went away from the $side"
import errno, os, subprocess, sys
def fsync(fd):
    try:
        os.fsync(fd)
        return 0
    except OSError as e:
        return e.errno
fd = os.open(sys.argv[1], os.O_RDWR)
assert fsync(fd) == 0, "before"
os.pwrite(fd, b"x" * (1 << 20), 0)
subprocess.run(["xfs_io", "-x", "-c", "shutdown", sys.argv[2]], check=True)
got = [fsync(fd) for _ in range(3)]
assert got == [errno.EIO] * 3, got
PY
    is_degraded $side 'I/O errors'
    unmount_pair
    umount "$bad"
    wait_until 100 is_image_free "$image"
    disk_again below
    mount -o loop "$image" "$bad"
    mount_pair
    [[ $(stat -c %s "$MNT/file") == 2097152 ]] || fail "file after the disk came back"
    sound
    unmount_pair
    clean_check
    umount "$bad"
done

# changes_refused DIR FILE: what must not work where nothing can be written, and what it must say.
changes_refused() {
    fails_with 'Read-only file system' bash -c "echo x >>'$2'"
    fails_with 'Read-only file system' truncate -s 1 "$2"
    fails_with 'Read-only file system' chmod 600 "$2"
    fails_with 'Read-only file system' rm "$2"
    fails_with 'Read-only file system' mv "$2" "$1/other"
    cmp "$SCRATCH/two" "$2" || fail "$2 differs after refused changes"
}

# Read-only while in use, then writable again: nobody has to mount anew.
pair_of ro-hdd
cp "$SCRATCH/two" "$HDD/old"
cp "$SCRATCH/two" "$SSD/fast"
mkdir "$HDD/both" "$SSD/both" "$HDD/only"
mount_pair --promotion on-open
mount -o remount,ro "$SCRATCH/ro-hdd-hdd"
is_degraded hdd 'read-only'
cmp "$SCRATCH/two" "$MNT/old" || fail "a read-only HDD cannot be read"
on "$MNT/old" hdd || fail "half a promotion"
changes_refused "$MNT" "$MNT/old"
fails_with 'read-only' "$HOTSHELF" migrate --to ssd "$MNT/old"
fails_with 'read-only' "$HOTSHELF" migrate --to hdd "$MNT/fast"
[[ ! -e $SSD/old && ! -e $HDD/fast ]] || fail "half a move"
echo new >"$MNT/new" && on "$MNT/new" ssd || fail "no new file with a read-only HDD"
echo new >"$MNT/only/new" && [[ -e $SSD/only/new ]] || fail "no new file in a directory of the read-only HDD"
fails_with 'Read-only file system' rmdir "$MNT/both"
fails_with 'Read-only file system' mv "$MNT/both" "$MNT/renamed"
fails_with 'Read-only file system' mv "$MNT/new" "$MNT/old"
[[ -d $SSD/both && -d $HDD/both && ! -e $SSD/renamed && $(cat "$MNT/new") == new ]] || fail "half a rename"
cmp "$SCRATCH/two" "$MNT/old" || fail "old differs after a refused rename"
mount -o remount,rw "$SCRATCH/ro-hdd-hdd"
sound
echo changed >"$MNT/old" && [[ $(cat "$MNT/old") == changed ]] || fail "writable again, but not through the mount"
"$HOTSHELF" migrate --to hdd "$MNT/fast" || fail "writable again, but no move"
"$HOTSHELF" migrate --to ssd "$MNT/fast"
cmp "$SCRATCH/two" "$MNT/fast" || fail "fast differs"
rm "$MNT/old" && rmdir "$MNT/both" || fail "writable again, but no removal"
unmount_pair
clean_check

# The SSD's file system stops itself, as ext4 does after an error.
pair_of ro-ssd
cp "$SCRATCH/two" "$HDD/slow"
cp "$SCRATCH/two" "$SSD/fast"
mkdir "$HDD/both" "$SSD/both" "$SSD/only"
mount_pair
mount -o remount,abort "$SCRATCH/ro-ssd-ssd" || skip "ext4 cannot be aborted here"
changes_refused "$MNT" "$MNT/fast"
is_degraded ssd 'read-only'
echo new >"$MNT/new" && [[ -e $HDD/new ]] || fail "no new file with a read-only SSD"
echo new >"$MNT/only/new" && [[ -e $HDD/only/new ]] || fail "no new file in a directory of the read-only SSD"
fails_with 'Read-only file system' rmdir "$MNT/both"
echo new >"$MNT/both/new" && [[ $(cat "$HDD/both/new") == new ]] || fail "a directory that could not be removed is broken"
fails_with 'Read-only\|read-only\|Input/output' "$HOTSHELF" migrate --to ssd "$MNT/slow"
fails_with 'Read-only\|read-only\|Input/output' "$HOTSHELF" migrate --to hdd "$MNT/fast"
cmp "$SCRATCH/two" "$MNT/slow" && cmp "$SCRATCH/two" "$MNT/fast" || fail "a read-only SSD"
[[ ! -e $SSD/slow && ! -e $HDD/fast ]] || fail "half a move"
echo changed >"$MNT/slow" && rm "$MNT/new" || fail "the HDD's files cannot be changed"
unmount_pair
umount "$SCRATCH/ro-ssd-ssd"

# Read-only already when it is mounted.
mount -o loop "$SCRATCH/ro-ssd-ssd.img" "$SCRATCH/ro-ssd-ssd"
for side in ssd hdd; do
    mount -o remount,ro "$SCRATCH/ro-ssd-$side"
    mount_pair || fail "a read-only $side cannot be mounted"
    is_degraded $side 'read-only'
    file=$MNT/fast
    [[ $side == hdd ]] && file=$MNT/slow
    [[ $side == hdd ]] && cp "$SCRATCH/two" "$SCRATCH/was" && echo changed >"$SCRATCH/two"
    cmp "$SCRATCH/two" "$file" || fail "a read-only $side cannot be read"
    changes_refused "$MNT" "$file"
    [[ $side == hdd ]] && mv "$SCRATCH/was" "$SCRATCH/two"
    echo new >"$MNT/new-$side" || fail "no new file with a read-only $side"
    on "$MNT/new-$side" "$([[ $side == ssd ]] && echo hdd || echo ssd)" || fail "a new file on a read-only side"
    unmount_pair
    mount -o remount,rw "$SCRATCH/ro-ssd-$side"
done
clean_check

# Read-only and never prepared: one clear line.
pair_of ro-new
mount -o remount,ro "$SCRATCH/ro-new-ssd"
refused 1 "$SSD was never used by hotshelf and cannot be prepared" "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
mount -o remount,rw "$SCRATCH/ro-new-ssd"
mount -o remount,ro "$SCRATCH/ro-new-hdd"
refused 1 "$HDD was never used by hotshelf and cannot be prepared" "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
mount -o remount,rw "$SCRATCH/ro-new-hdd"
mount_pair || fail "after a refused mount"
unmount_pair
clean_check

# A file that cannot be removed from the HDD does not move halfway.
cp "$SCRATCH/two" "$HDD/fixed"
if chattr +i "$HDD/fixed" 2>/dev/null; then
    mount_pair
    fails_with 'immutable' "$HOTSHELF" migrate --to ssd "$MNT/fixed"
    [[ ! -e $SSD/fixed ]] || fail "half a promotion of an immutable file"
    fails_with 'not permitted' rm -f "$MNT/fixed"
    chattr -i "$HDD/fixed"
    "$HOTSHELF" migrate --to ssd "$MNT/fixed"
    cmp "$SCRATCH/two" "$MNT/fixed" || fail "an old handle stood for a file that moved"
    # The same for a directory from which nothing can be removed: then both sides hold it, and status says so.
    mkdir "$HDD/log"
    cp "$SCRATCH/two" "$HDD/log/file"
    chattr +a "$HDD/log"
    "$HOTSHELF" migrate --to ssd "$MNT/log/file" || fail "promotion out of an append-only directory"
    says 'its original on the HDD stays' || fail "both sides hold a file and status does not say so"
    echo changed >"$MNT/log/file"
    unmount_pair
    chattr -a "$HDD/log"
    mount_pair
    [[ $(cat "$MNT/log/file") == changed && ! -e $HDD/log/file ]] || fail "the next mount did not finish the promotion"
    unmount_pair
    clean_check
fi
unmount_disks
