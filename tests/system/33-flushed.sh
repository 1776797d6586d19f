#!/bin/bash
# What was flushed is on the disk: the disks are copied as they are at that moment, and the copies have it. (What a real disk's
# own cache may lose is for 31-power-cuts.)
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

fs_of_size ssdfs 64M
fs_of_size hddfs 64M
SSD=$SCRATCH/ssdfs/pool HDD=$SCRATCH/hddfs/pool
head -c 6M /dev/urandom >"$SCRATCH/data"
head -c 6M /dev/urandom >"$SCRATCH/more"
mkdir -p "$SCRATCH/copy-ssdfs" "$SCRATCH/copy-hddfs" "$SCRATCH/copy"
mount_pair --promotion never --high 100% --low 100%
for side in ssd hdd; do
    mkdir "$MNT/$side"
    # The large one bypasses the daemon while it is on the SSD.
    cp "$SCRATCH/data" "$MNT/$side/large"
    head -c 8K "$SCRATCH/data" >"$MNT/$side/small"
    touch "$MNT/$side/gone" "$MNT/$side/name"
    "$HOTSHELF" migrate "$MNT/$side" --to $side >/dev/null
done
echo old >"$MNT/hdd/replaced"
"$HOTSHELF" migrate "$MNT/hdd/replaced" --to hdd >/dev/null
echo new >"$MNT/replacing"
sync -f "$SSD" "$HDD"

# after_a_cut COMMAND: runs it on the pair as the disks are now.
after_a_cut() {
    local disk done=0 real=("$SSD" "$HDD" "$MNT")
    for disk in ssdfs hddfs; do
        cp --sparse=always "$SCRATCH/$disk.img" "$SCRATCH/copy.$disk.img"
        mount -o loop "$SCRATCH/copy.$disk.img" "$SCRATCH/copy-$disk"
    done
    SSD=$SCRATCH/copy-ssdfs/pool HDD=$SCRATCH/copy-hddfs/pool MNT=$SCRATCH/copy
    mount_pair --promotion never
    "$@" || done=$?
    unmount_pair
    umount "$SCRATCH/copy-ssdfs" "$SCRATCH/copy-hddfs"
    SSD=${real[0]} HDD=${real[1]} MNT=${real[2]}
    return $done
}
begins_like() { cmp -n "$3" "$MNT/$1" "$SCRATCH/$2"; }
same() { begins_like "$1" "$2" 6291456; }

# Flushing calls, and opens that flush by themselves; through the daemon (small) and past it (large); where the file is, new or not.
with=data
for how in conv=fsync conv=fdatasync oflag=sync oflag=dsync; do
    [[ $with == data ]] && with=more || with=data
    for side in ssd hdd; do
        flags=notrunc
        [[ $how != conv=* ]] || flags+=,${how#conv=}
        open=()
        [[ $how != oflag=* ]] || open=("$how")
        dd if="$SCRATCH/$with" of="$MNT/$side/large" bs=1M conv=$flags "${open[@]}" status=none
        after_a_cut same "$side/large" $with || fail "$how on the $side: large"
        dd if="$SCRATCH/$with" of="$MNT/$side/small" bs=4K count=2 conv=$flags "${open[@]}" status=none
        after_a_cut begins_like "$side/small" $with 8192 || fail "$how on the $side: small"
    done
    dd if="$SCRATCH/data" of="$MNT/ssd/new.$how" bs=4K count=2 conv=$flags "${open[@]}" status=none
    after_a_cut begins_like "ssd/new.$how" data 8192 || fail "$how: a new file"
    rm "$MNT/ssd/new.$how"
done

# fsync of a directory: the names in it, on both sides.
names() {
    local side
    for side in ssd hdd; do
        [[ -e $MNT/$side/made && -e $MNT/$side/renamed && ! -e $MNT/$side/name && ! -e $MNT/$side/gone ]] || return 1
    done
}
for side in ssd hdd; do
    mkdir "$MNT/$side/made"
    mv "$MNT/$side/name" "$MNT/$side/renamed"
    rm "$MNT/$side/gone"
    sync "$MNT/$side"
done
after_a_cut names || fail "fsync of a directory"

# A rename that concerns both sides is durable when it returns.
mv "$MNT/replacing" "$MNT/hdd/replaced"
replaced() { [[ $(cat "$MNT/hdd/replaced") == new && ! -e $MNT/replacing ]]; }
after_a_cut replaced || fail "a rename over both sides"

# A move keeps what was flushed, whatever was flushed since.
dd if="$SCRATCH/data" of="$MNT/ssd/large" bs=1M conv=notrunc,fsync status=none
"$HOTSHELF" migrate "$MNT/ssd/large" --to hdd >/dev/null
after_a_cut same ssd/large data || fail "a flushed file after its demotion"
"$HOTSHELF" migrate "$MNT/ssd/large" --to ssd >/dev/null
after_a_cut same ssd/large data || fail "a flushed file after its promotion"

# sync(2): what was written with write(2).
cp "$SCRATCH/more" "$MNT/ssd/synced"
dd if="$SCRATCH/more" of="$MNT/hdd/large" bs=1M conv=notrunc status=none
sync
after_a_cut same ssd/synced more || fail "sync, a new file"
after_a_cut same hdd/large more || fail "sync, a file on the HDD"
unmount_pair
unmount_disks
