#!/bin/bash
# Polling, interrupts and adaptive completion on devices of 8 to 400 us: latency, CPU time, and the CPU time of an idle completion
# thread. First alone, then with jitter, then with as many busy threads as CPUs, then with twice as many submitters.
# ROUNDS and MS change the length. The modes take turns within each round; medians of the rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-7} ms=${MS:-150} cores=$(nproc)
CARGO_PROFILE_RELEASE_LTO=thin cargo build --release --quiet --package block --example completion
run() {
    echo "== $*"
    target/release/examples/completion --rounds "$rounds" --ms "$ms" "$@"
}
run
run --jitter 10
run --depths 1,4 --hogs "$cores"
run --depths 1,4 --threads $((cores * 2))
