#!/bin/bash
# TIMEOUT: 120
# A cached mount of directories that behave as network file systems do: one that numbers names instead of files, and one that refuses root
# what it grants the owner of a file (`root_squash` of NFS). And of one with bind mounts below.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 setpriv
mkdir -p "$MNT"
cache=$SCRATCH/cache name=cached-odd-$$
trap '"$HOTSHELF" unmount "$MNT" 2>/dev/null || true; "$HOTSHELF" cache destroy "$cache" >/dev/null 2>&1 || true' EXIT
tested=0

# sshfs gives each name of a file an inode number of its own. What is made is there, and the call says so: a retry would find it.
if has_sshfs; then
    mkdir "$SCRATCH/behind" "$SCRATCH/sshfs"
    mount_sshfs "$SCRATCH/behind" "$SCRATCH/sshfs"
    echo data >"$SCRATCH/sshfs/file"
    "$HOTSHELF" cache create "$cache" --name "$name" --size 64MiB --memory 16MiB >/dev/null
    "$HOTSHELF" mount --cache "$cache" "$SCRATCH/sshfs" "$MNT" --allow-other
    ln "$MNT/file" "$MNT/link" || fail "a link that was made is an error"
    [[ $(cat "$MNT/link") == data && $(cat "$SCRATCH/behind/link") == data ]] || fail "the link is not there"
    refused 1 'File exists' ln "$MNT/file" "$MNT/link"
    mkdir "$MNT/dir" && ln -s file "$MNT/symlink" && echo new >"$MNT/new" && mv "$MNT/new" "$MNT/dir/moved" && mv "$MNT/dir" "$MNT/moved" ||
        fail "a call that makes something failed"
    [[ $(cat "$MNT/moved/moved") == new && $(readlink "$MNT/symlink") == file ]] || fail "what was made and moved"
    # After the kernel has looked the names up again, too.
    sleep 1.2
    [[ $(cat "$MNT/file" "$MNT/link" "$MNT/moved/moved") == $'data\ndata\nnew' ]] || fail "a name is lost"
    echo more >>"$MNT/link"
    [[ $(cat "$SCRATCH/behind/file") == $'data\nmore' ]] || fail "a write by the other name"
    "$HOTSHELF" unmount "$MNT"
    umount "$SCRATCH/sshfs"
    "$HOTSHELF" cache destroy "$cache" >/dev/null
    tested=$((tested + 1))
fi

# A bind mount below leads to the same files, with its own restrictions; one of the whole directory shows it once more.
mkdir -p "$SCRATCH/bound/dir" "$SCRATCH/bound/read-only" "$SCRATCH/bound/whole"
echo one >"$SCRATCH/bound/dir/file"
mount --bind "$SCRATCH/bound/dir" "$SCRATCH/bound/read-only"
mount -o remount,bind,ro "$SCRATCH/bound/read-only"
mount --bind "$SCRATCH/bound" "$SCRATCH/bound/whole"
"$HOTSHELF" cache create "$cache" --name "$name" --size 64MiB --memory 16MiB >/dev/null
"$HOTSHELF" mount --cache "$cache" "$SCRATCH/bound" "$MNT" --allow-other
for order in "dir read-only" "read-only dir"; do
    for dir in $order; do
        [[ $(cat "$MNT/$dir/file") == one ]] || fail "$dir/file by a bind mount"
    done
    fails_with 'Read-only file system' tee -a "$MNT/read-only/file" </dev/null
    fails_with 'Read-only file system' chmod 700 "$MNT/read-only/file"
    fails_with 'Read-only file system' ln "$MNT/read-only/file" "$MNT/read-only/link"
    echo two >>"$MNT/dir/file" || fail "$order: a file that a read-only bind mount leads to, too"
    ln "$MNT/dir/file" "$MNT/dir/link" && mv "$MNT/dir/link" "$MNT/dir/moved" && rm "$MNT/dir/moved" ||
        fail "$order: names beside a bind mount"
    wait_until 10 grep -q two "$MNT/read-only/file"
    [[ $(ls "$MNT/whole") == "$(ls "$MNT")" ]] || fail "a bind mount of the whole"
    [[ $(cat "$MNT/whole/dir/file") == $'one\ntwo' ]] || fail "a file in a bind mount of the whole"
    [[ $(cd "$MNT/dir" && cat "$MNT/read-only/file" >/dev/null && pwd -P) == "$MNT/dir" ]] || fail "a directory has changed places"
    echo one >"$MNT/dir/file"
    "$HOTSHELF" unmount "$MNT"
    "$HOTSHELF" mount --cache "$cache" "$SCRATCH/bound" "$MNT" --allow-other
done
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" cache destroy "$cache" >/dev/null
umount "$SCRATCH/bound/whole" "$SCRATCH/bound/read-only"
tested=$((tested + 1))

# The root of a user namespace has no rights over files whose group the namespace does not map; their owner has.
mkdir "$SCRATCH/squash"
cat >"$SCRATCH/squashed.py" <<'END'
import ctypes, os, sys
GROUP = 5000
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
(begun, tell), (mapped, go) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        os._exit(77)
    os.write(tell, b"x")
    os.read(mapped, 1)
    os.execvp(sys.argv[1], sys.argv[1:])
os.close(tell)
if os.read(begun, 1):
    for name, text in ("uid_map", "0 0 70000\n"), ("gid_map", f"0 0 {GROUP}\n{GROUP + 1} {GROUP + 1} 65000\n"):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(text)
    os.write(go, b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
END
cat >"$SCRATCH/squashed.sh" <<'END'
set -eu
# Not ours to read: otherwise this tests nothing.
if cat "$DIR/secret" >/dev/null 2>&1; then exit 77; fi
"$HOTSHELF" mount --cache "$CACHE" --cache-mode "$1" "$DIR" "$MNT" --allow-other
trap '"$HOTSHELF" unmount "$MNT"' EXIT
setpriv --reuid 1000 --regid 1000 --clear-groups python3 - "$DIR" "$MNT" <<'PYTHON'
import os, sys, time
below, seen = sys.argv[1:]
def content(path):
    with open(path, "rb") as file:
        return file.read()
file = os.open(f"{seen}/secret", os.O_RDWR)
assert os.pread(file, 100, 0) == b"secret\n"
os.pwrite(file, b"SEC", 0)
os.fsync(file)
assert content(f"{below}/secret") == b"SECret\n"
os.ftruncate(file, 3)
os.truncate(f"{seen}/secret", 6)
os.posix_fallocate(file, 0, 100)
os.fsync(file)
assert content(f"{below}/secret") == b"SEC" + bytes(97)
# Other programs' changes are seen behind an open file, and attributes change beside it.
os.chmod(f"{seen}/secret", 0o640)
with open(f"{below}/secret", "wb") as other:
    other.write(b"changed below")
time.sleep(1.2)
assert os.stat(f"{seen}/secret").st_size == 13 and os.pread(file, 100, 0) == b"changed below"
os.pwrite(file, b"C", 0)
os.utime(f"{seen}/secret", (5, 5))
assert os.stat(f"{below}/secret").st_mtime == os.stat(f"{seen}/secret").st_mtime == 5
os.setxattr(f"{seen}/secret", "user.name", b"value")
assert os.getxattr(f"{seen}/secret", "user.name") == b"value" and os.listxattr(f"{seen}/secret") == ["user.name"]
os.link(f"{seen}/secret", f"{seen}/link")
os.rename(f"{seen}/link", f"{seen}/renamed")
os.unlink(f"{seen}/renamed")
os.close(file)
# A directory, and new files, one of a mode that lets nobody open it.
os.mkdir(f"{seen}/dir", 0o700)
dir = os.open(f"{seen}/dir", os.O_RDONLY)
for mode in (0o600, 0o400, 0):
    file = os.open(f"{seen}/dir/{mode:o}", os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    os.write(file, b"new")
    os.fsync(file)
    os.close(file)
os.fsync(dir)
assert content(f"{below}/dir/600") == content(f"{seen}/dir/400") == b"new"
# A write takes set-ID bits.
file = os.open(f"{seen}/program", os.O_RDWR | os.O_CREAT, 0o755)
os.fchmod(file, 0o4755)
os.write(file, b"x")
assert os.stat(f"{below}/program").st_mode & 0o7777 == 0o755
os.close(file)
# Closed, and changed beside the kernel's memory of it.
with open(f"{seen}/secret", "r+b") as file:
    file.write(b"last")
os.chmod(f"{seen}/secret", 0o600)
assert content(f"{seen}/secret") == b"lastged below"
PYTHON
END
for mode in write-through write-back; do
    mkdir "$SCRATCH/squash/$mode"
    echo secret >"$SCRATCH/squash/$mode/secret"
    chmod 600 "$SCRATCH/squash/$mode/secret"
    chown 1000:5000 "$SCRATCH/squash/$mode/secret" "$SCRATCH/squash/$mode"
    # New files have the directory's group.
    chmod 2770 "$SCRATCH/squash/$mode"
    "$HOTSHELF" cache create "$cache" --name "$name" --size 64MiB --memory 16MiB >/dev/null
    got=0
    DIR=$SCRATCH/squash/$mode CACHE=$cache MNT=$MNT HOTSHELF=$HOTSHELF python3 "$SCRATCH/squashed.py" bash "$SCRATCH/squashed.sh" "$mode" \
        >"$SCRATCH/out" 2>&1 || got=$?
    "$HOTSHELF" cache destroy "$cache" >/dev/null
    [[ $got == 77 ]] && break
    [[ $got == 0 ]] || fail "$mode, where root is nobody: $(cat "$SCRATCH/out")"
    [[ $(cat "$SCRATCH/squash/$mode/secret") == "lastged below" ]] || fail "$mode: the last write is not below after unmount"
    tested=$((tested + 1))
done
echo "$tested kinds of directories"
