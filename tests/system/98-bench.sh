#!/bin/bash
# TIMEOUT: 300
# `hotshelf bench`: small runs of the experiments, their results read back; missing requirements are reported, and an ended run cleans up.
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
    assert all(one[what] for what in ("about", "source", "paper", "devices", "peers")), one["name"]
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
                row["values"] = [row["median"] * factor * spread for spread in (0.99, 0.995, 1.0, 1.005, 1.01)]
                row["median"] *= factor
                row["min"], row["max"] = row["values"][0], row["values"][4]
                line = {"row": row}
            to.write(json.dumps(line) + "\n")
PY
if bench compare "$SCRATCH/fast" "$SCRATCH/slow" --json >"$SCRATCH/said"; then fail "half of it is no regression"; fi
python3 -c 'import json, sys; assert any(one["verdict"] == "worse" for one in json.load(sys.stdin)["changes"])' <"$SCRATCH/said" ||
    fail "--json"
bench compare "$SCRATCH/slow" "$SCRATCH/fast" >/dev/null || fail "twice of it is a regression"

# Missing requirements are reported with the way to get them, and the other experiments run.
PATH=/nonexistent small async-blocks mount-iops >"$SCRATCH/said" || fail "a missing peer is an error: $(cat "$SCRATCH/said")"
grep -q 'NOT MEASURED: all of it: .*apt install fio' "$SCRATCH/said" || [[ -x /usr/sbin/fio ]] || fail "$(cat "$SCRATCH/said")"
python3 -c 'import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert not any("row" in line for line in lines) and any("apt install fio" in str(line) for line in lines), lines' "$out/mount-iops.jsonl" ||
    [[ -x /usr/sbin/fio ]] || fail "the results do not say that nothing was measured"
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

# No room for the results.
if [[ $(id -u) == 0 ]]; then
    mkdir "$SCRATCH/full" && mount -t tmpfs -o size=64k tmpfs "$SCRATCH/full"
    head -c 1M /dev/zero >"$SCRATCH/full/zeros" 2>/dev/null || true
    refused 1 "$SCRATCH/full/.*No space left" "$HOTSHELF" bench run async-blocks --small --out "$SCRATCH/full/out"
    umount "$SCRATCH/full"
fi

[[ $(id -u) == 0 ]] && command -v losetup mkfs.ext4 fio >/dev/null || { echo "NOTE: neither root nor tools: nothing was mounted"; exit 0; }

# A full disk: told before anything is made.
mkdir "$SCRATCH/tiny" && mount -t tmpfs -o size=8m tmpfs "$SCRATCH/tiny"
bench run block --small --dir "$SCRATCH/tiny" --out "$out" >"$SCRATCH/said" || fail "a full disk is an error"
grep -q 'NOT MEASURED: .*MiB are free: give another place with --dir' "$SCRATCH/said" || fail "$(cat "$SCRATCH/said")"
umount "$SCRATCH/tiny"

# Without control groups: the experiments that need them are reported, with what would help.
cat >"$SCRATCH/bare" <<'SH'
mount -t tmpfs none /sys/fs/cgroup
exec "$@"
SH
unshare --mount sh "$SCRATCH/bare" "$HOTSHELF" bench run nocache mount-iops --small --dir "$work" --out "$out" >"$SCRATCH/said" ||
    fail "no control groups is an error: $(cat "$SCRATCH/said")"
(($(grep -c 'NOT MEASURED: all of it: .*no control group here slows devices down: mount the controller' "$SCRATCH/said") == 2)) ||
    fail "no control groups: $(cat "$SCRATCH/said")"
grep -q 'no control group here limits memory: mount the controller memory' "$SCRATCH/said" ||
    fail "no control groups: $(cat "$SCRATCH/said")"

# Ended by a signal it takes everything along; killed, the next start does.
# Of devices that nobody uses now: others measure, too.
limits() {
    { cat /sys/fs/cgroup/blkio/blkio.throttle.*_device 2>/dev/null || true; } | sort | while read -r number rest; do
        [[ -e /sys/dev/block/$number/loop/backing_file ]] || echo "$number $rest"
    done
}
modules() { [[ ! -e /proc/modules ]] || cut -d' ' -f1 /proc/modules | sort; }
dirty_limits() {
    local dir
    for dir in /sys/class/bdi/7:*; do
        [[ ! -e $dir/strict_limit || -e /sys/dev/block/${dir##*/}/loop/backing_file ]] || echo "${dir##*/} $(cat "$dir/strict_limit")"
    done
}
nothing_left() {
    [[ -z $(ls -A "$work") ]] || fail "$1: left in the directory: $(ls -A "$work")"
    ! grep -q "$work" /proc/mounts || fail "$1: mounts: $(grep "$work" /proc/mounts)"
    ! losetup --list --noheadings --output BACK-FILE | grep -q "^$work" || fail "$1: loop devices"
    [[ -z $(comm -13 <(echo "$limits_before") <(limits)) ]] || fail "$1: limits: $(limits)"
    ! pgrep -f "$work" >/dev/null || fail "$1: processes: $(pgrep -af "$work")"
    groups=$(find /sys/fs/cgroup -type d \( -name "hotshelf-bench-$pid" -o -name "hotshelf-bench-$pid-*" \) 2>/dev/null || true)
    [[ -z $groups ]] || fail "$1: control groups: $groups"
    [[ -z $(comm -13 <(echo "$dirty_before") <(dirty_limits | grep -v ' 0$')) ]] || fail "$1: limits of dirty pages: $(dirty_limits)"
    [[ $(modules) == "$modules_before" ]] || fail "$1: modules"
}
limits_before=$(limits) dirty_before=$(dirty_limits) modules_before=$(modules)
can() { bench list --json | python3 -c 'import json, sys
sys.exit(any(one["lacks"] for one in json.load(sys.stdin) if one["name"] == sys.argv[1]))' "$1"; }
can mount-iops || { echo "NOTE: mount-iops cannot run here: nothing was mounted"; exit 0; }
# busy EXPERIMENT: it is in the midst of it.
busy() {
    case $1 in
        nocache) pgrep -f "fio .*$work" >/dev/null ;;
        *) grep -q "$work/.*/mnt" /proc/mounts ;;
    esac
}
# ended SIGNAL EXPERIMENT: after one that is soon done it is ended in this one.
ended() {
    rm -f "$out/async-blocks.jsonl" "$out/$2.jsonl"
    "$HOTSHELF" bench run async-blocks "$2" --dir "$work" --out "$out" --small >"$SCRATCH/said" 2>&1 &
    pid=$!
    wait_until 60 busy "$2"
    kill -"$1" $pid
    code=0
    wait $pid || code=$?
}
signals=(TERM:mount-iops KILL:mount-iops)
if can nocache && [[ -e $(dirname "$HOTSHELF")/libhotshelf_nocache.so ]]; then
    signals+=(INT:nocache KILL:nocache)
else
    echo "NOTE: nocache cannot run here: it was not ended"
    signals+=(INT:mount-iops)
fi
for one in "${signals[@]}"; do
    signal=${one%:*} name=${one#*:}
    ended "$signal" "$name"
    if [[ $signal == KILL ]]; then
        # The same command with --resume takes away what is left, and goes on there; once, since it takes its time.
        names=(async-blocks)
        [[ $name == nocache ]] || names+=("$name")
        small "${names[@]}" --resume >"$SCRATCH/said" 2>&1 || fail "after it was killed: $(cat "$SCRATCH/said")"
        grep -q 'taken away: ' "$SCRATCH/said" || fail "does not say what was left: $(cat "$SCRATCH/said")"
        grep -q 'async-blocks: measured already' "$SCRATCH/said" || fail "measures again what was done: $(cat "$SCRATCH/said")"
        [[ $name == nocache || -s $out/$name.jsonl ]] || fail "does not go on at $name"
    else
        [[ $code == 1 ]] && grep -q "stopped, nothing is left behind.*--resume goes on at $name" "$SCRATCH/said" ||
            fail "SIG$signal: exit $code: $(cat "$SCRATCH/said")"
    fi
    nothing_left "SIG$signal in $name"
done
[[ -z $(ls -A "$XDG_STATE_HOME/hotshelf/bench") ]] || fail "a journal is left"
