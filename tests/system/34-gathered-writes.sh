#!/bin/bash
# `--write-back`: the kernel's write-back cache. Closed or flushed data is in the backing file; readers see no holes or old sizes; files
# move while data is dirty; full disks are reported; a killed daemon loses only data that was neither closed nor flushed.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 setpriv fusermount3

cat >"$SCRATCH/lib.py" <<'END'
import errno, mmap, os, subprocess, sys
mnt, ssd, hdd, hotshelf = sys.argv[1:5]
def below(name):
    sides = [side for side in (ssd, hdd) if os.path.exists(f"{side}/{name}")]
    assert len(sides) == 1, (name, sides)
    return open(f"{sides[0]}/{name}", "rb").read()
def make(name, flags=os.O_WRONLY, mode=0o644): return os.open(f"{mnt}/{name}", os.O_CREAT | flags, mode)
def read(name): return open(f"{mnt}/{name}", "rb").read()
END
# run WHAT: the program on standard input.
run() {
    cat "$SCRATCH/lib.py" - >"$SCRATCH/run.py"
    python3 "$SCRATCH/run.py" "$MNT" "$SSD" "$HDD" "$HOTSHELF" || fail "$1"
}

mount_pair --write-back --promotion never
says 'the kernel caches writes' || fail "the status does not say it"
run "what is closed or flushed is below" <<'END'
parts = [bytes([n % 251]) * (n % 5000 + 1) for n in range(400)]
whole = bytearray(b"".join(parts))
fd = make("closed")
for part in parts: os.write(fd, part)
os.close(fd)
assert below("closed") == read("closed") == whole
assert os.stat(f"{mnt}/closed").st_blocks * 512 >= len(whole)
# The middle of what is there, through a handle that only writes.
fd = make("closed"); os.pwrite(fd, b"middle", 12345); os.close(fd)
whole[12345:12351] = b"middle"
assert below("closed") == whole
one, two = make("log", os.O_WRONLY | os.O_APPEND), make("log", os.O_WRONLY | os.O_APPEND)
for n in range(100): os.write(one if n % 3 else two, b"line %d\n" % n)
os.fsync(two)
assert below("log") == b"".join(b"line %d\n" % n for n in range(100))
os.close(one); os.close(two)
fd = make("mapped", os.O_RDWR)
os.truncate(fd, 10000)
with mmap.mmap(fd, 10000) as mapped: mapped[5000:5005] = b"hello"
os.close(fd)
assert below("mapped")[5000:5005] == b"hello"
times = (1_000_000_000_000_000_007, 1_100_000_000_000_000_009)
fd = make("closed"); os.pwrite(fd, b"x", 0); os.utime(fd, ns=times); os.close(fd)
stat = os.stat(f"{ssd}/closed")
assert (stat.st_atime_ns, stat.st_mtime_ns) == times, stat
END

run "what is not yet closed is seen by all, and moves" <<'END'
fd = make("open")
whole = bytearray(os.urandom(3 << 20))
os.write(fd, whole)
assert os.stat(f"{mnt}/open").st_size == len(whole)
# cp(1) looks for holes first.
subprocess.run(["cp", f"{mnt}/open", f"{ssd}/../copy"], check=True)
assert open(f"{ssd}/../copy", "rb").read() == whole
def put(part, at):
    os.pwrite(fd, part, at)
    whole[at:at + len(part)] = part
for n, to in enumerate(["hdd", "ssd", "hdd"]):
    put(b"%d" % n * 100_000, n * 1_000_000)
    subprocess.run([hotshelf, "migrate", "--to", to, f"{mnt}/open"], check=True, stdout=subprocess.DEVNULL)
    put(b"later %d" % n, n * 1_000_000 + 500_000)
assert read("open") == whole
os.close(fd)
assert below("open") == whole
END

# Killed: what was closed or flushed is there, and the pair is clean.
exec 7>"$MNT/lost"
echo gathered >&7
echo closed >"$MNT/kept"
pid=$(daemon_pid)
kill -9 "$pid"
exec 7>&-
umount -l "$MNT"
# A killed process is not gone at once.
wait_until 10 flock --nonblock "$SSD/.hotshelf/lock" true
clean_check
[[ $(cat "$SSD/kept") == closed ]] || fail "a closed file is lost with the daemon"

# Files of an ordinary user that are write-only, or that others own.
if [[ -r /dev/fuse && -w /dev/fuse ]]; then
    before=$(stat -c %a /dev/fuse)
    trap 'chmod "$before" /dev/fuse' EXIT
    chmod 666 /dev/fuse
    cp "$HOTSHELF" "$SCRATCH/hotshelf"
    root=("$SSD" "$HDD" "$HOTSHELF") HOTSHELF=$SCRATCH/hotshelf SSD=$SCRATCH/user/ssd HDD=$SCRATCH/user/hdd
    mkdir -p "$SSD" "$HDD"
    touch "$SSD/foreign" && chmod 666 "$SSD/foreign"
    chmod 755 "$SCRATCH" "$SCRATCH/user" "$HOTSHELF" && chown 65534:65534 "$SSD" "$HDD" "$MNT"
    as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    "${as[@]}" "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" --write-back "$MNT"
    "${as[@]}" bash -e -s "$MNT" <<'END' || fail "an ordinary user's files"
cd "$1"
printf written >foreign
[[ $(cat foreign) == written ]]
(umask 577 && printf fir >secret)
printf st >>secret
printf F | dd of=secret conv=notrunc status=none
chmod 600 secret
[[ $(cat secret) == First ]]
END
    [[ $(cat "$SSD/secret") == First ]] || fail "a write-only file"
    "${as[@]}" "$HOTSHELF" unmount "$MNT"
    SSD=${root[0]} HDD=${root[1]} HOTSHELF=${root[2]}
    chown 0:0 "$MNT"
fi

# Both sides full: told by the flush or the close, and what was flushed before is whole.
fs_of_size small1 32M -m 0
fs_of_size small2 32M -m 0
SSD=$SCRATCH/small1/pool HDD=$SCRATCH/small2/pool
mount_pair --write-back --reserve 1MiB
run "full disks are told" <<'END'
fd = make("kept"); os.write(fd, b"k" * 1_000_000); os.fsync(fd); os.close(fd)
fd = make("big")
told = None
try:
    for n in range(100): os.write(fd, bytes([n]) * (1 << 20))
    os.fsync(fd)
except OSError as error:
    told = error.errno
try: os.close(fd)
except OSError as error: told = told or error.errno
assert told == errno.ENOSPC, told
os.unlink(f"{mnt}/big")
assert read("kept") == below("kept") == b"k" * 1_000_000
fd = make("again"); os.write(fd, b"a" * 1_000_000); os.fsync(fd); os.close(fd)
assert below("again") == b"a" * 1_000_000
END
unmount_pair
clean_check
unmount_disks
