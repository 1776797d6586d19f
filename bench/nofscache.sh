#!/bin/bash
# Does kernel/nofscache measure what starved memory measures? Paper 004, Fig. 6, in the virtual machine: sequential read, write and
# both in 256 KiB, random ones in 4 KiB, fio's queue depth 16, engines sync and io_uring, on a file of 3 GiB on ext4. Each job is run
# with a memory limit of 48 MiB (reads) or 96 MiB (the others; more where it does not run in that), and with the module and free
# memory. Both run at the same time, each on its own drive; the two drives are alike and are swapped between runs.
# The drives: 40 requests (each of 128 KiB at most) and 3 MiB a second, reads and writes together, what is not used of that kept for
# 100 ms. So slow that the drive is what counts: the guest's CPUs are 10 to 30 times slower than the machine's, and the module
# waits for each write where starved memory has a few in flight. Its limits of dirty memory are small, as a slow drive wants.
# Prints medians, how far the module's is from the other (the paper's are within 10 %; the median of the runs', whose sides have one
# seed and the same minute), and of what was read the share that did not come from the drive; draws it.
# SMALL=1: one run of 4 s each, three minutes in all; else RUNS (5), SECONDS_EACH (6, of a run, after RAMP, 4, of warm-up), 15 minutes.
# ENGINES ("sync io_uring"), JOBS ("read write rw randread randwrite randrw"), KERNEL (6.1 or 6.12).
# Our program is no part of it, and need not be built.
HOTSHELF=${HOTSHELF:-none}
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need python3 fio
cd "$(dirname "$0")/.."
runs=5 each=6 ramp=4
[[ ${SMALL:-0} == 0 ]] || runs=1 each=4 ramp=3
cat >bench/vm/nofscache-settings <<END
runs=${RUNS:-$runs} seconds=${SECONDS_EACH:-$each} ramp=${RAMP:-$ramp}
engines='${ENGINES:-sync io_uring}' jobs='${JOBS:-read write rw randread randwrite randrw}'
END
trap 'rm -f bench/vm/nofscache-settings; clean_up' EXIT
mkdir -p bench/results
said=bench/results/nofscache-$(date -u +%Y%m%dT%H%M%S).log
code=0
tests/vm/boot.sh bench/vm/nofscache.sh >"$said" 2>&1 || code=$?
((code != 77)) || { grep SKIP: "$said"; exit 0; }
python3 bench/vm/nofscache.py "$said" bench/results/nofscache.jsonl "${KERNEL:-6.1}" "${said%.log}.svg"
((code == 0)) || { tail -n 20 "$said"; exit "$code"; }
echo "  every run: $said; drawn: ${said%.log}.svg"
