#!/bin/bash
# Quotas bind users of a mount whose daemon is root: when they write and when their files move. A kernel without ext4's quotas skips
# this; tests/vm/21-file-systems.sh runs it in the guest.
# TIMEOUT: 120
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv mkfs.ext4 setquota

user() { setpriv --reuid 4242 --regid 4242 --clear-groups "$@"; }

for side in ssd hdd; do
    mkdir -p "$SCRATCH/$side"
    truncate -s 96M "$SCRATCH/$side.img"
    mkfs.ext4 -q -m 0 -O quota -E quotatype=usrquota "$SCRATCH/$side.img"
    if ! mount -o loop,usrquota "$SCRATCH/$side.img" "$SCRATCH/$side" 2>/dev/null; then
        unmount_disks
        skip "this kernel has no quotas of ext4 (CONFIG_QFMT_V2)"
    fi
done
setquota -u 4242 0 8192 0 20 "$SSD"
setquota -u 4242 0 16384 0 20 "$HDD"
for flag in '' --no-passthrough; do
    # shellcheck disable=SC2086 # none or one
    mount_pair --allow-other $flag
    mkdir "$MNT/mine"
    chown 4242:4242 "$MNT/mine"
    user dd if=/dev/zero of="$MNT/mine/a" bs=1M count=20 status=none 2>"$SCRATCH/out" && fail "20 MiB are written in a quota of 8 MiB"
    grep -q 'quota exceeded' "$SCRATCH/out" || fail "not the quota: $(cat "$SCRATCH/out")"
    (($(stat -c %b "$MNT/mine/a") * 512 <= 8 << 20)) || fail "more than the quota is written"
    user fallocate -l 20M "$MNT/mine/a" 2>/dev/null && fail "more than the quota is reserved"
    rm "$MNT/mine/a"
    # A file of 12 MiB is on the HDD, and its move would exceed what its owner has on the SSD.
    "$HOTSHELF" migrate "$MNT/mine" --to hdd >/dev/null || true
    head -c 12M /dev/urandom >"$HDD/large"
    chown 4242:4242 "$HDD/large"
    fails_with 'uota' "$HOTSHELF" migrate "$MNT/large" --to ssd
    [[ $(tier "$MNT/large") == hdd ]] || fail "a move exceeded a quota"
    no_temporaries || fail "the move left its copy"
    # Names count, too; what has no room on the SSD goes to the HDD until that is full.
    # shellcheck disable=SC2016 # of the inner shell
    made=$(user bash -c 'made=0; while ((made < 100)) && : >"$1/$made"; do made=$((made + 1)); done; echo $made' bash "$MNT/mine" \
        2>"$SCRATCH/out")
    grep -q 'quota exceeded' "$SCRATCH/out" || fail "a name is refused, but not by the quota: $(cat "$SCRATCH/out")"
    ((made >= 20 && made < 45)) || fail "$made files in a quota of 20 on each side"
    rm -rf "$MNT/mine" "$MNT/large"
    unmount_pair
done
unmount_disks
