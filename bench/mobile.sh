#!/bin/bash
# Applications of a phone on SQLite (bench/mobile.c says what they do): Debian's SQLite on ext4, and the same with the extension on
# rawfs, one after the other on the same loop device, synchronous=FULL. Time, and write requests as the device counted them.
# OPS (2000), RUNS (3), WORKLOADS, JOURNALS, SIZE (512M) change it; DIR is where the device's file lies.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need cc sqlite3 mkfs.ext4
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices need root"; exit 0; }
[[ -e /usr/include/sqlite3.h ]] || { echo "SKIP: libsqlite3-dev is not installed"; exit 0; }
extension=${EXTENSION:-$(dirname "$HOTSHELF")/libhotshelf_sqlite.so}
[[ -e $extension ]] || { echo "SKIP: $extension is not built: cargo build --release -p sqlitevfs"; exit 0; }
ops=${OPS:-2000} runs=${RUNS:-3} workloads=${WORKLOADS:-messenger sns mail} journals=${JOURNALS:-delete wal} size=${SIZE:-512M}
mobile=$SCRATCH/mobile
cc -O2 -o "$mobile" "$(dirname "$0")/mobile.c" -lsqlite3
file=${DIR:-$SCRATCH}/mobile.img
truncate -s "$size" "$file"
trap 'rm -f "$file"; clean_up' EXIT
loop=$(losetup --find --show "$file")
loops+=("$loop")

# Requests and sectors written, flushes.
counted() { awk '{ print $5, $7, $16 }' "/sys/block/$(basename "$loop")/stat"; }
# one WHO WORKLOAD JOURNAL SEED: makes the file system anew; prints seconds, transactions, sum, write requests, MiB, flushes.
one() {
    local who=$1 before after out
    if [[ $who == ext4 ]]; then
        mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
        mount "$loop" "$MNT"
        sync "$MNT"
        before=$(counted)
        out=$("$mobile" "$2" "$ops" "$4" "$3" "$MNT/db")
        umount "$MNT"
    else
        "$HOTSHELF" fs mkfs "$loop" --force >/dev/null
        before=$(counted)
        out=$("$mobile" "$2" "$ops" "$4" "$3" "file:/db?vfs=hotshelf&image=$loop" "$extension")
    fi
    after=$(counted)
    echo "$out" "$(paste <(echo "$before") <(echo "$after") | awk '{ print $4 - $1, ($5 - $2) / 2048, $6 - $3 }')"
}

# The kernel counts a flush as a write request too: "requests" are as it counts, "writes" those with data.
row='  %-10s %-8s %8s %8s %6s  %16s %6s  %14s %6s  %14s  %s\n'
# shellcheck disable=SC2059
printf "$row" workload journal ext4-s rawfs-s ratio requests fewer writes fewer flushes MiB
for workload in $workloads; do
    for journal in $journals; do
        e=() r=()
        for ((run = 1; run <= runs; run++)); do
            read -r es tx esum ew emib ef < <(one ext4 "$workload" "$journal" "$run")
            read -r rs _ rsum rw rmib rf < <(one rawfs "$workload" "$journal" "$run")
            [[ -n $esum && $esum == "$rsum" ]] || { echo "$workload, $journal: other answers on rawfs" >&2; exit 1; }
            e+=("$es") r+=("$rs")
        done
        es=$(median "${e[@]}") rs=$(median "${r[@]}")
        fewer() { awk "BEGIN { printf \"%.0f%%\", 100 * (1 - $2 / $1) }"; }
        # shellcheck disable=SC2059
        printf "$row" "$workload" "$journal" "$es" "$rs" "$(ratio "$rs" "$es")" "$ew to $rw" "$(fewer "$ew" "$rw")" \
            "$((ew - ef)) to $((rw - rf))" "$(fewer "$((ew - ef))" "$((rw - rf))")" "$ef to $rf" \
            "${emib%.*} to ${rmib%.*} ($tx transactions)"
        note mobile "workload=$workload" "journal=$journal" "ops=$ops" "ext4_s=$es" "rawfs_s=$rs" "ext4_writes=$ew" "rawfs_writes=$rw" \
            "ext4_flushes=$ef" "rawfs_flushes=$rf"
    done
done
