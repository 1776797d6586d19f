#!/bin/bash
# TIMEOUT: 180
# The tools for file systems in images: import, export, dump, resize, check and repair; and what each says when it cannot be done.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need rsync setfattr python3 mountpoint
root_only

image=$SCRATCH/image src=$SCRATCH/src out=$SCRATCH/out.d
fs() { "$HOTSHELF" fs "$@"; }
whole() { fs check "$image" >"$SCRATCH/said" 2>&1 || fail "check: $(cat "$SCRATCH/said")"; }
same() {
    rsync -aHAXn --checksum --itemize-changes --delete "$1" "$2" >"$SCRATCH/said" || fail "$3: rsync"
    [[ ! -s $SCRATCH/said ]] || fail "$3: $(head -3 "$SCRATCH/said")"
}
# damage FILE BYTE: one byte is another one.
damage() {
    python3 -c 'import sys
f = open(sys.argv[1], "r+b")
f.seek(int(sys.argv[2]))
b = f.read(1)[0]
f.seek(-1, 1)
f.write(bytes([b ^ 0x55]))' "$1" "$2"
}
# shape NAME: a number of the first superblock that is whole.
shape() {
    fs dump "$image" --json 2>/dev/null |
        python3 -c 'import json, sys; print([s for s in json.load(sys.stdin)["superblocks"] if "uuid" in s][0][sys.argv[1]])' "$1" || true
}

# A tree with one of everything goes in and comes out the same.
mkdir -p "$src/d/e"
echo hi >"$src/d/e/f"
ln "$src/d/e/f" "$src/hard"
ln -s ../elsewhere "$src/symlink"
mkfifo "$src/pipe"
mknod "$src/device" c 1 3
truncate -s 30M "$src/sparse" && echo end >>"$src/sparse"
setfattr -n user.name -v value "$src/hard"
chown 1234:4321 "$src/d/e/f" && chmod 6751 "$src/d/e/f"
cp -a /usr/include/linux "$src/linux"
touch -d '2001-02-03 04:05:06.789' "$src/d" "$src/symlink" -h
fs mkfs "$image" --size 80MiB --metadata 16MiB >/dev/null
fs import "$image" "$src" /back/up >/dev/null || fail "import"
whole
fs export "$image" /back/up/src "$out" >/dev/null || fail "export"
same "$src/" "$out/src/" "exported differs"
(($(du -s "$out/src" | cut -f1) < 2 * $(du -s "$src" | cut -f1))) || fail "holes are filled"
fs import "$image" "$src/." /all >/dev/null || fail "import of what is in a directory"
rm -rf "$out"
fs export "$image" / "$out" >/dev/null || fail "export of everything"
same "$src/" "$out/all/" "exported differs"

# Nothing is replaced that was not to be, and no way leads out.
fails_with 'is kept' "$HOTSHELF" fs export "$image" /back/up/src/hard "$out/back/up/src"
fails_with 'is kept' "$HOTSHELF" fs import "$image" "$src/hard" /back/up/src
fs export "$image" --force /back/up/src "$out/back/up" >/dev/null || fail "export --force"
fs import "$image" --force "$src" /back/up >/dev/null || fail "import --force"
whole
mkdir "$SCRATCH/trap" "$SCRATCH/target" && ln -s "$SCRATCH/target" "$SCRATCH/trap/src"
fails_with 'in the way' "$HOTSHELF" fs export "$image" --force /back/up/src "$SCRATCH/trap"
[[ -z $(ls -A "$SCRATCH/target") ]] || fail "export wrote through a link"
refused 1 'has no \.\.' "$HOTSHELF" fs export "$image" /back/../back "$out"
refused 1 'has no \.\.' "$HOTSHELF" fs import "$image" "$src" /../x
refused 1 'No such file' "$HOTSHELF" fs export "$image" /nowhere "$out"
refused 2 'required' "$HOTSHELF" fs import "$image"

# dump tells what is where.
fs dump "$image" >"$SCRATCH/said" || fail "dump"
grep -q '^Names /back/up/src/symlink: symbolic link .* -> ../elsewhere$' "$SCRATCH/said" || fail "dump does not show the link"
fs dump "$image" /back/up/src/linux/fs.h --json |
    python3 -c 'import json, sys; assert json.load(sys.stdin)["runs"]' || fail "dump of a file"
refused 1 'no such file' "$HOTSHELF" fs dump "$image" /nowhere

# Larger, smaller, too small.
fs resize "$image" 100MiB >/dev/null && [[ $(stat -c %s "$image") == $((100 << 20)) ]] || fail "it did not grow"
whole
truncate -s 300M "$image"
fs resize "$image" --json | grep -q '"bytes": 314572800' || fail "it did not grow to all of the file"
whole
refused 1 'at least [0-9]* bytes' "$HOTSHELF" fs resize "$image" 1MiB
least=$(sed -n 's/.*at least \([0-9]*\) bytes.*/\1/p' "$SCRATCH/out")
fs resize "$image" "$least" >/dev/null && [[ $(stat -c %s "$image") == "$least" ]] || fail "it did not shrink"
whole
rm -rf "$out"
fs export "$image" / "$out" >/dev/null
same "$src/" "$out/all/" "after it was resized"

# Full: said, and what is in is whole; with more room it goes on.
head -c 40M /dev/urandom >"$SCRATCH/large"
fails_with 'image is full' "$HOTSHELF" fs import "$image" "$SCRATCH/large" /
whole
fs resize "$image" 128MiB >/dev/null && fs import "$image" --force "$SCRATCH/large" / >/dev/null || fail "there is no room after resize"
whole
# Full of names and attributes: the same, and removing makes room.
fs mkfs "$SCRATCH/small" --size 16MiB --metadata 1MiB >/dev/null
mkdir "$SCRATCH/many" && (cd "$SCRATCH/many" && for n in $(seq 600); do head -c 2500 /dev/zero >"$n"; done)
fails_with 'metadata' "$HOTSHELF" fs import "$SCRATCH/small" "$SCRATCH/many" /
fs check "$SCRATCH/small" >/dev/null || fail "full of names: check"
mkdir -p "$MNT"
fs mount "$SCRATCH/small" "$MNT"
fill() {
    local n
    for n in $(seq 1000); do head -c 2500 /dev/zero >"$MNT/more$n" && sync "$MNT/more$n" || return 1; done
}
if fill 2>"$SCRATCH/out"; then fail "there was room"; fi
grep -q 'No space left' "$SCRATCH/out" || fail "$(cat "$SCRATCH/out")"
rm -r "$MNT/many" && echo more >"$MNT/again" && sync "$MNT/again" || fail "there is no room after a removal"
"$HOTSHELF" unmount "$MNT"
fs check "$SCRATCH/small" >/dev/null || fail "check after it was full of names"

# In use: refused by each.
fs mount "$image" "$MNT"
for what in "check $image" "check --repair $image" "dump $image" "resize $image 1GiB" "df $image" \
    "import $image $src /" "export $image / $out" "mount $image $out"; do
    # shellcheck disable=SC2086
    refused 1 'in use' "$HOTSHELF" fs $what
done
"$HOTSHELF" unmount "$MNT"

# Damage of each kind, found without a write, and mended.
cp --sparse=always "$image" "$SCRATCH/good"
mends() {
    local words=$1 left=${2:-}
    before=$(sha256sum <"$image")
    fails_with "$words" "$HOTSHELF" fs check "$image"
    [[ $(sha256sum <"$image") == "$before" ]] || fail "check has written"
    if fs check --repair "$image" >"$SCRATCH/said" 2>&1; then [[ -z $left ]] || fail "nothing is left: $(cat "$SCRATCH/said")"; else
        [[ -n $left ]] && grep -q "$left" "$SCRATCH/said" || fail "repair: $(cat "$SCRATCH/said")"
    fi
    [[ -n $left ]] || whole
}
again() { cp --sparse=always "$SCRATCH/good" "$image"; }
damage "$image" 100 && mends 'superblock 0'
again && damage "$image" 4200 && mends 'superblock 1'
page=$(($(shape bitmaps_start) * 4096))
again && damage "$image" $((page + 200)) && damage "$image" $((page + 4096 + 200)) && mends 'a page of the bitmaps'
rm -rf "$out" && fs export "$image" /all "$out" >/dev/null
same "$src/" "$out/all/" "after bitmaps were mended"
again
leaf=$(fs dump "$image" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["superblocks"][0]["root_of_names"]["slot"])')
damage "$image" $(($(shape nodes_start) * 4096 + leaf * 16384 + 5000)) && mends 'node at block'
fs mount "$image" "$MNT" && [[ $(find "$MNT/lost+found" -type f | wc -l) -gt 700 ]] || fail "entries are not in lost+found"
"$HOTSHELF" unmount "$MNT"
again
block=$(fs dump "$image" /large | sed -n '2,$s/.* at \([0-9]*\)-.*/\1/p' | head -1)
damage "$image" $((block * 4096 + 77)) && mends '/large.*are not what was written' '/large'
fs mount "$image" "$MNT" && { cat "$MNT/large" >/dev/null 2>"$SCRATCH/out" && fail "damaged data is read"; }
grep -q 'Input/output error' "$SCRATCH/out" || fail "$(cat "$SCRATCH/out")"
"$HOTSHELF" unmount "$MNT"
fails_with 'is not what was written' "$HOTSHELF" fs export "$image" --force /large "$out"
[[ ! -e $out/large ]] || fail "half a file is exported"
fs check "$image" --no-data >/dev/null || fail "check --no-data looks at data"
fs check --repair --accept-data "$image" >/dev/null || fail "repair --accept-data"
whole

# No image, cut off, of a later version: said by each, and nothing is made up.
again
cp --sparse=always "$image" "$SCRATCH/cut" && truncate -s 64M "$SCRATCH/cut"
cp --sparse=always "$image" "$SCRATCH/none" && damage "$SCRATCH/none" 100 && damage "$SCRATCH/none" 4200
cp --sparse=always "$image" "$SCRATCH/later"
python3 - "$SCRATCH/later" <<'PYTHON'
import sys

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

with open(sys.argv[1], "r+b") as file:
    for copy in (0, 4096):
        file.seek(copy)
        block = bytearray(file.read(512))
        block[32:36] = (3).to_bytes(4, "little")
        block[4:8] = crc32c(bytes(block[:4] + block[8:])).to_bytes(4, "little")
        file.seek(copy)
        file.write(block)
PYTHON
for what in "cut:cut off" "none:no file system of hotshelf" "later:version 3"; do
    for command in check "check --repair" df "mount $MNT" "resize 1GiB" "export / $out" "import $src /"; do
        words=($command)
        file=$SCRATCH/${what%%:*}
        before=$(sha256sum <"$file")
        case ${words[0]} in
            import) refused 1 "${what#*:}" "$HOTSHELF" fs import "$file" "$src" / ;;
            check) refused 1 "${what#*:}" "$HOTSHELF" fs "${words[@]}" "$file" ;;
            *) refused 1 "${what#*:}" "$HOTSHELF" fs "${words[0]}" "$file" "${words[@]:1}" ;;
        esac
        [[ $(sha256sum <"$file") == "$before" ]] || fail "$command has written to $file"
    done
    fails_with "${what#*:}" "$HOTSHELF" fs dump "$SCRATCH/${what%%:*}"
done

# An I/O error of the device below: said, and what was there is there.
if command -v dmsetup >/dev/null && losetup -f >/dev/null 2>&1 && dmsetup targets 2>/dev/null | grep -q '^error'; then
    loop=$(losetup -f --show "$image")
    sectors=$(blockdev --getsz "$loop") bad=$((block * 8)) name=hotshelf-93-$$
    trap 'dmsetup remove -f "$name" 2>/dev/null; losetup -d "$loop" 2>/dev/null' EXIT
    printf '0 %s linear %s 0\n%s 8 error\n%s %s linear %s %s\n' \
        "$bad" "$loop" "$bad" $((bad + 8)) $((sectors - bad - 8)) "$loop" $((bad + 8)) |
        dmsetup create "$name"
    fails_with '/large.*cannot be read' "$HOTSHELF" fs check "/dev/mapper/$name"
    fs mount "/dev/mapper/$name" "$MNT"
    cat "$MNT/large" >/dev/null 2>"$SCRATCH/out" && fail "what cannot be read is read"
    grep -q 'Input/output error' "$SCRATCH/out" || fail "$(cat "$SCRATCH/out")"
    cmp "$MNT/all/linux/fs.h" "$src/linux/fs.h" || fail "other files suffer"
    "$HOTSHELF" unmount "$MNT"
    dmsetup remove "$name" && losetup -d "$loop"
    trap - EXIT
else
    echo "note: no device mapper: I/O errors are left to the tests of crates/filesystems/rawfs"
fi
