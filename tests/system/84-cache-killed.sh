#!/bin/bash
# TIMEOUT: 300
# TIMEOUT_FULL: 1800
# kill -9 of processes that share a cache, the leader too, at any moment: no process reads a wrong or older byte, none hangs, durable data
# survives the loss of all shared memory, and in the end every byte is in the backing files.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"

stress=$(dirname "$HOTSHELF")/cache-stress
[[ -x $stress ]] || fail "no $stress: cargo build --release --package sim"
kills=200 driven=25
[[ $FULL == 1 ]] && kills=2000 driven=1000
# Shared memory has to be on a tmpfs, as in use.
runtime=/dev/shm/$(basename "$SCRATCH")
trap 'rm -rf "$runtime"' EXIT
"$stress" --dir "$SCRATCH/stress" --runtime "$runtime" --kills "$kills" ${HOTSHELF_SEED:+--seed "$HOTSHELF_SEED"}
# The same where the SSD is a drive that who leads drives himself, and its power goes with all memory.
"$stress" --dir "$SCRATCH/stress" --runtime "$runtime" --kills "$driven" --drive ${HOTSHELF_SEED:+--seed "$HOTSHELF_SEED"}
[[ -z $(find "$runtime" -type f) ]] || fail "shared memory is left: $(find "$runtime" -type f)"
