#!/bin/bash
# Measures: scripts/bench.sh [NAME...]   (default: all)
#
#   the mount:       passthrough metadata throttled adoption
#   the block layer: block-fio handle-cost handle-sharing completion scheduler block-cache broker vm-nvme
#   raw images:      mobile
#   the cache:       page-cache paper-fio ssd-hits foyer vm-peers
#   rawfs:           small-files kv
#   measuring:       nofscache nocache
#
# Each bench runs both sides in turn in one run and prints medians and the ratio; figures of a shared machine
# are good for ratios only. Results are also appended to bench/results/ as JSON lines.
set -euo pipefail
cd "$(dirname "$0")/.."
HOTSHELF=$(realpath "${HOTSHELF:-target/release/hotshelf}")
export HOTSHELF PATH="$PATH:/usr/sbin:/sbin"
mkdir -p bench/results
(($#)) || set -- passthrough metadata throttled adoption block-fio handle-cost handle-sharing completion scheduler \
    block-cache broker vm-nvme page-cache paper-fio ssd-hits foyer vm-peers mobile small-files kv nofscache nocache
for name in "$@"; do
    [[ -x bench/$name.sh ]] || { echo "there is no bench $name" >&2; exit 2; }
    echo "== $name"
    "bench/$name.sh"
done
