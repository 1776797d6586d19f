#!/bin/bash
# TIMEOUT: 90
# Handles and positions of an image's mount last: open_by_handle_at after the kernel forgot the file, after a remount, after other
# names; ESTALE for a file that is gone. telldir's positions are the same on every descriptor, after changes and after a remount.
# nfs-ganesha exports the mount.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
root_only
[[ -e /dev/fuse ]] || skip "no /dev/fuse"
image=$SCRATCH/image mnt=$SCRATCH/mnt
mkdir "$mnt"
"$HOTSHELF" fs mkfs "$image" --size 64MiB >/dev/null
up() { "$HOTSHELF" fs mount "$image" "$mnt" >/dev/null || fail "mount: $("$HOTSHELF" fs mount "$image" "$mnt" 2>&1)"; }
down() { "$HOTSHELF" unmount "$mnt" >/dev/null || fail "unmount"; }
trap 'umount -l "$mnt" 2>/dev/null || true' EXIT
cat >handles.py <<'PYTHON'
import ctypes, errno, json, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.telldir.restype = ctypes.c_long
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
for name in ("telldir", "readdir", "closedir"):
    getattr(libc, name).argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def handle(path):
    got, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(got), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return [got.type, bytes(got.data[: got.bytes]).hex()]


def opened(top, kept):
    data = bytes.fromhex(kept[1])
    wanted = Handle(bytes=len(data), type=kept[0], data=(ctypes.c_ubyte * 128)(*data))
    mount = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = libc.open_by_handle_at(mount, ctypes.byref(wanted), os.O_RDONLY)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally:
        os.close(mount)


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("len", ctypes.c_ushort), ("kind", ctypes.c_ubyte),
                ("name", ctypes.c_char * 256)]


def listed(path, place=None, most=10**9):
    """Names from a position on, each with the position behind it."""
    stream, got = libc.opendir(os.fsencode(path)), []
    if place is not None:
        libc.seekdir(stream, place)
    while len(got) < most and (entry := libc.readdir(stream)):
        got.append((Dirent.from_address(entry).name.decode(), libc.telldir(stream)))
    libc.closedir(stream)
    return got


def drop():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


top, what = sys.argv[1:3]
if what == "make":
    os.makedirs(f"{top}/a/b/c")
    os.mkdir(f"{top}/many")
    for n in range(3000):
        open(f"{top}/many/file {n}", "w").close()
    for name in ("a/b/one", "a/b/c/two", "linked", "gone"):
        with open(f"{top}/{name}", "w") as file:
            file.write(name)
    os.link(f"{top}/linked", f"{top}/a/linked")
    kept = {name: handle(f"{top}/{name}") for name in ("a/b/one", "a/b/c/two", "linked", "gone", "a/b", "a/b/c", "many")}
    kept["many/file 1501"] = handle(f"{top}/many/file 1501")
    places = listed(f"{top}/many")
    assert len(places) == 3002, len(places)
    json.dump({"handles": kept, "places": places}, open("kept.json", "w"))
kept = json.load(open("kept.json"))
for turn in range(2):
    drop()
    for name, of in kept["handles"].items():
        if name == "gone" and what != "make":
            try:
                opened(top, of)
                raise SystemExit("a removed file is opened by its handle")
            except OSError as error:
                assert error.errno == errno.ESTALE, error
            continue
        fd = opened(top, of)
        if name in ("a/b", "a/b/c", "many"):
            # The directory above is found, too.
            assert os.stat("..", dir_fd=fd).st_ino == os.stat(f"/proc/self/fd/{fd}/..").st_ino
            assert sorted(os.listdir(fd)) == sorted(os.listdir(f"/proc/self/fd/{fd}"))
        elif name != "many/file 1501":
            assert os.read(fd, 100).decode() == name, name
        os.close(fd)
if what == "make":
    # Other names, and a new file where one was removed.
    os.rename(f"{top}/a/b", f"{top}/moved")
    os.unlink(f"{top}/linked")
    os.unlink(f"{top}/gone")
    with open(f"{top}/gone", "w") as file:
        file.write("another")
    for n in range(0, 3000, 3):
        os.unlink(f"{top}/many/file {n}")
        open(f"{top}/many/new {n}", "w").close()
else:
    left = {f"file {n}" for n in range(3000) if n % 3}
    places = [(name, place) for name, place in kept["places"]]
    for at in (0, 1, 2, 700, 1999, 3000, 3001):
        seen = [name for name, _ in listed(f"{top}/many", places[at][1])]
        behind = [name for name, _ in places[at + 1 :] if name in left]
        before = {name for name, _ in places[: at + 1]}
        assert [name for name in seen if name in left] == behind and not before.intersection(seen), f"seekdir to {at}"
    # A few at a time, each time with another descriptor.
    seen, place = [], None
    while got := listed(f"{top}/many", place, 97):
        seen += [name for name, _ in got]
        place = got[-1][1]
    assert len(seen) == 3002 and len(set(seen)) == 3002, len(seen)
PYTHON
up
python3 handles.py "$mnt" make || fail "handles and positions of files that were just made"
python3 handles.py "$mnt" again || fail "handles and positions after changes"
down
up
python3 handles.py "$mnt" again || fail "handles and positions after a remount"

if command -v ganesha.nfsd >/dev/null && command -v nfs-ls >/dev/null; then
    port=$((20000 + RANDOM % 20000))
    cat >ganesha.conf <<CONF
NFS_CORE_PARAM { Protocols = 4; NFS_Port = $port; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; }
NFSv4 { Graceless = true; RecoveryRoot = "$SCRATCH/recovery"; RecoveryBackend = fs; }
EXPORT { Export_Id = 7; Path = "$mnt"; Pseudo = "/image"; Access_Type = RW; Squash = none; SecType = sys; Protocols = 4; Transports = TCP;
    Filesystem_Id = 7.7; FSAL { Name = VFS; } }
CONF
    mkdir recovery
    ganesha.nfsd -F -f ganesha.conf -L "$SCRATCH/ganesha.log" -p "$SCRATCH/ganesha.pid" -N EVENT &
    server=$!
    trap 'kill -KILL "$server" 2>/dev/null || true; umount -l "$mnt" 2>/dev/null || true' EXIT
    url="nfs://127.0.0.1/image" options="version=4&nfsport=$port"
    wait_until 30 nfs-ls "$url?$options" >/dev/null 2>&1
    echo 2 >/proc/sys/vm/drop_caches
    [[ $(nfs-ls "$url/many?$options" | wc -l) -ge 3000 ]] || fail "NFS lists $(nfs-ls "$url/many?$options" 2>&1 | wc -l) of 3000 files"
    [[ $(nfs-cat "$url/moved/one?$options") == a/b/one ]] || fail "NFS does not read a file"
    echo 2 >/proc/sys/vm/drop_caches
    echo written >sent
    nfs-cp sent "$url/moved/sent?$options" >/dev/null || fail "NFS does not write a file"
    echo 2 >/proc/sys/vm/drop_caches
    [[ $(cat "$mnt/moved/sent") == written && $(nfs-cat "$url/moved/sent?$options") == written ]] ||
        fail "what NFS has written is not there"
    kill "$server" && wait "$server" || true
    trap 'umount -l "$mnt" 2>/dev/null || true' EXIT
else
    echo "NOTE: without ganesha.nfsd or nfs-ls no export over NFS was tried"
fi
down
"$HOTSHELF" fs check "$image" >out || fail "check: $(cat out)"
