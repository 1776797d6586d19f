#!/bin/bash
# Mounts that must not be: one clear line each, nothing made, nothing lost. And our own files damaged or from the future.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

hs=("$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD")
mkdir -p "$SSD" "$HDD" "$MNT"
echo data >"$HDD/file"
echo fast >"$SSD/fast"

# What is given is not there, is no directory, or is inside the other.
echo file >"$SCRATCH/file"
refused 1 "$SCRATCH/none.*no such directory" "$HOTSHELF" mount --ssd "$SCRATCH/none" --hdd "$HDD" "$MNT"
refused 1 "$SCRATCH/none.*no such directory" "$HOTSHELF" mount --ssd "$SSD" --hdd "$SCRATCH/none" "$MNT"
refused 1 "$SCRATCH/file is not a directory" "$HOTSHELF" mount --ssd "$SCRATCH/file" --hdd "$HDD" "$MNT"
refused 1 "$SCRATCH/file is not a directory" "$HOTSHELF" mount --ssd "$SSD" --hdd "$SCRATCH/file" "$MNT"
refused 1 "$SCRATCH/file is not a directory" "${hs[@]}" "$SCRATCH/file"
mkdir "$SSD/in" "$HDD/in" "$MNT/in"
refused 1 'is inside' "${hs[@]}" "$SSD/in"
refused 1 'is inside' "${hs[@]}" "$HDD/in"
refused 1 'is inside' "$HOTSHELF" mount --ssd "$HDD/in" --hdd "$HDD" "$MNT"
refused 1 'is inside' "$HOTSHELF" mount --ssd "$SSD" --hdd "$SSD/in" "$MNT"
refused 1 'is inside' "$HOTSHELF" mount --ssd "$SSD" --hdd "$MNT/in" "$MNT"
refused 1 'is inside' "$HOTSHELF" mount --ssd "$MNT/in" --hdd "$HDD" "$MNT"
ln -s "$HDD/in" "$SCRATCH/link"
refused 1 'is inside' "$HOTSHELF" mount --ssd "$SCRATCH/link" --hdd "$HDD" "$MNT"
rmdir "$SSD/in" "$HDD/in" "$MNT/in"

# A policy that is none.
refused 1 "policy $SCRATCH/file cannot be loaded" "${hs[@]}" --policy "$SCRATCH/file" "$MNT"
refused 1 "policy $SCRATCH/none.so: No such file" "${hs[@]}" --policy "$SCRATCH/none.so" "$MNT"
chmod 666 "$SCRATCH/file"
refused 1 "others can change $SCRATCH/file" "${hs[@]}" --policy "$SCRATCH/file" "$MNT"
[[ ! -e $HDD/.hotshelf/id || -e $SSD/.hotshelf/id ]] || fail "a refused mount left half a pair"

# The mount point is taken.
mount -t tmpfs other "$MNT"
refused 1 "$MNT is in use: a file system of type tmpfs" "${hs[@]}" "$MNT"
umount "$MNT"
mount_pair
refused 1 "$MNT is in use: a hotshelf is mounted there" "${hs[@]}" "$MNT"
mkdir -p "$SCRATCH/ssd2" "$SCRATCH/hdd2" "$MNT/below"
refused 1 "$MNT is in use: a hotshelf is mounted there" "$HOTSHELF" mount --ssd "$SCRATCH/ssd2" --hdd "$SCRATCH/hdd2" "$MNT"
refused 1 'is in use by another hotshelf' "$HOTSHELF" mount --ssd "$SSD" --hdd "$SCRATCH/hdd2" --adopt "$SCRATCH/hdd2/../mnt/below"
# A pair on a hotshelf's mount is a directory as any other.
rmdir "$MNT/below"
[[ $(cat "$MNT/file") == data && $(cat "$MNT/fast") == fast ]] || fail "files after refused mounts"
unmount_pair

# A disk that is not mounted must not look like an empty one; nor is anything made in its place.
for side in SSD HDD; do
    dir=${!side}
    mv "$dir" "$dir.away"
    mkdir "$dir"
    refused 1 "$dir has no hotshelf identity.*is the disk mounted" "${hs[@]}" "$MNT"
    [[ ! -e $dir/.hotshelf/id ]] || fail "an identity was made in the place of a missing disk"
    rm -r "$dir"
    mv "$dir.away" "$dir"
done
# A new SSD directory for an existing HDD directory needs --adopt.
mv "$SSD" "$SSD.away"
mkdir "$SSD"
mount_pair --adopt
[[ $(cat "$MNT/file") == data ]] || fail "adopted"
unmount_pair
mount_pair
unmount_pair
rm -r "$SSD"
mv "$SSD.away" "$SSD"
mount_pair
[[ $(cat "$MNT/fast") == fast ]] || fail "the old SSD again"
unmount_pair

# damaged FILE BYTES: writes them over one of our files on the SSD; undamaged: as it was.
damage() { cp "$SSD/.hotshelf/$1" "$SCRATCH/kept" 2>/dev/null || : >"$SCRATCH/kept"; printf '%b' "$2" >"$SSD/.hotshelf/$1"; }
undamage() { cp "$SCRATCH/kept" "$SSD/.hotshelf/$1"; }

# Written by a later version: refused, and left alone.
mount_pair
"$HOTSHELF" pin "$MNT/fast" >/dev/null
cat "$MNT/fast" "$MNT/file" >/dev/null
unmount_pair
for what in 'id hsid' 'pins hspn' 'journal hsjr' 'intent hsintnt4'; do
    read -r name magic <<<"$what"
    damage "$name" "$magic\0011\0\0\0some bytes that only the later version knows"
    cp "$SSD/.hotshelf/$name" "$SCRATCH/future"
    refused 1 "$SSD/.hotshelf/$name has version.*newer hotshelf" "${hs[@]}" "$MNT"
    cmp "$SCRATCH/future" "$SSD/.hotshelf/$name" || fail "a $name of the future was changed"
    undamage "$name"
done
# The history only holds heat: one of a later version is reported and kept.
damage history 'hshi\0011\0\0\0some bytes that only the later version knows'
cp "$SSD/.hotshelf/history" "$SCRATCH/future"
mount_pair
says 'newer hotshelf' || fail "a history of the future is not told"
[[ $(cat "$MNT/file") == data ]]
unmount_pair
cmp "$SCRATCH/future" "$SSD/.hotshelf/history" || fail "a history of the future was changed"
undamage history
mount_pair
unmount_pair

# Damaged: mounted with a warning, what was damaged is kept, and no file is touched. The identity cannot be guessed.
for name in journal history pins intent; do
    damage "$name" 'garbage that is long enough to be looked at'
    mount_pair || fail "a damaged $name"
    says 'damaged' || fail "a damaged $name is not told"
    [[ $(cat "$MNT/file") == data && $(cat "$MNT/fast") == fast ]] || fail "files after a damaged $name"
    echo "$name" >"$MNT/new" && mv "$MNT/new" "$MNT/file.$name" || fail "changes after a damaged $name"
    unmount_pair
    grep -q garbage "$SSD/.hotshelf/$name".damaged-* || fail "the damaged $name was not kept"
    rm "$SSD/.hotshelf/$name".damaged-*
done
for side in SSD HDD; do
    dir=${!side}
    printf 'garbage' >"$dir/.hotshelf/id"
    refused 1 "$dir/.hotshelf/id is damaged.*--adopt" "${hs[@]}" "$MNT"
    mount_pair --adopt || fail "a damaged identity is not made anew by --adopt"
    [[ $(cat "$MNT/file") == data && $(cat "$MNT/fast") == fast ]] || fail "files after a damaged identity"
    unmount_pair
    mount_pair
    unmount_pair
done
clean_check

# A file system mounted below a side: its files are seen and used there, and never move.
mkdir "$HDD/sub" "$SSD/top"
mount -t tmpfs -o size=8M sub "$HDD/sub"
mount -t tmpfs -o size=8M top "$SSD/top"
echo there >"$HDD/sub/file"
echo there >"$SSD/top/file"
mount_pair
[[ $(cat "$MNT/sub/file" "$MNT/top/file") == $'there\nthere' ]] || fail "files on a nested mount"
echo new >"$MNT/sub/new" || fail "no new file in the directory of a nested mount"
[[ $(ls "$MNT/sub") == $'file\nnew' ]] || fail "the listing of a nested mount"
for move in 'ssd sub/file' 'hdd top/file' 'hdd sub/new'; do
    read -r to path <<<"$move"
    fails_with 'file system mounted' "$HOTSHELF" migrate --to "$to" "$MNT/$path"
done
no_temporaries || fail "refused moves left copies"
echo changed >"$MNT/sub/file" && [[ $(cat "$HDD/sub/file") == changed ]] || fail "changing a file on a nested mount"
mv "$MNT/sub/file" "$MNT/moved" && [[ $(cat "$MNT/moved") == changed ]] || fail "mv out of a nested mount"
rm "$MNT/sub/new" "$MNT/top/file"
fails_with 'busy' rmdir "$MNT/sub"
echo again >"$MNT/sub/again" && rm "$MNT/sub/again" || fail "a directory that could not be removed is broken"
unmount_pair
umount "$HDD/sub" "$SSD/top"
clean_check

# An ordinary user with somebody else's directories, and without /dev/fuse.
need setpriv unshare
user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
mkdir "$SCRATCH/u" "$SCRATCH/u/ssd" "$SCRATCH/u/hdd" "$SCRATCH/u/mnt"
chown -R 65534:65534 "$SCRATCH/u"
cp "$HOTSHELF" "$SCRATCH/hotshelf"
chmod 755 "$SCRATCH/hotshelf"
refused 1 "$SSD belongs to user 0, not to you (user 65534)" \
    "${user[@]}" "$SCRATCH/hotshelf" mount --ssd "$SSD" --hdd "$HDD" "$SCRATCH/u/mnt"
refused 1 "$HDD belongs to user 0, not to you (user 65534)" \
    "${user[@]}" "$SCRATCH/hotshelf" mount --ssd "$SCRATCH/u/ssd" --hdd "$HDD" "$SCRATCH/u/mnt"
mknod "$SCRATCH/fuse" c 10 229
chmod 600 "$SCRATCH/fuse"
# shellcheck disable=SC2016
hidden='mount --bind "$1" /dev/fuse && shift && exec "$@"'
refused 1 '/dev/fuse cannot be opened: Permission denied.*chmod' unshare -m bash -c "$hidden" - "$SCRATCH/fuse" \
    "${user[@]}" "$SCRATCH/hotshelf" mount --ssd "$SCRATCH/u/ssd" --hdd "$SCRATCH/u/hdd" "$SCRATCH/u/mnt"
refused 1 "prepared by somebody else" "$SCRATCH/hotshelf" mount --ssd "$SCRATCH/u/ssd" --hdd "$SCRATCH/u/hdd" "$SCRATCH/u/mnt"
rm -r "$SCRATCH/u/ssd/.hotshelf" "$SCRATCH/u/hdd/.hotshelf"
mknod "$SCRATCH/missing" c 10 253
refused 1 '/dev/fuse cannot be opened: No such device.*modprobe' unshare -m bash -c "$hidden" - "$SCRATCH/missing" \
    "$SCRATCH/hotshelf" mount --ssd "$SCRATCH/u/ssd" --hdd "$SCRATCH/u/hdd" "$SCRATCH/u/mnt"
[[ -z $(ls "$SCRATCH/u/mnt") ]] || fail "something is mounted after all"
