#!/bin/bash
# Paper 004's verification of cache-effect elimination, for the preloaded form: six fio jobs (sequential read, write, mixed, of 256 KiB;
# random read, write, mixed, of 4 KiB; sync engine), once with the page cache starved by a memory control group, once under `hotshelf
# nocache` with free memory, and where something is written once more with --write-cache, in turn. Device: a loop device, throttled to
# what a hard disk or a slow SSD does (or to less: DEVICES=slow), so that the machine's own disk and its load do not matter.
#
# A group of version 1 limits memory, not how much of it is dirty: a starved run then takes writes at memory's pace until the group is
# full, stands still, and begins again, and some seconds of that measure at which of the two the clock was started. A machine with so
# little memory has vm.dirty_ratio, a fifth of it. So the device gets that limit (/sys/class/bdi, Linux 6.2), for the starved runs.
#
# RUNS (5), SECONDS_EACH (8), RAMP (6), DEVICES, JOBS, SIZE (2G), MEMORY (MiB; of 48 for reads and 96 for writes, as in the paper; 32
# for random writes, of which the device takes so few a second that more would take minutes to fill).
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio python3
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices, throttling and control groups need root"; exit 0; }
runs=${RUNS:-5} each=${SECONDS_EACH:-8} ramp=${RAMP:-6} size=${SIZE:-2G}
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
bdi=/sys/class/bdi/$number
[[ -e $bdi/strict_limit ]] || { echo "SKIP: no limit of a device's dirty pages here: Linux 6.2 has it"; exit 0; }
# The kernel would write empty inode tables while we measure.
mount -o remount,noinit_itable,noatime "$SCRATCH/disk"
fio --name=layout --filename="$SCRATCH/disk/file" --size="$size" --rw=write --bs=1M --end_fsync=1 >/dev/null

# The slowest is for machines that do other things, too; the fastest is for sequential mixed jobs, see the decision.
declare -A limits=([hdd]="150 30000000" [ssd]="1000 60000000" [slow]="200 8000000" [fast]="8000 240000000")
declare -A jobs=([seqread]="read 256k" [seqwrite]="write 256k" [seqmixed]="rw 256k"
    [randread]="randread 4k" [randwrite]="randwrite 4k" [randmixed]="randrw 4k")

# job NAME SEED [COMMAND...]: MB a second of one run.
job() {
    local name=$1 seed=$2 rw bs
    shift 2
    read -r rw bs <<<"${jobs[$name]}"
    "$@" fio --name=x --filename="$SCRATCH/disk/file" --size="$size" --rw="$rw" --bs="$bs" --ioengine=sync --norandommap \
        --randseed="$seed" --time_based --runtime="$each" --ramp_time="$ramp" --output-format=json |
        python3 -c 'import json, sys
text = sys.stdin.read()
if "{" not in text:
    sys.exit(f"fio said no figures: {text!r}")
job = json.loads(text[text.index("{"):])["jobs"][0]
print(round((job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 1e6, 3))'
}

# settle DEVICE JOB: nothing dirty, nothing in memory. The group limits reads and writes each by themselves; a device has one limit for
# both, so a mixed job gets half of each.
settle() {
    local requests bytes share=1
    throttle 0 0
    sync -f "$SCRATCH/disk"
    echo 1 >/proc/sys/vm/drop_caches
    [[ $2 != *mixed ]] || share=2
    read -r requests bytes <<<"${limits[$1]}"
    throttle $((requests / share)) $((bytes / share))
}

# little COMMAND...: becomes it, in the group that has little memory.
little() {
    echo "$BASHPID" >"$memory/tasks"
    exec "$@"
}

# mib_of DEVICE JOB: how much memory starves it.
mib_of() {
    local mib=48
    [[ $2 == *read ]] || mib=96
    [[ $2 != rand[wm]* ]] || mib=32
    echo "${MEMORY:-$mib}"
}

# side SIDE DEVICE JOB SEED
side() {
    local mib
    mib=$(mib_of "$2" "$3")
    settle "$2" "$3"
    echo 0 >"$bdi/strict_limit"
    echo 100 >"$bdi/max_ratio"
    case $1 in
        starved)
            echo 1 >"$bdi/strict_limit"
            echo $(((mib << 20) / 5)) >"$bdi/max_bytes"
            echo $((mib << 20)) >"$memory/memory.limit_in_bytes"
            job "$3" "$4" little
            ;;
        nocache) job "$3" "$4" "$HOTSHELF" nocache --path "$SCRATCH/disk" -- ;;
        write-cache) job "$3" "$4" "$HOTSHELF" nocache --path "$SCRATCH/disk" --write-cache "$((mib / 5))MiB" -- ;;
    esac
}
deviation() { awk "BEGIN { printf \"%+.1f\", ($2 / $1 - 1) * 100 }"; }

for device in ${DEVICES:-ssd hdd}; do
    echo "  $device: ${limits[$device]% *} requests, $((${limits[$device]#* } / 1000000)) MB a second; $runs runs of $each s; MB/s, median"
    for name in ${JOBS:-seqread seqwrite seqmixed randread randwrite randmixed}; do
        declare -A got=([starved]="" [nocache]="" [write-cache]="")
        sides="starved nocache write-cache"
        [[ $name != *read ]] || sides="starved nocache"
        for ((n = 1; n <= runs; n++)); do
            for side in $sides; do got[$side]+=" $(side "$side" "$device" "$name" "$n")"; done
        done
        mib=$(mib_of "$device" "$name")
        # shellcheck disable=SC2086
        base=$(median ${got[starved]})
        line=$(printf '  %-10s starved (%d MiB) %.2f' "$name" "$mib" "$base")
        for side in ${sides#starved}; do
            # shellcheck disable=SC2086
            middle=$(median ${got[$side]})
            line+=$(printf '; %s %.2f: %s %%' "$side" "$middle" "$(deviation "$base" "$middle")")
            note nocache "device=$device" "limits=${limits[$device]}" "job=$name" "memory_mib=$mib" "seconds=$each" "size=$size" \
                "side=$side" "starved=${got[starved]# }" "got=${got[$side]# }" "deviation_percent=$(deviation "$base" "$middle")"
        done
        echo "$line"
    done
done
throttle 0 0
