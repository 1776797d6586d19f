#!/bin/bash
# TIMEOUT: 300
# Faults of the SSD under a running cache: it goes away, is cut off or full, in write-through and in write-back. Each has its
# stated outcome, nothing is read wrong, and no process is ended by a signal.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/system/_cache-faults.sh
source "$(dirname "$0")/_cache-faults.sh"

# The ways an SSD fails: how it is made, and how it is broken.
#   gone   its file system is shut down: all reads and writes of it are I/O errors
#   cut    the file is shorter: it is truncated
#   short  its file has holes, and their disk is full: only writing fails
break_ssd() {
    local way=$1 name=$2
    rm -rf "$SCRATCH/ssd-$name" && fs_of_size "ssd-$name" 48M -b 4096 -m 0
    case $way in
        gone) echo "xfs_io -x -c shutdown $SCRATCH/ssd-$name" ;;
        cut) echo "truncate -s 1M $SCRATCH/ssd-$name/cache" ;;
        short)
            echo "fallocate --punch-hole -o 4M -l 12M $SCRATCH/ssd-$name/cache"
            echo "dd if=/dev/zero of=$SCRATCH/ssd-$name/rest bs=4K status=none || true"
            ;;
    esac
}

for way in gone cut short; do
    for mode in write-through write-back; do
        name=$way-$mode
        how=$(break_ssd "$way" "$name")
        case_of "$name" "$way" "$mode" "$how" <<'PYTHON'
from faults import *
name, way, mode, how = sys.argv[1:5]
config = begin(name, mode, ssd=f"{SCRATCH}/ssd-{name}/cache", ssd_size="16MiB")
path, clean = f"{SCRATCH}/{name}.data", some(1, 2 << 20)
open(path, "wb").write(clean)
file = hotshelf.File(path, "r+b")
bring(config, file, clean, 400)
# Dirty pages on the SSD, in the second half of the file: in write-back more than memory holds.
dirty = some(2, 1 << 20)
assert file.pwrite(dirty, 1 << 20) == len(dirty)
file.fsync()
assert file.pread(1 << 20, 0) == clean[:1 << 20]
sh(how)
drop_caches()
if mode == "write-through":
    # Nobody notices anything.
    for round in range(3):
        assert file.pread(2 << 20, 0) == clean[:1 << 20] + dirty
        dirty = some(3 + round, 1 << 20)
        assert file.pwrite(dirty, 1 << 20) == len(dirty)
        file.fsync()
        assert open(path, "rb").read() == clean[:1 << 20] + dirty
else:
    assert file.pread(1 << 20, 0) == clean[:1 << 20], "what is clean is read below"
    got = [number(lambda at=at: file.pread(PAGE, at)) for at in range(1 << 20, 2 << 20, PAGE)]
    assert set(got) <= {0, errno.EIO}, set(got)
    assert way == "short" or errno.EIO in got, "nothing was lost?"
    bad = [(1 << 20) + n * PAGE for n, code in enumerate(got) if code]
    for n, code in enumerate(got):
        if not code:
            assert file.pread(PAGE, (1 << 20) + n * PAGE) == dirty[n * PAGE:][:PAGE], "a page that is told is right"
    if bad:
        is_failed(config)
    # Everything else goes on, below.
    other = f"{SCRATCH}/{name}.other"
    with hotshelf.open(other, "w+b", buffering=0) as new:
        for _ in range(3):
            new.pwrite(clean, 0)
            new.fsync()
    assert open(other, "rb").read() == clean
    now = is_failed(config)
    if bad:
        assert number(file.fsync) == errno.EIO, "a loss is told to who syncs"
        now = until(lambda: (lambda now: now["lost"] and now)(status(config)))
        lost = [range for range in now["lost"] if range["path"] == path]
        covered = lambda at: any(range["start"] <= at < range["end"] for range in lost)
        assert all(covered(at) for at in bad), (bad, lost)
        assert all(at >= 1 << 20 for range in lost for at in [range["start"]]), lost
    # What is written anew is there again.
    assert file.pwrite(dirty, 1 << 20) == len(dirty)
    assert file.pread(2 << 20, 0) == clean[:1 << 20] + dirty
    until(lambda: number(file.fsync) == 0)
    assert open(path, "rb").read() == clean[:1 << 20] + dirty
file.close()
PYTHON
        umount "$SCRATCH/ssd-$name"
    done
done
