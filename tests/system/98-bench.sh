#!/bin/bash
# TIMEOUT: 180
# `hotshelf bench`: experiments run small, their results read back; what is missing is told, and a run that is ended leaves nothing.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
out=$SCRATCH/results work=$SCRATCH/work
mkdir "$work"
bench() { "$HOTSHELF" bench "$@"; }
small() { bench run --small --dir "$work" --out "$out" "$@"; }

# Bad commands.
refused 2 'no experiment `nothing`: see `hotshelf bench list`' "$HOTSHELF" bench run nothing
refused 1 '/nonexistent' "$HOTSHELF" bench run block --small --dir /nonexistent --out "$out"
refused 1 'has no results' "$HOTSHELF" bench report "$work"
echo nonsense >"$work/x.jsonl"
refused 1 'x.jsonl, line 1: not a result' "$HOTSHELF" bench report "$work"
rm "$work/x.jsonl"
refused 1 '/nonexistent' "$HOTSHELF" bench compare /nonexistent "$out"

# Every experiment says what it is, and whether it can run here.
bench list >"$SCRATCH/list" || fail "list"
bench list --json | python3 -c 'import json, sys
for one in json.load(sys.stdin):
    assert one["about"] and one["source"] and one["devices"] and one["peers"], one["name"]
    said = one["name"], one["lacks"]' || fail "list --json"
(($(grep -c 'needs: ' "$SCRATCH/list") == $(grep -c -E 'can run here|CANNOT RUN HERE: ' "$SCRATCH/list"))) ||
    fail "list does not say what can run"

# Three of them, their results, and going on where one was.
small async-blocks cache-hits block >"$SCRATCH/said" || fail "run: $(cat "$SCRATCH/said")"
for name in async-blocks cache-hits block; do
    python3 - "$out/$name" <<'PY' || fail "results of $name"
import csv, json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + ".jsonl")]
run = lines[0]["run"]
assert run["size"] == "small" and run["seed"] == 1 and run["machine"]["cores"] > 0 and run["command"].startswith("hotshelf bench run")
rows = [line["row"] for line in lines if "row" in line]
assert rows and len(rows) == len(list(csv.DictReader(open(sys.argv[1] + ".csv"))))
assert all(row["min"] <= row["median"] <= row["max"] for row in rows)
assert any("claim" in line for line in lines)
PY
done
before=$(stat -c %Y.%i "$out/cache-hits.jsonl")
small async-blocks cache-hits --resume >"$SCRATCH/said"
grep -q 'cache-hits: measured already' "$SCRATCH/said" || fail "--resume measures again: $(cat "$SCRATCH/said")"
[[ $(stat -c %Y.%i "$out/cache-hits.jsonl") == "$before" ]] || fail "--resume writes again"

# The report, and the comparison: with itself nothing, with half of everything a regression.
bench report "$out" -o "$SCRATCH/page.html" >/dev/null || fail "report"
grep -q '</html>' "$SCRATCH/page.html" && [[ -s $SCRATCH/page-charts/at-a-glance.svg ]] || fail "no page"
python3 -c 'import sys, xml.dom.minidom
[xml.dom.minidom.parse(path) for path in sys.argv[1:]]' "$SCRATCH"/page-charts/*.svg "$out"/*.svg || fail "an SVG is no XML"
bench compare "$out" "$out" >/dev/null || fail "something is worse than itself"
mkdir "$SCRATCH/fast" "$SCRATCH/slow"
python3 - "$out/cache-hits.jsonl" "$SCRATCH" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for name, factor in (("fast", 1.0), ("slow", 0.5)):
    with open(f"{sys.argv[2]}/{name}/cache-hits.jsonl", "w") as to:
        for line in lines:
            if "row" in line:
                row = dict(line["row"])
                row["values"] = [row["median"] * factor * spread for spread in (0.99, 1.0, 1.01)]
                row["median"] *= factor
                row["min"], row["max"] = row["values"][0], row["values"][2]
                line = {"row": row}
            to.write(json.dumps(line) + "\n")
PY
if bench compare "$SCRATCH/fast" "$SCRATCH/slow" --json >"$SCRATCH/said"; then fail "half of it is no regression"; fi
python3 -c 'import json, sys; assert any(one["verdict"] == "worse" for one in json.load(sys.stdin)["changes"])' <"$SCRATCH/said" ||
    fail "--json"
bench compare "$SCRATCH/slow" "$SCRATCH/fast" >/dev/null || fail "twice of it is a regression"

# What is missing is told, with the way to get it, and the others are measured.
PATH=/nonexistent small async-blocks mount-iops >"$SCRATCH/said" || fail "a missing peer is an error: $(cat "$SCRATCH/said")"
grep -q 'NOT MEASURED: all of it: .*apt install fio' "$SCRATCH/said" || [[ -x /usr/sbin/fio ]] || fail "$(cat "$SCRATCH/said")"
if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null; then
    install -d -m 777 "$SCRATCH/theirs"
    as_nobody() {
        (cd "$SCRATCH/theirs" && HOME=$SCRATCH/theirs XDG_STATE_HOME=$SCRATCH/theirs \
            setpriv --reuid 65534 --regid 65534 --clear-groups "$@")
    }
    cp "$HOTSHELF" "$SCRATCH/theirs/program"
    as_nobody "$SCRATCH/theirs/program" bench run mount-iops --small --out "$SCRATCH/theirs/out" >"$SCRATCH/said" ||
        fail "not root is an error"
    grep -q 'NOT MEASURED: .*needs root: run it with sudo' "$SCRATCH/said" || fail "not root: $(cat "$SCRATCH/said")"
fi

[[ $(id -u) == 0 ]] && command -v losetup mkfs.ext4 fio >/dev/null || { echo "NOTE: neither root nor tools: nothing was mounted"; exit 0; }

# A full disk: told before anything is made.
mkdir "$SCRATCH/tiny" && mount -t tmpfs -o size=8m tmpfs "$SCRATCH/tiny"
bench run block --small --dir "$SCRATCH/tiny" --out "$out" >"$SCRATCH/said" || fail "a full disk is an error"
grep -q 'NOT MEASURED: .*MiB are free: give another place with --dir' "$SCRATCH/said" || fail "$(cat "$SCRATCH/said")"
umount "$SCRATCH/tiny"

# Ended by a signal it takes everything along; killed, the next start does.
limits() { cat /sys/fs/cgroup/blkio/blkio.throttle.*_device 2>/dev/null | sort; }
nothing_left() {
    [[ -z $(ls -A "$work") ]] || fail "$1: left in the directory: $(ls -A "$work")"
    ! grep -q "$work" /proc/mounts || fail "$1: mounts: $(grep "$work" /proc/mounts)"
    ! losetup --list --noheadings --output BACK-FILE | grep -q "^$work" || fail "$1: loop devices"
    [[ $(limits) == "$limits_before" ]] || fail "$1: limits: $(limits)"
    ! pgrep -f "$work" >/dev/null || fail "$1: processes: $(pgrep -af "$work")"
}
limits_before=$(limits)
can() { bench list --json | python3 -c 'import json, sys
sys.exit(any(one["lacks"] for one in json.load(sys.stdin) if one["name"] == sys.argv[1]))' "$1"; }
can mount-iops || { echo "NOTE: mount-iops cannot run here: nothing was mounted"; exit 0; }
busy() { grep -q "$work/.*/mnt" /proc/mounts; }
for signal in TERM INT KILL; do
    "$HOTSHELF" bench run mount-iops --runs 1000 --dir "$work" --out "$out" --small >"$SCRATCH/said" 2>&1 &
    pid=$!
    wait_until 60 busy
    kill -"$signal" $pid
    code=0
    wait $pid || code=$?
    if [[ $signal == KILL ]]; then
        small async-blocks >"$SCRATCH/said" 2>&1 || fail "after it was killed: $(cat "$SCRATCH/said")"
        grep -q 'taken away: mount' "$SCRATCH/said" || fail "does not say what was left: $(cat "$SCRATCH/said")"
    else
        [[ $code == 1 ]] && grep -q 'stopped, nothing is left behind.*--resume' "$SCRATCH/said" ||
            fail "SIG$signal: exit $code: $(cat "$SCRATCH/said")"
    fi
    nothing_left "SIG$signal"
done
[[ -z $(ls -A "$XDG_STATE_HOME/hotshelf/bench") ]] || fail "a journal is left"
