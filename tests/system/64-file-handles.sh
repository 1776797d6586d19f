#!/bin/bash
# File handles (NFS servers, open_by_handle_at) lead to their files after the kernel forgot them, after moves, renames and remounts.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

mount_pair --allow-other
mkdir -p "$MNT/dir/deep"
for name in top dir/file dir/deep/file dir/linked; do echo "$name" >"$MNT/$name"; done
ln "$MNT/dir/linked" "$MNT/second"
for name in top dir/file dir/deep/file; do "$HOTSHELF" migrate "$MNT/$name" --to hdd >/dev/null; done

cat >"$SCRATCH/handles.py" <<'PYTHON'
"""take MOUNT FILE...: prints a handle for each. check MOUNT: reads lines of a handle and what it must lead to ('stale': ESTALE)."""
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def take(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return f"{handle.type} {bytes(handle.data[:handle.bytes]).hex()}"
def opened(at, kind, data, flags):
    handle = Handle(bytes=len(data), type=kind)
    handle.data[:len(data)] = data
    fd = libc.open_by_handle_at(at, ctypes.byref(handle), flags)
    return fd if fd >= 0 else -ctypes.get_errno()
mount = sys.argv[2]
if sys.argv[1] == "take":
    for path in sys.argv[3:]:
        print(take(f"{mount}/{path}"), path)
else:
    at = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    for line in sys.stdin:
        kind, data, want = line.rstrip("\n").split(" ", 2)
        fd = opened(at, int(kind), bytes.fromhex(data), os.O_RDONLY if want.endswith("/") else os.O_RDWR)
        if want == "stale":
            assert fd == -errno.ESTALE, (line, fd)
            continue
        assert fd >= 0, (line, os.strerror(-fd))
        if want.endswith("/"):
            assert sorted(os.listdir(fd)) == sorted(os.listdir(f"{mount}/{want}")), line
        else:
            found = os.read(fd, 100)
            assert found.decode().strip() == want, line
            assert os.pwrite(fd, found, 0) == len(found), line
        os.close(fd)
PYTHON
check() { python3 "$SCRATCH/handles.py" check "$MNT" <"$SCRATCH/handles" || fail "$1"; }
# Files that the kernel forgot are looked up by number: a lookup request shows that it forgot them.
forget() { sync; echo 3 >/proc/sys/vm/drop_caches; }

python3 "$SCRATCH/handles.py" take "$MNT" top dir/file dir/deep/file dir/linked dir/ dir/deep/ >"$SCRATCH/handles"
check "handles that were just taken"
forget
check "handles of files that the kernel forgot"
for to in ssd hdd; do
    for name in top dir/file dir/deep/file; do "$HOTSHELF" migrate "$MNT/$name" --to $to >/dev/null; done
    check "handles after moves to the $to"
    forget
    check "handles after moves to the $to, forgotten"
done
unmount_pair
mount_pair --allow-other
check "handles after a remount"
# One of two names goes; the other is in another directory.
rm "$MNT/dir/linked"
forget
check "a handle of a file that lost the name it was taken by"
unmount_pair
mount_pair --allow-other
check "the same after a remount"
kill -9 "$(daemon_pid)"
umount -l "$MNT"
wait_until 20 flock -n "$SSD/.hotshelf/lock" true
mount_pair --allow-other
check "handles after the daemon was killed"
forget
# Removed files are stale, and so are handles that never were.
rm "$MNT/top"
sed -i 's/ top$/ stale/' "$SCRATCH/handles"
forget
check "the handle of a removed file"
unmount_pair
mount_pair --allow-other
check "the handle of a removed file after a remount"

# An NFS server and its client.
if command -v ganesha.nfsd >/dev/null && command -v nfs-ls >/dev/null; then
    head -c 3000000 /dev/urandom >"$SCRATCH/data"
    cp "$SCRATCH/data" "$MNT/dir/large"
    "$HOTSHELF" migrate "$MNT/dir/large" --to hdd >/dev/null
    port=$((20000 + $$ % 10000))
    cat >"$SCRATCH/ganesha.conf" <<CONF
NFS_CORE_PARAM {
    Protocols = 4; NFS_Port = $port; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false;
    allow_set_io_flusher_fail = true;
}
NFSV4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = "$SCRATCH/recovery"; Only_Numeric_Owners = true; }
NFS_KRB5 { Active_krb5 = false; }
EXPORT { Export_Id = 1; Path = "$MNT"; Pseudo = /pool; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4;
    Transports = TCP; Filesystem_Id = 192.168; FSAL { Name = VFS; } }
CONF
    mkdir -p "$SCRATCH/recovery"
    ganesha.nfsd -F -f "$SCRATCH/ganesha.conf" -L "$SCRATCH/ganesha.log" -p "$SCRATCH/ganesha.pid" -N EVENT >/dev/null 2>&1 &
    server=$!
    url() { echo "nfs://127.0.0.1/pool/$1?version=4&nfsport=$port"; }
    served() { nfs-ls "$(url "")" >/dev/null 2>&1; }
    if ! wait_until 60 served; then fail "no answer"; fi
    nfs-ls "$(url dir)" | grep -q deep || fail "listing through NFS"
    [[ $(nfs-cat "$(url dir/deep/file)") == dir/deep/file ]] || fail "reading through NFS"
    for round in 1 2 3; do
        forget
        [[ $(nfs-cat "$(url dir/deep/file)") == dir/deep/file ]] || fail "reading through NFS in round $round"
        "$HOTSHELF" migrate "$MNT/dir" --to "$([[ $round == 2 ]] && echo hdd || echo ssd)" >/dev/null || true
    done
    # This client cannot write by NFS 4, to no file system: it copies from there.
    forget
    nfs-cp "$(url dir/large)" "$SCRATCH/copied" >/dev/null || fail "copying through NFS"
    cmp "$SCRATCH/copied" "$SCRATCH/data" || fail "what was copied through NFS"
    kill "$server"
    wait "$server" || true
else
    echo "NOTE: no NFS server or client here (ganesha.nfsd, nfs-ls): only open_by_handle_at was tested"
fi
unmount_pair
clean_check
