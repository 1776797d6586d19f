#!/bin/bash
# In the guest, started by bench/nofscache.sh: the six fio jobs of paper 004, Fig. 6, with a page cache starved by a control group and
# with kernel/nofscache and all the memory. Both sides run at the same time, each on its own drive; the drives, which are alike, are
# swapped between runs. Prints
#   control SIDE KIB READS-KIB                          what the drive read when KIB were read twice
#   run N ENGINE JOB SIDE LIMIT-MIB KIB/S  READ WRITTEN  DRIVE-READ DRIVE-WRITTEN  READS WRITES
# the four in KiB, of the whole run with its warm-up; the last two are requests of the drive.
# drives: one=size:4G,iops:40,bps:3M two=size:4G,iops:40,bps:3M
# module: nofscache
# memory: 2G
# TIMEOUT: 3600
# shellcheck source=tests/vm/lib.sh
source "$ROOT/tests/vm/lib.sh"
# What bench/nofscache.sh set.
runs=0 seconds=0 ramp=0 engines='' jobs=''
# shellcheck source=/dev/null
source "$ROOT/bench/vm/nofscache-settings"
need fio mkfs.ext4
group=/sys/fs/cgroup/limited chosen=/sys/kernel/nofscache
names=(one two)
modprobe ext4
mkdir "$group"
# Linux 6.1 and 6.12 alike: version 2 of control groups is all that the guest mounts.
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
# dirty BS: what may be dirty, for both sides. A drive this slow would take minutes to write what the usual rules allow; so the starved
# side gets to its own pace within the warm-up. The group gets a share of this as its memory is one of the guest's: some 0.5 MiB of
# small requests, 4 MiB of large ones, as it takes a few of them to keep a drive at work.
dirty() {
    local mib=12
    [[ $1 == 4k ]] || mib=96
    echo $((mib << 19)) >/proc/sys/vm/dirty_background_bytes
    echo $((mib << 20)) >/proc/sys/vm/dirty_bytes
}

# A file whose blocks count as written, though nobody waited for that: what was never written would not be read from the drive.
cat >mke2fs.conf <<'END'
[defaults]
base_features = sparse_super2,filetype,extent,64bit,large_file,huge_file,has_journal
blocksize = 4096
[fs_types]
ext4 = {
}
bench = {
    make_hugefiles = true
    hugefiles_dir = /
    hugefiles_name = data
    hugefiles_digits = 0
    num_hugefiles = 1
    hugefiles_size = 3G
    zero_hugefiles = false
}
END
for name in "${names[@]}"; do
    drive=$(block "$name")
    MKE2FS_CONFIG=mke2fs.conf mkfs.ext4 -q -F -T bench -N 64 -J size=16 \
        -E lazy_itable_init=0,lazy_journal_init=1,packed_meta_blocks=1 "$drive" &>said ||
        fail "mkfs.ext4: $(<said)"
    mkdir "$name"
    mount -o noatime "$drive" "$name"
done
insmod "$MODULE"

# counters NAME: sets asked to the drive's requests and KiB: reads, KiB read, writes, KiB written.
counters() {
    local all
    read -ra all <"/sys/block/$(namespace "$1")/stat"
    asked=("${all[0]}" $((all[2] / 2)) "${all[4]}" $((all[6] / 2)))
}

# job DIR ENGINE RW BS: runs it in the group that the caller is in; fails when the memory does not do.
job() {
    cd "$1"
    rm -f log*
    exec fio --name=job --filename=data --rw="$3" --bs="$4" --ioengine="$2" --iodepth=16 --thread --time_based \
        --runtime=$((ramp + seconds)) --randrepeat=0 --randseed="$seed" --norandommap --fallocate=none --invalidate=0 \
        --write_lat_log="$SCRATCH/$1" --disable_slat=1 --disable_clat=1 --output-format=terse --terse-version=3 >"$SCRATCH/$1.said" 2>&1
}

# did DIR: KiB a second once warm, KiB read and written in all; from fio's log of every request: ms, ns, direction, bytes, ...
did() {
    awk -F', ' -v from=$((ramp * 1000)) -v to=$(((ramp + seconds) * 1000)) '
        { all[$3] += $4; if ($1 >= from && $1 < to) warm += $4 }
        END { printf "%.1f %d %d\n", warm / 1024 / (to - from) * 1000, all[0] / 1024, all[1] / 1024 }' "$1_lat.1.log"
}

# pair ENGINE RW BS STARVED-DIR MODULE-DIR LIMIT: false when the job does not run within the limit, of MiB.
pair() {
    local dir side limit before code=0
    declare -A began
    dirty "$3"
    sync
    echo 3 >/proc/sys/vm/drop_caches
    echo $(($6 << 20)) >"$group/memory.max"
    for dir in "$4" "$5"; do
        counters "$dir"
        began[$dir]=${asked[*]}
    done
    (echo "$BASHPID" >"$group/cgroup.procs" && job "$4" "$1" "$2" "$3") &
    starved=$!
    (job "$5" "$1" "$2" "$3") &
    free=$!
    wait "$free" || fail "$1 $2: $(tail -n 3 "$5.said")"
    wait "$starved" || code=1
    ((code == 0)) || return "$code"
    # Data that is still dirty belongs to the run, too.
    sync
    for side in starved module; do
        dir=$4 limit=$6
        [[ $side == starved ]] || dir=$5 limit=-
        read -ra before <<<"${began[$dir]}"
        counters "$dir"
        echo "run $run $1 $2 $side $limit $(did "$dir") $((asked[1] - before[1])) $((asked[3] - before[3]))" \
            "$((asked[0] - before[0])) $((asked[2] - before[2]))"
    done
}

# starved_at ENGINE RW: the smallest limit from the paper's on that the job runs in, found the first time.
declare -A limits
both() {
    local key="$1 $2"
    if [[ -z ${limits[$key]:-} ]]; then
        [[ $2 == *read ]] && limits[$key]=48 || limits[$key]=96
    fi
    until pair "$@" "${limits[$key]}"; do
        ((limits[$key] < 512)) || fail "$key does not run in ${limits[$key]} MiB: $(tail -n 3 "$4.said")"
        limits[$key]=$((limits[$key] + 16))
    done
}

# What the two sides are to differ in: with memory to spare and no module the second reading costs the drive nothing.
control() {
    local before
    echo 3 >/proc/sys/vm/drop_caches
    counters "$1"
    before=${asked[1]}
    dd if="$1/data" of=/dev/null bs=256K count=32 status=none
    dd if="$1/data" of=/dev/null bs=256K count=32 status=none
    counters "$1"
    echo "control $2 8192 $((asked[1] - before))"
}

for ((run = 1; run <= runs; run++)); do
    seed=$run
    ((run % 2)) && places=(one two) || places=(two one)
    block "${places[1]}" >$chosen/devices
    if ((run == 1)); then
        control "${places[0]}" "page-cache"
        control "${places[1]}" module
    fi
    for engine in $engines; do
        for rw in $jobs; do
            [[ $rw == rand* ]] && bs=4k || bs=256k
            both "$engine" "$rw" "$bs" "${places[@]}"
        done
    done
    echo >$chosen/devices
done
rmmod nofscache
umount "${names[@]}"
! dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace' || fail "the kernel complained"
