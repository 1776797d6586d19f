#!/bin/bash
# kernel/nofscache, by its effect on the requests to the drive: every call that reads or writes, chosen and other files, direct I/O,
# read-ahead, and the overhead where it does nothing (reported, not checked).
# drives: ssd=size:400M other=size:64M
# module: nofscache
# processors: in turn
# memory: 1G
# TIMEOUT: 400
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 mkfs.xfs mkfs.btrfs dd
calls=$(dirname "$MODULE")/calls
chosen=/sys/kernel/nofscache
MIB=$((1 << 20))
mkdir disk bind
insmod "$MODULE" drop_written=1

# moved DRIVE COMMAND...: sets read and written, the bytes that the drive transferred during the command. Starts no other process.
moved() {
    local drive=$1 stat before after
    shift
    stat=/sys/block/$drive/stat
    read -ra before <"$stat"
    "$@" || fail "$*: exit $?"
    read -ra after <"$stat"
    read=$(((after[2] - before[2]) * 512)) written=$(((after[6] - before[6]) * 512))
}

# File systems read some metadata, and write some.
slack=$((MIB / 4))
from_drive() { moved "$ssd" "$@"; ((read >= MIB && read < MIB + slack)) || fail "$where: $*: $read bytes read, not 1 MiB"; }
from_cache() { moved "$ssd" "$@"; ((read == 0)) || fail "$where: $*: $read bytes read, though cached"; }
to_drive() { moved "$ssd" "$@"; ((written >= MIB)) || fail "$where: $*: $written bytes written when it returned"; }
to_cache() { moved "$ssd" "$@"; ((written < MIB / 2)) || fail "$where: $*: $written bytes written, though not chosen"; }

# every CALL FILE: what it writes is on the drive, what it reads comes from there, each time.
every() {
    to_drive "$calls" "$1" write "$2"
    from_drive "$calls" "$1" read "$2"
    from_drive "$calls" "$1" read "$2"
}

copied() {
    moved "$ssd" "$calls" any copy "$1" "$2"
    ((read >= MIB && written >= MIB)) || fail "$where: copy_file_range: $read bytes read, $written written"
    "$calls" read read "$2"
}

all_calls=(read pread readv preadv preadv2 sendfile splice io_uring libaio posixaio)
some_calls=(pread io_uring)
ssd=$(namespace ssd) other=$(namespace other)

# on KIND CALL...: a new file system, chosen by its mount; btrfs has no one device.
on() {
    local call options=(-q)
    where=$1
    case $1 in
        ext4) options+=(-F -b 4096 -E "lazy_itable_init=0,lazy_journal_init=0") ;;
        xfs) options+=(-f -m reflink=0) ;;
        btrfs) options+=(-f) ;;
    esac
    modprobe "$1"
    if [[ $1 == minix ]]; then
        mkfs.minix "/dev/$ssd" 32768 >/dev/null
    else
        "mkfs.$1" "${options[@]}" "/dev/$ssd" >/dev/null
    fi
    mount "/dev/$ssd" disk
    echo "$PWD/disk" >$chosen/mounts
    shift
    for call in "$@"; do
        every "$call" disk/file
    done
    # btrfs shares the blocks and copies nothing; minix cannot.
    [[ $where == btrfs || $where == minix ]] || copied disk/file disk/copy
    echo "-$PWD/disk" >$chosen/mounts
    umount disk
}
if [[ $FULL == 1 ]]; then
    some_calls=("${all_calls[@]}")
    on btrfs "${some_calls[@]}"
    # It has the kernel's generic functions, and none for splice.
    on minix pread io_uring
fi
on xfs "${some_calls[@]}"
where=device
echo "/dev/$ssd" >$chosen/devices
for call in "${some_calls[@]}"; do
    every "$call" "/dev/$ssd"
done
echo >$chosen/devices
[[ -z $(<$chosen/devices) && -z $(<$chosen/hooks) ]] || fail "not empty: $(<$chosen/devices) $(<$chosen/hooks)"
on ext4 "${all_calls[@]}"
# ext4 would read its block bitmaps some time after it is mounted, and they would be counted.
mount -o no_prefetch_block_bitmaps "/dev/$ssd" disk
mount --bind disk bind
file=disk/file

where="nothing chosen"
"$calls" read read $file
from_cache "$calls" read read $file
to_cache "$calls" read write $file
sync

where="another device"
echo "/dev/$other" >$chosen/devices
"$calls" read read $file
from_cache "$calls" read read $file
to_cache "$calls" read write $file
sync
echo >$chosen/devices

# twice COMMAND...: with it chosen each read of the file is one of the drive; the first may find what was there before.
twice() {
    "$@" "$calls" read read $file
    from_drive "$@" "$calls" read read $file
    to_drive "$@" "$calls" pread write $file
}
as_ever() {
    "$@" "$calls" read read $file
    from_cache "$@" "$calls" read read $file
    to_cache "$@" "$calls" read write $file
    sync
}

where="the device"
echo "/dev/$ssd" >$chosen/devices
twice env
echo "-/dev/$ssd" >$chosen/devices

where="one mount of two"
echo "$PWD/bind" >$chosen/mounts
as_ever env
file=bind/file
twice env
file=disk/file
echo >$chosen/mounts

where="a control group"
mkdir -p /sys/fs/cgroup/chosen/below /sys/fs/cgroup/chosen.not
echo /sys/fs/cgroup/chosen >$chosen/cgroups
in_group() { (echo "$BASHPID" >"/sys/fs/cgroup/$1/cgroup.procs" && exec "${@:2}"); }
twice in_group chosen/below
as_ever in_group chosen.not
echo >$chosen/cgroups

where="a process and what it starts"
mkfifo orders
# Started before it is chosen: runs the commands that it reads, two processes further down.
bash -c 'while read -r line <orders; do bash -c "$line; true" || exit; echo done >answers; done' &
worker=$!
mkfifo answers
by_worker() { echo "$*" >orders; read -r _ <answers; }
echo "$worker" >$chosen/processes
twice by_worker
as_ever env
echo >$chosen/processes
kill "$worker"
wait "$worker" || true

where="switched off and on"
echo "/dev/$ssd" >$chosen/devices
echo 0 >$chosen/enabled
as_ever env
[[ -z $(<$chosen/hooks) ]] || fail "hooks while off: $(<$chosen/hooks)"
echo 1 >$chosen/enabled
twice env

where="mapped"
from_drive "$calls" mmap read $file
from_drive "$calls" mmap read $file

# count COUNTER
count() { local name value; while read -r name value; do [[ $name != "$1" ]] || echo "$value"; done <$chosen/counters; }
where="what was written"
echo 0 >/sys/module/nofscache/parameters/drop_written
exec 5<>disk/open
again() { perl -e 'sysseek STDIN, 0, 0' <&5; }
to_drive head -c "$MIB" /dev/zero >&5
again
from_cache head -c "$MIB" <&5 >part
again
from_drive head -c "$MIB" <&5 >part
exec 5<&-
echo 1 >/sys/module/nofscache/parameters/drop_written

where="direct I/O"
reads=$(count reads) writes=$(count writes)
from_drive dd if=$file of=/dev/null bs=64K iflag=direct status=none
dd if=/dev/zero of=disk/direct bs=64K count=16 oflag=direct status=none
[[ $(count reads) == "$reads" && $(count writes) == "$writes" ]] || fail "direct I/O is counted: $(<$chosen/counters)"

where="small ones in a row"
from_drive dd if=$file of=/dev/null bs=1000 status=none
moved "$ssd" dd if=/dev/zero of=disk/small bs=1000 count=100 status=none
((read < 65536 && written >= 100 * 4096)) || fail "$where: $read bytes read, $written written"

where="pages read ahead"
exec 5<$file
# Each a read of 4 KiB at one place, with the same open file.
at() { dd bs=4K count=1 skip="$1" iflag=fullblock of=/dev/null status=none <&5; perl -e 'sysseek STDIN, 0, 0' <&5; }
at 0
for place in 2 3 9 20 2; do
    moved "$ssd" at "$place"
    ((read >= 4096)) || fail "$where: 4 KiB at page $place came from memory"
done
exec 5<&-
head -c 4096 $file >part
moved "$ssd" dd if=$file of=part bs=4K count=1 skip=1 status=none
((read >= 4096)) || fail "$where: what a closed file had read ahead was still there"

where="wrong input"
refused() { ! (echo "$1" >"$chosen/$2") 2>/dev/null || fail "$2 takes '$1'"; }
refused /dev/none devices
refused -/dev/none devices
refused "$PWD" mounts
refused "$PWD/none" mounts
refused /none cgroups
refused 0 processes
refused 99999999 processes
refused x processes
refused 2 enabled
[[ $(<$chosen/devices) == "/dev/$ssd" ]] || fail "devices became $(<$chosen/devices)"

where=parameters
rmmod nofscache
as_ever env
! insmod "$MODULE" devices=/dev/none 2>/dev/null || fail "loads with a device that is none"
insmod "$MODULE" drop_written=1 "devices=/dev/$other,/dev/$ssd" mounts="$PWD/disk"
[[ $(<$chosen/devices) == "/dev/$other"$'\n'"/dev/$ssd" ]] || fail "devices are $(<$chosen/devices)"
twice env
echo >$chosen/mounts
echo "-/dev/$ssd" >$chosen/devices

# What a read costs that finds its data in memory: without the module, with it and nothing chosen, and with another device chosen.
# There are no counters of instructions here, so: many short rounds, in turns. The last only is to differ.
echo >$chosen/devices
as_ever env
rmmod nofscache
turns=3 rounds=30
[[ $FULL == 0 ]] || turns=20 rounds=100
"$calls" cost 1 $file >/dev/null
for ((turn = 0; turn < turns; turn++)); do
    "$calls" cost "$rounds" $file >>cost-unloaded
    insmod "$MODULE"
    [[ -z $(<$chosen/hooks) ]] || fail "hooks with nothing chosen: $(<$chosen/hooks)"
    "$calls" cost "$rounds" $file >>cost-loaded
    echo "/dev/$other" >$chosen/devices
    "$calls" cost "$rounds" $file >>cost-another
    rmmod nofscache
done
# of SIDE PERCENT: the round that this share of all is faster than.
of() { sort -n "cost-$1" | awk -v at="$2" '{ all[NR] = $1 } END { print all[int((NR - 1) * at / 100) + 1] }'; }
for side in unloaded loaded another; do
    echo "a cached read of 4 KiB, $((turns * rounds)) rounds of 200, $side: $(of $side 10) ns (10 %) $(of $side 50) ns (median)" \
        "$(of $side 90) ns (90 %)"
done
umount bind disk
! dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|refcount' || fail "the kernel complained"
echo "$SECONDS s"
