#!/bin/bash
# What a hit in the block cache costs beside pread of a file in the kernel's page cache, what a miss costs, what read-ahead
# brings; and instructions for each hit by callgrind. Targets: below 100 ns for 4 KiB from a set within the processor's cache.
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
echo "instructions for each hit (read4096 and so on: with the copy of so many bytes; pin: no copy; loop: nothing)"
for case in loop pin read64 shared64 write64 read4096; do
    # The difference of two lengths: what setting up costs falls out.
    short=$(instructions "$case" 10000) long=$(instructions "$case" 60000)
    printf '  %-10s %6d\n' "$case" "$(((long - short) / 50000))"
done
