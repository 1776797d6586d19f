#!/bin/bash
# Runs the system tests: every script beside this one, each in its scratch directory.
#
#   tests/system/run.sh [NAME...]   all, or those whose file name contains one of the words, which may be patterns
#
# What a script is given:
#   HOTSHELF   the hotshelf program to test (default: target/release/hotshelf of this checkout)
#   SCRATCH    an empty directory for this test, below ${TMPDIR:-/tmp}; every user may enter it
#   FULL       1 under `make test-full`, else 0
#   ROOT       the checkout
# and what it does:
#   exit 0 passed (its lines that begin with `NOTE:` are shown); exit 77 after printing `SKIP: reason` skipped; anything else failed.
#   Its standard input is empty.
#   A line `# TIMEOUT: seconds` (`# TIMEOUT_FULL: seconds` when FULL=1) among its first 30 replaces the 300 s it has.
#   A cgroup it makes has the last component of $SCRATCH in its name, or its path is a line of $SCRATCH/cgroups.
# Afterwards the test's processes are ended, its mounts, loop devices and cgroups removed, then the directory.
# Files named lib.sh or _*.sh are no tests: scripts may source them.
# A mount moves files off an SSD whose file system is over 90 % full. Where ${TMPDIR:-/tmp} lies on one that is nearly so, root's tests run
# on a sparse image of an ext4 there; other users are asked for another TMPDIR.
#
# Prints one line a test as TAP does, keeps each output in target/system-tests/, and ends with the total.
# With RESULT_FILE set the total goes there instead.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
HOTSHELF=${HOTSHELF:-${CARGO_TARGET_DIR:-$ROOT/target}/release/hotshelf}
FULL=${FULL:-0}
# Nothing is written into the checkout, not even by Python.
export ROOT HOTSHELF FULL LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset SCRATCH
PATH="$PATH:/usr/sbin:/sbin"
logs=${CARGO_TARGET_DIR:-$ROOT/target}/system-tests
tmp=$(realpath "${TMPDIR:-/tmp}")

# The tests, one path a line.
chosen() {
    local script name word
    for script in "$here"/*.sh; do
        name=$(basename "$script" .sh)
        case $name in run | lib | _*) continue ;; esac
        if (($# == 0)); then
            echo "$script"
            continue
        fi
        for word in "$@"; do
            # shellcheck disable=SC2053 # a pattern
            if [[ $name == *$word* ]]; then
                echo "$script"
                break
            fi
        done
    done
}

seconds_for() {
    local key=TIMEOUT value
    value=$(sed -n '1,30s/^# TIMEOUT: *\([0-9]*\).*/\1/p' "$1" | head -1)
    if [[ $FULL == 1 ]]; then
        key=$(sed -n '1,30s/^# TIMEOUT_FULL: *\([0-9]*\).*/\1/p' "$1" | head -1)
        value=${key:-$value}
    fi
    echo "${value:-300}"
}

# Mount points at or below $1, last mounted first.
mounts_below() {
    local point
    cut -d' ' -f5 /proc/self/mountinfo | tac | while IFS= read -r point; do
        point=$(printf '%b' "${point//\\/\\0}")
        if [[ $point == "$1" || $point == "$1"/* ]]; then
            printf '%s\n' "$point"
        fi
    done
}

# Processes that were started with SCRATCH=$1 or have a path below it among their arguments.
processes_of() {
    {
        grep -lzxF "SCRATCH=$1" /proc/[0-9]*/environ
        grep -lzF "$1/" /proc/[0-9]*/cmdline
    } 2>/dev/null | cut -d/ -f3 | sort -u | grep -vxF "$$"
}

# Sends $2 to the processes of scratch $1 and waits until they are gone, at most $3 tenths of a second.
end_processes() {
    local pids pid left=$3
    pids=$(processes_of "$1")
    for pid in $pids; do
        kill "-$2" "$pid" 2>/dev/null
    done
    while ((left-- > 0)) && [[ -n $pids ]] && [[ -n $(processes_of "$1") ]]; do
        sleep 0.1
    done
}

unmount_below() {
    local point
    while IFS= read -r point; do
        umount "$point" 2>/dev/null || fusermount3 -u -- "$point" 2>/dev/null ||
            umount -l "$point" 2>/dev/null || fusermount3 -uz -- "$point" 2>/dev/null
    done < <(mounts_below "$1")
}

detach_loops_below() {
    local device file
    command -v losetup >/dev/null || return 0
    losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null | while read -r device file; do
        if [[ $file == "$1"/* ]]; then
            losetup --detach "$device"
        fi
    done
}

remove_cgroups_of() {
    local group pid
    {
        find /sys/fs/cgroup -depth -type d -name "*$(basename "$1")*" 2>/dev/null
        [[ -f $1/cgroups ]] && cat "$1/cgroups"
    } | while IFS= read -r group; do
        if [[ $group == /sys/fs/cgroup/*/* || $group == /sys/fs/cgroup/?* ]] && [[ $group != *..* && -d $group ]]; then
            while read -r pid; do
                kill -KILL "$pid" 2>/dev/null
            done <"$group/cgroup.procs"
            rmdir "$group" 2>/dev/null || { sleep 0.5 && rmdir "$group" 2>/dev/null; }
        fi
    done
}

# Takes away everything a test left; says what, since a test should have done it.
clean() {
    local scratch=$1 left
    left=$(mounts_below "$scratch" | wc -l)
    end_processes "$scratch" TERM 50
    end_processes "$scratch" KILL 20
    unmount_below "$scratch"
    detach_loops_below "$scratch"
    remove_cgroups_of "$scratch"
    rm -rf --one-file-system -- "$scratch" 2>/dev/null
    if ((left > 0)); then
        echo "# left $left mounts behind; removed"
    fi
    if [[ -e $scratch ]]; then
        echo "# could not remove $scratch: still mounted or in use"
    fi
}

# Sets `tmp` to a directory on a file system with room; returns 1 where there is none.
image=
find_room() {
    local used available
    read -r used available < <(df --output=pcent,avail --block-size=1M "$tmp" | tail -1 | tr -d '%')
    if ((used < 80)); then
        return 0
    fi
    if [[ $(id -u) != 0 ]]; then
        echo "the file system of $tmp is $used % full, and mounts would move the tests' files: set TMPDIR to a directory with room" >&2
        return 1
    fi
    image=$(mktemp "$tmp/hotshelf-room.XXXXXX")
    truncate -s 64G "$image" && mkfs.ext4 -q -m 0 "$image" && mkdir -m 755 "$image.d" && mount -o loop "$image" "$image.d" || return 1
    chmod 1777 "$image.d"
    echo "# the file system of $tmp is $used % full ($available MiB left): the tests run on an image there"
    tmp=$image.d
}

leave_room() {
    if [[ -n $image ]]; then
        ! mountpoint -q "$image.d" || umount "$image.d"
        [[ ! -d $image.d ]] || rmdir "$image.d"
        rm -f "$image"
        image=
    fi
}
trap leave_room EXIT

current=
interrupted() {
    if [[ -n $current ]]; then
        clean "$current"
    fi
    exit 130
}
trap interrupted INT TERM HUP

passed=0 failed=0 skipped=0 number=0
run_one() {
    local script=$1 name seconds begin took code reason
    name=$(basename "$script" .sh)
    seconds=$(seconds_for "$script")
    SCRATCH=$(mktemp -d "$tmp/hotshelf-$name.XXXXXX") || exit 1
    chmod 755 "$SCRATCH"
    current=$SCRATCH
    begin=$SECONDS
    # In the background, so that an interrupt is seen at once.
    (
        export SCRATCH XDG_STATE_HOME=$SCRATCH/.state
        cd "$SCRATCH" && exec timeout --kill-after=20 "$seconds" bash "$script"
    ) </dev/null >"$logs/$name.log" 2>&1 &
    wait $!
    code=$?
    took=$((SECONDS - begin))
    number=$((number + 1))
    case $code in
        0)
            passed=$((passed + 1))
            echo "ok $number - $name (${took} s)"
            sed -n 's/^NOTE:/#   NOTE:/p' "$logs/$name.log"
            ;;
        77)
            skipped=$((skipped + 1))
            reason=$(sed -n 's/^SKIP: *//p' "$logs/$name.log" | tail -1)
            echo "ok $number - $name # SKIP ${reason:-no reason given}"
            ;;
        *)
            failed=$((failed + 1))
            reason="exit $code"
            if ((code == 124 || code == 137)) && ((took >= seconds)); then
                reason="not done after $seconds s"
            fi
            echo "not ok $number - $name: $reason (${took} s); its output ends:"
            tail -n 40 "$logs/$name.log" | sed 's/^/#   /'
            ;;
    esac
    clean "$SCRATCH"
    current=
}

if [[ ! -x $HOTSHELF ]]; then
    echo "no $HOTSHELF: run \`make build\` first" >&2
    exit 2
fi
mkdir -p "$logs"
find_room || exit 2
mapfile -t tests < <(chosen "$@")
echo "1..${#tests[@]}"
for script in "${tests[@]}"; do
    run_one "$script"
done
total="$passed passed, $failed failed, $skipped skipped"
if [[ -n ${RESULT_FILE:-} ]]; then
    echo "$total" >"$RESULT_FILE"
else
    echo "$total"
fi
((failed == 0))
