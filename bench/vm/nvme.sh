#!/bin/bash
# In the guest, started by bench/vm-nvme.sh: one drive, the kernel's driver and ours in turn. Prints lines `SIDE IOPS CPU GUEST`:
# requests a second, microseconds of CPU time of the process and of the whole guest for each.
# drives: ssd=size:128M,aio:io_uring
# TIMEOUT: 1200
# shellcheck source=tests/vm/lib.sh
source "$ROOT/tests/vm/lib.sh"
# What bench/vm-nvme.sh set.
load='' seconds=0 rounds=0
# shellcheck source=/dev/null
source "$ROOT/bench/vm/settings"
need fio
address=$(pci ssd)
# What was never written would not be read from the file.
dd if=/dev/urandom of="$(block ssd)" bs=1M oflag=direct status=none || true

# Busy time of all CPUs, in hundredths of a second: user, nice, system, irq, softirq.
busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }

# report SIDE IOPS CPU BEFORE AFTER: what a run took of the guest; starting a program takes some, the same for both sides.
report() { awk -v who="$1" -v iops="$2" -v cpu="$3" -v busy="$(($5 - $4))" -v s="$seconds" \
    'BEGIN { printf "%s %.0f %.2f %.2f\n", who, iops, cpu, busy * 1e4 / (iops * s) }'; }

# kernel SIDE FIO-ARGUMENT...
kernel() {
    local side=$1 before after
    shift
    before=$(busy)
    fio --name=job --filename="$(block ssd)" --rw=randread --bs=4k --direct=1 --norandommap --randseed=7 --time_based \
        --runtime="$seconds" --output-format=terse --terse-version=3 "$@" >said 2>&1 || fail "$side: $(tail -n 5 said)"
    after=$(busy)
    # Fields of the terse line: 8 read IOPS, 88 and 89 percent of one CPU in user and system mode.
    read -r iops cpu < <(awk -F';' 'NF > 90 { print $8, ($88 + $89) * 1e4 / $8 }' said)
    report "$side" "$iops" "$cpu" "$before" "$after"
}

# ours SIDE ARGUMENT...
ours() {
    local side=$1 before after
    shift
    before=$(busy)
    "$load" "$address" seconds="$seconds" "$@" >said 2>&1 || fail "$side: $(<said)"
    after=$(busy)
    read -r iops cpu < <(sed 's/iops=\([^ ]*\) cpu_us=/\1 /' said)
    report "$side" "$iops" "$cpu" "$before" "$after"
}

is_back() { (namespace ssd) >/dev/null 2>&1 && [[ -b $(block ssd) ]]; }
for ((round = 1; round <= rounds; round++)); do
    kernel psync-1 --ioengine=psync
    kernel uring-32 --ioengine=io_uring --iodepth=32
    bind "$address" vfio-pci
    for depth in 1 32; do
        for mode in polling interrupt adaptive; do
            ours "hotshelf-$mode-$depth" mode=$mode depth=$depth
        done
    done
    bind "$address" nvme
    wait_until 30 is_back
done
