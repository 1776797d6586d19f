#!/bin/bash
# Paper 004's verification of cache-effect elimination, for the preloaded form: six fio jobs (sequential read, write, mixed, of 256 KiB;
# random read, write, mixed, of 4 KiB; sync engine), once with the page cache starved by a memory control group (48 MiB for reads, 96 MiB
# for writes, as there) and once under `hotshelf nocache` with free memory, in turn. Device: a loop device, throttled to what a hard disk
# or a SATA SSD does, so that the machine's own disk does not matter. RUNS (5), SECONDS_EACH (8), RAMP (3), DEVICES, JOBS, SIZE (2G).
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio python3
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices, throttling and control groups need root"; exit 0; }
runs=${RUNS:-5} each=${SECONDS_EACH:-8} ramp=${RAMP:-3} size=${SIZE:-2G}
blkio=/sys/fs/cgroup/blkio
memory=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)/hotshelf-bench-$$
[[ -e $blkio/blkio.throttle.read_iops_device ]] || { echo "SKIP: no blkio control group of version 1 here"; exit 0; }
mkdir "$memory" 2>/dev/null || { echo "SKIP: no memory control group of version 1 here"; exit 0; }
leave() {
    throttle 0 0
    local try
    for try in 1 2 3 4 5 6 7 8 9; do # a process that was just killed may still be in it
        rmdir "$memory" 2>/dev/null && break
        sleep "0.$try"
    done
    clean_up
}
trap leave EXIT

# What the kernel writes back is counted as the root group's, and so is what it is throttled by; ours is the root group, too.
# throttle REQUESTS BYTES: a second, of reads and of writes each; 0 is no limit.
throttle() {
    [[ -n ${number:-} ]] || return 0
    local way
    for way in read write; do
        echo "$number $1" >"$blkio/blkio.throttle.${way}_iops_device"
        echo "$number $2" >"$blkio/blkio.throttle.${way}_bps_device"
    done
}

disk disk 5G
number=$(cat "/sys/block/$(basename "$loop")/dev")
fio --name=layout --filename="$SCRATCH/disk/file" --size="$size" --rw=write --bs=1M --end_fsync=1 >/dev/null

declare -A limits=([hdd]="150 30000000" [ssd]="1000 60000000")
declare -A jobs=([seqread]="read 256k 48" [seqwrite]="write 256k 96" [seqmixed]="rw 256k 96"
    [randread]="randread 4k 48" [randwrite]="randwrite 4k 96" [randmixed]="randrw 4k 96")

# job NAME SEED RAMP [COMMAND...]: bytes a second of one run.
job() {
    local name=$1 seed=$2 before=$3 rw bs
    shift 3
    read -r rw bs _ <<<"${jobs[$name]}"
    "$@" fio --name=x --filename="$SCRATCH/disk/file" --size="$size" --rw="$rw" --bs="$bs" --ioengine=sync --norandommap \
        --randseed="$seed" --time_based --runtime="$each" --ramp_time="$before" --output-format=json |
        python3 -c 'import json, sys
text = sys.stdin.read()
if "{" not in text:
    sys.exit(f"fio said no figures: {text!r}")
job = json.loads(text[text.index("{"):])["jobs"][0]
print(job["read"]["bw_bytes"] + job["write"]["bw_bytes"])'
}

# settle DEVICE JOB: what the run before left dirty would take minutes at the device's pace. The group limits reads and writes each by
# themselves; a device has one limit for both, so a mixed job gets half of each.
settle() {
    local requests bytes share=1
    throttle 0 0
    sync -f "$SCRATCH/disk"
    [[ $2 != *mixed ]] || share=2
    read -r requests bytes <<<"${limits[$1]}"
    throttle $((requests / share)) $((bytes / share))
}

# Until the group's memory is full of dirty pages, random writes go at memory's pace.
ramp_of() { [[ $1 == rand[wm]* ]] && echo $((ramp * 12)) || echo "$ramp"; }

# little COMMAND...: becomes it, in the group that has little memory.
little() {
    echo "$BASHPID" >"$memory/tasks"
    exec "$@"
}
starved() {
    echo $(($1 << 20)) >"$memory/memory.limit_in_bytes"
    job "$2" "$3" "$(ramp_of "$2")" little
}

for device in ${DEVICES:-ssd hdd}; do
    echo "  $device: ${limits[$device]% *} requests, $((${limits[$device]#* } / 1000000)) MB a second; $runs runs of $each s; MB/s, median"
    for name in ${JOBS:-seqread seqwrite seqmixed randread randwrite randmixed}; do
        scarce=() free=()
        mib=${jobs[$name]##* }
        for ((n = 1; n <= runs; n++)); do
            settle "$device" "$name"
            scarce+=("$(starved "$mib" "$name" "$n")")
            settle "$device" "$name"
            free+=("$(job "$name" "$n" "$ramp" "$HOTSHELF" nocache --path "$SCRATCH/disk" --)")
        done
        a=$(median "${scarce[@]}") b=$(median "${free[@]}")
        awk -v name="$name" -v mib="$mib" -v a="$a" -v b="$b" 'BEGIN { printf "  %-10s starved (%d MiB) %8.2f, nocache %8.2f: %+.1f %%\n",
            name, mib, a / 1e6, b / 1e6, (b / a - 1) * 100 }'
        note nocache "device=$device" "limits=${limits[$device]}" "job=$name" "memory_mib=$mib" "seconds=$each" "size=$size" \
            "starved=${scarce[*]}" "nocache=${free[*]}" "deviation_percent=$(awk "BEGIN { printf \"%.2f\", ($b / $a - 1) * 100 }")"
    done
done
throttle 0 0
