#!/bin/bash
# The paper's small files (001, section IV.C): create, delete, read and append 4 KiB at random over files of 4 to 16 KiB, on ext4 and
# on rawfs by library, on the same loop device, both made anew before. What the device was given is counted by the kernel, from the
# first operation to the end of unmount or close; time is from the first operation to the end of a sync of everything.
# The file below the loop device is read and written past the page cache (where the file system below it can), so each side has
# MEMORY_MIB in all: ext4 and the process by a control group, rawfs by its settings and the same control group.
# DURABLE: "end": nothing before the sync at the end (ext4 commits every 5 s, both write data back after 30 s); a number: everything is
# synced after each so many operations (syncfs); "each": each change before the next (fsync of the file, of the directory after a
# delete). FULL=1: 1,000,000 files and 5,000,000 operations (a file of 24 GiB). RUNS, THREADS, FILES, OPERATIONS, SEED, SIZE.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 losetup
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices need root"; exit 0; }
runs=${RUNS:-1} threads=${THREADS:-1} seed=${SEED:-1}
if [[ ${FULL:-0} == 1 ]]; then
    files=${FILES:-1000000} operations=${OPERATIONS:-5000000} size=${SIZE:-24G} memory=${MEMORY_MIB:-2048} modes=${DURABLE:-end 10000}
else
    files=${FILES:-20000} operations=${OPERATIONS:-100000} size=${SIZE:-1G} memory=${MEMORY_MIB:-256} modes=${DURABLE:-end 1000 each}
fi
each=${EACH_OPERATIONS:-$((operations < 20000 ? operations : 20000))}
# shellcheck source=bench/lib-rawfs.sh
source "$(dirname "$0")/lib-rawfs.sh"
loop_device "$size"

# side SIDE DURABLE OPERATIONS RUN: see on_side.
side() {
    on_side "$1" files "files=$files" "operations=$3" "durable=$2" "threads=$threads" "seed=$((seed + $4))" \
        "memory_mib=$memory"
}

echo "  $files files, $size on a loop device, $memory MiB of memory, $threads thread(s)"
for durable in $modes; do
    count=$operations
    [[ $durable != each ]] || count=$each
    k_ops=() r_ops=() k_bytes=() r_bytes=() k_requests=() r_requests=() k_cpu=() r_cpu=()
    for ((run = 0; run < runs; run++)); do
        side kernel "$durable" "$count" "$run"
        k_ops+=("$ops") k_bytes+=("$bytes") k_requests+=("$requests") k_cpu+=("$cpu_s")
        side rawfs "$durable" "$count" "$run"
        r_ops+=("$ops") r_bytes+=("$bytes") r_requests+=("$requests") r_cpu+=("$cpu_s")
    done
    ko=$(median "${k_ops[@]}") ro=$(median "${r_ops[@]}") kb=$(median "${k_bytes[@]}") rb=$(median "${r_bytes[@]}")
    kr=$(median "${k_requests[@]}") rr=$(median "${r_requests[@]}") kc=$(median "${k_cpu[@]}") rc=$(median "${r_cpu[@]}")
    echo "  durable: $durable, $count operations"
    printf '    %-22s %12s %12s %9s\n' '' ext4 rawfs ratio
    printf '    %-22s %12s %12s %9s\n' 'operations a second' "$ko" "$ro" "$(ratio "$ro" "$ko")"
    printf '    %-22s %12s %12s %9s\n' 'bytes written, MiB' "$((kb >> 20))" "$((rb >> 20))" "$(ratio "$rb" "$kb")"
    printf '    %-22s %12s %12s %9s\n' 'write requests' "$kr" "$rr" "$(ratio "$rr" "$kr")"
    printf '    %-22s %12s %12s\n' 'CPU of the process, s' "$kc" "$rc"
    note small-files "durable=$durable" "files=$files" "operations=$count" "threads=$threads" "memory_mib=$memory" \
        "ext4_ops=$ko" "rawfs_ops=$ro" "ext4_bytes=$kb" "rawfs_bytes=$rb" "ext4_requests=$kr" "rawfs_requests=$rr" \
        "ext4_cpu_s=$kc" "rawfs_cpu_s=$rc"
done
