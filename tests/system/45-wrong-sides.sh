#!/bin/bash
# `check` with swapped, mixed up or mounted directories refuses, and touches nothing.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse

mount_pair
echo data >"$MNT/file"
# As of a move that runs.
echo half >"$HDD/.hotshelf/tmp/running"
echo half >"$SSD/.hotshelf/tmp/running"
for repair in '' --repair; do
    # shellcheck disable=SC2086
    {
        refused 1 'is the hdd directory of its pair' "$HOTSHELF" check "$HDD" "$SSD" $repair
        refused 1 'is mounted' "$HOTSHELF" check "$SSD" "$HDD" $repair
        refused 1 'must be two directories' "$HOTSHELF" check "$SSD" "$SSD" $repair
        refused 1 'must be two directories' "$HOTSHELF" check "$HDD" "$HDD/." $repair
    }
done
[[ -e $HDD/.hotshelf/tmp/running && -e $SSD/.hotshelf/tmp/running ]] || fail "the temporary of a move was removed"
# The HDD is in use: not with another SSD either, and not with swapped sides.
mkdir "$SCRATCH/ssd2" "$SCRATCH/mnt2"
refused 1 'in use by another hotshelf' "$HOTSHELF" mount --ssd "$SCRATCH/ssd2" --hdd "$HDD" --adopt "$SCRATCH/mnt2"
refused 1 'in use by another hotshelf' "$HOTSHELF" mount --ssd "$HDD" --hdd "$SCRATCH/ssd2" --adopt "$SCRATCH/mnt2"
unmount_pair

# Sides of two pairs.
mkdir "$SCRATCH/hdd3" "$SCRATCH/ssd3"
"$HOTSHELF" mount --ssd "$SCRATCH/ssd3" --hdd "$SCRATCH/hdd3" "$SCRATCH/mnt2"
"$HOTSHELF" unmount "$SCRATCH/mnt2"
refused 1 'different pairs' "$HOTSHELF" check "$SSD" "$SCRATCH/hdd3" --repair
refused 1 'is the hdd directory' "$HOTSHELF" check "$HDD" "$SSD" --repair
[[ -e $HDD/.hotshelf/tmp/running ]] || fail "removed with swapped arguments"
"$HOTSHELF" check "$SSD" "$HDD" --repair
no_temporaries || fail "not repaired when it may be"
# Without an identity nothing says which side it is.
mv "$HDD/.hotshelf/id" "$SCRATCH/id"
echo half >"$HDD/.hotshelf/tmp/running"
refused 1 'no identity that can be read' "$HOTSHELF" check "$SSD" "$HDD" --repair
[[ -e $HDD/.hotshelf/tmp/running ]] || fail "repaired without identity"
mv "$SCRATCH/id" "$HDD/.hotshelf/id"
"$HOTSHELF" check "$SSD" "$HDD" --repair >/dev/null
clean_check
