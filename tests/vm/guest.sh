#!/bin/bash
# Process 1 of the guest once it has its root: runs the job, tells its status, powers off.
#
# In /run/share, which is the host's: `job` (what to run and with which variables), `results/`, and at the end `status`. Without
# that file the host takes the guest as failed. What the job prints goes through a virtio port, what the kernel prints to the console.
set -uo pipefail

# Ends the guest, and waits for that with nothing but itself: when the devices are gone no program can be started.
power_off() {
    sync
    exec {never}<> <(:)
    echo o >/proc/sysrq-trigger
    read -rt 60 -u "$never"
}
trap power_off EXIT

# The lines of an early failure are seen on the console.
exec >/dev/console 2>&1 </dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
ln -sfn /proc/self/fd /dev/fd
# Gives script, drives (NAME:NAMESPACES, each a word) and the variables of the job.
script='' drives=''
# shellcheck source=/dev/null
source /run/share/job || exit

# namespaces_of SERIAL: how many block devices the drive has.
namespaces_of() {
    local controller found=0 namespace serial
    for controller in /sys/class/nvme/nvme*; do
        if read -r serial <"$controller/serial" && [[ $serial == "$1" ]]; then
            for namespace in "$controller"/nvme*n*; do
                if [[ -b /dev/${namespace##*/} ]]; then
                    found=$((found + 1))
                fi
            done
        fi
    done 2>/dev/null
    echo "$found"
}

# Drives come up by themselves, some time after their driver.
drives_are_there() {
    local drive end=$((SECONDS + 30))
    for drive in $drives; do
        until [[ $(namespaces_of "${drive%:*}") == "${drive#*:}" ]]; do
            ((SECONDS < end)) || { echo "FAILED: drive ${drive%:*} did not come up with ${drive#*:} namespaces"; return 1; }
            sleep 0.1
        done
    done
}

run_job() {
    local code=0
    if modprobe nvme && drives_are_there; then
        mkdir -p "$SCRATCH"
        cd "$SCRATCH" || return
        bash -euo pipefail "$script" || code=$?
    else
        code=1
    fi
    echo "$code" >/run/share/status.new
}

until port=$(compgen -G '/dev/vport*'); do
    sleep 0.05
done
# A pipe between, since only one may have the port open.
run_job 2>&1 | cat >"$port" &
output=$!
# Whatever the job left running may hold the pipe: the status is what ends the job.
until [[ -s /run/share/status.new ]]; do
    sleep 0.05
done
for _ in {1..100}; do
    kill -0 "$output" 2>/dev/null || break
    sleep 0.05
done
mv /run/share/status.new /run/share/status
