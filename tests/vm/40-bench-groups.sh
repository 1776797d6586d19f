#!/bin/bash
# `hotshelf bench` with control groups of version 2, which are all that a guest has: drives are as slow as they are to be, the journal
# of their ext4 too; little memory is little; nothing is left, also of a run that was killed.
# TIMEOUT: 600
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need fio mkfs.ext4 losetup
modprobe loop
modprobe fuse
export XDG_STATE_HOME=$SCRATCH/state
work=$SCRATCH/work out=$SCRATCH/out groups=/sys/fs/cgroup
mkdir "$work"

# step WHAT: prints the current step and its start, in case the test hangs.
step() { local up; read -r up _ </proc/uptime; echo "$up: $*"; }

# begin EXPERIMENT: runs it small, pid is its process and own its group.
begin() {
    "$HOTSHELF" bench run --small "$1" --dir "$work" --out "$out" >"$SCRATCH/said" 2>&1 &
    pid=$!
    own=$groups/hotshelf-bench-$pid
}
# ended PID: waits for a process that received a signal to end; if it does not end, prints the state of all processes.
ended() {
    local process
    (wait_until 120 gone "$1") 2>"$SCRATCH/late" && return
    for process in /proc/[0-9]*; do
        [[ -s $process/cmdline ]] || continue
        echo "$(tr '\0' ' ' <"$process/cmdline" | head -c 120): $(sed -n 's/^State:[[:space:]]*//p' "$process/status")"
        head -n 6 "$process"/task/*/stack 2>"$SCRATCH/late" || true
    done
    fail "process $1 does not end"
}
# load FILE: sets `text` to what is in a file that may go away at any time, to nothing then; `$(<FILE)` would end the shell. Starts no
# program, which takes 50 ms here, and more when the host is busy.
load() {
    text=
    IFS= read -r -d '' text 2>/dev/null <"$1" || true
}
gone() { load "/proc/$1/stat" && [[ -z $text || $text == *") Z "* ]]; }
is_in() { load "$2/cgroup.procs" && [[ $'\n'$text == *$'\n'"$1"$'\n'* ]]; }
any_in() { load "$1/cgroup.procs" && [[ -n $text ]]; }
limited() { load "$2/io.max" && [[ $text == *"$1"* ]]; }
nothing_left() {
    step "is anything left: $1"
    [[ -z $(ls -A "$work") ]] || fail "$1: left in the directory: $(ls -A "$work")"
    [[ -z $(compgen -G "$groups/hotshelf-bench-*") ]] || fail "$1: control groups: $(ls -d "$groups"/hotshelf-bench-*)"
    [[ -z $(losetup --list --noheadings) ]] || fail "$1: loop devices: $(losetup --list)"
    ! grep -q "$work" /proc/mounts || fail "$1: mounts: $(cat /proc/mounts)"
    [[ $(<"$groups/cgroup.controllers") == *memory* ]] || fail "$1: the controllers are gone"
}

# The disk's limits, and the processes within them.
begin mount-iops
step "drives are slow"
wait_until 300 limited 'wiops=195' "$own"
step "limited"
is_in "$pid" "$own" || fail "the program is not in its group"
disks=0
for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    if [[ $line == *"(jbd2/loop"* ]]; then
        is_in "${line%% *}" "$own" || fail "the journal of a drive is not slowed down: $line"
        disks=$((disks + 1))
    fi
done
((disks == 2)) || fail "$disks journals are written, not two"
# 100 writes that are synced are at least 200 for the disk, the journal's among them; a slice of what was not used may come first.
step "so slow"
begun=${EPOCHREALTIME/./}
sh -c 'echo $$ >"$1/cgroup.procs" && exec dd if=/dev/zero of="$2/probe" bs=4k count=100 oflag=direct,sync status=none' \
    sh "$own" "$work/hotshelf-bench-$pid-0/hdd"
((${EPOCHREALTIME/./} - begun >= 900000)) || fail "the disk is too fast: $((${EPOCHREALTIME/./} - begun)) us for 100 writes"
step "interrupt"
kill -INT "$pid"
ended "$pid"
wait "$pid" && fail "interrupted, and exit 0"
grep -q 'stopped, nothing is left behind' "$SCRATCH/said" || fail "interrupted: $(cat "$SCRATCH/said")"
nothing_left "interrupted"

# A group with little memory, limited like our own; killed, the next start takes all of it away.
begin nocache
step "little memory"
wait_until 300 any_in "$own-48"
[[ $(<"$own-48/memory.max") == $((48 << 20)) ]] || fail "memory.max: $(<"$own-48/memory.max")"
[[ $(sort "$own-48/io.max") == "$(sort "$own/io.max")" ]] || fail "io.max: $(cat "$own-48/io.max" "$own/io.max")"
limited 'riops=8000' "$own-48" || fail "no limit: $(cat "$own-48/io.max")"
step "kill"
kill -KILL "$pid"
ended "$pid"
wait "$pid" 2>/dev/null && fail "killed, and exit 0"
"$HOTSHELF" bench run --small async-blocks --dir "$work" --out "$out" >"$SCRATCH/said" 2>&1 || fail "after the kill: $(cat "$SCRATCH/said")"
grep -q "taken away: control group $own-48" "$SCRATCH/said" || fail "does not say what was left: $(cat "$SCRATCH/said")"
nothing_left "after the kill"

# In a container the root group belongs to somebody else: the program reports that before it creates anything.
mkdir "$groups/box"
cat >"$SCRATCH/contained" <<'SH'
echo $$ >/sys/fs/cgroup/box/cgroup.procs
exec unshare --cgroup --mount sh -c 'umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"' sh "$@"
SH
sh "$SCRATCH/contained" "$HOTSHELF" bench run --small nocache --dir "$work" --out "$out" >"$SCRATCH/said" 2>&1 ||
    fail "a container is an error: $(cat "$SCRATCH/said")"
for controller in io memory; do
    grep -q "NOT MEASURED: .*the controller $controller cannot be used: .* does not pass it on.*on the machine itself" "$SCRATCH/said" ||
        fail "in a container: $(cat "$SCRATCH/said")"
done
rmdir "$groups/box"
nothing_left "in a container"
