#!/bin/bash
# Calls of the library on pages in memory beside the kernel's on a file of ext4 in its page cache, and beside memcpy alone, on sets
# of SETS (16 256 1024) MiB: one thread; two threads and two processes, each on its CPU, beside the mean of what each of the two
# does alone; the tail of read hits while as much as can be is written back; pass-through beside the plain call. Medians of ROUNDS (9)
# rounds in which all calls take their turn; ratios are of one round.
# Goals (issue 4): a copied read 0.65 (16 MiB) and 0.80, 64 bytes 0.30, lent 0.20, a write 0.30, two 1.8, tail 3, pass-through 1.05.
# ORDER=scattered: the pages come to memory in another order than the file's.
# PARTS chooses among: calls scale tail plain count. CPU_TIME=1: calls and plain by CPU time, for a machine that others use, too.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need cc
[[ $(id -u) == 0 ]] || { echo "SKIP: an ext4 of its own needs root"; exit 0; }
rounds=${ROUNDS:-9} sets=${SETS:-16 256 1024} parts=" ${PARTS:-calls scale tail plain count} "
root=$(realpath "$(dirname "$0")/..")
archive=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")/release/libhotshelf.a
[[ -f $archive ]] || { echo "no $archive: make build"; exit 1; }
program=$SCRATCH/page-cache
cc -std=gnu11 -O2 -Wall -Wextra -I"$root/include" -o "$program" "$root/bench/page-cache.c" "$archive" -pthread -lgcc_s -lm -ldl
largest=$(tr ' ' '\n' <<<"$sets" | sort -g | tail -1)
disk ext4 "$((largest * 4 + 512))M"
disk ssdfs 2G
dir=$SCRATCH/ext4

# What is measured is a hit: there is room for all of the set, and nobody writes it back meanwhile, as the kernel does not either: that
# would begin at half of the limit, and the rounds write four fifths of the set.
memory=$((largest * 7 / 4 + 64))
conf "$SCRATCH/hits.toml" "memory = \"${memory}MiB\"" 'dirty_limit = "90%"' 'dirty_age = "1h"'
conf "$SCRATCH/plain.toml" 'memory = "64MiB"' 'mode = "pass-through"'
conf "$SCRATCH/migration.toml" "memory = \"${memory}MiB\"" "ssd = \"$SCRATCH/ssdfs/cache\"" 'ssd_size = "1GiB"' 'second_touch = false'

# shown: the lines of the program, aligned; and noted.
shown() {
    local words
    while read -ra words; do
        note page-cache "part=$part" "${words[@]}"
        printf '  %s\n' "${words[*]}"
    done | column -t
}

for part in calls scale tail plain count; do
    [[ $parts == *" $part "* ]] || continue
    echo "  -- $part"
    case $part in
        calls) for mib in $sets; do "$program" calls "$SCRATCH/hits.toml" "$dir" "$mib" "$rounds"; done | shown ;;
        scale) for mib in $sets; do "$program" scale "$SCRATCH/hits.toml" "$dir" "$mib" "$rounds"; done | shown ;;
        tail) "$program" tail "$SCRATCH/migration.toml" "$dir" 64 "${TAIL_SECONDS:-9}" | shown ;;
        plain) "$program" plain "$SCRATCH/plain.toml" "$dir" 16 "$rounds" | shown ;;
        count)
            command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed: no instructions"; continue; }
            # instructions CALL TIMES. The library's threads are in it, too: the difference of two lengths is that of the calls.
            instructions() {
                valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" count "$SCRATCH/hits.toml" "$dir" 4 "$@" 2>&1 |
                    sed -n 's/.*Collected : *\([0-9]*\).*/\1/p'
            }
            for call in nothing memcpy_4k upread_4k upread_64 uread_4k pin_4k upwrite_4k; do
                short=$(instructions "$call" 20000) long=$(instructions "$call" 120000)
                echo "call=$call instructions=$(((long - short) / 100000))"
            done | shown
            ;;
    esac
done
