# Shared by the benches; sourced, never run.
# shellcheck shell=bash
set -euo pipefail
HOTSHELF=${HOTSHELF:-$(realpath "$(dirname "${BASH_SOURCE[0]}")/../target/release/hotshelf")}
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/hotshelf-bench.XXXXXX")
SSD=$SCRATCH/ssd HDD=$SCRATCH/hdd MNT=$SCRATCH/mnt
mkdir -p "$SSD" "$HDD" "$MNT"
loops=() held=() cgroup= throttled= uring_was=

clean_up() {
    cd /
    let_go
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || umount -l "$MNT" 2>/dev/null || true
    if [[ -n $throttled ]]; then
        echo "$throttled 0" >/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device
        echo "$throttled 0" >/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device
    fi
    # Programs that a bench which was killed has left at work; nobody else names this directory.
    pkill -f -- "$SCRATCH/" || true
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
    if [[ -n $uring_was ]]; then echo "$uring_was" >"$uring_switch"; fi
    rm -rf --one-file-system "$SCRATCH"
}
trap clean_up EXIT

# uring_on: for the time of the bench the kernel offers FUSE over io_uring, if it has it.
uring_switch=/sys/module/fuse/parameters/enable_uring
uring_on() {
    [[ -w $uring_switch && -z $uring_was ]] || return 0
    uring_was=$(cat "$uring_switch")
    echo Y >"$uring_switch"
}

# transport: how requests come to the daemon of $MNT.
transport() {
    local said
    said=$("$HOTSHELF" status "$MNT" | sed -n 's/^ *requests  *//p')
    echo "${said:-by /dev/fuse}"
}

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 0; }
    done
}

# median NUMBERS...
median() { printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
ratio() { awk "BEGIN { if ($2 == 0) print \"-\"; else printf \"%.2f\", $1 / $2 }"; }
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

# loop_in_memory SIZE: a loop device over a file in memory, which nothing is left of when it is detached; sets $loop.
loop_in_memory() {
    local file
    file=$(mktemp /dev/shm/hotshelf-bench.XXXXXX)
    loop=$(truncate -s "$1" "$file" && losetup --find --show --direct-io=off "$file") || { rm "$file"; return 1; }
    rm "$file"
    loops+=("$loop")
}

# The cache: what the benches of it share. Instances of a run have its process number in their name.

# conf FILE LINE...: a configuration of the cache, with lines of the table [cache] beside its name.
conf() {
    local file=$1 name
    shift
    name=bench-$$-$(basename "$file" .toml)
    printf '%s\n' '[cache]' "name = \"$name\"" "$@" >"$file"
}

# hold CONF: keeps a process attached until let_go, so that the cache keeps its contents between the measured processes.
hold() {
    "$HOTSHELF" cache attach --config "$1" >/dev/null
    held+=("$1")
}

let_go() {
    local conf
    for conf in "${held[@]}"; do "$HOTSHELF" cache detach --config "$conf" >/dev/null || true; done
    held=()
}

# of_cache CONF EXPRESSION: what the cache says of itself (`s`), in Python's words.
of_cache() {
    "$HOTSHELF" cache status --json --config "$1" |
        python3 -c 'import json, sys
s = json.load(sys.stdin)
t = {tier["name"]: tier for tier in s["tiers"]}
print(eval(sys.argv[1]))' "$2"
}

# need_engine: fio's engine is there, or the bench is skipped; sets $engine.
need_engine() {
    need fio cc
    # shellcheck disable=SC2034
    engine=$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}")/fio/libhotshelf_fio.so
    local code=0
    "$(dirname "${BASH_SOURCE[0]}")/../fio/build.sh" >"$SCRATCH/engine.log" 2>&1 || code=$?
    ((code == 0)) || { sed 's/^fio.build.sh: /SKIP: /' "$SCRATCH/engine.log"; exit "$((code == 77 ? 0 : code))"; }
}

# fio_read FIO-ARGUMENT...: a job that reads; prints IOPS, KiB a second, p99 and mean in microseconds.
fio_read() {
    fio --name=b --rw=randread --bs=4k --norandommap --randrepeat=0 --invalidate=0 --fallocate=none --time_based \
        --output-format=terse --terse-version=3 "$@" | grep '^3;' |
        awk -F';' '{ for (i = 18; i <= 37; i++) if (split($i, p, "=") == 2 && p[1] == "99.000000%") tail = p[2]; print $8, $7, tail, $16 }'
}
