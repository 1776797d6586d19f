#!/bin/bash
# Eight processes read the same files at the same time through one cache: three in each of two mounts of the directory, and two that link
# the library. The slow side is read once: at most 1.02 of the unique bytes, in the same and in shuffled order, in large and in 4 KiB reads,
# with memory alone and with an SSD. If one of them, or a mount's daemon, is killed meanwhile, the others read the right bytes.
# The bytes are counted twice: by the cache, and by the system calls of bindfs, the slow side, whose files the kernel does not cache.
# TIMEOUT: 240
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 bindfs
HOTSHELF_LIBRARY=$(dirname "$HOTSHELF")/libhotshelf.so
[[ -f $HOTSHELF_LIBRARY ]] || fail "libhotshelf is not built: make build"
export HOTSHELF_LIBRARY PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
name=one-fetch-$$ slow=$SCRATCH/slow one=$SCRATCH/one two=$SCRATCH/two
clean() {
    for at in "$one" "$two"; do
        "$HOTSHELF" unmount "$at" 2>/dev/null || umount -l "$at" 2>/dev/null || true
    done
    for cache in "$SCRATCH/ssd" "$name-memory"; do
        "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
    done
    umount -l "$slow" 2>/dev/null || true
}
trap clean EXIT
mkdir "$SCRATCH/files" "$slow" "$one" "$two"
slow_side() { bindfs -o direct_io,allow_other --multithreaded --read-rate="$1" "$SCRATCH/files" "$slow"; }
slow_side 20M || skip "bindfs does not mount"
# Of several mounts of bindfs this one's daemon is named by the directory.
bindfs_pid=$(pgrep -f "bindfs .*$SCRATCH/files $slow")

# One of the eight: says that it is ready, waits for a line, reads all files, and compares them with what was written.
cat >"$SCRATCH/reader.py" <<'END'
import os, random, sys
at, files, piece, is_shuffled, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "shuffled", int(sys.argv[5])
is_linked = number >= 6
names = sorted(os.listdir(files))
expected = {}
for name in names:
    with open(os.path.join(files, name), "rb") as file:
        expected[name] = file.read()
if is_linked:
    import hotshelf
    opened = {name: hotshelf.File(os.path.join(at, name)) for name in names}
    def read(name, position):
        return opened[name].pread(piece, position)
else:
    opened = {name: os.open(os.path.join(at, name), os.O_RDONLY) for name in names}
    def read(name, position):
        return os.pread(opened[name], piece, position)
pieces = [(name, position) for name in names for position in range(0, len(expected[name]), piece)]
if is_shuffled:
    random.Random(number).shuffle(pieces)
print("ready", flush=True)
sys.stdin.readline()
for count, (name, position) in enumerate(pieces):
    if count == len(pieces) // 8:
        print("reads", flush=True)
    bytes = read(name, position)
    assert bytes == expected[name][position:position + piece], f"{number}: {name} at {position}: {len(bytes)} wrong bytes"
print("read", flush=True)
END

# Starts the eight at the same moment; with a number to kill after that, that one by SIGKILL when it has read some. `daemon`: that of the
# first mount when a reader of it has read some; then its three readers may fail, and one must, or it was too late.
cat >"$SCRATCH/eight.py" <<'END'
import os, signal, subprocess, sys
slow, one, two, files, piece, order, kills, daemon = sys.argv[1:]
reader = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "reader.py")
def start(number):
    at = slow if number >= 6 else one if number % 2 == 0 else two
    return subprocess.Popen([sys.executable, reader, at, files, piece, order, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
readers = [start(number) for number in range(8)]
for reader in readers:
    assert reader.stdout.readline() == b"ready\n"
for reader in readers:
    reader.stdin.write(b"\n")
    reader.stdin.flush()
may_fail = set()
if kills != "none":
    may_fail = {0, 2, 4} if kills == "daemon" else {int(kills)}
    watched = readers[min(may_fail)]
    assert watched.stdout.readline() == b"reads\n"
    os.kill(int(daemon) if kills == "daemon" else watched.pid, signal.SIGKILL)
outputs = [reader.communicate(timeout=100)[0] for reader in readers]
codes = [reader.returncode for reader in readers]
for number, (out, code) in enumerate(zip(outputs, codes)):
    assert number in may_fail or (out, code) == (b"reads\nread\n", 0), f"{number}: {out} {code}"
if kills == "daemon":
    assert any(codes[number] for number in may_fail), "the daemon was killed too late"
elif kills != "none":
    assert codes[int(kills)] == -signal.SIGKILL, f"reader {kills} was killed too late: {codes[int(kills)]}"
END

# What bindfs has read: each request is read from the kernel in 80 bytes or so, and answered by one read of the file.
bindfs_bytes() { awk '/^rchar/ { bytes = $2 } /^syscr/ { calls = $2 } END { print bytes - 80 * int(calls / 2) }' "/proc/$bindfs_pid/io"; }
cache_bytes() {
    "$HOTSHELF" cache status --json "$cache" |
        python3 -c 'import json, sys; print(next(tier["read_bytes"] for tier in json.load(sys.stdin)["tiers"] if tier["name"] == "below"))'
}
# new_files DIRECTORY: files that no cache has.
new_files() {
    mkdir "$1"
    python3 - "$1" <<'END'
import os, sys
for number, size in enumerate((3 << 20, 2_000_003, 1 << 20, 700_001, 4096, 1)):
    with open(os.path.join(sys.argv[1], str(number)), "wb") as file:
        file.write(os.urandom(size))
END
}
# eight WHAT PIECE ORDER [KILLED]: eight readers of new files.
eight() {
    local what=$1 piece=$2 order=$3 killed=${4:-none} dir before_bindfs before_cache unique bytes
    sets=$((sets + 1)) dir=set$sets
    new_files "$SCRATCH/files/$dir"
    unique=$(cat "$SCRATCH/files/$dir"/* | wc -c)
    before_bindfs=$(bindfs_bytes) before_cache=$(cache_bytes)
    python3 "$SCRATCH/eight.py" "$slow/$dir" "$one/$dir" "$two/$dir" "$SCRATCH/files/$dir" "$piece" "$order" "$killed" \
        "$("$HOTSHELF" status --json "$one" | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p' | head -n1)" || fail "$what: the readers"
    for bytes in "bindfs $(($(bindfs_bytes) - before_bindfs))" "the cache $(($(cache_bytes) - before_cache))"; do
        echo "$what: $bytes of $unique"
        # What a killed process was reading is read again.
        [[ $killed != none ]] || ((${bytes##* } * 100 <= unique * 102)) || fail "$what: more than once: $bytes of $unique"
        ((${bytes##* } * 100 >= unique * 98)) || fail "$what: the count is wrong: $bytes of $unique"
    done
}
# begin: two mounts of the directory and the linked programs in $cache, made with the arguments.
begin() {
    "$HOTSHELF" cache create "$@" >/dev/null
    "$HOTSHELF" mount --cache "$cache" "$slow" "$one" --allow-other
    "$HOTSHELF" mount --cache "$cache" "$slow" "$two" --allow-other
}

cache=$name-memory sets=0
begin "$cache" --memory 64MiB
HOTSHELF_CONFIG=$("$HOTSHELF" cache status --json "$cache" | sed -n 's/^ *"settings": "\([^"]*\)".*/\1/p')
export HOTSHELF_CONFIG
eight 'in order, 128 KiB' 131072 same
eight 'in order, 4 KiB' 4096 same
eight 'shuffled, 128 KiB' 131072 shuffled
eight 'shuffled, 4 KiB' 4096 shuffled
eight 'a linked program is killed' 4096 shuffled 7
eight 'a reader of a mount is killed' 131072 same 1
eight "a mount's daemon is killed" 4096 shuffled daemon
clean
is_mounted "$one" && fail "a mount is left"

mkdir -p "$slow"
slow_side 4M
bindfs_pid=$(pgrep -f "bindfs .*$SCRATCH/files $slow")
cache=$SCRATCH/ssd
begin "$cache" --name "$name" --size 64MiB --memory 32MiB
HOTSHELF_CONFIG=$("$HOTSHELF" cache status --json "$cache" | sed -n 's/^ *"settings": "\([^"]*\)".*/\1/p')
eight 'with an SSD, in order, 128 KiB' 131072 same
eight 'with an SSD, shuffled, 4 KiB' 4096 shuffled
