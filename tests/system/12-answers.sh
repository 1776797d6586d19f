#!/bin/bash
# Output for people: the counts of status add up; heat and pins survive a remount; migrate names files that stay; the rate limit holds.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

status() { "$HOTSHELF" status --json "$MNT"; }
# holds EXPRESSION: true of the status `s`.
holds() { status | python3 -c 'import json, sys; s = json.load(sys.stdin); sys.exit(0 if eval(sys.argv[1]) else 1)' "$1"; }
must() { holds "$1" || fail "not so: $1: $(status)"; }
why() { "$HOTSHELF" why --json "$MNT/$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$2"; }

mkdir -p "$HDD/cold"
for n in 1 2 3; do head -c 1M /dev/urandom >"$HDD/cold/$n"; done
mount_pair --promotion never
wait_until 10 holds 's["scan_done"]'
must 's["ssd"]["files"] == 0 and s["hits"] == s["misses"] == 0 and s["hit_ratio"] == 0'
mkdir "$MNT/hot"
for n in 1 2 3 4; do head -c 1M /dev/urandom >"$MNT/hot/$n"; done
labels_are_reported "$MNT/hot/4"
made=$(field hits)
for n in 1 2 3; do cat "$MNT/hot/1" >/dev/null; done
cat "$MNT/cold/1" >/dev/null
must "s['hits'] == $made + 3 and s['misses'] == 1"
must 'abs(s["hit_ratio"] - s["hits"] / (s["hits"] + s["misses"])) < 1e-9'
must 's["ssd"]["files"] == 4 and s["promotions"] == s["demotions"] == s["moved_bytes"] == 0'
must 's["mountpoint"].endswith("/mnt") and s["ssd"]["directory"].endswith("/ssd") and s["policy"] == "lru" and s["promotion"] == "never"'
must 'all(t["used_bytes"] + t["free_bytes"] <= t["capacity_bytes"] and t["degraded"] is None for t in (s["ssd"], s["hdd"]))'
must 's["high_bytes"] == s["ssd"]["capacity_bytes"] * 90 // 100 and s["low_bytes"] == s["ssd"]["capacity_bytes"] * 80 // 100'
exec 8<"$MNT/hot/2"
must 's["open_files"] == 1'
exec 8<&-

# A tree moves; the figures follow, the files are where they are said to be.
"$HOTSHELF" migrate "$MNT/hot" --to hdd | grep -q '4 files are on the hdd now' || fail "migrate does not say what it did"
"$HOTSHELF" migrate "$MNT/cold" --to ssd | grep -q '3 files are on the ssd now' || fail "migrate does not say what it did"
must 's["demotions"] == 4 and s["promotions"] == 3 and s["moved_bytes"] == 7 << 20 and s["ssd"]["files"] == 3'
must 's["moves_failed"] == 0 and s["queue"] == 0 and s["running"] == [] and s["warnings"] == s["conflicts"] == []'
[[ $(find "$SSD" "$HDD" -name .hotshelf -prune -o -type f -print | wc -l) == 7 ]] || fail "files are there twice, or gone"
"$HOTSHELF" migrate "$MNT" --to ssd | grep -q '4 files are on the ssd now' || fail "the whole mount"
"$HOTSHELF" migrate "$MNT/hot/1" --to ssd | grep -q 'hot/1 is on the ssd already' || fail "a file that is there already"
# On a terminal there is a bar; for programs the socket tells the progress.
if command -v script >/dev/null; then
    TERM=xterm script -qec "'$HOTSHELF' migrate '$MNT/hot' --to hdd" "$SCRATCH/terminal" >/dev/null </dev/null
    grep -q 'of 4 files' "$SCRATCH/terminal" || fail "no progress on a terminal: $(cat -v "$SCRATCH/terminal")"
    "$HOTSHELF" migrate "$MNT/hot" --to ssd >/dev/null
fi

# What stays says why: hard links, symbolic links, what is open and bypasses us.
ln "$MNT/hot/1" "$MNT/hot/linked"
refused 1 '1 of 1 files not moved; first: .*hot/.*: it has several hard links' "$HOTSHELF" migrate "$MNT/hot/1" --to hdd
rm "$MNT/hot/linked"
ln -s 1 "$MNT/hot/link"
refused 1 'hot/link.*only regular files move' "$HOTSHELF" migrate "$MNT/hot/link" --to hdd
on "$MNT/hot/1" ssd || fail "migrate followed a symbolic link"
rm "$MNT/hot/link"
refused 1 'No such file' "$HOTSHELF" migrate "$MNT/hot/none" --to hdd
exec 8<"$MNT/hot/3"
if holds 's["passthrough"]'; then
    refused 1 'hot/3: it is open; try again when it is closed' "$HOTSHELF" migrate "$MNT/hot/3" --to hdd
    why hot/3 next | grep -q 'it is open' || fail "why does not say that it is open"
fi
exec 8<&-

# Pins: a file, a directory with everything below it, files created later; promoted at once; undone; kept over a remount.
"$HOTSHELF" migrate "$MNT/cold" --to hdd >/dev/null
for n in 1 2 3; do cat "$MNT/hot/1" >/dev/null; done
"$HOTSHELF" pin "$MNT/cold" | grep -q 'pinned to the SSD'
"$HOTSHELF" pin "$MNT/hot/2" >/dev/null
wait_until 10 on "$MNT/cold/1" ssd
wait_until 10 on "$MNT/cold/3" ssd
unmount_pair
mount_pair --promotion never --no-passthrough
wait_until 10 holds 's["scan_done"]'
must 'sorted(s["pinned"]) == ["cold", "hot/2"] and not s["passthrough"] and "off" in s["passthrough_reason"]'
pinned="$(why cold/1 pinned), $(why hot/2 pinned), $(why hot/1 pinned)"
[[ $pinned == 'by `cold` above it, by itself, None' ]] || fail "pins after a remount: $pinned"
# So does the heat.
(($(why hot/1 opens) >= 4)) || fail "the heat of hot/1 is forgotten: $(why hot/1 opens)"
[[ $(why hot/1 last_open_s) -gt $(($(date +%s) - 60)) ]] || fail "the last open of hot/1"
[[ $(why cold/1 reason) == 'moved to the ssd: asked for' ]] || fail "the last move of cold/1 is forgotten: $(why cold/1 reason)"
"$HOTSHELF" unpin "$MNT/cold" | grep -q 'not pinned any more'
"$HOTSHELF" unpin "$MNT/cold" | grep -q 'was not pinned'
[[ $(why cold/1 pinned) == None ]] || fail "unpin"
unmount_pair
mount_pair
must 's["pinned"] == ["hot/2"]'
refused 1 'whole mount cannot be pinned' "$HOTSHELF" pin "$MNT"
unmount_pair

# A file that is open for writing moves under its user when its data goes through the daemon.
mount_pair --no-passthrough
exec 8<>"$MNT/hot/3"
printf 'begin ' >&8
"$HOTSHELF" migrate "$MNT/hot/3" --to hdd >/dev/null || fail "an open file does not move"
printf 'end' >&8
exec 8>&-
[[ $(head -c9 "$MNT/hot/3") == 'begin end' && -e $HDD/hot/3 && ! -e $SSD/hot/3 ]] || fail "writes through a descriptor held during a move"
unmount_pair

# The rate: 12 MB at 6 MB a second take about two seconds.
mount_pair --move-rate 6MiB
head -c 12M /dev/urandom >"$MNT/big"
begun=$(date +%s%N)
"$HOTSHELF" migrate "$MNT/big" --to hdd >/dev/null
took_ms=$((($(date +%s%N) - begun) / 1000000))
((took_ms > 1500 && took_ms < 10000)) || fail "12 MiB at 6 MiB a second took $took_ms ms"
# (It fails when another mount of this machine does not answer, and lists the others all the same.)
{ "$HOTSHELF" status 2>/dev/null || true; } | grep -q "^$MNT " || fail "status without a mount point does not list this one"
"$HOTSHELF" migrate "$MNT/big" --to ssd >/dev/null
unmount_pair
# A move that takes long is shown, and ended by the unmount: the file stays where it was.
mount_pair --move-rate 64KiB
"$HOTSHELF" migrate "$MNT/big" --to hdd >/dev/null 2>&1 &
wait_until 10 holds '[(m["path"], m["to"], m["total_bytes"]) for m in s["running"]] == [("big", "hdd", 12 << 20)]'
begun=$SECONDS
unmount_pair
((SECONDS - begun < 10)) || fail "unmount waited for a slow move"
wait
[[ -e $SSD/big && ! -e $HDD/big ]] || fail "a move that was ended is half done"
clean_check

"$HOTSHELF" doctor --ssd "$SSD" --hdd "$HDD" >"$SCRATCH/doctor" || fail "doctor: $(cat "$SCRATCH/doctor")"
for what in kernel /dev/fuse fusermount3 passthrough 'ssd: attributes' 'hdd: birth times' 'hdd: kind of disk'; do
    grep -Eq "^(ok     |missing)  $what" "$SCRATCH/doctor" || fail "doctor does not speak of $what"
done
