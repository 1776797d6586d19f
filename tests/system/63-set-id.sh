#!/bin/bash
# TIMEOUT: 120
# Set-id bits and file capabilities after every kind of change by every kind of user: the same as on ext4, seen through a mount and below
# it; and no program runs with rights that a change of it has ended.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3 mkfs.ext4

fs_of_size host 128M
mkdir -p "$SSD" "$HDD" "$MNT" "$SCRATCH/image-mnt" "$SCRATCH/ssd2" "$SCRATCH/hdd2" "$SCRATCH/mnt2"
mount_pair --allow-other -o suid
"$HOTSHELF" mount --ssd "$SCRATCH/ssd2" --hdd "$SCRATCH/hdd2" "$SCRATCH/mnt2" --allow-other -o suid --no-passthrough
"$HOTSHELF" fs mkfs "$SCRATCH/image" --size 256MiB >/dev/null
"$HOTSHELF" fs mount "$SCRATCH/image" "$SCRATCH/image-mnt" --allow-other --suid
cat >"$SCRATCH/set-id.py" <<'PYTHON'
import errno, itertools, json, mmap, os, stat, sys

host, mounts = sys.argv[1], [place.split("=") for place in sys.argv[2:]]
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
OWNER, GROUP = 4242, 5000
USERS = {
    "root": (0, 0, []),
    "owner": (OWNER, OWNER, []),
    "owner in the group": (OWNER, OWNER, [GROUP]),
    "member": (4343, 4343, [GROUP]),
    "member first": (4343, GROUP, []),
    "stranger": (4444, 4444, []),
}
MODES = [0o4755, 0o2755, 0o2745, 0o6777, 0o6775, 0o4775, 0o2765, 0o2767, 0o775]

def opened(flags):
    def change(work):
        def op(path):
            fd = os.open(path, flags)
            try:
                work(fd)
            finally:
                os.close(fd)
        return op
    return change

def mapped(fd):
    with mmap.mmap(fd, 4096) as pages:
        pages[0:1] = b"m"
        pages.flush()

def copied(fd):
    source = os.open(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")) + "/source", os.O_RDONLY)
    try:
        assert os.copy_file_range(source, fd, 16) == 16
    finally:
        os.close(source)

def direct(fd):
    block = mmap.mmap(-1, 4096)
    os.pwritev(fd, [block], 0)

me = os.geteuid
OPS = {
    "write": opened(os.O_WRONLY)(lambda fd: os.write(fd, b"w")),
    "write and read": opened(os.O_RDWR)(lambda fd: os.write(fd, b"w")),
    "append": opened(os.O_WRONLY | os.O_APPEND)(lambda fd: os.write(fd, b"a")),
    "direct": opened(os.O_WRONLY | os.O_DIRECT)(direct),
    "direct and read": opened(os.O_RDWR | os.O_DIRECT)(direct),
    "truncate": lambda path: os.truncate(path, 100),
    "truncate at open": opened(os.O_WRONLY | os.O_TRUNC)(lambda fd: None),
    "ftruncate": opened(os.O_WRONLY)(lambda fd: os.ftruncate(fd, 10)),
    "fallocate": opened(os.O_WRONLY)(lambda fd: os.posix_fallocate(fd, 0, 10000)),
    "copy_file_range": opened(os.O_RDWR)(copied),
    "map": opened(os.O_RDWR)(mapped),
    "chown to nobody in particular": lambda path: os.chown(path, -1, -1),
    "lchown to nobody in particular": lambda path: os.lchown(path, -1, -1),
    "fchown to nobody in particular": opened(os.O_RDONLY)(lambda fd: os.fchown(fd, -1, -1)),
    "fchown of a writer": opened(os.O_WRONLY)(lambda fd: os.fchown(fd, -1, -1)),
    "chown to the owner": lambda path: os.chown(path, OWNER, -1),
    "chown to the group": lambda path: os.chown(path, -1, GROUP),
    "chown to own group": lambda path: os.chown(path, -1, os.getegid()),
    "chmod": lambda path: os.chmod(path, 0o6755),
    "open for writing": opened(os.O_RDWR)(lambda fd: None),
}

cases = list(itertools.product(USERS, MODES, (False, True), OPS))

def file(user, mode, capable, op):
    return f"{user} {mode:o} {'capable' if capable else 'plain'} {op}".replace(" ", "-")

def prepare(place):
    os.chmod(place, 0o755)
    with open(f"{place}/source", "wb") as f:
        f.write(b"s" * 64)
    for case in cases:
        path = f"{place}/{file(*case)}"
        with open(path, "wb") as f:
            f.write(b"x" * 4096)
        os.chown(path, OWNER, GROUP)
        os.chmod(path, case[1])
        if case[2]:
            os.setxattr(path, "security.capability", CAPABILITY)
        os.stat(path)

def look(path):
    try:
        capability = os.getxattr(path, "security.capability").hex()
    except OSError as error:
        assert error.errno == errno.ENODATA, error
        capability = None
    st = os.stat(path)
    return oct(st.st_mode & 0o7777), st.st_uid, st.st_gid, capability

# What each call says, and what is seen afterwards, of one place.
def outcomes(place, below):
    prepare(place)
    results = {}
    for user, (uid, gid, groups) in USERS.items():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            said = []
            for case in cases:
                if case[0] == user:
                    try:
                        OPS[case[3]](f"{place}/{file(*case)}")
                        said.append("done")
                    except OSError as error:
                        said.append(errno.errorcode[error.errno])
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
        os.close(writer)
        said = json.loads(open(reader, "rb").read())
        os.waitpid(pid, 0)
        for case, answer in zip((case for case in cases if case[0] == user), said):
            seen = look(f"{place}/{file(*case)}")
            results[case] = (answer, *seen)
            if below:
                there = look(f"{below}/{file(*case)}")
                assert there == seen, f"{case}: {place} shows {seen}, and below it is {there}"
    return results

expected = outcomes(host, None)
# Not as on ext4, on purpose:
# - A file that is written through memory: the daemon writes what the kernel brings, and the file system below it takes the capabilities
#   of what is written. ext4 lets them stay.
# - chown(path, -1, -1) of a file that somebody has open for writing: the kernel does not tell it from the announcement of a write. It
#   changes nothing then, also for root and for who may not.
# - The same by somebody who may write the file and is not its owner: EPERM, but the capabilities are gone, as after the write.
def differs_on_purpose(case, want, got):
    user, mode, capable, op = case
    if op == "map" and capable and want[0] == "done":
        return got == (*want[:4], None)
    if op == "fchown of a writer" and want[0] == "EPERM":
        return got[:4] == ("done", *want[1:4])
    if op == "fchown of a writer" and user == "root" and capable:
        return got == ("done", oct(mode), *want[2:])
    if "nobody in particular" in op and want[0] == "EPERM" and capable and mode & 0o022:
        return got == (*want[:4], None)
    return False

wrong = 0
for name, place, below in ((name, *paths.split(":")) for name, paths in mounts):
    for case, got in outcomes(place, below).items():
        if got != expected[case] and not differs_on_purpose(case, expected[case], got):
            wrong += 1
            if wrong < 40:
                print(f"{name}: {file(*case)}: ext4 {expected[case]}, here {got}")
print(f"{len(cases)} cases in {len(mounts)} mounts, {wrong} wrong")
sys.exit(wrong > 0)
PYTHON
python3 "$SCRATCH/set-id.py" "$SCRATCH/host" "hybrid=$MNT:$SSD" "through the daemon=$SCRATCH/mnt2:$SCRATCH/ssd2" \
    "image=$SCRATCH/image-mnt:" || fail "not as on ext4"

# A set-user-id program of root that a member of its group writes to, in every way, runs as whoever starts it.
member() { setpriv --reuid 4343 --regid 5000 --clear-groups "$@"; }
for place in "$MNT" "$SCRATCH/mnt2" "$SCRATCH/image-mnt"; do
    for way in append write direct; do
        program=$place/program
        cp "$(command -v id)" "$program"
        chown 0:5000 "$program"
        chmod 6775 "$program"
        [[ $(member "$program" -u) == 0 ]] || fail "$place: a set-user-id program does not run as its owner"
        case $way in
            append) member sh -c "echo more >>'$program'" ;;
            write) member dd if="$program" of="$program" bs=1 count=1 conv=notrunc status=none ;;
            direct) member dd if="$program" of="$program" bs=4096 count=1 conv=notrunc oflag=direct status=none ;;
        esac
        [[ $(member "$program" -u) == 4343 ]] || fail "$place: a program that was written to ($way) runs as its owner"
        rm "$program"
    done
done
# The same while it is open, and its data goes past the daemon: a file that got the bits after it was opened.
head -c 8M /dev/zero | cat "$(command -v id)" - >"$SSD/large"
chown 0:5000 "$SSD/large"
chmod 775 "$SSD/large"
exec 7<>"$MNT/large"
chmod 6775 "$MNT/large"
member "$MNT/large" -u >"$SCRATCH/out" 2>&1 || grep -q 'busy' "$SCRATCH/out" || fail "$(cat "$SCRATCH/out")"
member sh -c "echo more >>'$MNT/large'"
exec 7>&-
[[ $(stat -c %a "$MNT/large") == 775 && $(stat -c %a "$SSD/large") == 775 ]] ||
    fail "a file that bypasses the daemon keeps its bits: $(stat -c %a "$MNT/large" "$SSD/large")"
[[ $(member "$MNT/large" -u) == 4343 ]] || fail "a program that was written to past the daemon runs as its owner"
unmount_pair
"$HOTSHELF" unmount "$SCRATCH/mnt2"
"$HOTSHELF" unmount "$SCRATCH/image-mnt"
unmount_disks
