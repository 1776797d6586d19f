#!/bin/bash
# What a hit in the SSD cache costs: 4 KiB at random at depth 1, 8 and 32 from a file of FILE_MIB (512) of which all pages are on the
# SSD and next to none in memory (MEMORY, 8MiB), beside
#   raw       the same device by `block`, io_uring, O_DIRECT (its example `load`): what there is to be had
#   fio       the same by fio's io_uring on that device: our side runs under fio, too
#   kernel    the cache's own file in its file system, read by fio as any file, O_DIRECT: psync at depth 1, else io_uring
# TARGETS ("near far disk"): the SSD is a loop device over a file in memory with its worker on the processor of the program or on the
# other one (see block-fio.sh), or a file on the disk of TMPDIR. ROUNDS (5) of SECONDS_EACH (3), by turns; medians, and ratios of one
# round. "added" is the time a request takes beyond fio's on the raw device, at depth 1: at most 1 us is wanted, and 0.90 of its IOPS.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need_engine
need losetup taskset python3
rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-3} mib=${FILE_MIB:-512} targets=${TARGETS:-near far disk} memory=${MEMORY:-8MiB}
cd "$(dirname "$0")/.."
scripts/cargo build --release --quiet --package block --example load
load=${CARGO_TARGET_DIR:-target}/release/examples/load
workers=/sys/devices/virtual/workqueue/cpumask
if [[ $(id -u) == 0 && -w $workers && $(nproc) -gt 1 ]]; then
    all=$(cat "$workers")
    trap 'echo "$all" >"$workers"; clean_up' EXIT
    echo 1 >"$workers"
else
    echo "without near and far: they need root and two processors"
    targets=${targets//near/} targets=${targets//far/}
fi
data=$SCRATCH/data
fio --name=make --filename="$data" --rw=write --bs=1M --size="${mib}M" --end_fsync=1 --output-format=terse >/dev/null
ssd_mib=$((mib * 5 / 4 + 64))

# An instance that stays between the jobs, filled once: all that is read goes to the SSD at the first touch. Promotion may leave
# something out when it is behind, so it is read no faster than FILL_RATE (32m) bytes a second, until all is there.
open_instance() {
    local size=() pass
    if [[ -b $ssd ]]; then
        # Only to format it: the settings are those below.
        HOME=$SCRATCH XDG_CONFIG_HOME=$SCRATCH "$HOTSHELF" cache create "$ssd" --name format --force >/dev/null
    else
        size=("ssd_size = \"${ssd_mib}MiB\"")
    fi
    conf "$SCRATCH/$target.toml" "memory = \"$memory\"" "ssd = \"$ssd\"" "${size[@]}" 'second_touch = false' \
        'rules = [{ glob = "**", admit = "always" }]' 'read_ahead = "0"' 'direct = true'
    HOTSHELF_CONFIG=$SCRATCH/$target.toml
    export HOTSHELF_CONFIG
    hold "$HOTSHELF_CONFIG"
    for pass in {1..20}; do
        fio --name=fill --filename="$data" --rw=read --bs=64k --size="${mib}M" --ioengine="external:$engine" --config="$HOTSHELF_CONFIG" \
            --rate="${FILL_RATE:-32m}" --output-format=terse >/dev/null
        (($(of_cache "$HOTSHELF_CONFIG" 's["ssd"]["pages"]') < mib * 256 * 99 / 100)) || return 0
    done
    echo "  after $pass passes $(of_cache "$HOTSHELF_CONFIG" 's["ssd"]["pages"]') of $((mib * 256)) pages are on the SSD"
}

# on_fio FIO-ARGUMENT...: its IOPS, on the processors of the target.
on_fio() { (taskset -cp "$on" "$BASHPID" >/dev/null && fio_read "$@" | cut -d' ' -f1); }

# run SIDE DEPTH: IOPS.
run() {
    local direct=(--direct=1 --size="${mib}M" --runtime="$seconds" --iodepth="$2")
    local by=io_uring
    (($2 > 1)) || by=psync
    case $1 in
        raw) taskset -c "$on" "$load" "$ssd" op=randread depth="$2" direct=yes batch=1 seconds="$seconds" seed=$RANDOM |
            sed 's/.*iops=\([^ ]*\).*/\1/' ;;
        fio) on_fio --filename="$ssd" --ioengine=io_uring --fixedbufs --registerfiles "${direct[@]}" ;;
        kernel) on_fio --filename="$ssd" --ioengine=$by "${direct[@]}" ;;
        ours) on_fio --filename="$data" --size="${mib}M" --runtime="$seconds" --iodepth="$2" --ioengine="external:$engine" \
            --config="$HOTSHELF_CONFIG" ;;
    esac
}

sides=(raw fio kernel ours)
printf '  %-10s %8s %8s %8s %8s   %8s %8s %8s   %s\n' target.depth raw fio kernel ours to-raw to-fio to-kernel added
for target in $targets; do
    on=0-$(($(nproc) - 1))
    case $target in
        disk) ssd=$SCRATCH/ssd.cache ;;
        near | far)
            file=$(mktemp /dev/shm/hotshelf-bench.XXXXXX)
            truncate -s "${ssd_mib}M" "$file"
            ssd=$(losetup --find --show --direct-io=off "$file")
            loops+=("$ssd")
            rm "$file"
            [[ $target == near ]] && on=0 || on=1
            ;;
    esac
    open_instance
    for depth in 1 8 32; do
        declare -A iops=() ratios=()
        for ((n = 0; n < rounds; n++)); do
            declare -A now=()
            for ((k = 0; k < ${#sides[@]}; k++)); do
                side=${sides[(k + n) % ${#sides[@]}]}
                now[$side]=$(run "$side" "$depth")
                iops[$side]+=" ${now[$side]}"
            done
            for side in raw fio kernel; do ratios[$side]+=" $(awk "BEGIN { print ${now[ours]} / ${now[$side]} }")"; done
        done
        # shellcheck disable=SC2086
        raw=$(median ${iops[raw]}) fio=$(median ${iops[fio]}) kernel=$(median ${iops[kernel]}) ours=$(median ${iops[ours]})
        # shellcheck disable=SC2086
        a=$(median ${ratios[raw]}) b=$(median ${ratios[fio]}) c=$(median ${ratios[kernel]})
        added=$(awk "BEGIN { if ($depth == 1) printf \"%.2f us\", 1e6 / $ours - 1e6 / $fio }")
        printf '  %-10s %8.0f %8.0f %8.0f %8.0f   %8.2f %8.2f %8.2f   %s\n' "$target.$depth" "$raw" "$fio" "$kernel" "$ours" \
            "$a" "$b" "$c" "$added"
        note ssd-hits "case=$target.$depth" "raw=$raw" "fio=$fio" "kernel=$kernel" "ours=$ours" "to_raw=$a" "to_fio=$b" \
            "to_kernel=$c" "added=$added"
    done
    echo "  $target: of all pages read $(of_cache "$HOTSHELF_CONFIG" '{n: round(x["ratio"], 3) for n, x in t.items()}')"
    let_go
    "$HOTSHELF" cache destroy "$ssd" --config "$HOTSHELF_CONFIG" --discard >/dev/null 2>&1 || true
done
