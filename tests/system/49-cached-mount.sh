#!/bin/bash
# TIMEOUT: 600
# TIMEOUT_FULL: 1800
# A directory as a mount whose file data goes through a cache: its calls are those of the directory, other programs see each write and
# each change of theirs is seen, and the cache keeps its pages.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 rsync git sqlite3 python3

parity=$(dirname "$HOTSHELF")/parity
[[ -x $parity ]] || fail "no $parity: cargo build --release --package sim"
slow=$SCRATCH/slow plain=$SCRATCH/plain cache=$SCRATCH/cache through=$SCRATCH/through name=cached-mount-$$
mkdir -p "$MNT"
clean() {
    if [[ -n ${before:-} ]]; then echo "$before" >"$switch"; fi
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || true
    umount -q "$SCRATCH/untyped" || true
    local one
    for one in "$cache" "$through"; do "$HOTSHELF" cache destroy "$one" >/dev/null 2>&1 || true; done
}
trap clean EXIT

mount_cached() { "$HOTSHELF" mount --cache "$cache" "$slow/dir" "$MNT" --allow-other "$@"; }

# Wrong words.
refused 2 'the mount point is missing' "$HOTSHELF" mount --cache nothing "$SCRATCH"
refused 2 'belongs to a pair' "$HOTSHELF" mount --cache nothing --high 90% "$SCRATCH" "$MNT"
refused 1 'no cache named' "$HOTSHELF" mount --cache nothing "$SCRATCH" "$MNT"

fs_of_size slow 1G -b 4096
fs_of_size plain 1G -b 4096
mount -o remount,nosuid,nodev "$slow"
mount -o remount,nosuid,nodev "$plain"
mkdir "$slow/dir" "$plain/dir"
"$HOTSHELF" cache create "$cache" --name "$name" --size 256MiB --memory 64MiB >/dev/null
"$HOTSHELF" cache create "$through" --name "$name-through" --size 64MiB --mode write-through >/dev/null
refused 1 'contain each other' "$HOTSHELF" mount --cache "$cache" "$SCRATCH" "$MNT"

# Calls are those of ext4.
seed=${HOTSHELF_SEED:-77} steps=1500
[[ $FULL == 1 ]] && seed=${HOTSHELF_SEED:-$((RANDOM * 32768 + RANDOM))} steps=20000
for n in 0 1; do
    rm -rf "${plain:?}/dir" "${slow:?}/dir"
    mkdir "$plain/dir" "$slow/dir"
    "$parity" --hotshelf "$HOTSHELF" --cache "$cache" --directory "$slow/dir" --mnt "$MNT" --plain "$plain/dir" \
        --seed $((seed + n)) --steps "$steps" || fail "--seed $((seed + n)) --steps $steps"
    rm -rf "${plain:?}/dir" "${slow:?}/dir"
    mkdir "$plain/dir" "$slow/dir"
    "$parity" --hotshelf "$HOTSHELF" --cache "$cache" --cache-mode write-back --directory "$slow/dir" --mnt "$MNT" --plain "$plain/dir" \
        --seed $((seed + n + 7)) --steps "$steps" || fail "--cache-mode write-back --seed $((seed + n + 7)) --steps $steps"
done
rm -rf "${slow:?}/dir"
mkdir "$slow/dir"

# Real programs; each write is on the slow side when it returns.
mount_cached
mount_point_type=$(findmnt -no FSTYPE "$MNT")
[[ $mount_point_type == fuse.hotshelf-cached ]] || fail "mounted as $mount_point_type"
"$HOTSHELF" status "$MNT" >"$SCRATCH/out"
grep -q "^$MNT  (cached directory)" "$SCRATCH/out" && grep -q "directory $slow/dir" "$SCRATCH/out" && grep -q "^$name " "$SCRATCH/out" ||
    fail "status of the mount: $(cat "$SCRATCH/out")"
# It fails if another mount of this machine has lost its daemon, which is not of this test.
{ "$HOTSHELF" status || true; } >"$SCRATCH/out"
grep -q "^$MNT  (cached directory)" "$SCRATCH/out" || fail "status of all lacks the mount"
[[ $("$HOTSHELF" status --json "$MNT" | python3 -c 'import json, sys; print(json.load(sys.stdin)["cache_status"]["name"])') == "$name" ]] ||
    fail "status as JSON"
cp -a /usr/include "$MNT/include"
diff -r --no-dereference /usr/include "$slow/dir/include" || fail "the slow side differs"
rsync -aHAX --checksum --dry-run --itemize-changes /usr/include/ "$MNT/include/" >"$SCRATCH/out"
[[ ! -s $SCRATCH/out ]] || fail "rsync sees differences: $(head -3 "$SCRATCH/out")"
(cd "$MNT" && git init -q repository && cd repository && cp -r /usr/include/asm-generic . && git add -A &&
    git -c user.name=n -c user.email=e commit -qm all && git fsck --strict) >"$SCRATCH/out" 2>&1 || fail "git: $(cat "$SCRATCH/out")"
sqlite3 "$MNT/data.db" 'create table t(a); with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)
    insert into t select randomblob(200) from n'
[[ $(sqlite3 "$slow/dir/data.db" 'pragma integrity_check; select count(*) from t') == $'ok\n5000' ]] || fail "the database below"

# A change by another program is seen at the next open.
head -c 1M /dev/urandom >"$MNT/file"
cmp "$MNT/file" "$slow/dir/file" || fail "what was written"
for _ in 1 2 3; do
    head -c 1M /dev/urandom >"$slow/dir/file"
    cmp "$MNT/file" "$slow/dir/file" || fail "old bytes after a change below"
done
# So is one behind a file that is open, and an append goes to the present end, not to the one that the kernel knows.
exec 3>>"$MNT/log" 4<"$MNT/log"
echo one >&3
echo other >>"$slow/dir/log"
echo two >&3
[[ $(cat "$slow/dir/log") == $'one\nother\ntwo' ]] || fail "an append overwrote another program's: $(cat "$slow/dir/log")"
wait_until 10 test "$(stat -c %s "$slow/dir/log")" = "$(stat -c %s "$MNT/log")"
[[ $(cat <&4) == $'one\nother\ntwo' ]] || fail "an open file shows old bytes"
exec 3>&- 4<&-
append_beside_another() {
    timeout 60 python3 - "$MNT/shared-log" "$slow/dir/shared-log" <<'END' || fail "an append beside another program's ($1)"
import os, sys
seen, below = sys.argv[1:]
file = os.open(seen, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)
for n in range(100):
    os.write(file, b"one %d\n" % n)
    other = os.open(below, os.O_WRONLY | os.O_APPEND)
    os.write(other, b"other %d\n" % n)
    os.close(other)
assert open(below, "rb").read() == b"".join(b"one %d\nother %d\n" % (n, n) for n in range(100))
END
}
append_beside_another "by /dev/fuse"

mv "$slow/dir/file" "$slow/dir/moved"
wait_until 10 test ! -e "$MNT/file"
cmp "$MNT/moved" "$slow/dir/moved" || fail "a file that was moved below"

# What was read is served by the cache after a remount.
head -c 16M /dev/urandom >"$slow/dir/large"
cat "$MNT/large" "$MNT/large" >/dev/null
"$HOTSHELF" unmount "$MNT"
mount_cached
cat "$MNT/large" >/dev/null
"$HOTSHELF" unmount "$MNT"
mount_cached
cmp "$MNT/large" "$slow/dir/large" || fail "the cached copy differs"

# The daemon is killed: nothing that was written is lost.
head -c 3M /dev/urandom >"$MNT/kept"
sum=$(sha256sum <"$MNT/kept")
kill -9 "$(pgrep -f -- "mount --cache $cache" | head -1)"
umount -l "$MNT"
[[ $(sha256sum <"$slow/dir/kept") == "$sum" ]] || fail "a write is not below after a kill"
mount_cached
[[ $(sha256sum <"$MNT/kept") == "$sum" ]] || fail "a write differs after a kill"
"$HOTSHELF" unmount "$MNT"

# Written back: the mount shows what the directory does not have yet, also after the daemon was killed; unmounting writes all.
refused 1 'in mode write-through' "$HOTSHELF" mount --cache "$through" --cache-mode write-back "$slow/dir" "$MNT"
mount_cached --cache-mode write-back
head -c 3M /dev/urandom >"$MNT/late"
sum=$(sha256sum <"$MNT/late")
[[ $(stat -c %s "$slow/dir/late") == 0 ]] || fail "a write went through"
python3 - "$MNT/late" <<'END'
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
times = set()
for n in range(100):
    os.write(file, b"one line\n")
    times.add(os.fstat(file).st_mtime_ns)
assert len(times) == 100, len(times)
os.ftruncate(file, 3 << 20)
os.fsync(file)
END
# Two mounts of the directory show each change of each other, also within a tick of the clock.
mkdir -p "$SCRATCH/second"
"$HOTSHELF" mount --cache "$cache" --cache-mode write-back --cache-ttl 0 "$slow/dir" "$SCRATCH/second" --allow-other
python3 - "$MNT/two" "$SCRATCH/second/two" <<'END'
import os, sys
writers = [os.open(path, os.O_RDWR | os.O_CREAT) for path in sys.argv[1:]]
times = set()
for n in range(200):
    os.pwrite(writers[0], b"%04d" % n, 0)
    times.add(os.fstat(writers[1]).st_mtime_ns)
    assert os.pread(writers[1], 4, 0) == b"%04d" % n, n
assert len(times) == 200, len(times)
END
"$HOTSHELF" unmount "$SCRATCH/second"

# A file that was opened by one name, and again by another after the first was removed, is one file.
python3 - "$MNT/named" "$MNT/other" <<'END'
import mmap, os, sys
name, other = sys.argv[1:]
first = os.open(name, os.O_RDWR | os.O_CREAT)
os.pwrite(first, b"0" * 5000, 0)
os.fsync(first)
os.link(name, other)
os.unlink(name)
second = os.open(other, os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
def seen():
    os.preadv(second, [page], 0)
    return page[:3]
os.pwrite(first, b"one", 0)
assert seen() == b"one", seen()
os.unlink(other)
os.utime(second, (1 << 31, 1 << 31))
os.pwrite(first, b"two", 0)
assert os.fstat(second).st_mtime < 1 << 31
os.close(first)
assert seen() == b"two", seen()
os.fchown(second, 0, 0)
assert os.fstat(second).st_mtime < 1 << 31, os.fstat(second)
END
kill -9 "$(pgrep -f -- "mount --cache $cache" | head -1)"
umount -l "$MNT"
mount_cached --cache-mode write-back
[[ $(sha256sum <"$MNT/late") == "$sum" ]] || fail "written data differs after a kill"
(cd "$MNT" && git init -q late-repository && cd late-repository && cp -r /usr/include/asm-generic . && git add -A &&
    git -c user.name=n -c user.email=e commit -qm all && git fsck --strict) >"$SCRATCH/out" 2>&1 || fail "git: $(cat "$SCRATCH/out")"
sqlite3 "$MNT/late.db" 'pragma journal_mode=wal; create table t(a); with recursive n(i) as (select 1 union all select i + 1 from n
    where i < 5000) insert into t select randomblob(200) from n' >/dev/null
"$HOTSHELF" unmount "$MNT"
[[ $(sha256sum <"$slow/dir/late") == "$sum" ]] || fail "what was written is not below after an unmount"
[[ $(sqlite3 "$slow/dir/late.db" 'pragma integrity_check; select count(*) from t') == $'ok\n5000' ]] || fail "the database below"
git -C "$slow/dir/late-repository" fsck --strict >"$SCRATCH/out" 2>&1 || fail "git below: $(cat "$SCRATCH/out")"

# The same append with requests over io_uring, where the thread that serves one has its reply.
switch=/sys/module/fuse/parameters/enable_uring
if [[ -w $switch ]]; then
    before=$(cat "$switch")
    echo Y >"$switch"
    mount_cached
    append_beside_another "over io_uring"
    "$HOTSHELF" unmount "$MNT"
    echo "$before" >"$switch"
fi

# A file system that lists no types.
truncate -s 64M "$SCRATCH/untyped.img"
mkfs.ext4 -q -O ^filetype "$SCRATCH/untyped.img"
mkdir "$SCRATCH/untyped"
mount -o loop "$SCRATCH/untyped.img" "$SCRATCH/untyped"
(cd "$SCRATCH/untyped" && mkdir {1..1000} && touch {1001..2000})
"$HOTSHELF" mount --cache "$cache" "$SCRATCH/untyped" "$MNT" --allow-other
listed=$(find "$MNT" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' | wc -l)
"$HOTSHELF" unmount "$MNT"
umount "$SCRATCH/untyped"
[[ $listed == 1000 ]] || fail "$listed of 1000 directories are listed as such"

# Read-only, and an ordinary user's rights.
mount_cached --read-only
touch "$MNT/new" 2>/dev/null && fail "a read-only mount was changed"
"$HOTSHELF" unmount "$MNT"
mount_cached
echo secret >"$slow/dir/private"
chmod 600 "$slow/dir/private"
as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
"${as_nobody[@]}" cat "$MNT/private" 2>/dev/null && fail "nobody read root's file"
mkdir -m 777 "$MNT/open"
"${as_nobody[@]}" touch "$MNT/open/mine"
[[ $(stat -c %u:%g "$slow/dir/open/mine") == 65534:65534 ]] || fail "a new file belongs to $(stat -c %u:%g "$slow/dir/open/mine")"
# A lease on a file of one's own makes nobody wait. The kernel gives none on a file that the mount knows.
"${as_nobody[@]}" touch "$slow/dir/open/leased"
python3 - "$slow/dir/open/leased" "$SCRATCH/leased" <<'END' &
import fcntl, os, signal, sys
os.setgid(65534), os.setuid(65534)
file = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.open(sys.argv[2], os.O_CREAT)
signal.pause()
END
holder=$!
chmod 777 "$SCRATCH"
wait_until 10 test -e "$SCRATCH/leased"
got=0
"${as_nobody[@]}" timeout 10 cat "$MNT/open/leased" 2>"$SCRATCH/out" || got=$?
[[ $got == 1 ]] && grep -q 'temporarily unavailable' "$SCRATCH/out" || fail "an open beside a lease: exit $got, $(cat "$SCRATCH/out")"
kill "$holder"
"$HOTSHELF" unmount "$MNT"

# Blocks that are kept for root are not for others.
fs_of_size small 64M -b 4096 -m 20
chmod 777 "$SCRATCH/small"
"$HOTSHELF" mount --cache "$cache" "$SCRATCH/small" "$MNT" --allow-other
"${as_nobody[@]}" dd if=/dev/zero of="$MNT/full" bs=64K 2>"$SCRATCH/out" && fail "64 MiB took all of /dev/zero"
grep -q 'No space left' "$SCRATCH/out" || fail "$(cat "$SCRATCH/out")"
read -r free available < <(stat -f -c '%f %a' "$SCRATCH/small")
((available < 32 && free > 1000)) || fail "$free blocks are free, $available for all: a user has taken root's"
"$HOTSHELF" unmount "$MNT"
unmount_disks
