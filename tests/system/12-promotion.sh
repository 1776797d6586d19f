#!/bin/bash
# When a file on the HDD comes up: at its second touch, at its open, never; and which sizes and rules keep it down.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse

mkdir -p "$HDD/deep"
for file in one two three tiny huge rule.iso pinned.iso deep/db; do
    head -c 2M /dev/urandom >"$HDD/$file"
done
head -c 1000 /dev/urandom >"$HDD/tiny"
head -c 20M /dev/urandom >"$HDD/huge"
next() { "$HOTSHELF" why "$MNT/$1" | sed -n 's/^  next  *//p'; }
why() { "$HOTSHELF" why "$MNT/$1" | grep -q -- "$2" || fail "why $1 does not say '$2': $("$HOTSHELF" why "$MNT/$1")"; }
# An open has asked for its move when it returns. A file is on the other side a moment before its move is done with and booked.
all_asked_are_done() { wait_until 10 nothing_moves; }
nothing_moves() { [[ $(field queue) == 0 ]] && "$HOTSHELF" status --json "$MNT" | grep -q '"running": \[\]'; }

# On open: the open waits, and the descriptor is that of the file on the SSD.
mount_pair --promotion on-open
[[ $(next one) == 'the next open' ]] || fail "on-open: next is $(next one)"
exec 8<"$MNT/one"
on "$MNT/one" ssd || fail "an open did not wait until the file was on the SSD"
[[ -e $SSD/one && ! -e $HDD/one ]] || fail "one is not where why says"
exec 8<&-
why one 'moved to the ssd: opened (promotion on-open)'
unmount_pair

# Never: only by hand.
mount_pair --promotion never
cat "$MNT/two" "$MNT/two" "$MNT/two" >/dev/null
all_asked_are_done
on "$MNT/two" hdd || fail "a file came up that never should"
[[ $(next two) == *'migrate --to ssd'* ]] || fail "never: next is $(next two)"
"$HOTSHELF" migrate "$MNT/two" --to ssd >/dev/null
why two 'moved to the ssd: asked for'
"$HOTSHELF" migrate "$MNT/two" --to hdd >/dev/null
unmount_pair

# Second touch, within the window; what is too small, too large or ruled out stays and says so.
mount_pair --min-file-size 4KiB --max-file-size 10MiB --hdd-only '*.iso' --pin 'pinned.*' --pin 'deep/**'
why two 'second open within 86400 s'
cat "$MNT/two" >/dev/null
all_asked_are_done
on "$MNT/two" hdd || fail "the first touch was enough"
cat "$MNT/two" >/dev/null
wait_until 10 on "$MNT/two" ssd
all_asked_are_done
why two 'moved to the ssd: second touch'
# Two touches, no third: a file that is opened anew while it moves stays, until it is touched again.
for file in tiny huge rule.iso pinned.iso; do
    cat "$MNT/$file" "$MNT/$file" >/dev/null
done
all_asked_are_done
for file in tiny huge rule.iso; do
    on "$MNT/$file" hdd || fail "$file came up"
    [[ $(next "$file") == *'migrate --to ssd'* ]] || fail "next of $file is $(next "$file")"
done
on "$MNT/pinned.iso" ssd || fail "a pin does not win over a rule for the HDD"
why pinned.iso 'pinned   by a rule given at mount'
[[ $(next tiny) == *smaller* && $(next huge) == *larger* && $(next rule.iso) == *'a rule'* ]] || fail "the reasons"

# New files: where the rules say; by hand everything goes.
echo new >"$MNT/new.iso"
echo new >"$MNT/pinned.new.iso"
on "$MNT/new.iso" hdd || fail "a rule for the HDD does not hold for a new file"
on "$MNT/pinned.new.iso" ssd || fail "a pin does not hold for a new file"
why new.iso 'why      a rule keeps it on the HDD'
for file in tiny huge rule.iso; do
    "$HOTSHELF" migrate "$MNT/$file" --to ssd >/dev/null || fail "$file does not move by hand"
done
# What outgrows the largest size leaves.
head -c 12M /dev/urandom >"$MNT/grown"
wait_until 10 on "$MNT/grown" hdd
all_asked_are_done
why grown 'larger than the largest file for the SSD'
unmount_pair

# Second touch, after the window.
mount_pair --touch-window 0
cat "$MNT/three" >/dev/null
begun=$(date +%s)
later() { (($(date +%s) > begun + 1)); }
wait_until 5 later
cat "$MNT/three" >/dev/null
all_asked_are_done
on "$MNT/three" hdd || fail "two opens outside of the window are a second touch"
unmount_pair
clean_check
