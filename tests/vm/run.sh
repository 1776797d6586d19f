#!/bin/bash
# Runs the tests of the virtual machine: every script in this directory whose name begins with a number, each in a fresh guest.
#
#   [KERNEL=6.1|6.12] tests/vm/run.sh [NAME...]   all, or those whose file name contains one of the words
#
# tests/vm/boot.sh says what a script declares and is given. It does:
#   exit 0 passed (its lines that begin with `NOTE:` are shown); exit 77 after printing `SKIP: reason` skipped; anything else failed, and
#   so does a guest that panics or hangs.
#   One with a line `# RUNS: on the host` among its first 30 is run here instead, SCRATCH being an empty directory.
# Where no guest can run (no qemu, no kernel available) all are skipped with the reason; with REQUIRE_VM=1 that fails.
#
# Prints one line a test as TAP does, keeps each output, and the guest's console, in target/vm-tests/, and ends with the total.
# With RESULT_FILE set the total goes there instead.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
FULL=${FULL:-0}
export ROOT FULL LC_ALL=C
unset SCRATCH
logs=${CARGO_TARGET_DIR:-$ROOT/target}/vm-tests

# The tests, one path a line.
chosen() {
    local script word
    for script in "$here"/[0-9]*.sh; do
        if (($# == 0)); then
            echo "$script"
            continue
        fi
        for word in "$@"; do
            if [[ $(basename "$script" .sh) == *"$word"* ]]; then
                echo "$script"
                break
            fi
        done
    done
}

passed=0 failed=0 skipped=0 number=0
# report CODE NAME SECONDS: counts one test and prints its line.
report() {
    local code=$1 name=$2 took=$3 reason
    number=$((number + 1))
    case $code in
        0)
            passed=$((passed + 1))
            echo "ok $number - $name ($took s)"
            sed -n 's/^NOTE:/#   NOTE:/p' "$logs/$name.log"
            ;;
        77)
            skipped=$((skipped + 1))
            reason=$(sed -n 's/^SKIP: *//p' "$logs/$name.log" | tail -1)
            echo "ok $number - $name # SKIP ${reason:-no reason given}"
            ;;
        *)
            failed=$((failed + 1))
            case $code in
                124) reason="not done in time" ;;
                125) reason="the guest failed" ;;
                *) reason="exit $code" ;;
            esac
            echo "not ok $number - $name: $reason ($took s); its output ends:"
            tail -n 40 "$logs/$name.log" | sed 's/^/#   /'
            ;;
    esac
}

running=
interrupted() {
    if [[ -n $running ]]; then
        kill "$running" 2>/dev/null
        wait "$running"
    fi
    rm -rf -- ${SCRATCH:+"$SCRATCH"}
    exit 130
}
trap interrupted INT TERM HUP

# In the background, so that an interrupt is seen at once. If this script is killed, so is what it started.
started() {
    setpriv --pdeathsig TERM -- "$@" </dev/null &
    running=$!
    wait "$running"
    code=$?
    running=
}

on_the_host() {
    SCRATCH=$(mktemp -d) || exit 1
    export SCRATCH
    started timeout --kill-after=20 600 bash "$1"
    rm -rf -- "$SCRATCH"
}

# The emulator's own crash (seen once, while a controller was reset under load) says nothing of what is tested: the run is repeated,
# and the crash reported.
in_a_guest() {
    started "$here/boot.sh" "$1" >"$2" 2>&1
    if ((code == 125)) && grep -qE '^the guest failed: qemu ended with (134|139);' "$2"; then
        mv "$2" "$2.crash"
        started "$here/boot.sh" "$1" >"$2" 2>&1
        echo "NOTE: qemu itself crashed the first time (exit code 134 or 139, $(basename "$2").crash); this is the second" >>"$2"
    fi
}

mkdir -p "$logs"
mapfile -t tests < <(chosen "$@")
echo "1..${#tests[@]}"
started "$here/prepare.sh" >"$logs/prepare.log" 2>&1
prepared=$code
sed '/^SKIP: /d; s/^/# /' "$logs/prepare.log"
for script in "${tests[@]}"; do
    name=$(basename "$script" .sh)
    begin=$SECONDS
    if ((prepared != 0)); then
        code=$prepared
        cp "$logs/prepare.log" "$logs/$name.log"
    elif grep -qx '# RUNS: on the host' <<<"$(sed 30q "$script")"; then
        on_the_host "$script" >"$logs/$name.log" 2>&1
    else
        in_a_guest "$script" "$logs/$name.log"
    fi
    report "$code" "$name" $((SECONDS - begin))
done
if ((prepared == 77)) && [[ ${REQUIRE_VM:-0} == 1 ]]; then
    echo "# no guest to be had, and REQUIRE_VM=1"
    failed=$((failed + 1))
fi
total="$passed passed, $failed failed, $skipped skipped"
if [[ -n ${RESULT_FILE:-} ]]; then
    echo "$total" >"$RESULT_FILE"
else
    echo "$total"
fi
((failed == 0))
