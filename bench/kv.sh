#!/bin/bash
# The paper's key-value workload (001, section IV.B): keys of 32 bytes by Zipf's law (theta 0.99), values of 512 bytes, threads that
# get and threads that put, for SECONDS_EACH; the tails of both. The store is redb (the crate) on both sides, over a file of ext4 by its
# own backend and over a file of rawfs by library, on the same loop device, both made anew before; its own cache is CACHE_MIB, and the
# file system has the rest of MEMORY_MIB, less what the process takes (ext4: of a control group that both run in, where there is one).
# DURABLE_EVERY: each so many puts of a thread are durable when they return, with all before; others are seen only (1 and 100).
# STORE=sqlite: SQLite instead, rawfs by its extension (bench/kv-sqlite.c), each put durable; JOURNALS (delete, which is its default,
# and wal); who finds it locked looks again after 50 us.
# FULL=1: 1,000,000 keys, 600 s, on 4 GiB, which lib-rawfs.sh fills beforehand: on a sparse file both sides' first writes to a place
# would be the file system's below.
# KEYS, GETTERS, PUTTERS, RUNS, SEED, SIZE.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 losetup
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices need root"; exit 0; }
runs=${RUNS:-1} getters=${GETTERS:-1} putters=${PUTTERS:-1} cache=${CACHE_MIB:-16} seed=${SEED:-1}
if [[ ${FULL:-0} == 1 ]]; then
    keys=${KEYS:-1000000} seconds=${SECONDS_EACH:-600} size=${SIZE:-4G} memory=${MEMORY_MIB:-512}
else
    enough=128
    [[ ${STORE:-redb} == redb ]] || enough=256
    keys=${KEYS:-50000} seconds=${SECONDS_EACH:-5} size=${SIZE:-1G} memory=${MEMORY_MIB:-$enough}
fi
# shellcheck source=bench/lib-rawfs.sh
source "$(dirname "$0")/lib-rawfs.sh"
loop_device "$size"

# What is left beside the store's cache and the program, as what rawfs may have with its allocator's share: a quarter, at most a
# sixteenth and 48 MiB (docs/decisions/31).
left=$((memory * 7 / 8 - cache - 24))
files=$((left * 4 / 3 < (left + 48) * 16 / 15 ? left * 4 / 3 : (left + 48) * 16 / 15))

# side SIDE EVERY RUN: see on_side.
side() {
    on_side "$1" kv "keys=$keys" "ms=$((seconds * 1000))" "getters=$getters" "putters=$putters" "durable_every=$2" "cache_mib=$cache" \
        "seed=$((seed + $3))" "memory_mib=$files"
}

# sqlite_side SIDE JOURNAL RUN: the same with SQLite; the extension has a separate allocator.
sqlite_side() {
    local at=$SCRATCH/ext4/db more=()
    if [[ $1 == kernel ]]; then
        ext4_mount
    else
        "$HOTSHELF" fs mkfs "$loop" --force >/dev/null
        at="file:/db?vfs=hotshelf&image=$loop&memory=${files}MiB" more=("$extension")
    fi
    limited "$SCRATCH/kv-sqlite" "$at" "$stat" "$keys" "$seconds" "$getters" "$putters" "$cache" "$2" \
        "$((seed + $3))" "${more[@]}" >"$SCRATCH/said"
    [[ $1 == rawfs ]] || umount "$SCRATCH/ext4"
    settled
}

if [[ ${STORE:-redb} == sqlite ]]; then
    need cc
    [[ -e /usr/include/sqlite3.h ]] || { echo "SKIP: libsqlite3-dev is not installed"; exit 0; }
    extension=${EXTENSION:-$(dirname "$HOTSHELF")/libhotshelf_sqlite.so}
    [[ -e $extension ]] || { echo "SKIP: $extension is not built: cargo build --release -p sqlitevfs"; exit 0; }
    cc -O2 -Wall -Wextra -o "$SCRATCH/kv-sqlite" "$(dirname "$0")/kv-sqlite.c" -lsqlite3 -lpthread -lm
    measured=sqlite_side variants=${JOURNALS:-delete wal} what=journal
else
    measured=side variants=${DURABLE_EVERY:-1 100} what="puts for one that is durable"
fi

figures=(get_ops get_p90_us get_p95_us get_p99_us put_ops put_p90_us put_p95_us put_p99_us cpu_s)
echo "  $keys keys, $getters thread(s) get and $putters put for $seconds s, $memory MiB of memory, $cache of them the store's cache"
for variant in $variants; do
    : >"$SCRATCH/kernel.said"
    : >"$SCRATCH/rawfs.said"
    for ((run = 0; run < runs; run++)); do
        for who in kernel rawfs; do
            "$measured" "$who" "$variant" "$run"
            {
                for name in "${figures[@]}"; do echo "$name ${!name}"; done
                # shellcheck disable=SC2154
                echo "written_bytes $bytes"
                echo "write_requests $requests"
            } >>"$SCRATCH/$who.said"
        done
    done
    echo "  ${STORE:-redb}, $what: $variant"
    printf '    %-22s %14s %14s %9s\n' '' ext4 rawfs ratio
    words=()
    for name in "${figures[@]}" written_bytes write_requests; do
        mapfile -t k < <(awk -v n="$name" '$1 == n { print $2 }' "$SCRATCH/kernel.said")
        mapfile -t r < <(awk -v n="$name" '$1 == n { print $2 }' "$SCRATCH/rawfs.said")
        ko=$(median "${k[@]}") ro=$(median "${r[@]}")
        printf '    %-22s %14s %14s %9s\n' "$name" "$ko" "$ro" "$(ratio "$ro" "$ko")"
        words+=("ext4_$name=$ko" "rawfs_$name=$ro")
    done
    note kv "store=${STORE:-redb}" "variant=$variant" "keys=$keys" "getters=$getters" "putters=$putters" "seconds=$seconds" \
        "memory_mib=$memory" "${words[@]}"
done
