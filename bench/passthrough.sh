#!/bin/bash
# Data of a file on the SSD: the mount against the same directory, fio psync, interleaved pairs, medians.
# Page cache: the file is warm on both sides and fio leaves it so (invalidate=0). Warm by readahead, in large folios, as a file is
# that was not just written: what was written in small pieces is in single pages, and the plain side half as fast
# (bench/notes/fuse-mount.md).
# The kernel offers FUSE over io_uring meanwhile; it says which way requests went.
# PAIRS and SECONDS_EACH change the length, MODES (passthrough daemon gathered) and FLAGS are those of the mounts.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio python3
pairs=${PAIRS:-5} seconds=${SECONDS_EACH:-3}

kib_per_s() {
    fio --name=x --filename="$1/file" --size=512M --rw="$2" --bs="$3" --direct="$4" --ioengine=psync --invalidate=0 \
        --fallocate=none --randrepeat=1 --runtime="$seconds" --time_based --output-format=json |
        python3 -c 'import json, sys; job = json.load(sys.stdin)["jobs"][0]; print(max(job["read"]["bw"], job["write"]["bw"]))'
}

# The measure of one line: fio of the file under the mount, then of the same file in the directory.
compare() {
    local mode=$1 cached=$2 kind=$3 size=$4 mount=() plain=() n
    sync "$SSD/file"
    dd if="$SSD/file" iflag=nocache count=0 status=none
    cat "$SSD/file" >/dev/null
    cat "$MNT/file" >/dev/null
    for ((n = 0; n < pairs; n++)); do
        mount+=("$(kib_per_s "$MNT" "$kind" "$size" "$cached")")
        plain+=("$(kib_per_s "$SSD" "$kind" "$size" "$cached")")
    done
    local a b
    a=$(median "${mount[@]}") b=$(median "${plain[@]}")
    printf '  %-12s %-8s %-9s %-5s %12.0f %12.0f KiB/s   ratio %s\n' \
        "$mode" "$([[ $cached == 1 ]] && echo O_DIRECT || echo cached)" "$kind" "$size" "$a" "$b" "$(ratio "$a" "$b")"
    note passthrough "mode=$mode" "way=$(transport)" \
        "direct=$cached" "kind=$kind" "size=$size" "mount=$a" "plain=$b" "ratio=$(ratio "$a" "$b")"
}

head -c 512M /dev/urandom >"$SSD/file"
sync
echo "  way                   kind      size         mount        plain"
uring_on
for mode in ${MODES:-passthrough daemon gathered}; do
    case $mode in
        passthrough) flags=() ;;
        daemon) flags=(--no-passthrough) ;;
        gathered) flags=(--write-back) ;;
    esac
    "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" "${flags[@]}" ${FLAGS:-}
    echo "  $mode: requests $(transport)"
    for cached in 0 1; do
        compare $mode $cached randread 4k
        compare $mode $cached read 128k
        compare $mode $cached write 128k
    done
    "$HOTSHELF" unmount "$MNT"
done
