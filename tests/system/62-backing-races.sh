#!/bin/bash
# An ordinary user who owns a directory on both sides exchanges names in it, as fast as the machine can, while root's daemon works on the
# same names for them. Files of others in that directory keep their owner, mode, times, attributes and content.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3 setfattr mkfs.ext4

mkdir -p "$SSD/shared/open" "$HDD/shared/open" "$MNT"
chown 4242:4242 "$SSD/shared" "$HDD/shared" "$SSD/shared/open" "$HDD/shared/open"
for side in "$SSD" "$HDD"; do
    echo "root's own" >"$side/shared/victim"
    mkdir "$side/shared/victim-dir"
    echo "cannot be removed" >"$side/shared/victim-dir/file"
    echo "another user's" >"$side/shared/victim2"
    chown 4444:4444 "$side/shared/victim2"
    chmod 600 "$side/shared/victim" "$side/shared/victim2"
    chmod 700 "$side/shared/victim-dir"
    setfattr -n user.note -v kept "$side/shared/victim" "$side/shared/victim2" "$side/shared/victim-dir" 2>/dev/null ||
        skip "no setfattr, or no user attributes here"
    touch -d '2001-02-03 04:05:06' "$side/shared/victim" "$side/shared/victim2" "$side/shared/victim-dir"
    # The owner of a directory may remove what is in it: here the files stay.
    mkdir -m 700 "$side/kept"
    ln "$side/shared/victim" "$side/shared/victim2" "$side/kept"
done
mount_pair --allow-other --min-file-size 0
cat >"$SCRATCH/race.py" <<'PYTHON'
import ctypes, os, stat, subprocess, sys, time

ssd, hdd, mnt, hotshelf = sys.argv[1:]
ATTACKER, SECONDS, EXCHANGE, AT_FDCWD = 4242, 1.0, 2, -100
libc = ctypes.CDLL(None, use_errno=True)

def exchange(a, b):
    return libc.renameat2(AT_FDCWD, a, AT_FDCWD, b, EXCHANGE) == 0

def identity(path):
    # A rename changes the time of the last change and nothing else.
    st = os.lstat(path)
    content = open(path).read() if stat.S_ISREG(st.st_mode) else None
    return st.st_uid, st.st_gid, st.st_mode, st.st_mtime_ns, os.getxattr(path, "user.note", follow_symlinks=False), content

def by_number(side):
    return {os.lstat(f"{side}/shared/{name}").st_ino: f"{side}/shared/{name}" for name in os.listdir(f"{side}/shared")}

FILES, DIRECTORY = ("victim", "victim2"), "victim-dir"

def victims(side):
    paths = {name: f"{side}/kept/{name}" for name in FILES}
    paths[DIRECTORY] = by_number(side)[directories[side]]
    return {name: identity(path) for name, path in paths.items()}

directories = {side: os.lstat(f"{side}/shared/{DIRECTORY}").st_ino for side in (ssd, hdd)}
before = {side: victims(side) for side in (ssd, hdd)}

def as_attacker():
    os.setgroups([])
    os.setresgid(ATTACKER, ATTACKER, ATTACKER)
    os.setresuid(ATTACKER, ATTACKER, ATTACKER)

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

# Exchanges the name the daemon works on with a victim and back, until the time is over. A daemon that changes what it has just made by
# its name takes some microseconds for it: the victim has the name for longer, now and then.
def swap(side, victim):
    as_attacker()
    end = time.monotonic() + SECONDS
    x, v = f"{side}/shared/x".encode(), f"{side}/shared/{victim}".encode()
    tries = 0
    while tries % 256 or time.monotonic() < end:
        tries += 1
        if exchange(x, v):
            for _ in range(tries % 8 * 40):
                pass
            exchange(x, v)

def quietly(call, *args, **named):
    try:
        return call(*args, **named)
    except OSError:
        return None

# Removes what a round left, and gives the victims their names back.
def clear():
    for side in (ssd, hdd):
        for number, path in by_number(side).items():
            if number == directories[side]:
                os.rename(path, f"{side}/shared/{DIRECTORY}")
            elif path.endswith("/open"):
                pass
            elif stat.S_ISDIR(os.lstat(path).st_mode):
                os.rmdir(path)
            else:
                os.unlink(path)
        for name in FILES:
            os.link(f"{side}/kept/{name}", f"{side}/shared/{name}")

x = f"{mnt}/shared/x"
def touch():
    fd = quietly(os.open, x, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o6755)
    if fd is not None:
        quietly(os.fchmod, fd, 0o4777)
        os.close(fd)

def change():
    touch()
    for _ in range(20):
        quietly(os.chmod, x, 0o6777)
        quietly(os.utime, x, (1, 1))
        quietly(os.chown, x, -1, ATTACKER)
        quietly(os.setxattr, x, "user.note", b"attacked")
        quietly(os.removexattr, x, "user.note")
        quietly(os.truncate, x, 3)

def change_dir():
    quietly(os.mkdir, x)
    fd = quietly(os.open, x, os.O_RDONLY)
    for _ in range(20):
        quietly(os.chmod, x, 0o777)
        quietly(os.utime, x, (1, 1))
        quietly(os.setxattr, x, "user.note", b"attacked")
        if fd is not None:
            quietly(os.fchmod, fd, 0o777)
            # A name in it gives it its other half.
            quietly(os.mkdir, f"{x}/y")
            quietly(os.rmdir, f"{x}/y")
    if fd is not None:
        os.close(fd)

def remove_open():
    fd = quietly(os.open, x, os.O_CREAT | os.O_RDWR, 0o666)
    quietly(os.unlink, x)
    if fd is not None:
        quietly(os.fchmod, fd, 0o6777)
        quietly(os.fchown, fd, -1, ATTACKER)
        quietly(os.ftruncate, fd, 1)
        quietly(os.setxattr, fd, "user.note", b"attacked")
        os.close(fd)

rounds = {
    "mknod": lambda: quietly(os.mknod, x, stat.S_IFIFO | 0o666),
    "mknod of a file": lambda: quietly(os.mknod, x, stat.S_IFREG | 0o6777),
    "mkdir": lambda: quietly(os.mkdir, x, 0o777),
    "symlink": lambda: quietly(os.symlink, "/etc/passwd", x),
    "create": touch,
    "link": lambda: (touch(), quietly(os.link, x, f"{mnt}/shared/open/y"), quietly(os.unlink, f"{mnt}/shared/open/y")),
    "changes": change,
    "changes of a directory": change_dir,
    "removal": remove_open,
}

def use(call):
    as_attacker()
    end = time.monotonic() + SECONDS
    done = 0
    while time.monotonic() < end:
        call()
        done += 1
        quietly(os.unlink, x)
        quietly(os.rmdir, x)
        for side in (ssd, hdd):
            quietly(os.unlink, f"{side}/shared/x")
            quietly(os.rmdir, f"{side}/shared/x")
    os.write(results, f"{done}\n".encode())

def move():
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for to in ("hdd", "ssd"):
            subprocess.run([hotshelf, "migrate", x, "--to", to], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)

def check(name, victim):
    for side in (ssd, hdd):
        after = victims(side)
        for file, was in before[side].items():
            if after[file] != was:
                sys.exit(f"{name} beside exchanges with {victim}: {side}: {file} was {was} and is {after[file]}")

for name, call in rounds.items():
    for victim in (DIRECTORY,) if "directory" in name else FILES if name == "changes" else FILES[:1]:
        reader, results = os.pipe()
        children = [child(lambda side=side: swap(side, victim)) for side in (ssd, hdd)] + [child(lambda: use(call))]
        if name in ("create", "changes"):
            children.append(child(move))
        for pid in children:
            os.waitpid(pid, 0)
        done = os.read(reader, 100)
        os.close(reader), os.close(results)
        if not done or int(done) < 5:
            sys.exit(f"{name}: done only {done!r} times")
        print(f"{name} beside exchanges with {victim}: {int(done)} times")
        check(name, victim)
        clear()
PYTHON
python3 "$SCRATCH/race.py" "$SSD" "$HDD" "$MNT" "$HOTSHELF" || fail "a file of others was changed"

attacker() { setpriv --reuid 4242 --regid 4242 --clear-groups "$@"; }

# A directory that somebody makes on one side under the name of another user's on the other side does not open that one.
mkdir -m 700 "$HDD/shared/private"
echo secret >"$HDD/shared/private/file"
chown -R 4444:4444 "$HDD/shared/private"
attacker mkdir -m 777 "$SSD/shared/private"
attacker ls "$MNT/shared/private" >"$SCRATCH/out" 2>&1 && grep -q file "$SCRATCH/out" && fail "another user's directory is listed"
attacker cat "$MNT/shared/private/file" >/dev/null 2>&1 && fail "a file in another user's directory is read"
attacker chmod 777 "$MNT/shared/private" 2>/dev/null || true
attacker setfattr -n user.note -v attacked "$MNT/shared/private" 2>/dev/null || true
[[ $(stat -c %a:%u "$HDD/shared/private") == 700:4444 ]] || fail "another user's directory is $(stat -c %a:%u "$HDD/shared/private")"
[[ -z $(getfattr -n user.note "$HDD/shared/private" 2>/dev/null) ]] || fail "another user's directory has got an attribute"

# Attributes are read of the file that the kernel means, not of what has its name by now.
echo mine >"$SSD/shared/mine"
chown 4242:4242 "$SSD/shared/mine"
attacker getfattr -n user.note "$MNT/shared/mine" >/dev/null 2>&1 && fail "it has no note"
attacker mv "$SSD/shared/mine" "$SSD/shared/aside"
attacker mv "$SSD/shared/victim2" "$SSD/shared/mine"
attacker getfattr --only-values -n user.note "$MNT/shared/mine" >"$SCRATCH/out" 2>/dev/null &&
    fail "an attribute of a file of others is read: $(cat "$SCRATCH/out")"
unmount_pair

# A number that the file system uses again names another file. Without a journal ext4 gives it to the next file.
rm -rf "$SCRATCH/ssd" "$SCRATCH/hdd"
fs_of_size ssd 32M -O ^has_journal
mkdir -p "$HDD" "$SSD/shared"
chown 4242:4242 "$SSD/shared"
mount_pair --allow-other
attacker sh -c "echo mine >'$SSD/shared/mine'"
attacker cat "$MNT/shared/mine" >/dev/null
number=$(stat -c %i "$SSD/shared/mine")
attacker rm "$SSD/shared/mine"
(umask 077 && echo secret >"$SSD/shared/victim")
[[ $(stat -c %i "$SSD/shared/victim") == "$number" ]] || fail "the number is not used again: $number, $(stat -c %i "$SSD/shared/victim")"
attacker mv "$SSD/shared/victim" "$SSD/shared/mine"
attacker cat "$MNT/shared/mine" >"$SCRATCH/out" 2>/dev/null &&
    fail "a file of others is read by a number that was used again: $(cat "$SCRATCH/out")"
attacker chmod 777 "$MNT/shared/mine" 2>/dev/null && fail "a file of others is changed by a number that was used again"
attacker truncate -s 0 "$MNT/shared/mine" 2>/dev/null && fail "a file of others is cut by a number that was used again"
[[ $(stat -c %a:%u:%s "$SSD/shared/mine") == 600:0:7 ]] || fail "a file of others is $(stat -c %a:%u:%s "$SSD/shared/mine")"
unmount_pair
unmount_disks
