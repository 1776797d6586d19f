#!/bin/bash
# The experiment of the paper (000, section III): fio reads 4 KiB at random, depth 1, from a file of 1 GiB with 1 GiB of page cache;
# theirs is our engine for fio, the other side is psync on a file of ext4 that is in the kernel's page cache as a whole. Beside it the
# same with memory for the file and the room a cache keeps free, and without a copy (zero_copy=1). ROUNDS (5) runs of SECONDS_EACH (3)
# of each, by turns; medians, and ratios to psync of the same round. SIZE_MIB (1024) makes it smaller.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need_engine
[[ $(id -u) == 0 ]] || { echo "SKIP: an ext4 of its own needs root"; exit 0; }
rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-3} mib=${SIZE_MIB:-1024}
disk ext4 "$((mib + 256))M"
file=$SCRATCH/ext4/data
fio --name=make --filename="$file" --rw=write --bs=1M --size="${mib}M" --end_fsync=1 --output-format=terse >/dev/null
cat "$file" >/dev/null
conf "$SCRATCH/paper.toml" "memory = \"${mib}MiB\""
conf "$SCRATCH/roomy.toml" "memory = \"$((mib * 9 / 8))MiB\""

for name in paper roomy; do
    hold "$SCRATCH/$name.toml"
    for _ in 1 2; do
        fio --name=warm --filename="$file" --rw=read --bs=64k --size="${mib}M" --ioengine="external:$engine" \
            --config="$SCRATCH/$name.toml" --output-format=terse >/dev/null
    done
done

run() {
    local ours=(--ioengine="external:$engine")
    case $1 in
        psync) fio_read --filename="$file" --size="${mib}M" --runtime="$seconds" --ioengine=psync ;;
        ours) fio_read --filename="$file" --size="${mib}M" --runtime="$seconds" "${ours[@]}" --config="$SCRATCH/paper.toml" ;;
        roomy) fio_read --filename="$file" --size="${mib}M" --runtime="$seconds" "${ours[@]}" --config="$SCRATCH/roomy.toml" ;;
        lent) fio_read --filename="$file" --size="${mib}M" --runtime="$seconds" "${ours[@]}" --config="$SCRATCH/roomy.toml" --zero_copy=1 ;;
    esac
}

declare -A iops kib p99 against
sides=(psync ours roomy lent)
for ((n = 0; n < rounds; n++)); do
    for ((k = 0; k < ${#sides[@]}; k++)); do
        side=${sides[(k + n) % ${#sides[@]}]}
        read -r a b c _ < <(run "$side")
        iops[$side]+=" $a" kib[$side]+=" $b" p99[$side]+=" $c"
        declare "now_$side=$a"
    done
    for side in ours roomy lent; do
        now=now_$side
        # shellcheck disable=SC2154
        against[$side]+=" $(awk "BEGIN { print ${!now} / $now_psync }")"
    done
done
declare -A means=([psync]="psync, ext4 in the page cache" [ours]="hotshelf, ${mib} MiB of pages" \
    [roomy]="hotshelf, $((mib * 9 / 8)) MiB of pages" [lent]="the same, zero_copy")
for side in "${sides[@]}"; do
    # shellcheck disable=SC2086
    a=$(median ${iops[$side]}) b=$(median ${kib[$side]}) c=$(median ${p99[$side]}) r=1
    # shellcheck disable=SC2086
    [[ $side == psync ]] || r=$(median ${against[$side]})
    printf '  %-32s %9.0f IOPS %8.0f MiB/s   p99 %5.1f us   ratio %.2f\n' "${means[$side]}" "$a" \
        "$(awk "BEGIN { print $b / 1024 }")" "$c" "$r"
    note paper-fio "side=$side" "mib=$mib" "iops=$a" "kib_per_second=$b" "p99_us=$c" "ratio=$r"
done
