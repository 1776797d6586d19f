#!/bin/bash
# Random reads of 4 KiB from one emulated NVMe drive in one boot of a virtual machine: the kernel's psync with one request in flight
# and its io_uring with 32 (fio, O_DIRECT, the block node), and our driver with as many (polled, by interrupts, adaptive). Both sides
# in turn, ROUNDS (3) times, SECONDS_EACH (5); medians. Prints for each the requests a second, the CPU time of the process for
# each read, and that of the whole guest; then the ratios. The guest is 10 to 30 times slower than the machine: the ratios count, and
# only on a machine that is otherwise idle. Takes three minutes. KERNEL: 6.1 or 6.12.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need fio
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
CARGO_PROFILE_RELEASE_LTO=thin cargo build --quiet --release --locked -p nvme --example load
printf 'load=%q seconds=%q rounds=%q\n' "$target/release/examples/load" "${SECONDS_EACH:-5}" "${ROUNDS:-3}" >bench/vm/settings
trap 'rm -f bench/vm/settings; clean_up' EXIT
mkdir -p bench/results
said=bench/results/vm-nvme-$(date -u +%Y%m%dT%H%M%S).log
code=0
tests/vm/boot.sh bench/vm/nvme.sh >"$said" 2>&1 || code=$?
((code != 77)) || { grep SKIP: "$said"; exit 0; }
((code == 0)) || { tail -n 20 "$said"; exit "$code"; }

# field SIDE N: the median of a column over the rounds.
field() {
    local values
    mapfile -t values < <(awk -v side="$1" -v n="$2" '$1 == side { print $n }' "$said")
    median "${values[@]}"
}
printf '%-24s %10s %14s %14s\n' side IOPS 'CPU us/read' 'guest us/read'
for side in psync-1 hotshelf-polling-1 hotshelf-interrupt-1 hotshelf-adaptive-1 uring-32 hotshelf-polling-32 hotshelf-interrupt-32 \
    hotshelf-adaptive-32; do
    printf '%-24s %10.0f %14.1f %14.1f\n' "$side" "$(field "$side" 2)" "$(field "$side" 3)" "$(field "$side" 4)"
    note vm-nvme side=$side iops="$(field "$side" 2)" cpu_us="$(field "$side" 3)" guest_us="$(field "$side" 4)"
done
for pair in psync-1:1 uring-32:32; do
    theirs=${pair%:*} depth=${pair#*:}
    for mode in polling interrupt adaptive; do
        ours=hotshelf-$mode-$depth
        echo "$ours to $theirs: IOPS $(ratio "$(field "$ours" 2)" "$(field "$theirs" 2)"), CPU time of a read" \
            "$(ratio "$(field "$ours" 3)" "$(field "$theirs" 3)"), of the whole guest $(ratio "$(field "$ours" 4)" "$(field "$theirs" 4)")"
    done
done
echo "  every round: $said"
