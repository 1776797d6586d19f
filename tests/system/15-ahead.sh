#!/bin/bash
# Attributes that the kernel is told before anybody asks: it has them without the daemon, they are right whatever happens meanwhile,
# and the helper that brings them is in nobody's way.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

helpers() { pgrep -P "$1" -f '^hotshelf ahead$' || true; }
# ended PID: it and its helper $helper, if it had one.
ended() {
    local each
    for each in "$1" "${helper:-none}"; do
        [[ ! -e /proc/$each ]] || grep -qs '^State:.Z' "/proc/$each/status" || return
    done
}
# write_files DIR FIRST LAST
write_files() {
    local n
    mkdir -p "$1"
    for ((n = $2; n <= $3; n++)); do echo "file $n" >"$1/$n"; done
}
# ask DIR FIRST LAST: stat(2) of each, by a program that looks at nothing else.
ask() { (cd "$1" && seq "$2" "$3" | xargs stat -c "%s %b") >/dev/null; }
# known FILE: the kernel has its attributes, as the daemon is stopped.
known() {
    local code=0
    kill -STOP "$pid"
    timeout -s KILL 2 stat -c "%s %b %x %y %z" "$1" >/dev/null 2>&1 || code=$?
    kill -CONT "$pid"
    return "$code"
}
# alike DIR: what users see is what is there, to the nanosecond.
alike() {
    local format='%n %F %a %h %u %g %s %b %x %y %z'
    diff <(cd "$MNT/$1" && find . -type f -exec stat -c "$format" {} + | sort) \
        <(cd "$SSD/$1" && find . -type f -exec stat -c "$format" {} + | sort) >"$SCRATCH/diff" ||
        fail "$1 differs: $(head -n 4 "$SCRATCH/diff")"
}

# Some are asked for, the rest is told.
mount_pair
pid=$(daemon_pid)
write_files "$MNT/a" 1 400
[[ -z $(helpers "$pid") ]] || fail "a helper that nobody needs"
ask "$MNT/a" 1 40
wait_until 20 known "$MNT/a/400"
[[ $(helpers "$pid" | wc -l) == 1 ]] || fail "not one helper: $(helpers "$pid")"
alike a
# A deeper directory with an odd name, in the same mount; the helper is the same.
odd=$MNT/$'b\n c'/$(printf 'x%.0s' {1..250})
write_files "$odd" 1 100
ask "$odd" 1 30
wait_until 20 known "$odd/100"
[[ $(helpers "$pid" | wc -l) == 1 ]] || fail "another helper"
# None is asked for: nothing is told.
write_files "$MNT/c" 1 100
known "$MNT/c/50" && fail "the kernel knows what it was not told"
alike c
# The helper was killed: all goes on without.
kill -KILL "$(helpers "$pid")"
for round in 1 2 3; do
    write_files "$MNT/d$round" 1 100
    ask "$MNT/d$round" 1 100
    alike "d$round"
done
[[ -z $(helpers "$pid") ]] || fail "an ended helper is not waited for"
grep -q 'told ahead any more' "$SSD/.hotshelf/log" || fail "nobody says that the helper has ended: $(cat "$SSD/.hotshelf/log")"
unmount_pair

# What is changed, renamed and removed while others ask is told as it is.
mount_pair
python3 - "$MNT" "$SSD" "${SEED:-$RANDOM}" <<'PYTHON' || fail "attributes of changing files"
import os, random, sys, threading
mnt, ssd, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
def same(name):
    seen, there = os.stat(f"{mnt}/{name}"), os.stat(f"{ssd}/{name}")
    pick = lambda st: (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode, st.st_nlink, st.st_blocks)
    assert pick(seen) == pick(there), f"SEED={seed}: {name}: {pick(seen)} seen, {pick(there)} there"
for turn in range(12):
    random.seed(seed + turn)
    os.mkdir(f"{mnt}/t{turn}")
    names = [f"t{turn}/{n}" for n in range(400)]
    for name in names:
        with open(f"{mnt}/{name}", "w") as file:
            file.write("first")
    ended = threading.Event()
    def ask():
        while not ended.is_set():
            for name in names:
                try:
                    os.stat(f"{mnt}/{name}")
                except FileNotFoundError:
                    pass
    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(1500):
        name = random.choice(names)
        path = f"{mnt}/{name}"
        kind = random.randrange(6)
        try:
            if kind == 0:
                os.rename(path, f"{mnt}/{random.choice(names)}")
            elif kind == 1:
                os.unlink(path)
            elif kind == 2:
                os.truncate(path, random.randrange(9000))
            elif kind == 3:
                os.chmod(path, random.choice([0o600, 0o644, 0o4755]))
            else:
                with open(path, "a") as file:
                    file.write("more " * random.randrange(2000))
                # Who has written sees it, at once.
                size = os.stat(path).st_size
                assert size == os.stat(f"{ssd}/{name}").st_size, f"SEED={seed}: {name} after a write"
        except FileNotFoundError:
            pass
    ended.set()
    asking.join()
    assert sorted(os.listdir(f"{mnt}/t{turn}")) == sorted(os.listdir(f"{ssd}/t{turn}")), f"SEED={seed}: names"
    for name in names:
        if os.path.lexists(f"{ssd}/{name}"):
            same(name)
        else:
            assert not os.path.lexists(f"{mnt}/{name}"), f"SEED={seed}: {name} is gone"
PYTHON
pid=$(daemon_pid) helper=$(helpers "$(daemon_pid)")
[[ -n $helper ]] || fail "nothing was told ahead"
unmount_pair
wait_until 10 ended "$pid"

# Unmounting is never refused, and ends all.
for round in {1..30}; do
    mount_pair
    pid=$(daemon_pid)
    write_files "$MNT/u" 1 300
    ask "$MNT/u" 1 $((20 + round * 5))
    helper=$(helpers "$pid")
    umount "$MNT" || fail "round $round: umount"
    wait_until 10 ended "$pid"
    rm -r "$SSD/u"
done

# As long as something is open, or the same file system is mounted elsewhere, it goes on.
mount_pair
pid=$(daemon_pid) helper=
mkdir "$SCRATCH/elsewhere" && mount --bind "$MNT" "$SCRATCH/elsewhere"
umount "$MNT"
write_files "$SCRATCH/elsewhere/e" 1 100
ask "$SCRATCH/elsewhere/e" 1 30
wait_until 20 known "$SCRATCH/elsewhere/e/100"
exec 8>"$SCRATCH/elsewhere/e/101"
umount -l "$SCRATCH/elsewhere"
echo late >&8
[[ -e /proc/$pid ]] || fail "the daemon left an open file"
exec 8>&-
wait_until 10 ended "$pid"
[[ $(cat "$SSD/e/101") == late ]] || fail "a write after the last mount went out of sight"

# kill -9 of the daemon while it is told: the mount is dead, not stuck, and the helper goes.
for round in {1..10}; do
    mount_pair
    pid=$(daemon_pid)
    write_files "$MNT/k" 1 300
    (ask "$MNT/k" 1 300 2>/dev/null || true) &
    asking=$!
    for ((n = 0; n < round * 20; n++)); do :; done
    helper=$(helpers "$pid")
    kill -KILL "$pid"
    wait "$asking"
    wait_until 10 ended "$pid"
    umount "$MNT"
    [[ $(find "$SSD/k" -type f | wc -l) == 300 ]] || fail "files are gone"
done

# By hand it reads what it is given, if that is there, and ends.
mkdir -p "$SCRATCH/tree/k"
printf 'k\0\0nothing\0../..\0/etc\0' | timeout 20 "$HOTSHELF" ahead 1<"$SCRATCH/tree" || fail "a helper by hand"
clean_check
