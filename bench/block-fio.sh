#!/bin/bash
# The io_uring driver of `block` against fio's on the same files, in turn, medians: 4 KiB random requests with the same flags
# (registered file and buffers, one thread that waits: SINGLE_ISSUER, DEFER_TASKRUN, COOP_TASKRUN and no TASKRUN_FLAG on either side),
# depth 1, 8 and 32:
#   page    a file in the page cache: nothing but software
#   near    a loop device over a file in memory, O_DIRECT, its worker on the CPU of the program
#   far     the same with its worker on the other CPU
#   free    the same where the scheduler puts both, now here, now there; after RAMP (0) seconds that do not count. When a program begins,
#           its requests are carried out beside it for 0.2 to 1.3 s, at twice the rate of what follows (bench/notes/io-uring.md)
#   disk    a file on the disk of TMPDIR, O_DIRECT
# (each request handed to the kernel by itself, as fio does: in batches it costs a quarter less CPU, and a drive that is at its
# limit gives 15 % fewer IOPS in bursts; with BY=fio the one that fills a queue of more than one goes with the wait, in one call where
# fio has two; our ring has NO_SQARRAY too, where the kernel knows it) and at depth 32 against fio's psync. ROUNDS (5) runs of SECONDS_EACH
# (2) each, of OPS ("randread randwrite"), DEPTHS ("1 8 32"), TARGETS
# ("page near far free disk").
#
# BY: the generator of the requests. "fio" (the default): fio itself, through an engine that calls it (bench/fio-block), so that
# generator, clocks and statistics are the same on both sides and only the driver differs. "load": our own generator, the example `load`
# of `block`, which costs less than fio's, and waits more. CPU is user and system time of the thread that submits, for each
# request; buffered writes are done by threads of the kernel for both.
#
# The two sides of a pair run one after the other, and a ratio is that of one pair: what the machine does meanwhile hits both.
# The scheduler moves a loop device's worker between the CPU of its program and others: 11 or 34 us at depth 1
# (bench/notes/io-uring.md). So, except for free, the script fixes the worker's CPU during the run (it changes the mask of all kernel
# workers, and restores it at the end). It also fixes both programs to the last CPU (near: the first): a drive's interrupts come to one
# CPU, and a request of depth 1 took 33 us of CPU time on the other, 19 us on that. The last two columns compare the best run of
# each side.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio losetup taskset cc
rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-2} ops=${OPS:-randread randwrite} targets=${TARGETS:-page near far free disk}
depths=${DEPTHS:-1 8 32} ramp=${RAMP:-0}
cd "$(dirname "$0")/.."
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
case ${BY:-fio} in
    fio)
        source=$(fio/build.sh --headers) || { echo "$source"; exit 0; }
        CARGO_TARGET_DIR=$target_dir/fio-block scripts/cargo build --quiet --release --locked --manifest-path bench/fio-block/Cargo.toml
        driver_engine=$target_dir/fio-block/engine.so
        cc -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -fPIC -shared -D_GNU_SOURCE -include "$source/config-host.h" \
            -isystem "$source" -o "$driver_engine" bench/fio-block/engine.c "$target_dir/fio-block/release/libfio_block.a" \
            -Wl,--exclude-libs,ALL,-z,nodelete,--gc-sections,--strip-debug -lgcc_s -lpthread -lm -ldl
        ;;
    load)
        CARGO_PROFILE_RELEASE_LTO=thin scripts/cargo build --release --quiet --package block --example load
        load=$target_dir/release/examples/load
        ;;
    *) echo "BY=$BY: fio or load"; exit 1 ;;
esac
workers=/sys/devices/virtual/workqueue/cpumask all=
if [[ $(id -u) == 0 && -w $workers && $(nproc) -gt 1 ]]; then
    all=$(cat "$workers")
    trap 'echo "$all" >"$workers"; clean_up' EXIT
else
    echo "without loop devices (near, far, free): they need root and two processors"
    targets=${targets//near/} targets=${targets//far/} targets=${targets//free/}
fi
size=256M

# run_fio FILE OP DEPTH DIRECT ENGINE: sets iops and cpu (microseconds for each request).
run_fio() {
    local flags=(--iodepth=1) line field=8 # whatever the depth, psync has one request at a time
    [[ $1 != "${file[free]:-}" ]] || flags=(--iodepth=1 --ramp_time="$ramp")
    [[ $5 == psync ]] || flags+=(--iodepth="$3")
    [[ $5 != io_uring ]] || flags+=(--fixedbufs --registerfiles) # the other engine has no other way
    [[ $2 == *write ]] && field=49
    line=$(taskset -c "${on[$1]}" fio --name=b --filename="$1" --rw="$2" --bs=4k --ioengine="$5" --direct="$4" "${flags[@]}" \
        --size=$size --norandommap --randrepeat=0 \
        --invalidate=0 --fallocate=none --time_based --runtime="$seconds" --output-format=terse --terse-version=3)
    # Fields 88 and 89: percent of one CPU in user and system mode.
    read -r iops cpu < <(awk -F';' -v f="$field" '{ printf "%d %.4f\n", $f, ($88 + $89) * 1e4 / $f }' <<<"$line")
}

run_ours() {
    local line direct=yes
    if [[ ${BY:-fio} == fio ]]; then
        run_fio "$1" "$2" "$3" "$4" "external:$driver_engine"
        return
    fi
    [[ $4 == 1 ]] || direct=no
    line=$(taskset -c "${on[$1]}" "$load" "$1" op="$2" depth="$3" direct=$direct batch=1 waits=yes cpu=thread seconds="$seconds" \
        seed=$RANDOM)
    iops=${line#iops=} cpu=${line#*cpu_us=}
    iops=${iops%% *} cpu=${cpu%% *}
}

# A pair in both orders by turns.
pair() {
    local key=$1 n=$2 engine=$3
    shift 3
    local a b
    for who in $( ((n % 2)) && echo "fio ours" || echo "ours fio"); do
        if [[ $who == fio ]]; then
            run_fio "$@" "$engine"
            a="$iops $cpu"
        else
            run_ours "$@"
            b="$iops $cpu"
        fi
    done
    read -r fio_iops fio_cpu <<<"$a"
    read -r our_iops our_cpu <<<"$b"
    ours[$key]+=" $our_iops" theirs[$key]+=" $fio_iops" our_cpus[$key]+=" $our_cpu" their_cpus[$key]+=" $fio_cpu"
    ratios[$key]+=" $(awk "BEGIN { print $our_iops / $fio_iops }")"
    cpu_ratios[$key]+=" $(awk "BEGIN { print $our_cpu / $fio_cpu }")"
}

declare -A file=() on=() direct=([page]=0 [near]=1 [far]=1 [free]=1 [disk]=1) ours theirs our_cpus their_cpus ratios cpu_ratios
make_file() { fio --name=make --filename="$1" --rw=write --bs=1M --size=$size --direct="$2" --output-format=terse >/dev/null; }
keys=()
for target in $targets; do
    case $target in
        page | disk) file[$target]=$SCRATCH/$target ;;
        near | far | free)
            loop_in_memory "$size"
            file[$target]=$loop
            ;;
    esac
    on[${file[$target]}]=$(($(nproc) - 1))
    [[ $target != near ]] || on[${file[$target]}]=0
    [[ $target != free ]] || on[${file[$target]}]=0-$(($(nproc) - 1))
    make_file "${file[$target]}" "${direct[$target]}"
done
for op in $ops; do
    for target in $targets; do
        if [[ -n $all ]]; then
            [[ $target == free ]] && echo "$all" >"$workers" || echo 1 >"$workers"
        fi
        for depth in $depths; do
            for ((n = 0; n < rounds; n++)); do
                pair "$op.$target.$depth.io_uring" "$n" io_uring "${file[$target]}" "$op" "$depth" "${direct[$target]}"
            done
            keys+=("$op.$target.$depth.io_uring")
        done
        [[ " $depths " == *" 32 "* ]] || continue
        for ((n = 0; n < rounds; n++)); do
            pair "$op.$target.32.psync" "$n" psync "${file[$target]}" "$op" 32 "${direct[$target]}"
        done
        keys+=("$op.$target.32.psync")
    done
done
best() { printf '%s\n' "$@" | sort -g | tail -1; }
least() { printf '%s\n' "$@" | sort -g | head -1; }
printf '  %-28s %9s %9s %6s  %7s %7s %6s  %6s %6s\n' 'op.target.depth.fio engine' IOPS "fio's" ratio 'CPU us' "fio's" ratio best: CPU
for key in "${keys[@]}"; do
    # shellcheck disable=SC2086
    a=$(median ${ours[$key]}) b=$(median ${theirs[$key]}) r=$(median ${ratios[$key]})
    # shellcheck disable=SC2086
    c=$(median ${our_cpus[$key]}) d=$(median ${their_cpus[$key]}) s=$(median ${cpu_ratios[$key]})
    # shellcheck disable=SC2086
    best=$(ratio "$(best ${ours[$key]})" "$(best ${theirs[$key]})")
    # shellcheck disable=SC2086
    least=$(ratio "$(least ${our_cpus[$key]})" "$(least ${their_cpus[$key]})")
    printf '  %-28s %9.0f %9.0f %6.2f  %7.2f %7.2f %6.2f  %6.2f %6.2f\n' "$key" "$a" "$b" "$r" "$c" "$d" "$s" "$best" "$least"
    note block-fio "case=$key" "by=${BY:-fio}" "iops=$a" "fio_iops=$b" "ratio=$r" "cpu_us=$c" "fio_cpu_us=$d" "cpu_ratio=$s" \
        "best_ratio=$best" "least_cpu_ratio=$least"
done
