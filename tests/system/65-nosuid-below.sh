#!/bin/bash
# `-o suid` and `-o dev` give files no power that they do not have where they are: on a file system mounted nosuid or nodev.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv mkfs.ext4 setfattr

user() { setpriv --reuid 4242 --regid 4242 --clear-groups "$@"; }
fs_of_size disk 32M
mkdir -p "$SSD/nested" "$HDD" "$MNT"
# A program with all that may give it power, and a device.
fill() {
    cp "$(command -v id)" "$1/program"
    chmod 6755 "$1/program"
    cp "$(command -v id)" "$1/capable"
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 "$1/capable"
    mknod -m 666 "$1/zero" c 1 5
}

# Below a side.
fill "$SCRATCH/disk"
fill "$SSD"
mount --bind "$SCRATCH/disk" "$SSD/nested"
mount -o remount,bind,nosuid,nodev "$SSD/nested"
mount_pair --allow-other -o suid,dev
[[ $(user "$MNT/program" -u) == 0 && $(user head -c 1 "$MNT/zero" | wc -c) == 1 ]] || fail "suid,dev has no effect"
[[ -n $(getfattr -n security.capability "$MNT/capable" 2>/dev/null) ]] || fail "capabilities are not shown"
[[ $(user "$MNT/nested/program" -u) == 4242 ]] || fail "a program on a nosuid file system runs as its owner"
[[ $(stat -c %a "$MNT/nested/program") == 755 ]] || fail "bits without effect are shown: $(stat -c %a "$MNT/nested/program")"
[[ -z $(getfattr -n security.capability "$MNT/nested/capable" 2>/dev/null) ]] || fail "capabilities on a nosuid file system count"
user head -c 1 "$MNT/nested/zero" >/dev/null 2>&1 && fail "a device on a nodev file system leads to it"
# One that is mounted later, by a listing and by an open directory.
mkdir "$SSD/later"
mount --bind "$SCRATCH/disk" "$SSD/later"
mount -o remount,bind,nosuid "$SSD/later"
ls -l "$MNT/later" >/dev/null
[[ $(user "$MNT/later/program" -u) == 4242 ]] || fail "a program on a file system that was mounted later runs as its owner"
unmount_pair
umount "$SSD/later" "$SSD/nested"

# A side itself.
unmount_disks
FS_OPTIONS=nosuid,nodev fs_of_size disk 32M
for flag in suid dev; do
    refused 1 "no$flag" "$HOTSHELF" mount --ssd "$SCRATCH/disk" --hdd "$HDD" "$MNT" -o "$flag" --adopt
    refused 1 "no$flag" "$HOTSHELF" mount --ssd "$SSD" --hdd "$SCRATCH/disk" "$MNT" -o "$flag" --adopt
done
"$HOTSHELF" mount --ssd "$SCRATCH/disk" --hdd "$HDD" "$MNT" --adopt || fail "without the options it mounts"
unmount_pair
unmount_disks
