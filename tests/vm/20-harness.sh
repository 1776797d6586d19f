#!/bin/bash
# Failures in a guest are reported as such, and no guest process is left behind. FULL=1 tests more failures.
# RUNS: on the host
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
boot=$ROOT/tests/vm/boot.sh
kept=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")/vm-tests
# What a killed harness could not remove, and the consoles of failures that were meant.
trap 'rm -rf -- "$kept"/meant-*' EXIT

# ends CODE WORDS NAME: the guest's job is what comes on standard input; boot.sh must exit with the code and say the words.
ends() {
    local code=$1 words=$2 job=$SCRATCH/meant-$3.sh got=0
    cat >"$job"
    "$boot" "$job" >"$SCRATCH/said" 2>&1 </dev/null || got=$?
    [[ $got == "$code" ]] || fail "$3: exit $got, not $code: $(cat "$SCRATCH/said")"
    grep -q -- "$words" "$SCRATCH/said" || fail "$3 does not say '$words': $(cat "$SCRATCH/said")"
    [[ -z $(guests "$3") ]] || fail "$3: its guest is still there"
    [[ -z $(compgen -G "$kept/meant-$3.??????") ]] || fail "$3 left its drives"
}

# guests NAME: the processes of its qemu, not those of another checkout.
guests() { pgrep -f "^qemu-system-x86_64 .*path=$kept/meant-$1\.console" || true; }
runs() { [[ -n $(guests "$1") ]]; }
gone() { ! runs "$1"; }

# killed SIGNAL NAME: a harness that gets the signal while its guest boots takes it along.
killed() {
    local harness
    echo 'sleep 1000' >"$SCRATCH/meant-$2.sh"
    "$boot" "$SCRATCH/meant-$2.sh" >"$SCRATCH/said" 2>&1 </dev/null &
    harness=$!
    wait_until 20 runs "$2"
    kill "-$1" "$harness"
    wait "$harness" 2>/dev/null && fail "$2: exit 0"
    wait_until 20 gone "$2"
    [[ $1 == KILL || -z $(compgen -G "$kept/meant-$2.??????") ]] || fail "$2 left its drives"
}

ends 2 "drive ssd: unknown option or value 'colour:red'" option <<<'# drives: ssd=colour:red'
ends 2 "drive name 'SSD'" name <<<'# drives: SSD'
killed TERM terminated
killed KILL killed
ends 125 'its kernel panicked' panic <<<'echo before; echo c >/proc/sysrq-trigger; sleep 60'
if [[ $FULL == 1 ]]; then
    ends 3 'said before' exit <<<'echo said before; sleep 1000 & exit 3'
    ends 1 'said before' errors <<<'echo said before; false | true; exit 0'
    ends 77 'SKIP: no wish' skip <<<'echo SKIP: no wish; exit 77'
    ends 125 'ended without a status' vanished <<<'echo o >/proc/sysrq-trigger; sleep 60'
    ends 124 'not done after 15 s' hang <<<$'# TIMEOUT: 15\ntrap "" TERM; while :; do :; done'
fi
