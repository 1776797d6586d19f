#!/bin/bash
# foyer (the crate, bench/foyer/) and hotshelf on the same list of pages, the same backing file, as many bytes of memory and as large an
# SSD file in the same file system: hits by tier, and the time of a read. One thread, as fast as it goes; a miss of either reads the
# backing file. TRACES: "zipf" (theta 1.0, 65536 pages, 300,000 requests) and names of ../shared/traces ("cloudPhysicsIO
# 2_pools"); memory is MEMORY_PERCENT (1) of the distinct pages, the SSD SSD_PERCENT (25), at least 32 MiB. ROUNDS (1).
# foyer runs once with S3-FIFO and once with LRU in memory. It writes each page to the SSD at insertion, in blocks of 1 MiB (few of its
# default size of 16 MiB would fit). A page of 4 KiB and its header take 8 KiB of its SSD.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need cc python3 gzip
rounds=${ROUNDS:-1}
root=$(realpath "$(dirname "$0")/..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
archive=$target/release/libhotshelf.a
[[ -f $archive ]] || { echo "no $archive: make build"; exit 1; }
CARGO_TARGET_DIR=$target/foyer "$root/scripts/cargo" build --quiet --release --locked --manifest-path "$root/bench/foyer/Cargo.toml" ||
    { echo "SKIP: foyer cannot be built here"; exit 0; }
replay=$SCRATCH/replay
cc -std=gnu11 -O2 -Wall -Wextra -I"$root/include" -o "$replay" "$root/bench/replay.c" "$archive" -pthread -lgcc_s -lm -ldl

traces=${TRACES:-zipf cloudPhysicsIO 2_pools} given=${TRACE_DIR:-$root/../shared/traces}
for trace in $traces; do
    list=$SCRATCH/$trace.pages data=$SCRATCH/$trace.data
    # The list, with pages numbered from 0 in the order in which they come; and the file, each page with its number in it.
    python3 "$root/bench/pages.py" "$trace" "$given" "$list" "$data" || { echo "SKIP: $trace: no $given"; continue; }
    distinct=$(($(stat -c %s "$data") / 4096))
    memory_kib=$((distinct * 4 * ${MEMORY_PERCENT:-1} / 100))
    ssd_mib=$((distinct * ${SSD_PERCENT:-25} / 100 / 256))
    ((ssd_mib >= 32)) || ssd_mib=32
    ((memory_kib >= 1024)) || memory_kib=1024
    echo "  -- $trace: $(wc -l <"$list") requests, $distinct pages; $memory_kib KiB of memory, $ssd_mib MiB of SSD"
    for ((n = 0; n < rounds; n++)); do
        for policy in s3fifo lru; do
            mkdir "$SCRATCH/foyer-ssd"
            "$target/foyer/release/foyer-replay" "$list" "$data" "$SCRATCH/foyer-ssd" "$ssd_mib" "$memory_kib" "$policy" |
                sed "s/^side=foyer/side=foyer-$policy/"
            rm -rf "$SCRATCH/foyer-ssd"
        done
        conf "$SCRATCH/$trace.toml" "memory = \"${memory_kib}KiB\"" "ssd = \"$SCRATCH/ssd.cache\"" "ssd_size = \"${ssd_mib}MiB\"" \
            'read_ahead = "0"' 'second_touch = false' 'stream_cutoff = "1TiB"'
        "$replay" "$SCRATCH/$trace.toml" "$list" "$data" "'$HOTSHELF' cache status --json --config '$SCRATCH/$trace.toml'" >"$SCRATCH/said"
        python3 "$root/bench/tiers.py" <"$SCRATCH/said"
        rm -f "$SCRATCH/ssd.cache"
    done | while read -ra words; do
        note foyer "trace=$trace" "memory_kib=$memory_kib" "ssd_mib=$ssd_mib" "${words[@]}"
        echo "${words[*]}"
    done | column -t | sed 's/^/  /'
    rm -f "$list" "$data"
done
