#!/bin/bash
# The guest is what the other tests rely on: its drives are as declared, keep what is written, and go to vfio-pci and back.
# drives: small=size:64M large=size:64M,lbas:4096,namespaces:2,mdts:4,cache:off slow=size:64M,iops:100
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need dd cmp blockdev perl

# is WHAT VALUE COMMAND...: what the command prints must be the value.
is() {
    local what=$1 wanted=$2 got
    shift 2
    got=$("$@")
    [[ $got == "$wanted" ]] || fail "$what is $got, not $wanted"
}
of_queue() { cat "/sys/block/$(namespace "$1")/queue/$2"; }

# The drives are as the head of this file says.
is "block size of small" 512 blockdev --getss "$(block small)"
is "block size of large" 4096 blockdev --getss "$(block large)"
is "size of the second namespace" $((64 << 20)) blockdev --getsize64 "$(block large 2)"
[[ $(block large 1) != "$(block large 2)" ]] || fail "two namespaces are one"
is "largest transfer of large in KiB" 64 of_queue large max_hw_sectors_kb
# A newer kernel stays below what this drive can: 128 KiB behind an IOMMU.
(($(of_queue small max_hw_sectors_kb) >= 128)) || fail "largest transfer of small in KiB is $(of_queue small max_hw_sectors_kb)"
for node in "$(char small)" "$(char large)" "$(char large 2)" "$(char slow)"; do
    [[ -c $node ]] || fail "$node is no character node"
done

# The drive's own word on its write cache (feature 06h by Get Features): Linux only shows whether flushes are understood.
write_cache() {
    perl -e 'open my $node, "<", $ARGV[0] or die $!;
        my $command = pack "C x39 L x28", 0x0A, 0x06;
        ioctl $node, 0xC0484E41, $command or die $!;  # NVME_IOCTL_ADMIN_CMD
        print unpack "x68 L", $command' "/dev/$(controller "$1")"
}
is "write cache of small" 1 write_cache small
is "write cache of large" 0 write_cache large

# What is written is read back, each namespace its own.
for n in 1 2 3; do
    head -c 1M /dev/urandom >"data$n"
done
kept() { dd if="$1" bs=64K count=16 iflag=direct status=none | cmp - "$2" || fail "$1 does not hold $2"; }
put() { dd if="$2" of="$1" bs=64K oflag=direct conv=fsync status=none; }
put "$(block small)" data1
put "$(block large 1)" data2
put "$(block large 2)" data3
kept "$(block small)" data1
kept "$(block large 1)" data2
kept "$(block large 2)" data3
# 150 requests at 100 a second, after a burst of a tenth of a second's worth.
begin=$EPOCHREALTIME
dd if="$(block slow)" of=/dev/null bs=4K count=150 iflag=direct status=none
took_ms=$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))
((took_ms > 1000)) || fail "150 requests to a drive of 100 a second took $took_ms ms"

# The kernel parts we are compared with, and those we need.
for module in dm-cache dm-cache-smq bcache null_blk fuse ext4 xfs vfio-pci vfio_iommu_type1; do
    modprobe "$module" || fail "module $module does not load"
done

# To vfio-pci and back: the data is still there, and the other drives never left.
address=$(pci small)
group=$(basename "$(realpath "/sys/bus/pci/devices/$address/iommu_group")")
is "number of devices in its IOMMU group" 1 bash -c "ls /sys/kernel/iommu_groups/$group/devices | wc -l"
bind "$address" vfio-pci
[[ -c /dev/vfio/$group ]] || fail "no /dev/vfio/$group"
! (controller small) 2>/dev/null || fail "small is still the kernel's"
[[ -b $(block large) ]] || fail "large went too"
bind "$address" nvme
is_back() { (namespace small) >/dev/null 2>&1 && [[ -b $(block small) ]]; }
wait_until 20 is_back
kept "$(block small)" data1
[[ -w $RESULTS && $(findmnt -no FSTYPE /) == overlay ]] || fail "not the guest it should be"
uname -r >"$RESULTS/kernel"
