#!/bin/bash
# TIMEOUT: 120
# A file system that takes writes and fails them later: sshfs tells what its server could not store at close(2) and fsync(2). So do the
# hybrid and the cached mount of it. Where no error comes late, no request is sent at close(2).
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 mkfs.ext4 fallocate sshfs
has_sshfs || skip "there is no SFTP server"
cache=$SCRATCH/cache
trap '"$HOTSHELF" unmount "$MNT" 2>/dev/null || true; "$HOTSHELF" cache destroy "$cache" >/dev/null 2>&1 || true' EXIT

fs_of_size disk 24M -m 0
mkdir "$SCRATCH/disk/dir" "$SCRATCH/sshfs" "$SSD" "$MNT"
mount_sshfs "$SCRATCH/disk/dir" "$SCRATCH/sshfs"
mkdir "$SCRATCH/sshfs/pool"
echo old >"$SCRATCH/sshfs/pool/file"
touch "$SCRATCH/sshfs/pool/other"

fill() { fallocate -l $(($(df --output=avail -B1 "$SCRATCH/disk" | tail -1) - 65536)) "$SCRATCH/disk/filler"; }

# tells FILE: of a megabyte that is written, one of the calls says that it is not stored; a file that is only read is closed without error.
tells() {
    python3 - "$1" <<'END' || fail "$2: $1"
import errno, os, sys
def number(call):
    try:
        call()
        return 0
    except OSError as error:
        return error.errno
path = sys.argv[1]
for flags in (os.O_WRONLY, os.O_RDWR):
    file = os.open(path, flags)
    written = number(lambda: os.pwrite(file, b"x" * (1 << 20), 0))
    closed = number(lambda: os.close(file))
    assert written or closed, "nothing says that the data is lost"
    file = os.open(path, os.O_RDWR)
    written = number(lambda: os.pwrite(file, b"x" * (1 << 20), 0))
    assert written or number(lambda: os.fsync(file)), "fsync does not say it either"
    number(lambda: os.close(file))
os.close(os.open(path, os.O_RDONLY))
END
}

# works FILE: with room again, all calls succeed.
works() {
    rm "$SCRATCH/disk/filler"
    python3 - "$1" <<'END' || fail "$2: with room again"
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(file, b"stored", 0)
os.fsync(file)
os.close(file)
END
    grep -q '^stored' "$SCRATCH/disk/dir/pool/$(basename "$1")" || fail "$2: what was written is not there"
}

for flags in "" "--no-passthrough" "--write-back"; do
    # shellcheck disable=SC2086 # none or one
    "$HOTSHELF" mount --ssd "$SSD" --hdd "$SCRATCH/sshfs/pool" "$MNT" --promotion never --adopt $flags
    fill
    tells "$MNT/file" "hybrid mount $flags"
    works "$MNT/file" "hybrid mount $flags"
    "$HOTSHELF" unmount "$MNT"
done

"$HOTSHELF" cache create "$cache" --name "late-errors-$$" --size 64MiB --memory 16MiB >/dev/null
for mode in write-through write-back; do
    "$HOTSHELF" mount --cache "$cache" --cache-mode "$mode" "$SCRATCH/sshfs/pool" "$MNT" --allow-other
    fill
    tells "$MNT/other" "cached mount in $mode"
    works "$MNT/other" "cached mount in $mode"
    "$HOTSHELF" unmount "$MNT"
done
"$HOTSHELF" cache destroy "$cache" >/dev/null
umount "$SCRATCH/sshfs"
unmount_disks
