#!/bin/bash
# `hotshelf cache`: made, used, looked at, changed, looked over, removed; wrong input of every kind; killed at any moment.
# TIMEOUT: 200
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"

export XDG_CONFIG_HOME=$SCRATCH/conf
unset HOTSHELF_CONFIG
name=test-$$
cache() { "$HOTSHELF" cache "$@"; }
settings=$XDG_CONFIG_HOME/hotshelf/caches/$name.toml
image=$SCRATCH/image
# What a failed test leaves in shared memory.
runtime=/dev/shm/hotshelf-$name
mkdir "$runtime"
trap 'rm -rf "$runtime"' EXIT
# json FILTER: of the status of the cache.
json() { cache status "$name" --json | python3 -c "import json, sys; s = json.load(sys.stdin); print($1)"; }
need python3
says_status() { cache status "$name" | grep -q -- "$1"; }
in_use() { [[ $(json 's["in_use"]') == "$1" ]]; }
nothing_made() { [[ -z $(find "$1" -mindepth 1 ! -name lost+found) ]] || fail "something is left: $(ls -lA "$1")"; }

# ---- made
cache create "$image" --size 64MiB --name "$name" --memory 32MiB --dirty-age 1h --runtime-dir "$runtime" >out
grep -q "export HOTSHELF_CONFIG=$settings" out || fail "create does not say how to use it: $(cat out)"
[[ $(stat -c '%a %s' "$image") == "600 $((64 << 20))" ]] || fail "the image: $(stat -c '%a %s' "$image")"
(($(stat -c '%b * %B' "$image") >= 64 << 20)) || fail "the image has holes"
{ grep -q '^name' "$settings" && ! grep -q read_ahead "$settings"; } || fail "the settings: $(cat "$settings")"
says_status 'not in use' || fail "status of a cache that is new"
for words in "cache status $name" "cache status $image" "status $image" "status $name" "check $image" "cache check $name"; do
    read -ra words <<<"$words"
    "$HOTSHELF" "${words[@]}" >out || fail "${words[*]}: $(cat out)"
done
grep -q '^clean$' out || fail "a new cache is not clean: $(cat out)"
# It fails, having told of all others, where a mount of the machine is dead: another test may have killed its daemon just now.
{ "$HOTSHELF" status || true; } >out
grep -q "^$name" out || fail "status does not name it: $(cat out)"
{ "$HOTSHELF" status --json || true; } >out
python3 -c "import json, sys; sys.exit(not any(s.get('name') == '$name' for s in json.load(sys.stdin)))" <out ||
    fail "status --json does not name it"

# ---- wrong input
mkdir "$SCRATCH/empty"
refused 1 'there is a hotshelf cache, which is kept' cache create "$image" --name "$name"
refused 1 'is called .* already' cache create "$SCRATCH/other" --size 1MiB --name "$name"
refused 1 'its size has to be said' cache create "$SCRATCH/empty/c"
refused 1 'there is no directory' cache create "$SCRATCH/none/c" --size 1MiB
refused 1 'is a directory' cache create "$SCRATCH/empty" --size 1MiB
refused 1 'neither a file nor a block device' cache create /dev/null --size 1MiB
refused 1 'smaller --size' cache create "$SCRATCH/empty/c" --size 1000TiB
refused 1 'too few' cache create "$SCRATCH/empty/c" --size 1000
refused 1 'there is no group' cache create "$SCRATCH/empty/c" --size 1MiB --group no-such-group-here
refused 2 'see .hotshelf cache' cache create "$SCRATCH/empty/c" --size lots
refused 2 'see .hotshelf cache' cache create "$SCRATCH/empty/c" --mode fast
refused 2 'see .hotshelf cache' cache create "$SCRATCH/empty/c" --size 1MiB --turbo
refused 2 'is no name' cache create "$SCRATCH/empty/c" --size 1MiB --name ../x
refused 2 'see .hotshelf cache' cache create
refused 2 'see .hotshelf cache' cache mode "$image" fast
refused 2 'see .hotshelf cache' cache resize "$image"
refused 1 'no cache named' cache status no-such-cache
refused 1 'cache create' cache check "$SCRATCH/empty/none"
refused 1 'is not attached' cache detach "$image"
refused 1 'has the settings of' cache status "$SCRATCH/empty" --config "$settings"
refused 1 'configuration file' cache status --config "$SCRATCH/empty/none.toml"
nothing_made "$SCRATCH/empty"
printf 'precious' >"$SCRATCH/precious"
truncate -s 8M "$SCRATCH/precious"
refused 1 'there is data of a kind' cache create "$SCRATCH/precious" --name precious
refused 1 'no cache here' cache check "$SCRATCH/precious"
refused 1 'no cache here' cache destroy "$SCRATCH/precious" --discard
[[ $(head -c 8 "$SCRATCH/precious") == precious ]] || fail "a file that is no cache was changed"
mkdir -p "$XDG_CONFIG_HOME/hotshelf/caches"
printf '[cache]\nname = "bad"\ncolour = 1\n' >"$XDG_CONFIG_HOME/hotshelf/caches/bad.toml"
refused 1 'colour' cache status bad
fails_with 'colour' "$HOTSHELF" status
rm "$XDG_CONFIG_HOME/hotshelf/caches/bad.toml"

# Settings that cannot be written leave no cache that nobody knows.
touch "$SCRATCH/file"
XDG_CONFIG_HOME=$SCRATCH/file refused 1 'settings cannot be written' cache create "$SCRATCH/empty/c" --size 1MiB
nothing_made "$SCRATCH/empty"

# A damaged image, and one of a later version: reported, and not changed.
damaged() { cp "$image" "$SCRATCH/damaged" && printf '%b' "$2" | dd of="$SCRATCH/damaged" bs=1 seek="$1" conv=notrunc status=none; }
damaged 4 '\x02'
printf '\x02' | dd of="$SCRATCH/damaged" bs=1 seek=4100 conv=notrunc status=none
for words in check "resize --size 32MiB" destroy; do
    read -ra words <<<"$words"
    code=0
    cache "${words[0]}" "$SCRATCH/damaged" "${words[@]:1}" >out 2>&1 || code=$?
    { [[ $code == 1 ]] && grep -q 'format version 2; this program knows 1' out; } || fail "${words[*]} of a later version: $(cat out)"
done
damaged 0 'x'
cache check "$SCRATCH/damaged" | grep -q '^clean$' || fail "one damaged superblock of two"
damaged 0 'x' && printf 'x' | dd of="$SCRATCH/damaged" bs=1 seek=4096 conv=notrunc status=none
refused 1 'both its superblocks are damaged' cache check "$SCRATCH/damaged"
cp "$image" "$SCRATCH/damaged" && truncate -s 1M "$SCRATCH/damaged"
refused 1 'fewer than its cache' cache check "$SCRATCH/damaged"
for n in 1 2 3 4 5; do
    head -c 40K /dev/urandom | dd of="$SCRATCH/damaged" bs=1K seek=$((n * 7)) conv=notrunc status=none
    code=0
    cache check "$SCRATCH/damaged" >out 2>&1 || code=$?
    [[ $code == 0 || $code == 1 ]] || fail "check of random bytes: exit $code: $(cat out)"
done
rm "$SCRATCH/damaged"

# ---- killed while it is made: there or not
kill_soon() { timeout --foreground --signal=KILL "0.0$((RANDOM % 40 + 10))" "$HOTSHELF" cache "$@" &>/dev/null || true; }
for ((round = 0; round < (FULL == 1 ? 200 : 20); round++)); do
    kill_soon create "$SCRATCH/empty/k" --size 16MiB --name killed
    if [[ -e $SCRATCH/empty/k ]]; then
        cache check "$SCRATCH/empty/k" >out || fail "half a cache is there: $(cat out)"
        rm "$SCRATCH/empty/k"
    fi
    rm -f "$XDG_CONFIG_HOME"/hotshelf/caches/killed.toml*
    nothing_made "$SCRATCH/empty"
done

# ---- disks, devices, users
if [[ $(id -u) == 0 ]]; then
    fs_of_size small 16M -m 0
    refused 1 'are free there: give a smaller --size' cache create "$SCRATCH/small/c" --size 64MiB
    nothing_made "$SCRATCH/small"
    cache create "$SCRATCH/small/c" --size 80% --name small >/dev/null || fail "a share of what is free"
    cache resize "$SCRATCH/small/c" --size 90% >/dev/null || fail "there is no room for two, but to grow"
    refused 1 'MiB are free there' cache resize "$SCRATCH/small/c" --size 1GiB
    cache check "$SCRATCH/small/c" >/dev/null || fail "a refused resize left something else"
    mount -o remount,ro "$SCRATCH/small"
    refused 1 'read-only file system' cache check "$SCRATCH/small/c"
    refused 1 'ead-only file system' cache create "$SCRATCH/small/d" --size 256KiB --name d
    umount "$SCRATCH/small"
    truncate -s 32M "$SCRATCH/disk"
    if device=$(losetup --find --show "$SCRATCH/disk" 2>/dev/null); then
        mkfs.ext4 -q "$device"
        refused 1 'there is an ext2, ext3 or ext4 file system, which is kept' cache create "$device" --name disk
        mkdir -p "$SCRATCH/mounted" && mount "$device" "$SCRATCH/mounted"
        refused 1 'is in use: mounted' cache create "$device" --name disk --force
        umount "$SCRATCH/mounted"
        cache create "$device" --name disk --force | grep -q 'ext4 file system is overwritten' || fail "--force"
        cache check "$device" >/dev/null || fail "a device"
        cache resize "$device" --size 16MiB >/dev/null || fail "less of a device"
        cache resize "$device" --size 100% | grep -q 'MiB (it was 15' || fail "all of a device again"
        refused 1 'less than that --size' cache resize "$device" --size 64MiB
        cache check "$device" >/dev/null || fail "a device of another size"
        refused 1 'less than that --size' cache create "$device" --name disk --force --size 64MiB
        for ((round = 0; round < (FULL == 1 ? 100 : 10); round++)); do
            kill_soon create "$device" --force --name disk
            cache check "$device" >out 2>&1 || grep -q 'no cache here' out || fail "half a cache on a device: $(cat out)"
        done
        cache create "$device" --name disk --force >/dev/null
        cache destroy "$device" >/dev/null
        refused 1 'no cache here' cache check "$device"
        losetup --detach "$device"
    else
        echo "SKIP in part: no loop device"
    fi
    if setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$SCRATCH" 2>/dev/null; then
        cp "$HOTSHELF" "$SCRATCH/hotshelf" && chmod 755 "$SCRATCH/hotshelf"
        other() { setpriv --reuid 65534 --regid 65534 --clear-groups env XDG_CONFIG_HOME="$SCRATCH/theirs" "$SCRATCH/hotshelf" cache "$@"; }
        refused 1 'may not be read and written by this user' other check "$image"
        refused 1 'may not be read and written by this user' other destroy "$image" --discard
        refused 1 'ermission denied' other create "$SCRATCH/empty/c" --size 1MiB
        [[ -e $image ]] || fail "another user removed it"
    fi
else
    echo "SKIP in part: no root, no disks and users of our own"
fi

# ---- in use
cache attach "$name" >out || fail "attach: $(cat out)"
server=$(sed -n 's/.* by process \([0-9]*\):.*/\1/p' out)
in_use True || fail "attached, and not in use"
cache attach "$name" | grep -q "attached already, by process $server" || fail "attached twice"
[[ $(json 's["leader_pid"]') == "$server" ]] || fail "who leads: $(json 's["leader_pid"]')"
for refused in "check $image" "check $image --repair" "destroy $image --discard" "resize $image --size 32MiB" \
    "create $image --name $name --force"; do
    read -ra refused <<<"$refused"
    refused 1 "in use by process $server" cache "${refused[@]}"
done
json 's["tiers"][0]["ratio"], s["tiers"][0]["read_latency"]["p99_us"], s["ssd"]["write_amplification"]' >/dev/null ||
    fail "status --json lacks something"
json 's["ssd"]["recovery_ms"], s["ssd"]["uuid"][35], s["dirty_bytes"], s["lost"], s["uptime_s"]' >/dev/null ||
    fail "status --json lacks something"
cache status "$name" --prometheus >out
python3 - out <<'PYTHON' || fail "Prometheus: $(cat out)"
import re, sys
kinds, help_of = {}, None
for line in open(sys.argv[1]):
    if line.startswith("# HELP "):
        help_of = line.split()[2]
    elif line.startswith("# TYPE "):
        assert line.split()[2] == help_of, line
        kinds[help_of] = line.split()[3]
    else:
        series = re.fullmatch(r'(hotshelf_[a-z_]+)\{cache="[^"]+"(,[a-z]+="[^"]*")*\} -?[0-9.e+-]+\n', line)
        assert series and series[1].removesuffix("_count") == help_of, line
assert len(kinds) > 35, len(kinds)
PYTHON
[[ $(cache top "$name" --count 2 --interval 100ms --json | wc -l) == 2 ]] || fail "top"
cache top "$name" --count 1 --interval 100ms | grep -q '^below' || fail "top for people"
for mode in write-through write-around read-only pass-through write-back; do
    cache mode "$name" $mode >out || fail "mode $mode: $(cat out)"
    { [[ $(json 's["mode"]') == "$mode" ]] && grep -q "^mode = \"$mode\"" "$settings"; } || fail "mode $mode is not in force"
done
cache flush "$name" | grep -q 'are in their files now' || fail "flush of what is clean"
cache detach "$name" >/dev/null || fail "detach"
in_use False || fail "detached, and in use"

# Killed: nobody leads, and the next one goes on.
cache attach "$name" >out
kill -KILL "$(sed -n 's/.* by process \([0-9]*\):.*/\1/p' out)"
wait_until 10 in_use False
cache attach "$name" >/dev/null || fail "after a kill"
cache detach "$name" >/dev/null

# In the foreground a signal ends it cleanly.
mkfifo ready
"$HOTSHELF" cache serve "$name" --log-level error >ready &
server=$!
read -r said <ready
[[ $said == serving* ]] || fail "serve says '$said'"
kill -TERM $server
wait $server || fail "SIGTERM: exit $?"
in_use False || fail "ended, and in use"

# ---- with a program
cat >use.py <<'PYTHON'
"""use.py LIBRARY WORK FILE PAGES: `write` or `read` them through the cache; `hold`
and `synced` (after ufsync) wait then for a line."""
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], use_errno=True)
library.hs_error.restype = ctypes.c_char_p
library.upwrite.argtypes = library.upread.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64]
work, path, pages = sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
def must(ok):
    if not ok:
        sys.exit(f"{work}: {library.hs_error().decode()}")
page = lambda n: bytes([n % 251]) * 4096
ufd = library.uopen(path, os.O_RDWR | os.O_CREAT, 0o644)
must(ufd >= 0)
buffer = ctypes.create_string_buffer(4096)
for n in range(pages):
    if work == "read":
        must(library.upread(ufd, buffer, 4096, n * 4096) == 4096)
        assert buffer.raw == page(n), f"page {n} is another"
    else:
        must(library.upwrite(ufd, page(n), 4096, n * 4096) == 4096)
if work != "hold":
    must(library.ufsync(ufd) == 0)
if work in ("hold", "synced"):
    print("written", flush=True)
    sys.stdin.readline()
must(library.uclose(ufd) == 0)
must(library.hs_shutdown() == 0)
PYTHON
# is_below FILE PAGES: the file itself has what `write` writes.
is_below() {
    local wanted='b"".join(bytes([n % 251]) * 4096 for n in range(int(sys.argv[2])))'
    python3 -c "import sys; sys.exit(open(sys.argv[1], 'rb').read() != $wanted)" "$@"
}
library=$(dirname "$HOTSHELF")/libhotshelf.so
export HOTSHELF_CONFIG=$settings
use() { python3 use.py "$library" "$1" "$SCRATCH/data" 500; }
cache attach "$name" >/dev/null
use write || fail "writing through the cache"
for ((round = 0; round < 3; round++)); do
    use read || fail "reading through the cache"
done
[[ $(json 's["tiers"][0]["hits"] > 0 and s["files"] > 0 and s["syncs"] > 0 and s["ssd"]["written_ever_bytes"] > 0') == True ]] ||
    fail "status does not tell of it: $(cache status "$name" --json)"
cache flush "$name" | grep -q 'are in their files now' || fail "flush"
[[ $(json 's["dirty_bytes"]') == 0 ]] || fail "flushed, and dirty: $(cache status "$name")"
is_below "$SCRATCH/data" 500 ||
    fail "flushed, and the file below is another"
cache detach "$name" >/dev/null || fail "detach after use"

# Killed with dirty pages: nothing that would lose them is done unasked, and flush finds them.
mkfifo in said
python3 use.py "$library" hold "$SCRATCH/data" 500 <in >said &
program=$!
exec 9>in
read -r line <said
[[ $line == written ]] || fail "the program says '$line'"
kill -KILL $program
wait $program 2>/dev/null || true
exec 9>&-
wait_until 10 in_use False
dirty=$(json 's["dirty_bytes"]')
((dirty > 0)) || fail "nothing is dirty after a kill: $(cache status "$name")"
for words in destroy "resize --size 48MiB" "check --repair"; do
    read -ra words <<<"$words"
    refused 1 'in its memory are in no file yet: .hotshelf cache flush' cache "${words[0]}" "$name" "${words[@]:1}"
done
refused 1 'in no file yet' cache create "$image" --name "$name" --force --runtime-dir "$runtime"
[[ -e $image && -e $settings ]] || fail "a refused destroy removed something"
cp "$SCRATCH/data" before
cache flush "$name" | grep -q 'are in their files now' || fail "flush after a kill"
[[ $(json 's["dirty_bytes"]') == 0 ]] || fail "flushed after a kill, and dirty"
use read || fail "after a kill"
cmp -s "$SCRATCH/data" before || fail "the file below changed"
cache check "$name" >out || fail "check after a kill: $(cat out)"

# The same with what is synced: it is on the SSD, and nowhere else.
mkfifo in2 said2
python3 use.py "$library" synced "$SCRATCH/data2" 300 <in2 >said2 &
program=$!
exec 9>in2
read -r line <said2
kill -KILL $program
wait $program 2>/dev/null || true
exec 9>&-
wait_until 10 in_use False
refused 1 'pages are on this SSD only: .hotshelf cache flush' cache destroy "$name"
cache check "$name" >out || fail "check with dirty pages: $(cat out)"
grep -q '^  dirty     [1-9]' out || fail "nothing is dirty on the SSD: $(cat out)"
cache resize "$name" --size 48MiB >/dev/null || fail "resize with dirty pages on the SSD"
cache flush "$name" >/dev/null || fail "flush of what was only on the SSD"
is_below "$SCRATCH/data2" 300 ||
    fail "what was only on the SSD is not below"
unset HOTSHELF_CONFIG

# ---- another size, memory too
cache resize "$name" --size 32MiB --memory 64MiB >/dev/null || fail "resize"
{ [[ $(stat -c %s "$image") == $((32 << 20)) ]] && grep -q '^memory = "64MiB"' "$settings"; } || fail "resized: $(cat "$settings")"
cache check "$name" | grep -q '^clean$' || fail "after a resize"

# ---- without an SSD
cache create "$name-ram" --memory 16MiB >/dev/null || fail "memory alone"
refused 1 'has memory and no SSD' cache check "$name-ram"
cache destroy "$name-ram" >/dev/null || fail "destroy of memory alone"

# ---- removed
cache destroy "$name" >/dev/null || fail "destroy"
[[ ! -e $image && ! -e $settings ]] || fail "destroyed, and something is left"
[[ -z $(find "$runtime" -name "$name.*") ]] || fail "shared memory is left"
refused 1 'no cache named' cache status "$name"
# It may fail because this user cannot mount; this test does not check that.
said=$("$HOTSHELF" doctor || true)
grep -q 'cache: shared memory' <<<"$said" || fail "doctor does not look at shared memory"
