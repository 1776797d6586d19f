#!/bin/bash
# The paper's key-value workload (001, section IV.B): keys of 32 bytes by Zipf's law (theta 0.99), values of 512 bytes, threads that
# get and threads that put, for SECONDS_EACH; the tails of both. The store is redb (the crate) on both sides, over a file of ext4 by its
# own backend and over a file of rawfs by library, on the same loop device, both made anew before; its own cache is CACHE_MIB, and the
# file system has the rest of MEMORY_MIB, less what the process takes (ext4: of a control group that both run in, where there is one).
# DURABLE_EVERY: each so many puts of a thread are durable when they return, with all before; others are seen only (1 and 100).
# FULL=1: 1,000,000 keys, 600 s. KEYS, GETTERS, PUTTERS, RUNS, SEED, SIZE.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 losetup
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices need root"; exit 0; }
runs=${RUNS:-1} getters=${GETTERS:-1} putters=${PUTTERS:-1} cache=${CACHE_MIB:-16} seed=${SEED:-1}
if [[ ${FULL:-0} == 1 ]]; then
    keys=${KEYS:-1000000} seconds=${SECONDS_EACH:-600} size=${SIZE:-8G} memory=${MEMORY_MIB:-512}
else
    keys=${KEYS:-50000} seconds=${SECONDS_EACH:-5} size=${SIZE:-1G} memory=${MEMORY_MIB:-128}
fi
# shellcheck source=bench/lib-rawfs.sh
source "$(dirname "$0")/lib-rawfs.sh"
loop_device "$size"

# side SIDE EVERY RUN: see on_side. What is left beside the store's cache and the program is asked for as what rawfs may have with its
# allocator's share, a quarter.
side() {
    on_side "$1" kv "keys=$keys" "ms=$((seconds * 1000))" "getters=$getters" "putters=$putters" "durable_every=$2" "cache_mib=$cache" \
        "seed=$((seed + $3))" "memory_mib=$(((memory * 7 / 8 - cache - 24) * 4 / 3))"
}

figures=(get_ops get_p90_us get_p95_us get_p99_us put_ops put_p90_us put_p95_us put_p99_us cpu_s)
echo "  $keys keys, $getters thread(s) get and $putters put for $seconds s, $memory MiB of memory, $cache of them the store's cache"
for every in ${DURABLE_EVERY:-1 100}; do
    : >"$SCRATCH/kernel.said"
    : >"$SCRATCH/rawfs.said"
    for ((run = 0; run < runs; run++)); do
        for who in kernel rawfs; do
            side "$who" "$every" "$run"
            {
                for name in "${figures[@]}"; do echo "$name ${!name}"; done
                # shellcheck disable=SC2154
                echo "written_bytes $bytes"
                echo "write_requests $requests"
            } >>"$SCRATCH/$who.said"
        done
    done
    echo "  one durable put in $every"
    printf '    %-22s %14s %14s %9s\n' '' ext4 rawfs ratio
    words=()
    for name in "${figures[@]}" written_bytes write_requests; do
        mapfile -t k < <(awk -v n="$name" '$1 == n { print $2 }' "$SCRATCH/kernel.said")
        mapfile -t r < <(awk -v n="$name" '$1 == n { print $2 }' "$SCRATCH/rawfs.said")
        ko=$(median "${k[@]}") ro=$(median "${r[@]}")
        printf '    %-22s %14s %14s %9s\n' "$name" "$ko" "$ro" "$(ratio "$ro" "$ko")"
        words+=("ext4_$name=$ko" "rawfs_$name=$ro")
    done
    note kv "every=$every" "keys=$keys" "getters=$getters" "putters=$putters" "seconds=$seconds" "memory_mib=$memory" "${words[@]}"
done
