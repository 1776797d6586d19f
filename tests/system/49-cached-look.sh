#!/bin/bash
# Looking into a cache and filling it: `why` of files of a cached mount, `cache warm`, `cache evict`.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

slow=$SCRATCH/slow cache=$SCRATCH/cache name=cached-look-$$
mkdir -p "$slow/sub" "$MNT"
clean() {
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || true
    "$HOTSHELF" cache destroy "$cache" --discard >/dev/null 2>&1 || true
    "$HOTSHELF" cache destroy "$name-memory" >/dev/null 2>&1 || true
}
trap clean EXIT
# value NAME FILE: a number of `why --json`.
value() { "$HOTSHELF" why --json "$2" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

head -c 40000000 /dev/urandom >"$slow/large"
for n in 1 2 3; do head -c "${n}000001" /dev/urandom >"$slow/sub/file$n"; done
: >"$slow/empty"
ln -s large "$slow/link"
mkfifo "$slow/sub/pipe"
# Memory for a tenth of it: pages leave it while the SSD takes others.
"$HOTSHELF" cache create "$cache" --name "$name" --size 128MiB --memory 4MiB >/dev/null
"$HOTSHELF" mount --cache "$cache" "$slow" "$MNT"

# Nothing is there, then all is.
[[ $(value cached_bytes "$MNT/large") == 0 ]] || fail 'a file that nobody read is cached'
"$HOTSHELF" cache warm "$MNT" >"$SCRATCH/out" 2>&1 || fail "warm: $(cat "$SCRATCH/out")"
grep -q '^5 files: .* read into the cache, .* were there' "$SCRATCH/out" || fail "warm says: $(cat "$SCRATCH/out")"
for file in large sub/file1 sub/file2 sub/file3; do
    size=$(stat -c %s "$slow/$file")
    [[ $(value on_ssd_bytes "$MNT/$file") == "$size" ]] || fail "$file is not on the SSD: $("$HOTSHELF" why "$MNT/$file")"
done
"$HOTSHELF" why "$MNT/large" >"$SCRATCH/out"
grep -q '^  ssd      \[#\{40\}\]  38.15 MiB, 100 %$' "$SCRATCH/out" || fail "why says: $(cat "$SCRATCH/out")"
grep -q "^  really   $slow/large\$" "$SCRATCH/out" || fail "why says: $(cat "$SCRATCH/out")"

# The second time nothing is read; a list says which.
printf '%s\n' "$MNT/sub/file1" "$MNT/large" | "$HOTSHELF" cache warm --list - --json >"$SCRATCH/out"
grep -q '"files":2,.*"read_bytes":0,' "$SCRATCH/out" || fail "warm again: $(cat "$SCRATCH/out")"

# A write is in the slow directory before its pages leave the cache.
printf 'written through the mount' | dd of="$MNT/sub/file1" conv=notrunc bs=100 seek=50 status=none
"$HOTSHELF" cache evict "$MNT/sub" >"$SCRATCH/out"
[[ $(value cached_bytes "$MNT/sub/file1") == 0 && $(value cached_bytes "$MNT/sub/file3") == 0 ]] || fail "evict: $(cat "$SCRATCH/out")"
[[ $(value on_ssd_bytes "$MNT/large") == 40000000 ]] || fail 'evict took another file'
grep -q 'written through the mount' "$slow/sub/file1" || fail 'evict lost a write'
cmp "$slow/sub/file1" "$MNT/sub/file1"
cmp "$slow/large" "$MNT/large"

# Dirty data is written before it leaves.
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" mount --cache "$cache" --cache-mode write-back "$slow" "$MNT"
printf 'not yet below' | dd of="$MNT/sub/file2" conv=notrunc,fsync bs=100 seek=3 status=none
"$HOTSHELF" cache evict "$MNT/sub/file2" >/dev/null
grep -q 'not yet below' "$slow/sub/file2" || fail 'evict lost a write that was only in the cache'
[[ $(value dirty_bytes "$MNT/sub/file2") == 0 ]] || fail 'still dirty'

# No more is read in a second than was asked for.
"$HOTSHELF" cache evict "$MNT/large" >/dev/null
begin=$(date +%s%N)
"$HOTSHELF" cache warm "$MNT/large" --limit 20MB >/dev/null
took=$((($(date +%s%N) - begin) / 1000000))
((took >= 1500)) || fail "40 MB at 20 MB a second took $took ms"

# What cannot be looked at.
refused 1 'is not a regular file' "$HOTSHELF" why "$MNT/sub"
refused 1 'is a symbolic link' "$HOTSHELF" why "$MNT/link"
fails_with 'is a symbolic link' "$HOTSHELF" cache evict "$MNT/link"
refused 1 'No such file' "$HOTSHELF" why "$MNT/none"
refused 1 'No such file' "$HOTSHELF" cache warm -q "$MNT/none"
refused 1 'is not a regular file' "$HOTSHELF" why "$MNT/sub/pipe"
fails_with 'is not below a cached mount' "$HOTSHELF" cache warm "$slow/large"
refused 1 'no cache named' "$HOTSHELF" cache evict "$slow/large" --cache "none-$$"
fails_with 'reading the list' "$HOTSHELF" cache warm --list "$SCRATCH/none"

# Many files in one call take one place among the cache's processes.
mkdir "$slow/many"
for n in $(seq 70); do echo "$n" >"$slow/many/$n"; done
"$HOTSHELF" why --json "$MNT"/many/* >"$SCRATCH/out" || fail "why of 70 files: $(tail -n 2 "$SCRATCH/out")"
[[ $(grep -c '"size_bytes"' "$SCRATCH/out") == 70 ]] || fail 'why does not tell of 70 files'

# What is mounted below is not cached, and a directory that replaced the mounted one is not read for it.
mkdir "$slow/other"
mount -t tmpfs none "$slow/other"
echo below >"$slow/other/file"
refused 1 'is on another file system' "$HOTSHELF" why "$MNT/other/file"
"$HOTSHELF" cache warm "$MNT/other" >"$SCRATCH/out"
# The mount knows its files.
umount -l "$slow/other"
mv "$slow" "$slow.moved"
mkdir -p "$slow/sub"
echo replaced >"$slow/sub/file1"
refused 1 'is another file' "$HOTSHELF" why "$MNT/sub/file1"
rm -r "$slow"
mv "$slow.moved" "$slow"

# A hole is not read, nor waited for.
truncate -s 1T "$slow/sparse"
"$HOTSHELF" cache warm "$MNT/sparse" --json >"$SCRATCH/out"
grep -q '"read_bytes":0,' "$SCRATCH/out" || fail "a hole: $(cat "$SCRATCH/out")"
rm "$slow/sparse"

# Below the mount too, if the cache is named; and in a cache without an SSD.
"$HOTSHELF" cache warm "$slow/sub/file3" --cache "$cache" >/dev/null
[[ $(value on_ssd_bytes "$MNT/sub/file3") == 3000001 ]] || fail 'warmed by its path below'
"$HOTSHELF" cache create "$name-memory" --memory 16MiB >/dev/null
"$HOTSHELF" cache attach "$name-memory"
"$HOTSHELF" cache warm "$slow/sub" --cache "$name-memory" --json >"$SCRATCH/out"
grep -q '"refused_bytes":0' "$SCRATCH/out" || fail "in memory: $(cat "$SCRATCH/out")"
"$HOTSHELF" cache detach "$name-memory"
