#!/bin/bash
# TIMEOUT: 300
# TIMEOUT_FULL: 3600
# Simulated power cuts on recorded operations: the disks as they may be afterwards are mounted, recovered and
# compared with what docs/durability.md promises.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 losetup

powercut=$(dirname "$HOTSHELF")/powercut
[[ -x $powercut ]] || fail "no $powercut: cargo build --release --package sim"
truncate -s 8M "$SCRATCH/probe.img"
losetup --show --find "$SCRATCH/probe.img" >"$SCRATCH/probe" || skip "loop devices cannot be made here"
losetup --detach "$(cat "$SCRATCH/probe")"
cuts=60
[[ $FULL == 1 ]] && cuts=1000
"$powercut" --hotshelf "$HOTSHELF" --scratch "$SCRATCH/work" --keep "$ROOT/target/power-cut" --cuts "$cuts" \
    ${HOTSHELF_SEED:+--seed "$HOTSHELF_SEED"}
