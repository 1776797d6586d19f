#!/bin/bash
# What a request costs through a handle over a device that does nothing: nanoseconds, and instructions by callgrind.
# Targets: 60 ns at batch 32, 120 ns at depth 1 (`dedicated`, with deadlines).
set -euo pipefail
cd "$(dirname "$0")/.."
bench=$(cargo bench -p block --bench handle_cost --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*handle_cost[^"]*\)".*/\1/p' | tail -1)
"$bench"
command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed: no instructions"; exit 0; }

# instructions CASE BATCH REQUESTS
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bench" "$@" 2>&1 | sed -n 's/.*Collected : *\([0-9]*\).*/\1/p'
}
printf '%-22s %12s %12s   instructions per request\n' '' 'batch of 32' 'depth 1'
for case in tracked dedicated dedicated-no-deadline dedicated-dyn shared shared-batch synchronous; do
    printf '%-22s' "$case"
    for batch in 32 1; do
        # The difference of two lengths: what setting up costs falls out.
        short=$(instructions "$case" "$batch" 3200) long=$(instructions "$case" "$batch" 16000)
        printf ' %12s' "$(((long - short) / 12800))"
    done
    echo
done
