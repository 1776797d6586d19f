#!/bin/bash
# A disk of 150 reads and 150 writes a second under the HDD directory: what promotion gives, what a moving file costs others,
# PostMark, and a git checkout built with make. The kernel writes back in the name of the root group, so that one gets the same
# limit for this one device. PARTS chooses among: random move postmark git.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio python3
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices and throttling need root"; exit 0; }
move_mib=${MOVE_MIB:-2048}
parts=" ${PARTS:-random move postmark git} "
part() { [[ $parts == *" $1 "* ]]; }

disk ssdfs 6G
disk hddfs 6G
cgroup=/sys/fs/cgroup/blkio/hotshelf-bench-$$
mkdir "$cgroup" 2>/dev/null || { cgroup=; echo "SKIP: no blkio control group here"; exit 0; }
device=$(cat "/sys/block/$(basename "$loop")/dev")
throttled=$device
for limit in "$cgroup"/blkio.throttle.{read,write}_iops_device /sys/fs/cgroup/blkio/blkio.throttle.{read,write}_iops_device; do
    echo "$device 150" >"$limit"
done
echo $$ >"$cgroup/tasks"
SSD=$SCRATCH/ssdfs/shelf HDD=$SCRATCH/hddfs/store
mkdir -p "$SSD" "$HDD" "$SCRATCH/hddfs/alone"
"$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"

random_iops() {
    fio --name=x --filename="$1" --size=64M --rw=randread --bs=4k --ioengine=psync --direct=1 --runtime=5 --time_based \
        --output-format=json | python3 -c 'import json, sys; print(round(json.load(sys.stdin)["jobs"][0]["read"]["iops"]))'
}
p99_us() {
    fio --name=x --filename="$1" --size=256M --rw=randread --bs=4k --ioengine=psync --direct=1 --runtime="$2" --time_based \
        --output-format=json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["read"]["clat_ns"]["percentile"]["99.000000"] / 1000)'
}

# Empties the caches of these file systems alone.
mount_again() {
    "$HOTSHELF" unmount "$MNT"
    for name in ssdfs hddfs; do umount "$SCRATCH/$name"; done
    for n in 0 1; do mount "${loops[n]}" "$SCRATCH/$([[ $n == 0 ]] && echo ssdfs || echo hddfs)"; done
    "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
}

random() {
    head -c 64M /dev/urandom >"$MNT/work"
    "$HOTSHELF" migrate "$MNT/work" --to hdd >/dev/null
    head -c 64M /dev/urandom >"$SCRATCH/hddfs/alone/work"
    sync
    slow=$(random_iops "$SCRATCH/hddfs/alone/work")
    cat "$MNT/work" >/dev/null
    cat "$MNT/work" >/dev/null
    for ((n = 0; n < 600; n++)); do
        "$HOTSHELF" why --json "$MNT/work" | grep -q '"tier": "ssd"' && break
        sleep 0.1
    done
    fast=$(random_iops "$MNT/work")
    echo "  4 KiB random reads: HDD alone $slow, promoted $fast a second: ratio $(ratio "$fast" "$slow")"
    note throttled what=random "slow=$slow" "fast=$fast"
}

# Time to open a file on the HDD and read its first block, milliseconds. Its blocks are in the cache: what is measured is
# whether the open waits.
open_ms() {
    local begin
    begin=$(now)
    head -c 4096 "$MNT/far" >/dev/null
    awk "BEGIN { printf \"%.1f\", ($(now) - $begin) * 1000 }"
}

move() {
    local quiet disturbed idle busy moved=done mover
    head -c 256M /dev/urandom >"$MNT/other"
    head -c "${move_mib}M" /dev/urandom >"$MNT/large"
    head -c 4096 /dev/urandom >"$HDD/far"
    sync
    p99_us "$MNT/other" 3 >/dev/null
    quiet=$(p99_us "$MNT/other" 10)
    open_ms >/dev/null
    idle=$(open_ms)
    "$HOTSHELF" migrate "$MNT/large" --to hdd >/dev/null &
    mover=$!
    disturbed=$(p99_us "$MNT/other" 10)
    busy=$(open_ms)
    kill -0 $mover 2>/dev/null && moved='going on'
    echo "  p99 of 4 KiB reads of another SSD file: quiet $quiet us, while ${move_mib} MiB move $disturbed us:" \
        "ratio $(ratio "$disturbed" "$quiet"); opening a file on the HDD: quiet $idle ms, meanwhile $busy ms (the move is $moved)"
    note throttled what=p99 "quiet=$quiet" "disturbed=$disturbed" "open_quiet=$idle" "open_disturbed=$busy"
    wait $mover || true
}

# PostMark three ways: in the page cache; with memory for a third of its files; and with both file systems mounted sync,
# where every change is written before it returns.
memory_group() {
    local own
    own=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
    memory=$own/hotshelf-bench-$$
    mkdir "$memory" 2>/dev/null && echo $((64 << 20)) >"$memory/memory.limit_in_bytes"
}

postmark_in() {
    local dir=$1 size=$2
    mkdir -p "$dir"
    printf "set location %s\n$size\nset size 500 20000\nrun\nquit\n" "$dir" | postmark >/dev/null
    sync -f "$([[ $dir == "$MNT"/* ]] && echo "$SSD" || echo "$HDD")"
}

postmark_modes() {
    command -v postmark >/dev/null || return 0
    local mode who size begin
    for mode in cached little-memory sync; do
        size='set number 3000\nset transactions 6000'
        case $mode in
            little-memory)
                memory_group || continue
                size='set number 20000\nset transactions 2000\nset subdirectories 20'
                ;;
            sync)
                size='set number 100\nset transactions 200\nset read 32768\nset write 32768'
                mount -o remount,sync "$SCRATCH/ssdfs"
                mount -o remount,sync "$SCRATCH/hddfs"
                ;;
        esac
        for who in mount alone; do
            begin=$(now)
            (
                if [[ $mode == little-memory ]]; then
                    # The daemon too: what it reads is remembered in its name.
                    "$HOTSHELF" unmount "$MNT"
                    echo "$BASHPID" >"$memory/tasks"
                    "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
                fi
                postmark_in "$([[ $who == mount ]] && echo "$MNT/pm" || echo "$SCRATCH/hddfs/pm")" "$size"
            )
            declare "pm_$who=$(awk "BEGIN { print $(now) - $begin }")"
        done
        case $mode in
            little-memory)
                mount_again
                rmdir "$memory"
                ;;
            sync)
                mount -o remount,async "$SCRATCH/ssdfs"
                mount -o remount,async "$SCRATCH/hddfs"
                ;;
        esac
        # shellcheck disable=SC2154
        echo "  PostMark, $mode, with a final sync: HDD alone $pm_alone s, mount $pm_mount s: ratio $(ratio "$pm_alone" "$pm_mount")"
        note throttled what=postmark "way=$mode" "alone=$pm_alone" "mount=$pm_mount"
    done
}

# A C project of real headers: one source file for each header of Linux that compiles alone.
git_project() {
    command -v git >/dev/null && command -v make >/dev/null && command -v cc >/dev/null || return 0
    project=$SCRATCH/project
    mkdir -p "$project/src"
    cp -r /usr/include/linux "$project/"
    (
        cd "$project"
        for header in linux/*.h; do
            name=$(basename "$header" .h)
            printf '#include <%s>\nint %s_size(void) { return (int)sizeof(__u64); }\n' "$header" "${name//[^a-z0-9]/_}" >"src/$name.c"
        done
        find src -name '*.c' -print0 | xargs -0 -P2 -I{} sh -c 'cc -fsyntax-only -include linux/types.h -I. {} 2>/dev/null || rm {}'
        printf 'all: $(patsubst src/%%.c,obj/%%.o,$(wildcard src/*.c))\n' >Makefile
        printf 'obj/%%.o: src/%%.c\n\t@mkdir -p obj; $(CC) -w -c -O2 -include linux/types.h -I. -o $@ $<\n' >>Makefile
        git -c init.defaultBranch=main init -q
        git add -A
        git -c user.name=bench -c user.email=bench@example.org commit -qm all
    )
    checkout=() build=()
    for who in mount alone; do
        dir=$([[ $who == mount ]] && echo "$MNT/build" || echo "$SCRATCH/hddfs/build")
        begin=$(now)
        git clone -q "$project" "$dir"
        sync -f "$([[ $who == mount ]] && echo "$SSD" || echo "$HDD")"
        checkout+=("$(awk "BEGIN { print $(now) - $begin }")")
        mount_again
        begin=$(now)
        make -s -j2 -C "$dir"
        sync -f "$([[ $who == mount ]] && echo "$SSD" || echo "$HDD")"
        build+=("$(awk "BEGIN { print $(now) - $begin }")")
    done
    objects=$(find "$MNT/build/obj" -name '*.o' | wc -l)
    echo "  git checkout of $(git -C "$project" ls-files | wc -l) files: HDD alone ${checkout[1]} s, mount ${checkout[0]} s:" \
        "ratio $(ratio "${checkout[1]}" "${checkout[0]}"); build of $objects objects, caches cold: HDD alone ${build[1]} s," \
        "mount ${build[0]} s: ratio $(ratio "${build[1]}" "${build[0]}")"
    both() { awk "BEGIN { print $1 + $2 }"; }
    echo "  checkout and build together: ratio $(ratio "$(both "${checkout[1]}" "${build[1]}")" "$(both "${checkout[0]}" "${build[0]}")")"
    note throttled what=build "checkout_alone=${checkout[1]}" "checkout_mount=${checkout[0]}" \
        "build_alone=${build[1]}" "build_mount=${build[0]}"
}

if part random; then random; fi
if part move; then move; fi
if part postmark; then postmark_modes; fi
if part git; then git_project; fi
