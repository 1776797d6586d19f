#!/bin/bash
# Small files (`stat` right after they were written, `again` later): hotshelf against mergerfs and ext4 on the same two
# directories, in turn, medians.
# The kernel offers FUSE over io_uring meanwhile; it says which way hotshelf's requests went.
# FILES (100000) and ROUNDS (3) change the length, FLAGS (such as --uring=off) are given to hotshelf mount.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need cc mergerfs
files=${FILES:-100000} rounds=${ROUNDS:-3}
cc -O2 -o "$SCRATCH/metadata" "$(dirname "$0")/metadata.c"

uring_on
declare -A seen
# Each begins on new file systems: ext4 does not reuse the inode numbers of files removed in the last 5 seconds, and
# is slow to find others, so who comes after a removal would pay for it.
fresh() {
    local side
    for side in ssd hdd; do
        mountpoint -q "$SCRATCH/$side" && umount "$SCRATCH/$side"
        rm -f "$SCRATCH/$side.img"
        truncate -s 4G "$SCRATCH/$side.img"
        mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$SCRATCH/$side.img"
        mount -o loop "$SCRATCH/$side.img" "$SCRATCH/$side"
    done
}

round() {
    local who=$1 dir=$2 what value
    while read -r what value; do
        seen[$who.$what]+=" $value"
    done < <("$SCRATCH/metadata" "$dir" "$files")
}

for ((n = 0; n < rounds; n++)); do
    fresh
    "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" ${FLAGS:-}
    transport=$(transport)
    round hotshelf "$MNT"
    "$HOTSHELF" unmount "$MNT"
    fresh
    mergerfs "$SSD:$HDD" "$MNT" -o category.create=ff,minfreespace=64M
    round mergerfs "$MNT"
    umount "$MNT"
    fresh
    mkdir "$SSD/plain"
    round ext4 "$SSD/plain"
done
echo "  requests to hotshelf $transport"
printf '  %-8s %10s %10s %10s   %s\n' per-s hotshelf mergerfs ext4 'to mergerfs, to ext4'
for what in create stat list again rename unlink; do
    # shellcheck disable=SC2086
    a=$(median ${seen[hotshelf.$what]}) b=$(median ${seen[mergerfs.$what]}) c=$(median ${seen[ext4.$what]})
    printf '  %-8s %10.0f %10.0f %10.0f   %s, %s\n' "$what" "$a" "$b" "$c" "$(ratio "$a" "$b")" "$(ratio "$a" "$c")"
    note metadata "what=$what" "files=$files" "way=$transport" "hotshelf=$a" "mergerfs=$b" "ext4=$c"
done
