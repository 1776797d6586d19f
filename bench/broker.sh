#!/bin/bash
# The cost of the broker: nanoseconds for a 4 KiB read directly and through the broker, on a device in memory and on one that does
# nothing, with 1 and 32 requests in flight; and the CPU time of an idle broker.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
root=$(realpath "$(dirname "$0")/..")
ROUNDS=${ROUNDS:-11}
export CARGO_PROFILE_RELEASE_LTO=thin
"$root/scripts/cargo" build --quiet --release --locked --package block --example broker_cost --manifest-path "$root/Cargo.toml"
echo "load: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) processors"
printf '%-8s %-18s %6s %10s %10s\n' device way batch ns "least ns"
"${CARGO_TARGET_DIR:-$root/target}/release/examples/broker_cost" "$ROUNDS" | while read -r line; do
    device=$(sed 's/.*"device":"\([^"]*\)".*/\1/' <<<"$line") way=$(sed 's/.*"way":"\([^"]*\)".*/\1/' <<<"$line")
    batch=$(sed 's/.*"batch":\([0-9]*\).*/\1/' <<<"$line") ns=$(sed 's/.*"ns":\([0-9]*\).*/\1/' <<<"$line")
    least=$(sed 's/.*"ns_least":\([0-9]*\).*/\1/' <<<"$line")
    printf '%-8s %-18s %6s %10s %10s\n' "$device" "$way" "$batch" "$ns" "$least"
    note broker device="$device" way="$way" batch="$batch" ns="$ns" rounds="$ROUNDS"
done
