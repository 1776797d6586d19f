#!/bin/bash
# Compares hits and misses of a device's cache with pread of a file in the kernel's page cache; counts instructions of a hit with
# callgrind. Target: below 100 ns for 4 KiB from a set within the CPU's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO_PROFILE_RELEASE_LTO=thin cargo build --quiet --release -p datapath --example hit
hit=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/examples/hit
file=$(mktemp "${TMPDIR:-/tmp}/hotshelf-bench.XXXXXX")
trap 'rm -f "$file"' EXIT
"$hit" "$file"
command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed: no instructions"; exit 0; }

# instructions CASE TIMES
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$hit" count "$@" 2>&1 | sed -n 's/.*Collected : *\([0-9]*\).*/\1/p'
}
echo "instructions for each hit (read4096 copies 4096 bytes; loop is empty)"
for case in loop read64 write64 read4096; do
    # The difference of two lengths: what setting up costs falls out.
    short=$(instructions "$case" 10000) long=$(instructions "$case" 60000)
    printf '  %-10s %6d\n' "$case" "$(((long - short) / 50000))"
done
