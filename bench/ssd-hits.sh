#!/bin/bash
# What a hit in the SSD cache costs: 4 KiB at random at depth 1, 8 and 32 from a file of FILE_MIB (256) of which all pages are on the
# SSD and next to none in memory (MEMORY, 8MiB), beside:
#   raw       the device by `block`, io_uring, O_DIRECT (its example `load`, waits=yes, as ours)
#   ours      the file by the u calls, upread at depth 1, else uaio (ssd-load.c): the same load by the same means, so to-raw is the cost
#   fio       the device by fio's io_uring, and
#   fio-ours  the file by our engine under fio: to-fio
#   kernel    the same file in an ext4 on the SSD, by fio, O_DIRECT, psync at depth 1, else io_uring: to-kernel
#   fio-polls fio-ours with poll=1, which stays awake while it waits; on a disk only: the last column is to-kernel of that
#   buffered  the same without O_DIRECT, each page once, none of them in the kernel's page cache: to-buffered
#   node      near and far: the SSD's device node as kernel reads it, which has no file system in its way: to-node
# BATCH (0): requests in one submission of raw and ours; 0: all that take the place of what has ended.
# TARGETS ("near far disk"): the SSD is a loop device over a file in memory with its worker on the CPU of the program (which then does
# the drive's work, too: the hardest case) or on the other one (see block-fio.sh), or a file on the disk of TMPDIR. There, at depth 1,
# all sides run on one CPU, the one that raw is fastest on. One request at a time uses one CPU at a time anyway. If the disk's
# interrupts come to another CPU, that costs a third of a request here, and with a free choice it would happen in some runs only.
# At larger depths they have all CPUs. ONE_ON_DISK=1: one CPU at each depth.
# ROUNDS (3) of SECONDS_EACH (1), by turns; medians, and ratios of one round. "cpu" is CPU time a hit, of raw and ours, which does
# not depend on other programs; "error" the standard error of to-kernel; "added" the time a request takes beyond one of raw at
# depth 1. Wanted: 0.90 to-raw, 1 us, 1 to-kernel.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need_engine
need losetup taskset python3 cc mkfs.ext4
rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-1} mib=${FILE_MIB:-256} targets=${TARGETS:-near far disk} memory=${MEMORY:-8MiB}
batch=${BATCH:-0} one_on_disk=${ONE_ON_DISK:-0}
cd "$(dirname "$0")/.."
CARGO_PROFILE_RELEASE_LTO=thin scripts/cargo build --release --quiet --package block --example load
load=${CARGO_TARGET_DIR:-target}/release/examples/load
hits=$SCRATCH/ssd-load
cc -std=gnu11 -O2 -Wall -Wextra -Iinclude -o "$hits" bench/ssd-load.c "${CARGO_TARGET_DIR:-target}/release/libhotshelf.a" \
    -pthread -lgcc_s -lm -ldl
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

# file_on_ssd: sets $file, the data in an ext4 on another such device, none of it in the kernel's page cache.
file_on_ssd() {
    local loop
    loop_in_memory "${ssd_mib}M"
    mkfs.ext4 -q "$loop"
    mkdir -p "$SCRATCH/on-ssd"
    mount "$loop" "$SCRATCH/on-ssd"
    file=$SCRATCH/on-ssd/data
    cp "$data" "$file"
    sync -f "$file"
    drop "$file"
}

# drop FILE: none of it stays in the kernel's page cache.
drop() { dd if="$1" iflag=nocache count=0 status=none; }

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
        (($(of_cache "$HOTSHELF_CONFIG" 's["ssd"]["pages"]') < mib * 256 * 999 / 1000)) || return 0
    done
    echo "  after $pass passes $(of_cache "$HOTSHELF_CONFIG" 's["ssd"]["pages"]') of $((mib * 256)) pages are on the SSD"
}

# on_fio FIO-ARGUMENT...: its IOPS, on the CPUs of the target.
on_fio() { (taskset -cp "$on" "$BASHPID" >/dev/null && fio_read "$@" | cut -d' ' -f1); }

# figures: IOPS, and microseconds of CPU time, from the output of `load` and `ssd-load`.
figures() { sed 's/.*iops=\([^ ]*\) cpu_us=\([^ ]*\).*/\1 \2/'; }

# fastest_on_raw: the CPU on which raw is fastest at depth 1.
fastest_on_raw() {
    local processor best=0 fastest=0 iops _
    for ((processor = 0; processor < $(nproc); processor++)); do
        on=$processor
        read -r iops _ < <(run raw 1)
        ((iops <= best)) || best=$iops fastest=$processor
    done
    echo "$fastest"
}

# run SIDE DEPTH: IOPS, and CPU time if it is known.
run() {
    local direct=(--direct=1 --size="${mib}M" --runtime="$seconds" --iodepth="$2")
    local by=io_uring
    (($2 > 1)) || by=psync
    case $1 in
        raw) taskset -c "$on" "$load" "$ssd" op=randread depth="$2" direct=yes batch="$batch" seconds="$seconds" seed=$RANDOM \
            bytes=$((mib << 20)) latency=no waits=yes | figures ;;
        ours) taskset -c "$on" "$hits" "$data" "$2" "$seconds" "$batch" | figures ;;
        fio) on_fio --filename="$ssd" --ioengine=io_uring --fixedbufs --registerfiles "${direct[@]}" ;;
        fio-ours) on_fio --filename="$data" --size="${mib}M" --runtime="$seconds" --iodepth="$2" --ioengine="external:$engine" \
            --config="$HOTSHELF_CONFIG" ;;
        fio-polls) on_fio --filename="$data" --size="${mib}M" --runtime="$seconds" --iodepth="$2" --ioengine="external:$engine" \
            --config="$HOTSHELF_CONFIG" --poll=1 ;;
        kernel) on_fio --filename="$file" --ioengine=$by "${direct[@]}" ;;
        buffered) on_fio --filename="$file" --ioengine=$by "${direct[@]}" --direct=0 --invalidate=1 --norandommap=0 --time_based=0 ;;
        node) on_fio --filename="$ssd" --ioengine=$by "${direct[@]}" ;;
    esac
}

# between A B: the median of a round's A by its B.
between() {
    local n ratios=()
    for ((n = 0; n < rounds; n++)); do ratios+=("$(awk "BEGIN { print ${iops[$1.$n]} / ${iops[$2.$n]} }")"); done
    printf '%.2f' "$(median "${ratios[@]}")"
}

# error A B: the standard error of the mean ratio of a round's A to its B.
error() {
    local n
    for ((n = 0; n < rounds; n++)); do echo "${iops[$1.$n]} ${iops[$2.$n]}"; done |
        awk '{ x = log($1 / $2); s += x; q += x * x } END { if (NR > 1) printf "%.3f", sqrt((q - s * s / NR) / (NR * (NR - 1))) }'
}

# beyond A B: the median of the microseconds that a round's A takes for a request beyond its B.
beyond() {
    local n all=()
    for ((n = 0; n < rounds; n++)); do all+=("$(awk "BEGIN { print 1e6 / ${iops[$1.$n]} - 1e6 / ${iops[$2.$n]} }")"); done
    printf '%.2f' "$(median "${all[@]}")"
}

# of ARRAY SIDE: the median of what its rounds gave.
of() {
    local -n from=$1
    local n all=()
    for ((n = 0; n < rounds; n++)); do all+=("${from[$2.$n]}"); done
    median "${all[@]}"
}

all_sides=(raw ours fio fio-ours kernel buffered node)
printf '  %-10s %8s %8s %8s %8s %8s %8s %8s   %6s %6s %9s %11s %7s   %7s %6s %6s   %-9s %s\n' target.depth "${all_sides[@]}" to-raw to-fio \
    to-kernel to-buffered to-node cpu-raw cpu error added polls
for target in $targets; do
    sides=("${all_sides[@]}")
    case $target in
        disk)
            # The cache's own file, which is as the data would be.
            ssd=$SCRATCH/ssd.cache file=$SCRATCH/ssd.cache
            sides=(raw ours fio fio-ours fio-polls kernel buffered)
            ;;
        near | far)
            [[ -d $SCRATCH/on-ssd ]] || file_on_ssd
            file=$SCRATCH/on-ssd/data
            loop_in_memory "${ssd_mib}M"
            ssd=$loop
            [[ $target == near ]] && on=0 || on=1
            ;;
    esac
    open_instance
    [[ $target != disk ]] || one=$(fastest_on_raw)
    for depth in 1 8 32; do
        if [[ $target == disk ]]; then
            ((depth == 1 || one_on_disk)) && on=$one || on=0-$(($(nproc) - 1))
        fi
        # shellcheck disable=SC2034 # by name, in of
        declare -A iops=() cpu=()
        for ((n = 0; n < rounds; n++)); do
            for ((k = 0; k < ${#sides[@]}; k++)); do
                side=${sides[(k + n) % ${#sides[@]}]}
                # shellcheck disable=SC2034
                read -r "iops[$side.$n]" "cpu[$side.$n]" < <(run "$side" "$depth") || true
            done
        done
        to_raw=$(between ours raw) to_fio=$(between fio-ours fio) to_kernel=$(between fio-ours kernel)
        to_buffered=$(between fio-ours buffered) to_node=- node=- polls=-
        if [[ $target == disk ]]; then
            polls=$(between fio-polls kernel)
        else
            to_node=$(between fio-ours node) node=$(of iops node)
        fi
        cpu_raw=$(of cpu raw) cpu_ours=$(of cpu ours) error=$(error fio-ours kernel) added=
        ((depth > 1)) || added="$(beyond ours raw) us"
        printf '  %-10s %8.0f %8.0f %8.0f %8.0f %8.0f %8.0f %8s   %6s %6s %9s %11s %7s   %7.2f %6.2f %6s   %-9s %s\n' \
            "$target.$depth" "$(of iops raw)" "$(of iops ours)" "$(of iops fio)" "$(of iops fio-ours)" "$(of iops kernel)" \
            "$(of iops buffered)" "${node%.*}" "$to_raw" "$to_fio" "$to_kernel" "$to_buffered" "$to_node" "$cpu_raw" "$cpu_ours" \
            "$error" "${added:--}" "$polls"
        note ssd-hits "case=$target.$depth" "batch=$batch" "raw=$(of iops raw)" "ours=$(of iops ours)" "fio=$(of iops fio)" \
            "fio_ours=$(of iops fio-ours)" "kernel=$(of iops kernel)" "to_raw=$to_raw" "to_fio=$to_fio" "to_kernel=$to_kernel" \
            "error=$error" "buffered=$(of iops buffered)" "to_buffered=$to_buffered" "node=$node" "to_node=$to_node" \
            "cpu_raw_us=$cpu_raw" "cpu_us=$cpu_ours" "added=$added" "polls=$polls"
    done
    echo "  $target: of all pages read $(of_cache "$HOTSHELF_CONFIG" '{n: round(x["ratio"], 3) for n, x in t.items()}')"
    let_go
    "$HOTSHELF" cache destroy "$ssd" --config "$HOTSHELF_CONFIG" --discard >/dev/null 2>&1 || true
done
