#!/bin/bash
# dm-cache, bcache and us on the same two emulated drives in one boot of a virtual machine: an SSD, and a disk of 150 requests a
# second. One fio job, 4 KiB at random with a zipf distribution, on a file of FILE_MIB (256) with CACHE_MIB (128) of SSD, and
# with the same RAM for pages on every side: RAMS ("16 0" MiB; for the block caches the kernel's page cache, limited by a control
# group, and O_DIRECT). All start with an empty cache. Prints IOPS once warm (median of the last fifth), when nine tenths of it
# were reached (for the first time, over 5 s), when nine tenths of the slowest side's were, and what was read in all.
# SIDES ("dmcache bcache hotshelf"), SECONDS_EACH (80), RW (randread; randrw), THETA (1.1), DEPTH (8), KERNEL (6.1 or 6.12).
# The guest is 10 to 30 times slower than the machine: the ratios count. Takes ten minutes on an idle machine.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need python3 fio dmsetup
cd "$(dirname "$0")/.."
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/vm/tools
mkdir -p "$tools"
# The host is not asked to install what only the guest needs.
if [[ ! -x $tools/usr/sbin/make-bcache ]]; then
    (cd "$tools" && apt-get -q download bcache-tools >/dev/null 2>&1 && dpkg -x bcache-tools_*.deb .) || true
fi
engine=${CARGO_TARGET_DIR:-target}/fio/libhotshelf_fio.so
rm -f "$tools/libhotshelf_fio.so"
[[ ! -f $engine ]] || cp "$engine" "$tools/"
cat >bench/vm/settings <<END
tools=$tools file_mib=${FILE_MIB:-256} cache_mib=${CACHE_MIB:-128} seconds=${SECONDS_EACH:-80} rw=${RW:-randread}
theta=${THETA:-1.1} depth=${DEPTH:-8} rams='${RAMS:-16 0}' sides='${SIDES:-dmcache bcache hotshelf}' least_memory=${LEAST_MEMORY:-1MiB}
our_settings='${OUR_SETTINGS:-}'
END
trap 'rm -f bench/vm/settings; clean_up' EXIT
said=bench/results/vm-peers-$(date -u +%Y%m%dT%H%M%S).log
mkdir -p bench/results
code=0
tests/vm/boot.sh bench/vm/peers.sh >"$said" 2>&1 || code=$?
((code != 77)) || { grep SKIP: "$said"; exit 0; }
grep '^SKIP' "$said" || true
python3 bench/vm/table.py "$said" bench/results/vm-peers.jsonl
((code == 0)) || { tail -n 20 "$said"; exit "$code"; }
echo "  IOPS of every second: $said"
