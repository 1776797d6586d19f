# Shared by the benches; sourced, never run.
# shellcheck shell=bash
set -euo pipefail
HOTSHELF=${HOTSHELF:-$(realpath "$(dirname "${BASH_SOURCE[0]}")/../target/release/hotshelf")}
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/hotshelf-bench.XXXXXX")
SSD=$SCRATCH/ssd HDD=$SCRATCH/hdd MNT=$SCRATCH/mnt
mkdir -p "$SSD" "$HDD" "$MNT"
loops=() cgroup= throttled=

clean_up() {
    cd /
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || umount -l "$MNT" 2>/dev/null || true
    if [[ -n $throttled ]]; then
        echo "$throttled 0" >/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device
        echo "$throttled 0" >/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device
    fi
    local try
    for try in 1 2 3 4 5 6 7 8 9 10; do # a process that is just ending may hold one
        umount "$SCRATCH"/* 2>/dev/null || true
        grep -qF " $SCRATCH/" /proc/mounts || break
        sleep "0.$try"
    done
    local loop
    for loop in "${loops[@]}"; do losetup -d "$loop" 2>/dev/null || true; done
    if [[ -n $cgroup ]]; then
        echo $$ >"$(dirname "$cgroup")/tasks" 2>/dev/null || true
        rmdir "$cgroup" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$SCRATCH"
}
trap clean_up EXIT

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 0; }
    done
}

# median NUMBERS...
median() { printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
ratio() { awk "BEGIN { printf \"%.2f\", $1 / $2 }"; }
now() { date +%s.%N; }

# note NAME KEY=VALUE...: one JSON line.
note() {
    local name=$1 pair out
    shift
    out="{\"bench\":\"$name\",\"at\":\"$(date -u +%FT%TZ)\",\"kernel\":\"$(uname -r)\""
    for pair in "$@"; do out+=",\"${pair%%=*}\":\"${pair#*=}\""; done
    mkdir -p "$(dirname "${BASH_SOURCE[0]}")/results"
    echo "$out}" >>"$(dirname "${BASH_SOURCE[0]}")/results/$name.jsonl"
}

# disk NAME SIZE: an ext4 on a loop device, mounted on $SCRATCH/NAME; sets $loop.
disk() {
    truncate -s "$2" "$SCRATCH/$1.img"
    mkfs.ext4 -q "$SCRATCH/$1.img"
    loop=$(losetup --find --show "$SCRATCH/$1.img")
    loops+=("$loop")
    mkdir -p "$SCRATCH/$1"
    mount "$loop" "$SCRATCH/$1"
}
