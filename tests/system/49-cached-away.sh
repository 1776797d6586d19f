#!/bin/bash
# TIMEOUT: 300
# TIMEOUT_FULL: 1200
# A cached mount whose slow side hangs, dies and comes back, at chosen and at random points: no call waits for ever, no process is
# unkillable, no byte that fsync acknowledged is lost, none is wrong, and unmount works. Other mounts of the same cache go on.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 bindfs
cache=$SCRATCH/cache name=cached-away-$$
ssd_cache=$cache memory_cache=$name-memory
behind=$SCRATCH/behind side=$SCRATCH/side
mkdir "$behind" "$side" "$MNT" "$SCRATCH/near" "$SCRATCH/near-mnt"
bindfs_pid=
clean_up() {
    if [[ -n $bindfs_pid ]]; then
        kill -CONT "$bindfs_pid" 2>/dev/null || true
    fi
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || true
    "$HOTSHELF" unmount "$SCRATCH/near-mnt" 2>/dev/null || true
    umount -l "$side" 2>/dev/null || true
    for cache in "$ssd_cache" "$memory_cache"; do
        "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
    done
}
trap clean_up EXIT
show_side() {
    bindfs -f -o attr_timeout=0,entry_timeout=0 "$behind" "$side" &
    bindfs_pid=$!
    wait_until 10 is_mounted "$side"
}
mounted() { "$HOTSHELF" mount --cache "$cache" --deadline "$DEADLINE" "$side" "$MNT" --allow-other --log-file "$SCRATCH/log" "$@"; }
replies() { "$HOTSHELF" status "$MNT" | grep -q 'slow side: replies'; }
is_away() { "$HOTSHELF" status "$MNT" | grep -q "slow side: $1"; }
stop_side() { kill -STOP "$bindfs_pid"; }
side_goes_on() {
    kill -CONT "$bindfs_pid"
    wait_until 10 replies
}

cat >"$SCRATCH/points.py" <<'PYTHON'
"""One call at a hung side: points.py READY POINT MOUNT. Prepares, tells READY, waits for a byte on stdin, calls, and says how it ended."""
import errno, os, sys
ready, point, mnt = sys.argv[1:]
path = f"{mnt}/{point}"
with open(path, "wb") as file:
    file.write(b"a" * 300000)
fd = os.open(path, os.O_RDWR)
os.pread(fd, 4096, 0)
written = os.open(path, os.O_RDWR)
os.pwrite(written, b"b" * 10, 5000)
calls = {
    "lookup": lambda: os.stat(f"{mnt}/dir/file-{os.getpid()}"),
    "getattr": lambda: os.stat(f"{mnt}/dir"),
    "readdir": lambda: os.listdir(f"{mnt}/dir"),
    "open": lambda: os.open(f"{mnt}/dir/file", os.O_RDONLY),
    "miss": lambda: os.pread(os.open(f"{mnt}/miss-big", os.O_RDONLY), 4096, 0),
    "hit": lambda: os.pread(fd, 4096, 0),
    "write": lambda: os.pwrite(written, b"c" * 5000, 3000),
    "fsync": lambda: os.fsync(written),
    "rename": lambda: os.rename(path, path + ".new"),
    "unlink": lambda: os.unlink(path),
    "create": lambda: os.open(f"{mnt}/dir/made", os.O_RDWR | os.O_CREAT),
    "mkdir": lambda: os.mkdir(f"{mnt}/dir/made-dir"),
    "truncate": lambda: os.ftruncate(written, 100),
    "chmod": lambda: os.chmod(path, 0o600),
    "statfs": lambda: os.statvfs(mnt),
    "close": lambda: os.close(written),
}
open(ready, "w").close()
sys.stdin.read(1)
try:
    calls[point]()
    print("ok")
except OSError as error:
    print(errno.errorcode[error.errno])
sys.stdout.flush()
os._exit(0)
PYTHON

"$HOTSHELF" cache create "$cache" --name "$name" --size 128MiB --memory 32MiB >/dev/null
mkdir "$behind/dir"
head -c 100000 /dev/urandom | tee "$behind/dir/file" >"$SCRATCH/near/file"
head -c 3M /dev/urandom >"$behind/miss-big"
show_side
DEADLINE=1
"$HOTSHELF" mount --cache "$cache" --deadline 30 "$SCRATCH/near" "$SCRATCH/near-mnt"
mounted
replies || fail "status does not say that the slow side replies: $("$HOTSHELF" status "$MNT")"

# Starts a call that is about to be made; its number is in $call.
prepare() {
    rm -f "$SCRATCH/ready" "$SCRATCH/go"
    mkfifo "$SCRATCH/go"
    python3 "$SCRATCH/points.py" "$SCRATCH/ready" "$1" "$MNT" <"$SCRATCH/go" >"$SCRATCH/said" 2>"$SCRATCH/complained" &
    call=$!
    exec 6>"$SCRATCH/go"
    wait_until 20 test -e "$SCRATCH/ready"
}
# Whether the call waits for the daemon.
has_request() { grep -q request_wait "/proc/$call/wchan"; }
waits_or_is_gone() { is_gone "$call" || has_request; }
is_gone() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }

# Each call ends within the deadline: with ETIMEDOUT, or because it needs nothing of the side.
points="lookup getattr readdir open miss hit write fsync rename unlink create mkdir truncate chmod statfs close"
for point in $points; do
    prepare "$point"
    stop_side
    echo >&6
    exec 6>&-
    end=$((SECONDS + 3 * DEADLINE + 4))
    until is_gone "$call"; do
        ((SECONDS < end)) || fail "$point waits for ever"
        sleep 0.05
    done
    wait "$call" || fail "$point: $(cat "$SCRATCH/complained")"
    case $point in
        hit) expected=ok ;;
        # The kernel may have the attributes for a second, and bindfs does nothing at a close.
        getattr | close) expected='ok|ETIMEDOUT' ;;
        *) expected=ETIMEDOUT ;;
    esac
    grep -qxE "$expected" "$SCRATCH/said" || fail "$point says $(cat "$SCRATCH/said"), not $expected"
    if [[ $point == readdir ]]; then
        wait_until 10 is_away 'away since ..:..:.. UTC'
        "$HOTSHELF" status --json "$MNT" | grep -q '"away_since": [0-9]' || fail "status --json does not say since when"
        # What is away fails soon, and other mounts of the cache go on.
        begun=$SECONDS
        fails_with 'Connection timed out' ls "$MNT/dir"
        ((SECONDS - begun <= 2)) || fail "a call waits for the deadline although the side is away"
    fi
    near=$(timeout 8 cat "$SCRATCH/near-mnt/file" | cksum)
    [[ $near == "$(cksum <"$SCRATCH/near/file")" ]] || fail "$point: another mount of the cache hangs"
    side_goes_on
    cmp "$MNT/dir/file" "$SCRATCH/near/file" || fail "$point: another content after it"
done

# Files that were opened too late for the program are closed. Another process leads the cache, which has files open for itself.
daemon=$(pgrep -f -- "mount --cache $cache --deadline $DEADLINE $side")
is_nothing_open() {
    python3 - "$daemon" "$side" <<'PYTHON'
import os, sys
pid, side = sys.argv[1:]
O_PATH = 0o10000000
for fd in os.listdir(f"/proc/{pid}/fd"):
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        with open(f"/proc/{pid}/fdinfo/{fd}") as info:
            flags = int(dict(line.split(":", 1) for line in info if ":" in line)["flags"], 8)
    except FileNotFoundError:
        continue
    if target.startswith(side + "/") and not flags & O_PATH:
        sys.exit(target)
PYTHON
}
wait_until 10 is_nothing_open

# What had no reply is done or not; the mount shows what the directory has.
for file in "$behind"/* "$behind/dir"/*; do
    seen=$MNT/${file#"$behind/"}
    [[ -d $file ]] || cmp "$file" "$seen" || fail "$seen differs"
done
[[ $(cd "$behind" && find . | sort) == "$(cd "$MNT" && find . | sort)" ]] || fail "the names differ"
rm -rf "$MNT"/*.new "$MNT/dir/made" "$MNT/dir/made-dir"

# Each can be killed at once, long before the deadline.
"$HOTSHELF" unmount "$MNT"
DEADLINE=60
mounted
for point in lookup readdir open miss write fsync rename unlink create truncate close; do
    prepare "$point"
    stop_side
    echo >&6
    exec 6>&-
    if [[ $point == close ]]; then
        wait_until 10 waits_or_is_gone
    else
        wait_until 10 has_request
    fi
    kill -KILL "$call" 2>/dev/null || true
    wait_until 5 is_gone "$call"
    got=0
    wait "$call" 2>/dev/null || got=$?
    [[ $got == 137 || $point == close && $got == 0 ]] || fail "$point was over before the kill: $(cat "$SCRATCH/said")"
    side_goes_on
done

# A restart of the daemon is refused while a request waits for the side; the mount goes on.
prepare readdir
stop_side
echo >&6
exec 6>&-
wait_until 10 has_request
refused 1 'requests to the slow side have taken more than' "$HOTSHELF" restart "$MNT"
side_goes_on
wait "$call" || fail "readdir over a refused restart: $(cat "$SCRATCH/complained")"
grep -qx ok "$SCRATCH/said" || fail "readdir over a refused restart says $(cat "$SCRATCH/said")"
rm "$MNT"/readdir

# Unmounting works while the side is stopped, and says so.
cat "$MNT/dir/file" >/dev/null
"$HOTSHELF" unmount "$MNT"
DEADLINE=2
mounted
exec 7<"$MNT/dir/file"
stop_side
(ls "$MNT/dir" >/dev/null 2>&1 || true)
wait_until 10 is_away away
# An open file is read from the cache.
begun=$SECONDS
cmp <(cat <&7) "$SCRATCH/near/file" || fail "what is cached of an open file is not served"
exec 7<&-
"$HOTSHELF" unmount "$MNT" >"$SCRATCH/out" 2>&1 || fail "unmount while the side hangs: $(cat "$SCRATCH/out")"
((SECONDS - begun <= 12)) || fail "unmount takes $((SECONDS - begun)) s while the side hangs"
grep -q 'is away since' "$SCRATCH/out" || fail "unmount does not say that the side is away: $(cat "$SCRATCH/out")"
kill -CONT "$bindfs_pid"

# A side that dies is away at once. It comes back by mounting it and the cached directory again.
mounted
cat "$MNT/dir/file" >/dev/null
kill -KILL "$bindfs_pid"
wait "$bindfs_pid" 2>/dev/null || true
begun=$SECONDS
fails_with 'timed out\|not connected' ls "$MNT/dir"
fails_with 'timed out\|not connected' stat "$MNT/none"
wait_until 10 is_away away
((SECONDS - begun <= 5)) || fail "a dead side is noticed after $((SECONDS - begun)) s"
"$HOTSHELF" unmount "$MNT" >"$SCRATCH/out" 2>&1 || fail "unmount of a dead side: $(cat "$SCRATCH/out")"
umount -l "$side"
show_side
mounted
cmp "$MNT/dir/file" "$SCRATCH/near/file" || fail "the content after the side was mounted again"

# Names that are remembered are answered while the side is away, also after a restart, which keeps the deadline. All else fails soon.
"$HOTSHELF" unmount "$MNT"
ln -s dir/file "$behind/link"
echo unread >"$behind/dir/unread"
tree() { (cd "$MNT" && find . -printf '%p %y %s %T@ %l\n' | sort); }
mounted --names memory --cache-ttl 1
tree >"$SCRATCH/tree"
"$HOTSHELF" restart "$MNT" >"$SCRATCH/out" || fail "restart: $(cat "$SCRATCH/out")"
replies || fail "status does not say that the slow side replies after a restart"
stop_side
(stat -f "$MNT" >/dev/null 2>&1 || true)
wait_until 10 is_away away
begun=$SECONDS
# The kernel has believed what it knows for a second.
[[ $(tree) == "$(cat "$SCRATCH/tree")" ]] || fail "names while the side is away: $(diff <(tree) "$SCRATCH/tree")"
[[ $(readlink "$MNT/link") == dir/file ]] || fail "a link while the side is away"
fails_with 'No such file' stat "$MNT/dir/none"
fails_with 'Connection timed out' mkdir "$MNT/made"
fails_with 'Connection timed out' cat "$MNT/dir/unread"
cmp "$MNT/dir/file" "$SCRATCH/near/file" || fail "what the cache has of a file is not served"
refused 1 'does not reply' "$HOTSHELF" restart "$MNT"
((SECONDS - begun <= 8)) || fail "remembered names take $((SECONDS - begun)) s"
side_goes_on
cmp "$MNT/dir/file" "$SCRATCH/near/file" || fail "the content after remembered names"
echo new >"$behind/dir/new"
wait_until 10 test -e "$MNT/dir/new"
"$HOTSHELF" restart "$MNT" >"$SCRATCH/out" || fail "a restart when the side is back: $(cat "$SCRATCH/out")"
[[ $(cat "$MNT/dir/new") == new ]] || fail "a file after a restart"
rm "$MNT/dir/new" "$MNT/link"

# An open for reading by fresh attributes is served, and so is what the kernel has of the file.
"$HOTSHELF" unmount "$MNT"
mounted --names memory --cache-ttl 60
tree >/dev/null
cmp "$MNT/dir/file" "$SCRATCH/near/file" && cmp "$MNT/dir/file" "$SCRATCH/near/file" || fail "the content with remembered names"
stop_side
(stat -f "$MNT" >/dev/null 2>&1 || true)
wait_until 10 is_away away
cmp "$MNT/dir/file" "$SCRATCH/near/file" || fail "a file that the kernel has, while the side is away"
fails_with 'Connection timed out' cmp "$MNT/miss-big" "$behind/miss-big"
side_goes_on
cmp "$MNT/miss-big" "$behind/miss-big" || fail "a file that was opened while the side was away, later"

# With --offline write-back, writes to open files are taken and read back while the side is away. fsync and all else fail. When the side is
# back, fsync returns 0, and after the unmount the directory has what was written. The cache has no SSD: with one, files on FUSE are written
# through, and so not at all.
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" cache create "$memory_cache" --memory 32MiB >/dev/null
cache=$memory_cache
mounted --cache-mode write-back --offline write-back
exec 9<>"$MNT/offline"
python3 -c 'import os; os.pwrite(9, b"a" * 20000, 0); os.fsync(9)' || fail "a file before the side is away"
stop_side
(stat -f "$MNT" >/dev/null 2>&1 || true)
wait_until 10 is_away away
python3 - <<'PYTHON' || fail "writes while the side is away"
import errno, os
assert os.pwrite(9, b"b" * 10000, 3000) == 10000
assert os.pread(9, 30000, 0) == b"a" * 3000 + b"b" * 10000 + b"a" * 7000, "other bytes"
try:
    os.fsync(9)
except OSError as error:
    assert error.errno == errno.ETIMEDOUT, error
else:
    raise AssertionError("fsync returned 0")
PYTHON
fails_with 'Connection timed out' touch "$MNT/offline-new"
side_goes_on
python3 -c 'import os; os.fsync(9)' || fail "fsync after writes while the side was away"
exec 9>&-
"$HOTSHELF" unmount "$MNT"
python3 - "$behind/offline" <<'PYTHON' || fail "what was written while the side was away"
import sys
assert open(sys.argv[1], "rb").read() == b"a" * 3000 + b"b" * 10000 + b"a" * 7000
PYTHON

# Random points under load.
cat >"$SCRATCH/load.py" <<'PYTHON'
"""load.py MOUNT WORKER ACKNOWLEDGED: writes blocks with number and version, syncs, reads back. The errors of a silent side are retried."""
import errno, os, random, struct, sys, time
# EINTR: the watchdog's reply for a killed process. ENOENT: a rename or unlink that timed out took effect.
RETRIED = (errno.ETIMEDOUT, errno.EINTR, errno.ENOENT)
mnt, worker, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
BLOCKS, BLOCK = 64, 4096
random.seed(time.time_ns())
state = {}
for line in open(log, "a+") if not os.path.exists(log) else open(log):
    kind, block, version = line.split()
    state.setdefault(int(block), [0, 0])
    state[int(block)][0 if kind == "acked" else 1] = int(version)
out = open(log, "a", buffering=1)
def content(block, version):
    return struct.pack("<QQQQ", worker, block, version, version ^ 0x5555) * (BLOCK // 32)
def check(data, block, where):
    if not data.strip(b"\0"):
        version = 0
    else:
        version = struct.unpack_from("<Q", data, 16)[0]
        assert data == content(block, version), f"{where}: block {block} has wrong bytes"
    acked, tried = state.get(block, [0, 0])
    assert acked <= version <= max(acked, tried), f"{where}: block {block} has version {version}, not {acked} to {tried}"
fd = None
while True:
    try:
        if fd is None:
            fd = os.open(f"{mnt}/load-{worker}", os.O_RDWR | os.O_CREAT, 0o644)
        chosen = random.sample(range(BLOCKS), 4)
        for block in chosen:
            acked, tried = state.setdefault(block, [0, 0])
            version = max(acked, tried) + 1
            out.write(f"tried {block} {version}\n")
            state[block][1] = version
            os.pwrite(fd, content(block, version), block * BLOCK)
        written = {block: state[block][1] for block in chosen}
        os.fsync(fd)
        for block, version in written.items():
            state[block][0] = version
            out.write(f"acked {block} {version}\n")
        block = random.randrange(BLOCKS)
        data = os.pread(fd, BLOCK, block * BLOCK)
        if len(data) == BLOCK:
            check(data, block, "read")
        os.stat(f"{mnt}/load-{worker}")
        os.listdir(f"{mnt}/dir")
        with open(f"{mnt}/dir/scratch-{worker}", "w") as file:
            file.write("x")
        os.rename(f"{mnt}/dir/scratch-{worker}", f"{mnt}/dir/renamed-{worker}")
        os.unlink(f"{mnt}/dir/renamed-{worker}")
        if random.random() < 0.2:
            os.close(fd)
            fd = None
    except OSError as error:
        if error.errno not in RETRIED:
            raise
        time.sleep(0.01)
        if random.random() < 0.5 and fd is not None:
            closed, fd = fd, None
            try:
                os.close(closed)
            except OSError as error:
                if error.errno not in RETRIED:
                    raise
PYTHON
cat >"$SCRATCH/verify.py" <<'PYTHON'
"""verify.py FILE WORKER ACKNOWLEDGED: each block has a version from the last acknowledged to the last tried one."""
import struct, sys
path, worker, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
acked, tried = {}, {}
for line in open(log):
    kind, block, version = line.split()
    (acked if kind == "acked" else tried)[int(block)] = int(version)
data = open(path, "rb").read()
for block in range(64):
    part = data[block * 4096:(block + 1) * 4096]
    version = struct.unpack_from("<Q", part, 16)[0] if part.strip(b"\0") else 0
    assert not version or part == struct.pack("<QQQQ", worker, block, version, version ^ 0x5555) * 128, f"{path}: block {block} is torn"
    low, high = acked.get(block, 0), max(acked.get(block, 0), tried.get(block, 0))
    assert low <= version <= high, f"{path}: block {block} has version {version}, not {low} to {high}"
assert len(acked) > 10, f"only {len(acked)} blocks were synced"
PYTHON
workers=()
begin_worker() {
    python3 "$SCRATCH/load.py" "$MNT" "$1" "$SCRATCH/acked-$1" 2>>"$SCRATCH/load-errors" &
    workers[$1]=$!
}
# load FIRST POINTS [FLAGS...]: three workers, the first of this number, in a mount with the flags; stops the side so often.
load() {
    local first=$1 points=$2 point hold worker before
    shift 2
    mounted "$@"
    for worker in $first $((first + 1)) $((first + 2)); do begin_worker "$worker"; done
    for ((point = 0; point < points; point++)); do
        sleep "0.$((RANDOM % 40 + 10))"
        stop_side
        hold=$((RANDOM % 10))
        if ((hold < 7)); then sleep "0.$((RANDOM % 90 + 10))"; else sleep "$((RANDOM % 3 + 1)).$((RANDOM % 10))"; fi
        worker=$((first + RANDOM % 3))
        if ((RANDOM % 3 == 0)); then
            is_gone "${workers[$worker]}" && fail "$*: worker $worker ended: $(cat "$SCRATCH/load-errors")"
            kill -KILL "${workers[$worker]}"
            wait_until 5 is_gone "${workers[$worker]}"
            wait "${workers[$worker]}" 2>/dev/null || true
            if ((RANDOM % 2)); then kill -CONT "$bindfs_pid"; fi
            begin_worker "$worker"
        fi
        kill -CONT "$bindfs_pid"
    done
    wait_until 15 replies
    for worker in $first $((first + 1)) $((first + 2)); do
        is_gone "${workers[$worker]}" && fail "$*: worker $worker ended: $(cat "$SCRATCH/load-errors")"
        # Some more rounds without faults.
        before=$(grep -c acked "$SCRATCH/acked-$worker")
        wait_until 20 has_acknowledged "$worker" $((before + 8))
        kill -KILL "${workers[$worker]}"
        wait "${workers[$worker]}" 2>/dev/null || true
    done
    [[ ! -s $SCRATCH/load-errors ]] || fail "$*: $(cat "$SCRATCH/load-errors")"
    verify "$MNT" "$first" "$*: what the mount has"
    "$HOTSHELF" unmount "$MNT" || fail "$*: unmount after the load: $(tail -3 "$SCRATCH/log")"
    verify "$behind" "$first" "$*: what the directory has"
}
has_acknowledged() { (($(grep -c acked "$SCRATCH/acked-$1") > $2)); }
# verify DIRECTORY FIRST WHAT
verify() {
    local worker
    for worker in $2 $(($2 + 1)) $(($2 + 2)); do
        python3 "$SCRATCH/verify.py" "$1/load-$worker" "$worker" "$SCRATCH/acked-$worker" || fail "$3 of worker $worker"
    done
}
points=20
[[ ${FULL:-} != 1 ]] || points=200
cache=$ssd_cache
load 0 "$points"
cache=$memory_cache
load 3 $((points / 2)) --cache-mode write-back --offline write-back
grep -q 'panicked\|ended in a bug' "$SCRATCH/log" && fail "a bug: $(grep 'panicked\|bug' "$SCRATCH/log")"
"$HOTSHELF" unmount "$SCRATCH/near-mnt"
umount "$side"
wait "$bindfs_pid" 2>/dev/null || true
bindfs_pid=
