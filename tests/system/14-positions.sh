#!/bin/bash
# TIMEOUT: 60
# Positions in a directory of the mount (telldir) are the same on every descriptor, after files came, went and moved, and after a
# remount.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
needs_fuse
cat >positions.py <<'PYTHON'
import ctypes, json, os, sys

libc = ctypes.CDLL(None)
libc.telldir.restype = ctypes.c_long
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
for name in ("telldir", "readdir", "closedir"):
    getattr(libc, name).argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("len", ctypes.c_ushort), ("kind", ctypes.c_ubyte),
                ("name", ctypes.c_char * 256)]


def listed(path, place=None, most=10**9):
    stream, got = libc.opendir(os.fsencode(path)), []
    if place is not None:
        libc.seekdir(stream, place)
    while len(got) < most and (entry := libc.readdir(stream)):
        got.append((Dirent.from_address(entry).name.decode(), libc.telldir(stream)))
    libc.closedir(stream)
    return got


top, what = sys.argv[1:3]
if what == "make":
    json.dump(listed(top), open("kept.json", "w"))
    raise SystemExit
places = json.load(open("kept.json"))
assert len(places) == 602, len(places)
left = {name for name in os.listdir(top) if name.startswith("file")}
for at in (0, 1, 2, 300, 599, 600, 601):
    seen = [name for name, _ in listed(top, places[at][1])]
    before = {name for name, _ in places[: at + 1]}
    assert [name for name in seen if name in left] == [name for name, _ in places[at + 1 :] if name in left], f"seekdir to {at}"
    assert not before.intersection(seen), f"seekdir to {at}"
seen, place = [], None
while got := listed(top, place, 41):
    seen += [name for name, _ in got]
    place = got[-1][1]
assert len(seen) == len(set(seen)) == len(os.listdir(top)) + 2, len(seen)
PYTHON
mkdir -p "$SSD/d" "$HDD/d"
for n in $(seq 300); do : >"$SSD/d/file $n"; done
for n in $(seq 301 600); do : >"$HDD/d/file $n"; done
mount_pair
python3 positions.py "$MNT/d" make
for n in $(seq 1 7 600); do rm "$MNT/d/file $n"; : >"$MNT/d/new $n"; done
for n in 3 4 5; do "$HOTSHELF" migrate "$MNT/d/file $n" --to hdd >/dev/null; done
python3 positions.py "$MNT/d" again || fail "after changes"
unmount_pair
mount_pair
python3 positions.py "$MNT/d" again || fail "after a remount"
unmount_pair
clean_check
