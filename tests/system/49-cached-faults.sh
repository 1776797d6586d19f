#!/bin/bash
# TIMEOUT: 120
# A cached mount that writes back to a disk that is full: close(2), fsync(2) and unmount say so, the data stays in the cache, and is
# written when there is room.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 mkfs.ext4 fallocate
cache=$SCRATCH/cache name=cached-faults-$$
trap '"$HOTSHELF" unmount "$MNT" 2>/dev/null || true; "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true' EXIT
fs_of_size disk 24M -m 0
mkdir "$SCRATCH/disk/dir" "$MNT"
"$HOTSHELF" cache create "$cache" --name "$name" --size 64MiB --memory 32MiB >/dev/null
mounted() { "$HOTSHELF" mount --cache "$cache" --cache-mode write-back "$SCRATCH/disk/dir" "$MNT" --allow-other; }
fill() { fallocate -l $(($(df --output=avail -B1 "$SCRATCH/disk" | tail -1) - (2 << 20))) "$SCRATCH/disk/filler"; }
head -c 6M /dev/urandom >"$SCRATCH/content"

# A program that has the file open gets the error of a failed write-back at close(2) or fsync(2), once for each open file.
mounted
fill
python3 - "$SCRATCH/content" "$MNT/file" "$HOTSHELF" "$cache" <<'END' || fail "the error of a write-back"
import errno, os, subprocess, sys
path, seen, hotshelf, cache = sys.argv[1:]
def number(call):
    try:
        call()
        return 0
    except OSError as error:
        return error.errno
with open(path, "rb") as file:
    content = file.read()
closed, synced = (os.open(seen, os.O_RDWR | os.O_CREAT) for _ in range(2))
done = 0
while done < len(content):
    done += os.pwrite(closed, content[done:done + (1 << 20)], done)
# The cache has it, durably.
assert number(lambda: os.fsync(closed)) == 0
flush = subprocess.run([hotshelf, "cache", "flush", cache], capture_output=True, text=True)
assert flush.returncode == 1 and "No space left" in flush.stderr, flush
assert number(lambda: os.close(closed)) == errno.ENOSPC, "close says nothing"
assert number(lambda: os.fsync(synced)) == errno.ENOSPC, "fsync says nothing"
os.close(synced)
END
cmp "$SCRATCH/content" "$MNT/file" || fail "written data is lost"

# So does the user who unmounts, with what to do. The data is in the cache, also for another mount that fails to write it.
for _ in 1 2; do
    refused 1 'could not be written to' "$HOTSHELF" unmount "$MNT"
    grep -q 'hotshelf cache flush' "$SCRATCH/out" || fail "unmount does not say what to do: $(cat "$SCRATCH/out")"
    is_mounted "$MNT" && fail "it is still mounted"
    "$HOTSHELF" cache status "$cache" >"$SCRATCH/status"
    grep -q "lost .*/dir/file.*No space left" "$SCRATCH/status" || fail "status does not say why: $(cat "$SCRATCH/status")"
    mounted
    cmp "$SCRATCH/content" "$MNT/file" || fail "what unmount left in the cache is not there"
done
rm "$SCRATCH/disk/filler"
"$HOTSHELF" unmount "$MNT" || fail "unmount with room again"
cmp "$SCRATCH/content" "$SCRATCH/disk/dir/file" || fail "it is not written when there is room"
"$HOTSHELF" cache status "$cache" >"$SCRATCH/status"
grep -q lost "$SCRATCH/status" && fail "status still says that it is lost: $(cat "$SCRATCH/status")"

# A disk that fails altogether: unmount says so, and the cache can still be given up.
if command -v xfs_io >/dev/null; then
    mounted
    cp "$SCRATCH/content" "$MNT/gone"
    xfs_io -x -c shutdown "$SCRATCH/disk" || skip "ext4 cannot be shut down here"
    refused 1 'could not be written to' "$HOTSHELF" unmount "$MNT"
    "$HOTSHELF" cache status "$cache" >"$SCRATCH/status"
    grep -q 'dirty .*6.00 MiB are on the SSD only' "$SCRATCH/status" || fail "status: $(cat "$SCRATCH/status")"
fi
"$HOTSHELF" cache destroy --discard "$cache" >/dev/null || fail "the cache cannot be given up"
unmount_disks

# pwritev2(2) with RWF_DSYNC: where the data is in memory only, it is on the disk when the call returns.
fs_of_size slow 64M
mkdir "$SCRATCH/slow/dir"
"$HOTSHELF" cache create "$name-memory" --memory 16MiB >/dev/null
trap '"$HOTSHELF" unmount "$MNT" 2>/dev/null || true; for one in "$cache" "$name-memory"; do
    "$HOTSHELF" cache destroy --discard "$one" >/dev/null 2>&1 || true; done' EXIT
"$HOTSHELF" mount --cache "$name-memory" --cache-mode write-back "$SCRATCH/slow/dir" "$MNT"
python3 - "$MNT" "$SCRATCH/slow/dir" <<'END' || fail "a durable write is not durable"
import os, sys
seen, below = sys.argv[1:]
for how in os.O_WRONLY, os.O_RDWR:
    for flags in 0, os.RWF_DSYNC, os.RWF_SYNC:
        file = os.open(f"{seen}/durable-{how}-{flags}", how | os.O_CREAT)
        assert os.pwritev(file, [b"x" * 100], 0, flags) == 100
        size = os.stat(f"{below}/durable-{how}-{flags}").st_size
        assert size == (100 if flags else 0), (how, flags, size)
        os.close(file)
END
"$HOTSHELF" unmount "$MNT"
unmount_disks
