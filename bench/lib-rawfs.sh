# Shared by the benches of rawfs beside ext4; sourced behind lib.sh, never run.
# shellcheck shell=bash
FS_BENCH=${FS_BENCH:-$(dirname "$HOTSHELF")/fs-bench}
[[ -x $FS_BENCH ]] || { echo "no $FS_BENCH: CARGO_PROFILE_RELEASE_LTO=thin cargo build --release -p bench"; exit 1; }

# loop_device SIZE: a file behind a loop device; sets $loop and $stat, the kernel's counters of it. Up to 4 GiB the file is filled, so
# that no side pays for the room that the file system below finds for it.
loop_device() {
    local bytes
    bytes=$(numfmt --from=iec "$1")
    if ((bytes <= 4 << 30)); then
        dd if=/dev/zero of="$SCRATCH/below.img" bs=1M count=$((bytes >> 20)) status=none
    else
        truncate -s "$1" "$SCRATCH/below.img"
    fi
    loop=$(losetup --find --show --direct-io=on "$SCRATCH/below.img" 2>/dev/null || losetup --find --show "$SCRATCH/below.img")
    loops+=("$loop")
    stat=/sys/block/$(basename "$loop")/stat
    # If the loop device's file is in memory (tmpfs), its pages would count as memory of the writing process.
    cgroup=
    if [[ $(stat -f -c %T "$SCRATCH") != tmpfs ]] && mkdir "/sys/fs/cgroup/memory/hotshelf-bench-$$" 2>/dev/null; then
        cgroup=/sys/fs/cgroup/memory/hotshelf-bench-$$
    else
        echo "  no control group for memory: the kernel's side has all there is"
    fi
}

# ext4_mount: made anew, with nothing left to be done in the background.
ext4_mount() {
    mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 -i 8192 "$loop"
    mkdir -p "$SCRATCH/ext4"
    mount -o "${EXT4_OPTIONS:-defaults}" "$loop" "$SCRATCH/ext4"
}

# limited COMMAND...: within $memory MiB.
limited() {
    if [[ -z $cgroup ]]; then
        "$@"
        return
    fi
    echo "$((memory << 20))" >"$cgroup/memory.limit_in_bytes"
    (echo "$BASHPID" >"$cgroup/tasks" && exec "$@")
}

# on_side SIDE WHAT WORD...: fs-bench on the file system of one side, made anew; sets variables as it names them.
on_side() {
    local on=$loop
    if [[ $1 == kernel ]]; then
        ext4_mount
        on=$SCRATCH/ext4
    fi
    limited "$FS_BENCH" "$2" "side=$1" "on=$on" "stat=$stat" "${@:3}" >"$SCRATCH/said"
    [[ $1 == rawfs ]] || umount "$SCRATCH/ext4"
    settled
}

# settled: what a side has said, as variables; and what the device has got since it began.
settled() {
    local word fields
    for word in $(<"$SCRATCH/said"); do printf -v "${word%%=*}" '%s' "${word#*=}"; done
    read -ra fields <"$stat"
    # shellcheck disable=SC2034,SC2154
    requests=$((fields[4] - requests0)) bytes=$(((fields[6] - sectors0) * 512)) flushes=$((fields[15] - flushes0))
}
