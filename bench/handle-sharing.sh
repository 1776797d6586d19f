#!/bin/bash
# Four threads that share one queue through handles against one thread that owns it (same depth in all; target 0.9 on the
# memory device), and four dedicated handles. SECONDS_EACH (0.3) and ROUNDS (5) change the length.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO_PROFILE_RELEASE_LTO=thin cargo run --quiet --release -p block --example handle_sharing -- "${SECONDS_EACH:-0.3}" "${ROUNDS:-5}"
