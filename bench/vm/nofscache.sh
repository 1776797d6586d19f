#!/bin/bash
# In the guest, started by bench/nofscache.sh: the six fio jobs of paper 004, Fig. 6, each once with a page cache starved by a
# control group and once with kernel/nofscache and all the memory, in turns. Prints `run N ENGINE JOB SIDE LIMIT-MIB KIB/S IOPS`.
# drives: ssd=size:1200M,iops:60,bps:6M
# module: nofscache
# memory: 2G
# TIMEOUT: 14000
# shellcheck source=tests/vm/lib.sh
source "$ROOT/tests/vm/lib.sh"
# What bench/nofscache.sh set.
runs=0 file_mib=0 seconds=0 ramp=0 engines='' jobs=''
# shellcheck source=/dev/null
source "$ROOT/bench/vm/nofscache-settings"
need fio mkfs.ext4
group=/sys/fs/cgroup/limited chosen=/sys/kernel/nofscache
drive=$(block ssd)
modprobe ext4
mkfs.ext4 -q -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$drive"
mkdir -p disk "$group"
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mount "$drive" disk
insmod "$MODULE"
# Written, not only allocated: what was never written is never read.
dd if=/dev/urandom of=disk/data bs=1M count="$file_mib" oflag=direct conv=fsync status=none

# job ENGINE RW BS LIMIT: KiB and requests a second, reads and writes together; fails when the memory does not do.
job() {
    local limit=$4
    sync
    echo 3 >/proc/sys/vm/drop_caches
    [[ $limit == max ]] || limit=$((limit << 20))
    echo "$limit" >"$group/memory.max"
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        # The buffers are small and the process one, as the memory is to be the pages'.
        exec fio --name=job --filename=disk/data --size="${file_mib}M" --rw="$2" --bs="$3" --ioengine="$1" --iodepth=16 --thread \
            --time_based --ramp_time="$ramp" --runtime="$seconds" --randrepeat=0 --randseed="$seed" --norandommap --fallocate=none \
            --output-format=terse --terse-version=3 >said 2>&1
    ) || return
    awk -F';' '/^3;/ { print $7 + $48, $8 + $49 }' said
}

# starved ENGINE RW BS: the smallest limit from the paper's on that the job runs in, found the first time.
declare -A limits
starved() {
    local key="$1 $2" limit result
    limit=${limits[$key]:-96}
    [[ $2 != *read || -n ${limits[$key]:-} ]] || limit=48
    until result=$(job "$@" "$limit") && [[ -n $result ]]; do
        ((limit < 512)) || fail "$key does not run in $limit MiB: $(tail -n 3 said)"
        limit=$((limit + 16))
    done
    limits[$key]=$limit
    echo "run $run $1 $2 starved $limit $result"
}

with_module() {
    local result
    echo "$drive" >$chosen/devices
    result=$(job "$@" max) || fail "$1 $2: $(tail -n 3 said)"
    echo >$chosen/devices
    echo "run $run $1 $2 module - $result"
}

for ((run = 1; run <= runs; run++)); do
    seed=$run
    for engine in $engines; do
        for rw in $jobs; do
            [[ $rw == rand* ]] && bs=4k || bs=256k
            if ((run % 2)); then
                starved "$engine" "$rw" "$bs"
                with_module "$engine" "$rw" "$bs"
            else
                with_module "$engine" "$rw" "$bs"
                starved "$engine" "$rw" "$bs"
            fi
        done
    done
done
rmmod nofscache
