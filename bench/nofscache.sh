#!/bin/bash
# Does kernel/nofscache measure what starved memory measures? Paper 004, Fig. 6, in the virtual machine: sequential read, write and
# both in 256 KiB, random ones in 4 KiB, fio's queue depth 16, on ext4 on a drive of 60 requests and 6 MiB a second, so that it is
# the drive that counts. Each job is run with a memory limit of 48 MiB (reads) or 96 MiB (the others; more where it does not run
# in that), and with the module and free memory, in turns. Prints medians and how far the module's is from the other; the paper's
# are within 10 %.
# RUNS (5), SECONDS_EACH (60, as the paper), RAMP (20: what is not counted, while memory fills with dirty pages), FILE_MIB (512),
# ENGINES ("sync io_uring"), JOBS ("read write rw randread randwrite randrw"), KERNEL (6.1 or 6.12). Takes RUNS times 45 minutes.
# Our program is no part of it, and need not be built.
HOTSHELF=${HOTSHELF:-none}
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need python3 fio
cd "$(dirname "$0")/.."
cat >bench/vm/nofscache-settings <<END
runs=${RUNS:-5} seconds=${SECONDS_EACH:-60} ramp=${RAMP:-20} file_mib=${FILE_MIB:-512}
engines='${ENGINES:-sync io_uring}' jobs='${JOBS:-read write rw randread randwrite randrw}'
END
trap 'rm -f bench/vm/nofscache-settings; clean_up' EXIT
mkdir -p bench/results
said=bench/results/nofscache-$(date -u +%Y%m%dT%H%M%S).log
code=0
tests/vm/boot.sh bench/vm/nofscache.sh >"$said" 2>&1 || code=$?
((code != 77)) || { grep SKIP: "$said"; exit 0; }
python3 bench/vm/nofscache.py "$said" bench/results/nofscache.jsonl "${KERNEL:-6.1}"
((code == 0)) || { tail -n 20 "$said"; exit "$code"; }
echo "  every run: $said"
