#!/bin/bash
# A disk of 150 reads a second under the HDD directory: what promotion gives, and what a moving file costs others.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio python3
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices and throttling need root"; exit 0; }
move_mib=${MOVE_MIB:-2048}

disk ssdfs 6G
disk hddfs 6G
cgroup=/sys/fs/cgroup/blkio/hotshelf-bench-$$
mkdir "$cgroup" 2>/dev/null || { cgroup=; echo "SKIP: no blkio control group here"; exit 0; }
device=$(cat "/sys/block/$(basename "$loop")/dev")
echo "$device 150" >"$cgroup/blkio.throttle.read_iops_device"
echo "$device 150" >"$cgroup/blkio.throttle.write_iops_device"
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

head -c 256M /dev/urandom >"$MNT/other"
head -c "${move_mib}M" /dev/urandom >"$MNT/large"
sync
p99_us "$MNT/other" 3 >/dev/null
quiet=$(p99_us "$MNT/other" 10)
"$HOTSHELF" migrate "$MNT/large" --to hdd >/dev/null &
mover=$!
disturbed=$(p99_us "$MNT/other" 10)
moved=done
kill -0 $mover 2>/dev/null && moved='going on'
begin=$(now)
head -c 4096 "$MNT/work" >/dev/null
opened=$(awk "BEGIN { printf \"%.1f\", ($(now) - $begin) * 1000 }")
echo "  p99 of 4 KiB reads of another SSD file: quiet $quiet us, while ${move_mib} MiB move $disturbed us:" \
    "ratio $(ratio "$disturbed" "$quiet") (the move is $moved); opening and reading a file meanwhile: $opened ms"
note throttled what=p99 "quiet=$quiet" "disturbed=$disturbed"
wait $mover || true

if command -v postmark >/dev/null; then
    for who in mount alone; do
        dir=$([[ $who == mount ]] && echo "$MNT/pm" || echo "$SCRATCH/hddfs/pm")
        mkdir -p "$dir"
        begin=$(now)
        printf 'set location %s\nset number 3000\nset transactions 6000\nset size 500 20000\nset buffering false\nrun\nquit\n' "$dir" |
            postmark >/dev/null
        sync -f "$([[ $who == mount ]] && echo "$SSD" || echo "$HDD")"
        declare "pm_$who=$(awk "BEGIN { print $(now) - $begin }")"
    done
    echo "  PostMark with a final sync: HDD alone $pm_alone s, mount $pm_mount s: ratio $(ratio "$pm_alone" "$pm_mount")"
    note throttled what=postmark "alone=$pm_alone" "mount=$pm_mount"
fi
