#!/bin/bash
# An ordinary user mounts, uses and unmounts without root.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv fusermount3

[[ -r /dev/fuse && -w /dev/fuse ]] || skip "/dev/fuse cannot be opened"
before=$(stat -c %a /dev/fuse)
[[ $before == *6 ]] || { chmod 666 /dev/fuse; trap 'chmod "$before" /dev/fuse' EXIT; }
mkdir -p "$SSD" "$HDD" "$MNT"
chown -R 65534:65534 "$SCRATCH"
as() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
up=$SCRATCH
while [[ $up != / ]]; do
    as test -x "$up" || skip "the scratch directory is out of reach for an ordinary user"
    up=$(dirname "$up")
done
cp "$HOTSHELF" "$SCRATCH/hotshelf"
chmod 755 "$SCRATCH/hotshelf"
hs=$SCRATCH/hotshelf
as "$hs" mount --ssd "$SSD" --hdd "$HDD" "$MNT" || fail "an ordinary user cannot mount"
as "$hs" status "$MNT" | grep -q 'through the daemon' || fail "status does not say that passthrough is off"
as sh -c "mkdir '$MNT/d' && echo hello >'$MNT/d/f' && ln '$MNT/d/f' '$MNT/d/g' && mv '$MNT/d/g' '$MNT/g' && rm '$MNT/g'" || fail "using it"
inode=$(as stat -c %i "$MNT/d/f")
as "$hs" migrate "$MNT/d/f" --to hdd >/dev/null || fail "moving"
[[ $(as cat "$MNT/d/f") == hello && $(as stat -c %i "$MNT/d/f") == "$inode" ]] || fail "content or number after a move"
as chmod 000 "$MNT/d/f"
as cat "$MNT/d/f" 2>/dev/null && fail "a file without permission was read"
as "$hs" unmount "$MNT" || fail "unmounting"
as "$hs" check "$SSD" "$HDD" || fail "check"
