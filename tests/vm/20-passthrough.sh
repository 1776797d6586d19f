#!/bin/bash
# The drivers of `block` over an NVMe drive: the conformance tests of drivers, through passthrough and through the block node, with
# blocks of 512 and 4096 bytes, with and without polled queues.
# drives: ssd512=size:64M ssd4096=size:64M,lbas:4096 wide=size:64M,mdts:9
# TIMEOUT: 420
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
target=${CARGO_TARGET_DIR:-$ROOT/target}
# Built on the host by `cargo test -p block --no-run`; the newest one is taken.
program=$(find "$target"/*/deps -maxdepth 1 -name 'drivers-*' -type f -perm -u+x -printf '%T@ %p\n' 2>/dev/null |
    sort -g | tail -1 | cut -d' ' -f2 || true)
probe=$(find "$target"/*/examples -maxdepth 1 -name probe -type f -perm -u+x -print -quit 2>/dev/null || true)
[[ -n $program ]] || skip "the test program is not built: cargo test -p block --no-run"

# conforms DEVICE
conforms() {
    echo "== $1"
    HOTSHELF_TEST_DEVICE=$1 "$program" --test-threads 1 --nocapture a_device_of_choice || fail "$1"
}

[[ -z $probe ]] || "$probe"
for drive in ssd512 ssd4096; do
    conforms "$(char $drive)"
    conforms "$(block $drive)"
done
conforms "$(char wide)"

# Errors of the drive are reported by their meaning.
own() { HOTSHELF_TEST_NODE=$(char ssd512) HOTSHELF_TEST_BLOCK=$(block ssd512) "$program" --test-threads 1 --nocapture nvme; }
own || fail "the drive's own answers"

# Queues without interrupts.
modprobe -r nvme
modprobe nvme poll_queues=2
wait_until 20 test -e "$(char ssd512)"
[[ $(cat "/sys/block/$(namespace ssd512)/queue/io_poll") == 1 ]] || fail "no queues for polling"
[[ -z $probe ]] || "$probe"
conforms "$(char ssd512)"
conforms "$(block ssd512)"

# Where io_uring is switched off (kernels from 6.6 on can), threads do the work.
if [[ -e /proc/sys/kernel/io_uring_disabled ]]; then
    echo 2 >/proc/sys/kernel/io_uring_disabled
    [[ -z $probe ]] || "$probe"
    "$program" --nocapture forbidden || fail "without io_uring"
fi
