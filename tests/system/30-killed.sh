#!/bin/bash
# TIMEOUT: 300
# TIMEOUT_FULL: 3600
# kill -9 of the daemon at seeded points of moves, renames and writes: after the next mount every file is
# there once, with the content it was given, and nothing half-made is left.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

rounds=40
[[ ${FULL:-0} == 1 ]] && rounds=1000
RANDOM=${HOTSHELF_SEED:-$((SECONDS + $$))}
seed=$RANDOM
RANDOM=$seed
echo "HOTSHELF_SEED=$seed"

mount_pair --allow-other
mkdir -p "$MNT"/{x,y}/deep
for n in $(seq 1 12); do
    head -c $((n * 30000)) /dev/urandom >"$MNT/x/deep/keep$n"
done
(cd "$MNT/x/deep" && sha256sum keep*) >"$SCRATCH/sums"
"$HOTSHELF" migrate "$MNT/x/deep/keep1" --to hdd >/dev/null
unmount_pair

# One round of everything that takes several steps; ends when the daemon dies under it.
work() {
    local n
    for n in 3 7 11 2 5; do
        "$HOTSHELF" migrate "$MNT/x/deep/keep$n" --to hdd >/dev/null 2>&1 || return 0
    done
    mv "$MNT/x/deep" "$MNT/y/moved" 2>/dev/null || return 0
    mv "$MNT/y/moved" "$MNT/x/deep" 2>/dev/null || return 0
    for n in 3 11 2; do
        "$HOTSHELF" migrate "$MNT/x/deep/keep$n" --to ssd >/dev/null 2>&1 || return 0
    done
    # The editor's way to replace a file that lives on the other side.
    cat "$MNT/x/deep/keep7" 2>/dev/null >"$MNT/x/new7" 2>/dev/null || return 0
    cmp -s "$MNT/x/new7" "$MNT/x/deep/keep7" 2>/dev/null || return 0
    mv "$MNT/x/new7" "$MNT/x/deep/keep7" 2>/dev/null || return 0
    "$HOTSHELF" migrate "$MNT/x/deep/keep7" --to hdd >/dev/null 2>&1 || return 0
}

for round in $(seq 1 "$rounds"); do
    point=$((RANDOM % 60 + 5)) # the first ones are in recovery, which 31-power-cuts cuts off
    HOTSHELF_CRASH_AT=$point mount_pair --allow-other
    work
    pid=$(daemon_pid 2>/dev/null || true)
    [[ -n $pid ]] && kill -9 "$pid" 2>/dev/null
    drop_dead_mount
    wait_until 10 mount_pair --allow-other 2>"$SCRATCH/err"
    place=$MNT/x/deep
    [[ -d $place ]] || place=$MNT/y/moved
    (cd "$place" && sha256sum --quiet -c "$SCRATCH/sums") || fail "round $round, point $point: content (seed $seed)"
    [[ $(find "$place" -name 'keep*' | wc -l) == 12 ]] || fail "round $round, point $point: a file is there twice (seed $seed)"
    [[ $place == "$MNT/x/deep" ]] || mv "$place" "$MNT/x/deep"
    rm -f "$MNT/x/new7"
    no_temporaries || fail "round $round, point $point: temporaries (seed $seed)"
    unmount_pair
    "$HOTSHELF" check "$SSD" "$HDD" >"$SCRATCH/check" || { cat "$SCRATCH/check"; fail "round $round, point $point: check (seed $seed)"; }
done
echo "$rounds kills survived"
