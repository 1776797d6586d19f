#!/bin/bash
# What is changed through one mount of a cached directory, or by a program that uses the cache itself, is read at once through another
# mount, also from files that are open there. A mount that is stopped delays writers once, and no more.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

library=$(dirname "$HOTSHELF")/libhotshelf.so
[[ -e $library ]] || fail "libhotshelf is not built: make build"
slow=$SCRATCH/slow cache=$SCRATCH/cache name=cached-doors-$$ other_mnt=$SCRATCH/other-mnt
mkdir -p "$slow" "$MNT" "$other_mnt"
stopped=
clean() {
    [[ -z $stopped ]] || kill -CONT "$stopped"
    for at in "$MNT" "$other_mnt"; do
        "$HOTSHELF" unmount "$at" >/dev/null 2>&1 || umount -l "$at" 2>/dev/null || true
    done
    "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
}
trap clean EXIT
"$HOTSHELF" cache create "$cache" --name "$name" --size 128MiB --memory 32MiB >/dev/null

cat >"$SCRATCH/doors.py" <<'END'
import ctypes, mmap, os, random, sys
slow, first, second, library, seed = sys.argv[1:]
random.seed(int(seed))
library = ctypes.CDLL(library, use_errno=True)
library.upwrite.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long]
library.upwrite.restype = ctypes.c_ssize_t
library.uftruncate.argtypes = [ctypes.c_int, ctypes.c_long]


class Linked:
    """A file as a program has it that uses the cache itself."""

    def __init__(self, path):
        self.ufd = library.uopen(path.encode(), os.O_RDWR, 0)
        assert self.ufd >= 0, os.strerror(ctypes.get_errno())

    def pwrite(self, data, at):
        assert library.upwrite(self.ufd, data, len(data), at) == len(data), os.strerror(ctypes.get_errno())

    def truncate(self, size):
        assert library.uftruncate(self.ufd, size) == 0, os.strerror(ctypes.get_errno())


class Mounted:
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR)

    def pwrite(self, data, at):
        assert os.pwrite(self.fd, data, at) == len(data)

    def truncate(self, size):
        os.truncate(self.fd, size)


LENGTH = 40_000
content = bytearray(random.randbytes(LENGTH))
with open(slow + "/file", "wb") as out:
    out.write(content)
doors = [Mounted(first + "/file"), Mounted(second + "/file"), Linked(slow + "/file")]
maps = [mmap.mmap(door.fd, 4096, prot=mmap.PROT_READ) for door in doors[:2]]
for step in range(400):
    door = random.choice(doors)
    if random.random() < 0.1:
        size = random.randrange(4096, LENGTH)
        door.truncate(size)
        content = content[:size].ljust(size, b"\0")
    else:
        at = random.randrange(0, len(content))
        data = random.randbytes(random.choice([1, 100, 4096, 9000]))
        door.pwrite(data, at)
        content[at:at + len(data)] = data
    # Through all mounts: the length, all of the data, a new open, and what is mapped.
    for reader, path in zip(doors[:2], (first, second)):
        where = f"step {step}: {type(door).__name__} {doors.index(door)} wrote, read at {path}"
        assert os.fstat(reader.fd).st_size == len(content), where
        assert os.pread(reader.fd, 2 * LENGTH, 0) == content, where
        if step % 8 == 0:
            with open(path + "/file", "rb") as again:
                assert again.read() == content, where
    for mapped in maps:
        assert mapped[:] == content[:4096], f"step {step}: mapped"
END
for mode in write-through write-back; do
    for at in "$MNT" "$other_mnt"; do
        "$HOTSHELF" mount --cache "$cache" --cache-mode "$mode" --uring off "$slow" "$at"
    done
    HOTSHELF_CONFIG=/etc/hotshelf/caches/$name.toml python3 "$SCRATCH/doors.py" "$slow" "$MNT" "$other_mnt" "$library" "$RANDOM" ||
        fail "$mode: a change is not seen"
    # Over a restart of the daemon that reads, too; whoever wrote meanwhile may have left the cache since.
    exec 3<"$other_mnt/file"
    cat <&3 >/dev/null
    "$HOTSHELF" restart "$other_mnt" >/dev/null
    echo after the restart >"$MNT/file"
    [[ $(cat /proc/self/fd/3) == "after the restart" && $(stat -Lc %s /proc/self/fd/3) == 18 ]] || fail "$mode: after a restart"

    # A page that is dirty by a mapping does not bring back what another mount has cut off, and other pages of it are not lost.
    python3 - "$MNT/file" "$other_mnt/file" <<'END' || fail "$mode: a mapping beside a truncation"
import mmap, os, sys
first, second = (os.open(path, os.O_RDWR) for path in sys.argv[1:])
for size in 100, 5000:
    os.ftruncate(first, 0)
    os.ftruncate(first, 1 << 18)
    mapped = mmap.mmap(second, 1 << 18)
    mapped[40 * 4096] = 77
    os.ftruncate(first, size)
    assert [os.fstat(fd).st_size for fd in (first, second)] == [size] * 2
    os.fsync(second)
    assert [os.fstat(fd).st_size for fd in (first, second)] == [size] * 2
    os.ftruncate(first, 1 << 18)
    assert os.pread(first, 1 << 18, 0) == bytes(1 << 18)
    # A fault does not look at the attributes, as the kernel has them.
    os.fstat(second)
    mapped[40 * 4096] = 78
    os.pwrite(first, b"beside it", 4096)
    assert mapped[40 * 4096] == 78 and os.pread(first, 1, 40 * 4096) == b"N"
    mapped.close()
END
    # What a mount that has the file open costs writers, and what two of them cost each other.
    python3 - "$MNT/file" "$other_mnt/file" <<'END' || fail "$mode: two writers"
import os, sys, threading, time
first, second = (os.open(path, os.O_RDWR) for path in sys.argv[1:])
def write(fd, at):
    for n in range(300):
        os.pwrite(fd, b"%4d" % n, at)
for writers in [(first, 0)], [(first, 0), (second, 8192)]:
    threads = [threading.Thread(target=write, args=writer) for writer in writers]
    begun = time.monotonic()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    took = time.monotonic() - begun
    print(f"NOTE: {len(writers)} writers: {took / 300 * 1e6:.0f} us a write")
END

    stopped=$(pgrep -f -- "mount --cache $cache .* $other_mnt") || fail "no daemon"
    kill -STOP "$stopped"
    python3 - "$MNT/file" <<'END' || fail "$mode: writes wait for a daemon that is stopped"
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
begun = time.monotonic()
for n in range(500):
    os.pwrite(fd, b"%4d" % n, 0)
# A wait for each of them would take ten seconds.
assert time.monotonic() - begun < 5, time.monotonic() - begun
END
    kill -CONT "$stopped"
    stopped=
    is_seen() { [[ $(head -c 4 "$other_mnt/file") == " 499" ]]; }
    wait_until 10 is_seen
    exec 3<&-
    "$HOTSHELF" unmount "$MNT"
    "$HOTSHELF" unmount "$other_mnt"
done
