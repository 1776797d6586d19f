#!/bin/bash
# `hotshelf nvme`: its lists, reports and errors; drives moved to vfio-pci and back; a raw file system on a drive behind vfio-pci; and
# io_uring passthrough on the same drive before and after.
# drives: disk=size:96M other=size:64M,lbas:4096,namespaces:2
# TIMEOUT: 300
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 setpriv perl fio
[[ -x $HOTSHELF ]] || skip "hotshelf is not built: make build"
disk=$(pci disk) other=$(pci other)
node=$(block disk)

# says WORDS COMMAND...: it succeeds and says so. refuses WORDS COMMAND...: it does not, with the words in one line.
says() {
    local words=$1
    shift
    "$HOTSHELF" "$@" >said 2>&1 || fail "$*: $(<said)"
    grep -q -- "$words" said || fail "$* does not say '$words': $(<said)"
}
refuses() {
    local words=$1 code=0
    shift
    "$HOTSHELF" "$@" >said 2>&1 || code=$?
    ((code == 1)) || fail "$*: exit $code: $(<said)"
    if [[ $(wc -l <said) != 1 ]] || ! grep -q -- "$words" said; then
        fail "$* does not say '$words': $(<said)"
    fi
}
group() { basename "$(realpath "/sys/bus/pci/devices/$1/iommu_group")"; }
# passthrough: fio writes and verifies by io_uring commands, where this fio can.
passthrough() {
    local engine=(--filename="$(char disk)" --ioengine=io_uring_cmd --cmd_type=nvme)
    fio --name=probe --rw=read --bs=4k --size=4k "${engine[@]}" >/dev/null 2>&1 || return 0
    fio --name=job --rw=randwrite --bs=16k --size=2M --iodepth=8 --verify=crc32c --do_verify=1 --randseed=1 "${engine[@]}" >said 2>&1 ||
        fail "io_uring passthrough: $(tail -n 5 said)"
    echo "io_uring passthrough: verified"
}

# While the kernel has them.
says "$disk  nvme .*disk .*no" nvme list
says 'model      QEMU NVMe Ctrl' nvme identify "$disk"
says 'namespace 2: .*16384 blocks of 4096 bytes' nvme identify "/dev/$(controller other)"
says '"serial": "other"' nvme identify "$other" --json
says 'warnings      none' nvme smart "$disk"
# The module is not there yet: that is what is missing.
! "$HOTSHELF" nvme doctor "$disk" >said || fail "doctor misses nothing: $(<said)"
grep -q 'missing  module vfio-pci' said || fail "doctor: $(<said)"
grep -q "$disk .*is the kernel's (nvme), and free" said || fail "doctor: $(<said)"
passthrough

# In use.
modprobe ext4
mkfs.ext4 -q "$node"
mkdir -p mnt
mount "$node" mnt
refuses "is in use: $(namespace disk) is mounted on $PWD/mnt" nvme bind "$disk"
says 'is mounted on' nvme list
umount mnt
exec 8<"$node"
refuses "$node is open by bash (pid $$)" nvme bind "$disk"
exec 8<&-
mkswap "$node" >/dev/null && swapon "$node"
refuses 'is swap' nvme bind "$disk"
swapoff "$node"
loop=$(losetup --find --show "$node" 2>/dev/null || true)
if [[ -n $loop ]]; then
    refuses 'is under loop' nvme bind "$disk"
    losetup -d "$loop"
fi
refuses 'no PCI device 0000:77:00.0' nvme bind 0000:77:00.0
refuses 'is no NVMe drive' nvme bind 0000:00:00.0
refuses 'is not bound to vfio-pci: nvme has it' nvme unbind "$disk"
refuses "belongs to the kernel's driver nvme: .hotshelf nvme bind $disk. takes it" fs shell "nvme:$disk/1" -c ls
chmod 755 "$PWD"
code=0
setpriv --reuid 1000 --regid 1000 --clear-groups "$HOTSHELF" nvme bind "$disk" >said 2>&1 || code=$?
((code == 1)) || fail "an ordinary user: exit $code"
grep -q 'as root\|only root' said || fail "an ordinary user: $(<said)"

# Ours, given to a user, who sees all of it without root.
says "$disk is bound to vfio-pci: nvme:$disk/1" nvme bind "$disk" --user 1000
says "$disk is bound" nvme bind "$disk"
[[ $(driver_of "$disk") == vfio-pci && $(stat -c %u "/dev/vfio/$(group "$disk")") == 1000 ]] || fail "it is not the user's"
says "$disk  vfio-pci  -" nvme list
"$HOTSHELF" nvme doctor >said || fail "doctor: $(<said)"
grep -q "ok .*$disk .*can be used: nvme:$disk/1" said || fail "doctor: $(<said)"
user() { (
    ulimit -l 262144
    exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=-all "$HOTSHELF" "$@"
); }
user nvme identify "$disk" >said || fail "identify: $(<said)"
grep -q 'serial     disk' said || fail "identify: $(<said)"
user nvme smart "$disk" --json >said || fail "smart: $(<said)"
grep -q '"celsius": 50' said || fail "smart: $(<said)"

# A file system on it, by the name alone.
image=nvme:$disk/1
! user fs mkfs "$image" >said 2>&1 || fail "it overwrote what was there"
user fs mkfs --force "$image" >said 2>&1 || fail "mkfs: $(<said)"
head -c 300000 /dev/urandom >file
chmod 644 file
user fs import "$image" "$PWD/file" /deep/er >said 2>&1 || fail "import: $(<said)"
user fs shell "$image" -c 'ls /deep/er; write /words hello' >said 2>&1 || fail "shell: $(<said)"
grep -q file said || fail "shell: $(<said)"
user fs check "$image" >said 2>&1 || fail "check: $(<said)"
mkdir -m 777 out
user fs export "$image" /deep/er "$PWD/out" >said 2>&1 || fail "export: $(<said)"
find out -type f -exec cmp file {} \; | grep . && fail "other bytes came back"
[[ -n $(find out -name file) ]] || fail "nothing came back"

# Open: unbinding would wait for ever.
mkfifo hold
user fs shell "$image" <hold >shell.out 2>&1 &
shell=$!
exec 7>hold
is_open() { "$HOTSHELF" nvme list | grep -q "is open by hotshelf"; }
wait_until 30 is_open
refuses "/dev/vfio/$(group "$disk") is open by hotshelf" nvme unbind "$disk"
refuses 'in use by another program' nvme smart "$disk"
exec 7>&-
wait $shell || fail "the shell: $(<shell.out)"

# And back: the same bytes are under the kernel's disk.
says "is the kernel's again (nvme)" nvme unbind "$disk"
is_back() { (namespace disk) >/dev/null 2>&1 && [[ -b $(block disk) ]]; }
wait_until 30 is_back
says hello fs shell "$(block disk)" -c 'cat /words'
passthrough
