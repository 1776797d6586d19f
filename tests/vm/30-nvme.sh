#!/bin/bash
# Our own NVMe driver on drives behind VFIO: 512 and 4096 byte blocks, one and two namespaces, small and large transfers, write
# cache on and off, polled, by interrupts and adaptive; resets under load; a namespace that comes while it runs; a drive that is
# removed; memory that may not be locked; as an ordinary user; and the kernel reads what it writes. FULL=1 runs the conformance tests
# of drivers over each of the sixteen kinds, else over one.
# drives: a1=size:64M,mdts:1 a2=size:64M,mdts:1,cache:off a3=size:64M,mdts:7 a4=size:64M,mdts:7,cache:off
# drives: b1=size:64M,mdts:1,namespaces:2 b2=size:64M,mdts:1,namespaces:2,cache:off b3=size:64M,mdts:7,namespaces:2
# drives: b4=size:64M,mdts:7,namespaces:2,cache:off c1=size:64M,lbas:4096,mdts:1 c2=size:64M,lbas:4096,mdts:1,cache:off
# drives: c3=size:64M,lbas:4096,mdts:7 c4=size:64M,lbas:4096,mdts:7,cache:off d1=size:64M,lbas:4096,mdts:1,namespaces:2
# drives: d2=size:64M,lbas:4096,mdts:1,namespaces:2,cache:off d3=size:64M,lbas:4096,mdts:7,namespaces:2
# drives: d4=size:64M,lbas:4096,mdts:7,namespaces:2,cache:off spare=size:64M,spare:1
# TIMEOUT: 500
# TIMEOUT_FULL: 3600
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need setpriv cmp dd
target=${CARGO_TARGET_DIR:-$ROOT/target}
# Built on the host by `cargo test -p nvme --no-run`; the newest one is taken.
program=$(find "$target"/*/deps -maxdepth 1 -name 'hardware-*' -type f -perm -u+x -printf '%T@ %p\n' 2>/dev/null |
    sort -g | tail -1 | cut -d' ' -f2 || true)
[[ -n $program ]] || skip "the test program is not built: cargo test -p nvme --no-run"
declare -A address
for drive in a1 a2 a3 a4 b1 b2 b3 b4 c1 c2 c3 c4 d1 d2 d3 d4 spare; do
    address[$drive]=$(pci "$drive")
done
group() { basename "$(realpath "/sys/bus/pci/devices/$1/iommu_group")"; }

# own DRIVE [CASE] [WORDS]: the tests whose names have the words, as root.
own() {
    echo "== $*: ${address[$1]}"
    HOTSHELF_TEST_NVME=${address[$1]} HOTSHELF_TEST_CASE=${2:-} "$program" --test-threads 1 --nocapture ${3:+"$3"} ||
        fail "$*"
}

# What the kernel wrote our driver reads, and the other way round.
head -c 3M /dev/urandom >data
perl -e 'local $/; print ~<>' <data >turned
for drive in a1 d4; do
    dd if=data of="$(block "$drive")" bs=64K oflag=direct conv=fsync status=none
    bind "${address[$drive]}" vfio-pci
    HOTSHELF_TEST_FILE=data own "$drive" kernel kernel
    bind "${address[$drive]}" nvme
    is_back() { (namespace "$1") >/dev/null 2>&1 && [[ -b $(block "$1") ]]; }
    wait_until 30 is_back "$drive"
    dd if="$(block "$drive")" bs=64K count=48 iflag=direct status=none | cmp - turned || fail "$drive: the kernel reads something else"
done

for drive in "${!address[@]}"; do
    bind "${address[$drive]}" vfio-pci
done
# Every kind is written and read in every mode.
for drive in a1 a2 a3 a4 b1 b2 b3 b4 c1 c2 c3 c4 d1 d2 d3 d4; do
    own "$drive" '' every_way
done
own c3 '' must
if [[ $FULL == 1 ]]; then
    for drive in a1 a2 a3 a4 b1 b2 b3 b4 c1 c2 c4 d1 d2 d3 d4; do
        own "$drive" '' must
    done
fi
own a4 '' cut_off
own b3 '' reset
own spare namespace namespace

# As an ordinary user, who owns the group's file and may lock 64 MiB.
user=1000
chown $user "/dev/vfio/$(group "${address[c3]}")"
as_user() { (
    ulimit -l 65536
    exec setpriv --reuid $user --regid $user --clear-groups --inh-caps=-all --bounding-set=-all "$@"
); }
export HOTSHELF_TEST_NVME=${address[c3]}
as_user "$program" --test-threads 1 --nocapture every_way || fail "as an ordinary user"
HOTSHELF_TEST_CASE=limit as_user "$program" --test-threads 1 --nocapture limit || fail "the limit of locked memory"
# Somebody else's group.
HOTSHELF_TEST_NVME=${address[c4]} as_user "$program" every_way >said 2>&1 && fail "an ordinary user got a drive of root's"
grep -q 'permission denied: give it to the user' said || fail "no word on the permission: $(<said)"

# Removed while it works.
device=/sys/bus/pci/devices/${address[c2]}
HOTSHELF_TEST_NVME=${address[c2]} HOTSHELF_TEST_CASE=removal "$program" --test-threads 1 --nocapture goes >said 2>&1 &
program_id=$!
wait_until 30 grep -q ready said
# By the device's own node where the kernel has iommufd.
way=$(find "/proc/$program_id/fd" '(' -lname /dev/iommu -o -lname /dev/vfio/vfio ')' -printf %l)
[[ ! -d /dev/vfio/devices || $way == /dev/iommu ]] || fail "there is an iommufd, and $way is used"
echo "by $way"
echo 1 >"$device/remove"
wait $program_id || fail "a drive that goes: $(<said)"
grep 'gone after' said
[[ ! -e $device ]] || fail "it was not removed"
echo 1 >/sys/bus/pci/rescan
wait_until 20 test -e "$device"
