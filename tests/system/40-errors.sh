#!/bin/bash
# Bad input gets one clear line, and nothing is lost.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse

mkdir -p "$SSD" "$HDD" "$MNT" "$SCRATCH/other"
echo data >"$HDD/file"
hs=("$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD")
refused 1 'no such directory' "$HOTSHELF" mount --ssd "$SSD" --hdd "$SCRATCH/none" "$MNT"
refused 1 'mount point .* is not a directory' "${hs[@]}" "$SCRATCH/none"
refused 1 'is inside' "$HOTSHELF" mount --ssd "$SSD" --hdd "$SSD" "$MNT"
mkdir "$SSD/inner"
refused 1 'is inside' "${hs[@]}" "$SSD/inner"
rmdir "$SSD/inner"
refused 1 'no policy' "${hs[@]}" --policy clairvoyant "$MNT"
refused 2 'is above --high' "${hs[@]}" --low 90% --high 50% "$MNT"
refused 1 'not a glob' "${hs[@]}" --pin '[' "$MNT"
refused 2 'not a size' "${hs[@]}" --high lots "$MNT"
refused 2 'unexpected argument' "${hs[@]}" --turbo "$MNT"
refused 2 'unknown mount option' "${hs[@]}" -o turbo "$MNT"
printf 'ssd = "x"\nturbo = true\n' >"$SCRATCH/bad.toml"
refused 2 'bad.toml:2.*turbo' "$HOTSHELF" mount --config "$SCRATCH/bad.toml" "$MNT"

mount_pair
refused 1 'in use' "${hs[@]}" "$MNT"
refused 1 'in use' "${hs[@]}" "$SCRATCH/other"
refused 1 'is mounted' "$HOTSHELF" check "$SSD" "$HDD"
refused 1 'not below a hotshelf mount' "$HOTSHELF" why "$SCRATCH/other"
exec 9>"$MNT/held"
refused 1 'in use by' "$HOTSHELF" unmount --timeout 0 "$MNT"
exec 9>&-
[[ $(cat "$MNT/file") == data ]] || fail "what was on the HDD is not there"
# Both sides hold a path: the SSD's wins, the HDD's stays, and status says so at the next mount.
unmount_pair
echo ssd >"$SSD/twice"
echo hdd >"$HDD/twice"
mount_pair
wait_until 10 bash -c "'$HOTSHELF' status --json '$MNT' | grep -q twice"
[[ $(cat "$MNT/twice") == ssd && $(cat "$HDD/twice") == hdd ]] || fail "the conflict was not kept"
unmount_pair
refused 1 'conflict: twice' bash -c "'$HOTSHELF' check '$SSD' '$HDD' | grep conflict; exit 1"
rm "$HDD/twice"

# A disk that is not mounted must not look like an empty one.
mv "$HDD/.hotshelf" "$SCRATCH/kept"
refused 1 'is the disk mounted' "${hs[@]}" "$MNT"
mv "$SCRATCH/kept" "$HDD/.hotshelf"
refused 1 'exchange --ssd and --hdd' "$HOTSHELF" mount --ssd "$HDD" --hdd "$SSD" "$MNT"

# Our own files damaged: the mount works, says so, and keeps what was damaged.
for name in journal history; do
    printf 'garbage that is long enough to be looked at' >"$SSD/.hotshelf/$name"
    mount_pair
    "$HOTSHELF" status "$MNT" | grep -q "damaged" || fail "a damaged $name is not told"
    [[ $(cat "$MNT/file") == data ]] || fail "file is gone after a damaged $name"
    unmount_pair
    ls "$SSD/.hotshelf/$name".damaged-* >/dev/null || fail "the damaged $name was not kept"
    rm "$SSD/.hotshelf/$name".damaged-*
done
printf 'hsjr\377\0\0\0' >"$SSD/.hotshelf/journal"
refused 1 'newer hotshelf' "${hs[@]}" "$MNT"
rm "$SSD/.hotshelf/journal"
mount_pair --read-only
touch "$MNT/new" 2>"$SCRATCH/err" && fail "read-only took a change"
grep -q 'Read-only' "$SCRATCH/err" || fail "another error: $(cat "$SCRATCH/err")"
unmount_pair
clean_check
