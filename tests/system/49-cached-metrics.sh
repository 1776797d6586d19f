#!/bin/bash
# `hotshelf status` of cached mounts: where reads were answered, what the cache saved, and what failed, for people, as JSON and for
# Prometheus. Two mounts of one cache, and a program that uses the cache itself, are counted separately.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 bindfs

slow=$SCRATCH/slow other=$SCRATCH/other cache=$SCRATCH/cache name=cached-metrics-$$ other_mnt=$SCRATCH/other-mnt
mkdir -p "$slow" "$SCRATCH/behind" "$other" "$MNT" "$other_mnt"
clean() {
    for at in "$MNT" "$other_mnt"; do
        "$HOTSHELF" unmount "$at" >/dev/null 2>&1 || umount -l "$at" 2>/dev/null || true
    done
    "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
    umount -l "$other" 2>/dev/null || true
}
trap clean EXIT

# look MOUNTPOINT: sets the figures of the status as JSON: pages as ram, ssd and below, bytes as saved, fetched and written; all are empty
# in a status without them. shown has them in one line.
look() {
    shown=$("$HOTSHELF" status --json "$1" | python3 -c '
import json, sys
status = json.load(sys.stdin)
counts, side = status["counts"], status["slow_side"]
figures = {tier["name"]: tier["pages"] for tier in (counts or {"tiers": []})["tiers"]}
for name, field in ("saved", "saved_bytes"), ("fetched", "below_read_bytes"), ("written", "below_written_bytes"):
    figures[name] = counts[field] if counts else ""
figures["failed"] = side["timed_out_total"] + side["failed_total"] if side else ""
print(*(f"{name}={value}" for name, value in figures.items()))')
    ram='' ssd='' below=''
    eval "$shown"
}
# reads FILE: reads a file of which the kernel has no pages.
reads() {
    dd if="$1" iflag=nocache count=0 status=none
    cmp "$1" "$2"
}

bindfs "$SCRATCH/behind" "$other" || skip "bindfs does not mount"
bytes=$((8 << 20)) pages=$((8 << 8))
head -c "$bytes" /dev/urandom >"$slow/file"
head -c "$bytes" /dev/urandom >"$SCRATCH/behind/file"
echo new >"$SCRATCH/behind/new"
"$HOTSHELF" cache create "$cache" --name "$name" --size 128MiB --memory 32MiB >/dev/null
"$HOTSHELF" mount --cache "$cache" --uring off "$slow" "$MNT"
"$HOTSHELF" mount --cache "$cache" --uring off "$other" "$other_mnt"

# Read cold, from the slow side, once.
look "$MNT"
[[ $ram+$ssd+$below+$saved+$fetched+$written == 0+0+0+0+0+0 ]] || fail "a new mount: $shown"
reads "$MNT/file" "$slow/file"
look "$MNT"
((below >= pages / 2 && fetched >= bytes && fetched <= bytes * 11 / 10 && saved <= bytes / 10)) || fail "read cold: $shown"

# Read again, from the cache.
cold=$shown saved_before=$saved fetched_before=$fetched below_before=$below
reads "$MNT/file" "$slow/file"
look "$MNT"
((below == below_before && fetched == fetched_before)) || fail "read again from the slow side: $cold, $shown"
((ram + ssd >= pages && saved - saved_before >= bytes * 9 / 10)) || fail "read again: $cold, $shown"

# The other mount has its own figures, and so has a program that uses the cache itself.
before=$shown
look "$other_mnt"
[[ $ram+$ssd+$below == 0+0+0 ]] || fail "an idle mount has read: $shown"
reads "$other_mnt/file" "$SCRATCH/behind/file"
look "$other_mnt"
((fetched >= bytes)) || fail "the other mount: $shown"
head -c "$bytes" /dev/urandom >"$slow/warmed"
"$HOTSHELF" cache warm "$slow/warmed" --cache "$cache" >/dev/null
look "$MNT"
[[ $shown == "$before" ]] || fail "the figures of an idle mount changed: $before, $shown"

# What is written through.
head -c 1000000 /dev/zero >"$MNT/written"
look "$MNT"
((written >= 1000000)) || fail "written: $shown"

# For people, and for Prometheus: each mount, each name once.
"$HOTSHELF" status "$MNT" >"$SCRATCH/out"
for words in 'reads     memory [0-9]* pages (' 'latency   memory' 'saved     ' 'failures  0 timed out, 0 failed' 'page cache'; do
    grep -q "^  .*$words" "$SCRATCH/out" || fail "status does not say '$words': $(cat "$SCRATCH/out")"
done
# It fails if another mount of this machine has lost its daemon, which is not of this test.
{ "$HOTSHELF" status --prometheus || true; } >"$SCRATCH/metrics"
python3 - "$SCRATCH/metrics" "$MNT" "$other_mnt" "$below" <<'END' || fail "metrics: $(cat "$SCRATCH/metrics")"
import re, sys
path, mount, other, below = sys.argv[1:]
helps, types, samples = set(), {}, {}
for line in open(path).read().splitlines():
    if line.startswith("# HELP "):
        name = line.split()[2]
        assert name not in helps, name
        helps.add(name)
    elif line.startswith("# TYPE "):
        _, _, name, kind = line.split()
        assert name in helps and name not in types and (kind == "counter") == name.endswith("_total"), line
        types[name] = kind
    else:
        name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
        assert name in types or types[name.removesuffix("_count")] == "summary", line
        samples[name, labels] = float(value)
for at in mount, other:
    for tier in "ram", "ssd", "below":
        assert ("hotshelf_mount_read_pages_total", f'mount="{at}",tier="{tier}"') in samples, tier
        assert ("hotshelf_mount_read_latency_seconds_count", f'mount="{at}",tier="{tier}"') in samples, tier
    assert samples["hotshelf_mount_below_up", f'mount="{at}"'] == 1
    assert samples["hotshelf_mount_below_read_bytes_total", f'mount="{at}"'] > 0
assert samples["hotshelf_mount_read_pages_total", f'mount="{mount}",tier="below"'] == float(below)
assert samples["hotshelf_mount_saved_bytes", f'mount="{mount}"'] > 0
END

# Another program takes the mount over in the same process: the figures begin anew.
daemon=$(pgrep -f -- "mount --cache $cache .*$slow $MNT") || fail 'no daemon'
"$HOTSHELF" restart "$MNT" >/dev/null
look "$MNT"
[[ $ram+$ssd+$fetched == 0+0+0 ]] || fail "after a restart: $shown"
reads "$MNT/warmed" "$slow/warmed"
look "$MNT"
((ram + ssd >= pages)) || fail "read after a restart: $shown"

# The slow side of the other mount dies: requests fail.
kill "$(pgrep -f "bindfs .*$SCRATCH/behind $other")"
is_dead() { ! stat "$other/new" >/dev/null 2>&1; }
wait_until 5 is_dead
has_failed() {
    ! cat "$other_mnt/new" "$other_mnt/none" 2>/dev/null || return 1
    look "$other_mnt"
    ((failed > 0))
}
wait_until 5 has_failed
look "$MNT"
[[ $failed == 0 ]] || fail "a failure is counted for another mount: $shown"

# A daemon that was killed has no figures; the next one begins with none.
kill -9 "$daemon"
has_no_figures() {
    look "$MNT"
    [[ -z $ram$fetched ]]
}
wait_until 5 has_no_figures
drop_dead_mount
"$HOTSHELF" mount --cache "$cache" --deadline 0 "$slow" "$MNT"
look "$MNT"
[[ $ram+$fetched == 0+0 ]] || fail "after a kill: $shown"
"$HOTSHELF" status "$MNT" | grep -q '^  reads     memory 0 pages' || fail 'no figures without a deadline'
