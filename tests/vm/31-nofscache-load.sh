#!/bin/bash
# kernel/nofscache comes and goes while programs read and write: no warning of the kernel, no wrong data, no call left behind. 4
# rounds of switching on and off, choosing otherwise, and unloading; FULL=1: 1,000. The kernel preempts itself, so that the module's
# every line may be where a call stands while it is switched off.
# drives: ssd=size:400M
# module: nofscache
# processors: in turn
# memory: 1G
# kernel: preempt=full log_buf_len=4M
# TIMEOUT: 400
# TIMEOUT_FULL: 14000
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 fio
calls=$(dirname "$MODULE")/calls
chosen=/sys/kernel/nofscache
rounds=4
[[ $FULL == 0 ]] || rounds=1000
drive=$(block ssd)
grep -q '(full)' /sys/kernel/debug/sched/preempt || fail "the kernel does not preempt itself: $(</sys/kernel/debug/sched/preempt)"
modprobe ext4
mkfs.ext4 -q "$drive"
mkdir disk
mount "$drive" disk

# over_and_over CALL: repeats until the file `stop` exists; each call checks what it reads. Nice, as the fio below: they load all CPUs,
# and the switching would wait for them.
over_and_over() {
    renice -n 10 "$BASHPID" >/dev/null
    while [[ ! -e stop ]]; do
        "$calls" "$1" write "disk/$1" && "$calls" "$1" read "disk/$1" || exit
    done
}
workers=()
for call in sendfile mmap; do
    over_and_over "$call" &
    workers+=($!)
done
# Many at once on one file, checked as well; each 32nd write is followed by an fsync.
nice fio --name=mixed --filename=disk/mixed --size=16M --rw=randrw --bs=4k --ioengine=io_uring --iodepth=8 --time_based \
    --runtime=100000 --fallocate=none --invalidate=0 --fsync=32 --verify=crc32c --verify_backlog=64 --output=fio.said &
fio=$!

# wait_for COUNTER: until it grows, so that calls are under way in the module.
count() { local name value; while read -r name value; do [[ $name != "$1" ]] || echo "$value"; done <$chosen/counters; }
grown() { (($(count "$1") > before)); }
wait_for() { local before; before=$(count "$1"); wait_until 60 grown "$1"; }

# If something hangs, the kernel lists running, blocked and all other tasks; the list is kept, and the test ends.
tell_of_hung() {
    echo "${HUNG_AFTER:-100}" >/proc/sys/kernel/hung_task_timeout_secs
    until dmesg | grep -q 'blocked for more than'; do sleep 5; done
    for key in l w l t l; do
        echo "$key" >/proc/sysrq-trigger
        sleep 1
    done
    dmesg >"$RESULTS/hung"
    echo "FAILED: something hangs: $(grep 'blocked for more than' "$RESULTS/hung" | head -1); all stacks: hung, beside the results"
    kill -KILL "$1"
}
tell_of_hung $$ &

unharmed() { ! dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|refcount|hung' || fail "the kernel complained"; }

for ((round = 1; round <= rounds; round++)); do
    if ((round % 4 == 1)); then
        insmod "$MODULE" devices="$drive"
    fi
    echo 1 >$chosen/enabled
    case $((round % 4)) in
        0) echo "$$" >$chosen/processes ;;
        1) wait_for reads ;;
        2) echo "$PWD/disk" >$chosen/mounts && wait_for writes ;;
        3) echo /sys/fs/cgroup >$chosen/cgroups ;;
    esac
    if ((round % 4 == 0 || round == rounds)); then
        # While it is switched on.
        rmmod nofscache
    else
        echo 0 >$chosen/enabled
    fi
    if ((round % 20 == 0)); then
        unharmed
        echo "$round rounds, $SECONDS s"
    fi
    kill -0 "$fio" || fail "fio ended: $(tail -n 20 fio.said)"
done
touch stop
# It says at once what it does not find, and ends then; by SIGINT its job would verify all it has written first, minutes in this guest.
# Who cannot be killed waits for a request that the module lost.
over() { [[ -z $(pgrep -r D,R,S,T -x fio) ]]; }
mapfile -t jobs < <(pgrep -x fio)
kill -KILL "${jobs[@]}"
wait_until 60 over
wait "$fio" || true
! grep -iE 'verify|error' fio.said || fail "fio says: $(tail -n 20 fio.said)"
for worker in "${workers[@]}"; do
    wait "$worker" || fail "a program read what was not written"
done
# What a killed program had under way with io_uring keeps its files for a moment.
is_unmounted() { umount disk 2>/dev/null; }
holders() { grep -l "$PWD/disk" /proc/[0-9]*/maps 2>/dev/null; find /proc/[0-9]*/fd /proc/[0-9]*/cwd -lname "$PWD/disk*" 2>/dev/null; }
(wait_until 60 is_unmounted) || fail "the disk is in use: $(for one in $(holders); do echo "$one $(<"${one%%/[fcm]*}/comm")"; done)"
echo "$rounds rounds in $SECONDS s"
unharmed
