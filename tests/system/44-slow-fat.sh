#!/bin/bash
# A disk with a file system without owners, links and most characters as the slow side: the kernel's vfat, or exFAT by FUSE.
# TIMEOUT: 120
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/system/_slow-sides.sh
source "$(dirname "$0")/_slow-sides.sh"
root_only

fat=
truncate -s 300M "$SCRATCH/fat.img"
mkdir -p "$SCRATCH/fat"
if command -v mkfs.vfat >/dev/null && grep -qw vfat /proc/filesystems; then
    side=vfat
    mkfs.vfat "$SCRATCH/fat.img" >/dev/null && mount -o loop,fmask=0133,dmask=0022 "$SCRATCH/fat.img" "$SCRATCH/fat" && fat=1
elif command -v mkfs.exfat >/dev/null && command -v mount.exfat-fuse >/dev/null; then
    side=exfat
    mkfs.exfat "$SCRATCH/fat.img" >/dev/null
    device=$(losetup --find --show "$SCRATCH/fat.img" || true)
    [[ -n $device ]] && mount.exfat-fuse -o fmask=0133,dmask=0022 "$device" "$SCRATCH/fat" && fat=1
fi
[[ -n $fat ]] || skip "no vfat in this kernel, and no exfat-fuse with a loop device"
again=true
ssd_of ssd-fat
HDD=$SCRATCH/fat/pool
mkdir "$HDD"
both_ways
mount_pair --promotion never
echo x >"$MNT/a:b?c" || fail "a name that FAT has not"
fails_with 'does not allow its name' "$HOTSHELF" migrate --to hdd "$MNT/a:b?c"
mkdir "$MNT/d:e" && echo x >"$MNT/d:e/f"
fails_with 'does not allow the name of a directory' "$HOTSHELF" migrate --to hdd "$MNT/d:e/f"
echo x >"$MNT/owned" && chown 1234:1234 "$MNT/owned"
fails_with 'cannot keep its owner' "$HOTSHELF" migrate --to hdd "$MNT/owned"
echo x >"$MNT/program" && chmod 755 "$MNT/program"
fails_with 'cannot keep its permissions' "$HOTSHELF" migrate --to hdd "$MNT/program"
lacks 'no hard links' 'no symbolic links' 'no pipes' 'no device nodes' 'no extended attributes' 'no access control lists' 'no owners' \
    'not all permissions' 'not all characters' 'differ only in case' 'O_TMPFILE' 'FALLOC_FL_PUNCH_HOLE' 'times are kept in steps of'
ln -s nowhere "$MNT/link" && mkfifo "$MNT/pipe" && mknod "$MNT/null" c 1 3 || fail "what FAT has not is not made on the SSD"
# Two names that are one there: neither file takes the other's place.
echo first >"$MNT/up" && echo second >"$MNT/UP"
"$HOTSHELF" migrate --to hdd "$MNT/up"
fails_with 'has its name on the other side' "$HOTSHELF" migrate --to hdd "$MNT/UP"
[[ $(cat "$MNT/up" "$MNT/UP") == $'first\nsecond' ]] || fail "one of two names that differ in case holds the other's data"
rm "$MNT/UP"
[[ $(cat "$MNT/up") == first ]] || fail "a file went with another whose name differs in case"
mv "$MNT/up" "$MNT/Up"
[[ $(cat "$MNT/Up") == first ]] || fail "a file is lost by a rename that changes the case"
# Of exFAT the limit is beyond every disk.
if [[ $side == vfat ]]; then
    # A time of an odd second and of parts of one.
    echo x >"$MNT/odd" && touch -d '2001-02-03 04:05:07.5' "$MNT/odd"
    "$HOTSHELF" migrate --to hdd "$MNT/odd"
    [[ $(stat -c %Y "$MNT/odd") == $(date -d '2001-02-03 04:05:06' +%s) ]] || fail "vfat: a time is not that of two seconds"
    lacks 'times are kept in steps of 2000 ms' 'files are limited to 4095 MiB' 'no holes'
    truncate -s 5G "$MNT/larger"
    fails_with 'cannot hold a file as large' "$HOTSHELF" migrate --to hdd "$MNT/larger"
fi
[[ $(cat "$MNT/a:b?c" "$MNT/d:e/f" "$MNT/owned" "$MNT/program") == $'x\nx\nx\nx' ]] || fail "what stays is not whole"
unmount_pair
clean_check
umount "$SCRATCH/fat"
[[ -z ${device:-} ]] || losetup --detach "$device"
unmount_disks
