#!/bin/bash
# The block schedulers: what `classes` costs above a device that does nothing (ns, instructions, allocations per request), and
# what `classes` is good for on models of a disk and of flash, in virtual time (the same figures on every machine).
# Needs no device and no root. Writes bench/results/scheduler.txt beside what it prints.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO_PROFILE_RELEASE_LTO=thin cargo build --quiet --release -p block --example scheduler
example=${CARGO_TARGET_DIR:-target}/release/examples/scheduler
mkdir -p bench/results

# per_request NAME PATTERN COMMAND...: a figure that the tool prints after PATTERN, for 64000 requests less that for 32000.
per_request() {
    local name=$1 pattern=$2 less more
    shift 2
    less=$("$@" "$example" count "$name" 32000 2>&1 | sed -n "s/.*$pattern *: *\([0-9,]*\).*/\1/p" | tr -d ,)
    more=$("$@" "$example" count "$name" 64000 2>&1 | sed -n "s/.*$pattern *: *\([0-9,]*\).*/\1/p" | tr -d ,)
    awk "BEGIN { printf \"%.2f\", ($more - $less) / 32000 }"
}

{
    echo "$(date -u +%FT%TZ), $(uname -r), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
    "$example" cost
    if command -v valgrind >/dev/null; then
        echo "per request at batch 32, by callgrind and memcheck"
        for name in none classes; do
            printf '  %-9s %8s instructions %6s heap allocations\n' "$name" \
                "$(per_request "$name" 'Collected' valgrind --tool=callgrind --callgrind-out-file=/dev/null)" \
                "$(per_request "$name" 'total heap usage' valgrind --tool=memcheck)"
        done
    fi
    "$example" share
} | tee bench/results/scheduler.txt
