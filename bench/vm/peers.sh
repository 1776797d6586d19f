#!/bin/bash
# In the guest, started by bench/vm-peers.sh: one fio job on the same two drives through dm-cache, bcache and hotshelf, one after the
# other. Each has a separate part of the disk (they share the limit of 150 requests a second) and the whole SSD, emptied.
# Prints lines `SIDE RAM second IOPS` and, for what cannot run here, `SKIP: SIDE why`.
# drives: ssd=size:1G hdd=size:1G,namespaces:3,iops:150
# memory: 3G
# TIMEOUT: 4000
# shellcheck source=tests/vm/lib.sh
source "$ROOT/tests/vm/lib.sh"
# What bench/vm-peers.sh set.
tools='' file_mib=0 cache_mib=0 seconds=0 rw='' theta='' depth=0 rams='' sides='' least_memory='' our_settings=''
# shellcheck source=/dev/null
source "$ROOT/bench/vm/settings"
need fio dmsetup mkfs.ext4 blkdiscard
modprobe -a ext4 dm-cache dm-cache-smq bcache
mkdir -p file
# There is no udev: dmsetup makes the nodes itself.
export DM_DISABLE_UDEV=1
ssd=$(block ssd)
ssd_sectors=$((cache_mib << 11))

# fresh_ssd: nothing of the side before is left on it.
fresh_ssd() {
    blkdiscard -f "$ssd"
    dd if=/dev/zero of="$ssd" bs=1M count=4 oflag=direct conv=fsync status=none
}

# lay_out DEVICE: writes the file at the slow disk's speed to a new ext4 on the device; leaves it unmounted.
lay_out() {
    mkfs.ext4 -q -E lazy_itable_init=1,nodiscard "$1"
    mount "$1" file
    dd if=/dev/urandom of=file/data bs=1M count="$file_mib" oflag=direct conv=fsync status=none
    umount file
}

# run SIDE RAM FIO-ARGUMENT...: the job; what it read in each second.
run() {
    local side=$1 ram=$2
    shift 2
    rm -f log_iops*.log
    # fio's threads in one process: what it takes beside the pages is the same for all.
    fio --name=job --filename=file/data --size="${file_mib}M" --rw="$rw" --bs=4k --random_distribution="zipf:$theta" --norandommap \
        --randseed=7 --iodepth="$depth" --time_based --runtime="$seconds" --write_iops_log=log --log_avg_msec=1000 \
        --invalidate=0 --fallocate=none --output-format=terse --terse-version=3 "$@" >said 2>&1 || fail "$side: $(tail -n 5 said)"
    # milliseconds, IOPS, direction, ...; both directions count.
    awk -F', *' -v who="$side $ram" '{ n[int($1 / 1000)] += $2 } END { for (s in n) print who, s, n[s] }' log_iops*.log |
        sort -k3n
}

# The page cache of the kernel as RAM: as much as a control group lets it have. Without, O_DIRECT.
run_kernel() {
    local side=$1
    for ram in $rams; do
        "${side}_on"
        mount "$device" file
        if ((ram == 0)); then
            run "$side" "$ram" --ioengine=io_uring --direct=1
        else
            run_limited "$side" "$ram"
        fi
        umount file
        "${side}_off"
    done
}

# Buffered reads block the submitting thread, so depth comes from threads of one process. Read-ahead is off, as random reads have none.
run_limited() {
    local group=/sys/fs/cgroup/limited base
    mkdir -p "$group"
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    # fio's own memory, measured where nothing is cached.
    echo max >"$group/memory.max"
    base=$(own_memory "$group")
    echo $((base + ($2 << 20))) >"$group/memory.max"
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        run "$1" "$2" --ioengine=io_uring --direct=0
    )
}

# own_memory GROUP: bytes that the job takes there without any page of the file.
own_memory() {
    (
        echo "$BASHPID" >"$1/cgroup.procs"
        fio --name=job --filename=file/data --size="${file_mib}M" --rw=randread --bs=4k --iodepth="$depth" --ioengine=io_uring --direct=1 \
            --time_based --runtime=2 --invalidate=0 >/dev/null &
        sleep 1.5
        cat "$1/memory.current"
        wait
    )
}

dmcache_on() {
    local disk sectors meta=$((8 << 11))
    disk=$(block hdd 1) sectors=$(blockdev --getsz "$disk")
    fresh_ssd
    dmsetup create meta --table "0 $meta linear $ssd 0"
    dmsetup create fast --table "0 $ssd_sectors linear $ssd $meta"
    dmsetup create cached --table "0 $sectors cache /dev/mapper/meta /dev/mapper/fast $disk 64 1 writeback smq 0"
    device=/dev/mapper/cached
}
dmcache_off() { dmsetup remove cached; dmsetup remove fast; dmsetup remove meta; }

detached() { [[ $(cat /sys/block/bcache0/bcache/state) == "no cache" ]]; }
# With its thresholds off, as everybody who measures random reads sets it.
bcache_on() {
    local fast
    fresh_ssd
    # A device of the same size as the others have.
    dmsetup create fast --table "0 $((ssd_sectors + (4 << 11))) linear $ssd 0"
    fast=$(realpath /dev/mapper/fast)
    # It wants more than 512 buckets.
    "$tools/usr/sbin/make-bcache" --writeback --bucket "$((cache_mib < 64 ? 32 : cache_mib < 128 ? 64 : 128))k" -C "$fast" >/dev/null
    echo "$fast" >/sys/fs/bcache/register
    block hdd 2 >/sys/fs/bcache/register
    wait_until 10 test -e /sys/block/bcache0/bcache
    basename /sys/fs/bcache/*-*-*-*-* >/sys/block/bcache0/bcache/attach
    echo writeback >/sys/block/bcache0/bcache/cache_mode
    echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
    echo 0 | tee /sys/fs/bcache/*-*/congested_{read,write}_threshold_us >/dev/null
    device=/dev/bcache0
    [[ -b $device ]] || mknod "$device" b "$(cut -d: -f1 /sys/block/bcache0/dev)" 0
}
bcache_off() {
    local set
    set=$(compgen -G '/sys/fs/bcache/*-*-*-*-*')
    # A disk that was not detached waits for its own SSD for ever.
    echo 0 >/sys/block/bcache0/bcache/writeback_percent
    echo 1 >/sys/block/bcache0/bcache/detach
    wait_until 120 detached
    echo 1 >/sys/block/bcache0/bcache/stop
    echo 1 >"$set/stop"
    wait_until 30 test ! -e "$set"
    wait_until 30 test ! -e /sys/block/bcache0
    dmsetup remove fast
}
bcache_lay_out() {
    "$tools/usr/sbin/make-bcache" -B "$(block hdd 2)" >/dev/null
    block hdd 2 >/sys/fs/bcache/register
    wait_until 10 test -e /sys/block/bcache0/bcache
    [[ -b /dev/bcache0 ]] || mknod /dev/bcache0 b "$(cut -d: -f1 /sys/block/bcache0/dev)" 0
    lay_out /dev/bcache0
    echo 1 >/sys/block/bcache0/bcache/stop
    wait_until 30 test ! -e /sys/block/bcache0
}

# Ours: the file system is the disk's own, RAM is the page cache of the library; without, as little as it takes.
run_ours() {
    local ram engine=$tools/libhotshelf_fio.so
    if [[ ! -f $engine ]]; then
        echo "SKIP: hotshelf: no $engine"
        return
    fi
    mount "$(block hdd 3)" file
    for ram in $rams; do
        fresh_ssd
        dmsetup create fast --table "0 $ssd_sectors linear $ssd 0"
        # Only formats the SSD: the measured cache has its own settings.
        "$HOTSHELF" cache create /dev/mapper/fast --name format --force >/dev/null || return 0
        {
            printf '[cache]\nname = "peers%s"\nssd = "%s"\nmode = "write-back"\ndirect = true\n' "$ram" /dev/mapper/fast
            printf 'memory = "%s"\n%s\n' "$( ((ram == 0)) && echo "$least_memory" || echo "${ram}MiB")" "$our_settings"
        } >conf.toml
        run hotshelf "$ram" --ioengine="external:$engine" --config=conf.toml
        dmsetup remove fast
    done
    umount file
}

# The limit as the guest sees it, and what the drives do by themselves: both belong beside the figures.
raw() {
    fio --name=raw --filename="$1" --rw=randread --bs=4k --iodepth="$depth" --ioengine=io_uring --direct=1 --time_based --runtime=5 \
        --output-format=terse --terse-version=3 | cut -d';' -f8
}
echo "raw ssd $(raw "$ssd")"
echo "raw hdd $(raw "$(block hdd 1)")"
for side in $sides; do
    case $side in
        dmcache)
            lay_out "$(block hdd 1)"
            run_kernel dmcache
            ;;
        bcache)
            if [[ -x $tools/usr/sbin/make-bcache ]]; then
                bcache_lay_out
                run_kernel bcache
            else
                echo "SKIP: bcache: bcache-tools cannot be had"
            fi
            ;;
        hotshelf)
            lay_out "$(block hdd 3)"
            run_ours
            ;;
    esac
done
