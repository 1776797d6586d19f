#!/bin/bash
# TIMEOUT: 240
# A cache whose SSD the programs drive themselves, behind a vfio-user socket: by its name alone, for every command and program; hits
# by the rings of who leads; who leads is killed, clients are killed, the drive is killed.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/system/_cache-faults.sh
source "$(dirname "$0")/_cache-faults.sh"
# shellcheck source=tests/system/_drive.sh
source "$(dirname "$0")/_drive.sh"
export XDG_CONFIG_HOME=$SCRATCH/settings XDG_STATE_HOME=$SCRATCH/state
export DRIVE CONFIG=$XDG_CONFIG_HOME/hotshelf/caches/driven.toml

begin_drive() { start_drive --size 32MiB --file "$SCRATCH/disk" --volatile-cache --queues 32 "$@"; }
create() {
    "$HOTSHELF" cache create "$DRIVE" --name driven --memory 256KiB --runtime-dir "$runtime" --first-touch --dirty-age 1h \
        --dirty-limit 80% --stream-cutoff 1GiB --read-ahead 0 --record-file "$runtime/flight" "$@"
}

# Without a drive, or with a name that is none.
refused 1 'No such file' create
refused 2 'is no controller' "$HOTSHELF" cache create nvme:03:00.0 --name other

begin_drive
create >out || fail "create: $(cat out)"
grep -q 'a cache of' out || fail "create says $(cat out)"
refused 1 'there is a hotshelf cache, which is kept' create
"$HOTSHELF" cache check "$DRIVE" | grep -q '^clean' || fail "a new one is not clean"
"$HOTSHELF" cache status "$DRIVE" >out || fail "status: $(cat out)"

# A process attaches the cache and leads, beside programs. It is killed, and comes back.
"$HOTSHELF" cache attach --config "$CONFIG" >out || fail "attach: $(cat out)"
case_of hits <<'PYTHON'
from faults import *
config, drive = os.environ["CONFIG"], os.environ["DRIVE"]
path = f"{SCRATCH}/data"
content = bytearray(some(1, 4 << 20))
open(path, "wb").write(content)
# What others read of the file's pages, all of them.
whole = "b''.join(file.pread(1 << 16, at) for at in range(0, 4 << 20, 1 << 16))"
first, other = Other(config), Other(config)
for process in (first, other):
    process.does(f"opened({path!r})")
first.does(f"bring({config!r}, file, some(1, 4 << 20), 900)")
server = status(config)["leader_pid"]
assert "serve" in open(f"/proc/{server}/cmdline").read(), "who was first leads"
hits = lambda: next(tier for tier in status(config)["tiers"] if tier["name"] == "ssd")["hits"]
before = hits()
assert other.does(whole) == content and first.does(whole) == content
assert hits() > before + 500, (before, hits())
# The flight recorder of who leads is in its file.
told = subprocess.run([os.environ["HOTSHELF"], "queue", "record", f"{os.environ['RUNTIME']}/flight"], capture_output=True, text=True)
assert told.returncode == 0 and "vfio-user" in told.stdout, told
# Nobody else gets it meanwhile.
assert "in use" in cli("check", drive).stderr

# kill -9 of the leader while others read and write: acknowledged writes survive.
for round in range(4):
    leader = status(config)["leader_pid"]
    at = round * 200_000
    piece = some(100 + round, 50_000)
    content[at : at + len(piece)] = piece
    first.does(f"(file.pwrite(some({100 + round}, 50_000), {at}), file.fsync())")
    if leader == first.process.pid:
        first.kill()
        first = Other(config)
        first.does(f"opened({path!r})")
    elif leader == other.process.pid:
        other.kill()
        other = Other(config)
        other.does(f"opened({path!r})")
    else:
        os.kill(leader, 9)
    began = time.monotonic()
    assert other.does(whole) == content, f"round {round}"
    assert first.does(whole) == content, f"round {round}"
    took = time.monotonic() - began
    now = until(lambda: (lambda now: now["leader_pid"] not in (None, leader) and now)(status(config)))
    assert not now["lost"] and not now["ssd"]["failed"], now
    print(f"round {round}: both read it all {took * 1000:.0f} ms after the kill")
# What is dirty only on the SSD is read by those who do not lead, too.
before = hits()
assert other.does(whole) == content and first.does(whole) == content
other.leave()
first.leave()
assert open(path, "rb").read() == content, "all have left, and the file below has it all"
PYTHON
grep '^round' out || true
"$HOTSHELF" cache check "$DRIVE" >out || fail "check: $(cat out)"
grep -q '^clean' out || fail "check: $(cat out)"
end_drive

# The drive is killed while it is in use: reads of clean pages continue, and the failure is reported.
begin_drive
case_of drive-killed "$drive" <<'PYTHON'
from faults import *
config, path = os.environ["CONFIG"], f"{SCRATCH}/data"
content = open(path, "rb").read()
one, two = Other(config), Other(config)
for process in (one, two):
    process.does(f"opened({path!r})")
one.does(f"bring({config!r}, file, open({path!r}, 'rb').read(), 500)")
os.kill(int(sys.argv[2]), 9)
for process in (one, two):
    assert process.does("b''.join(file.pread(1 << 16, at) for at in range(0, 4 << 20, 1 << 16))") == content
one.does("(file.pwrite(b'after', 0), file.fsync())")
is_failed(config)
assert two.does("file.pread(5, 0)") == b"after"
two.leave()
one.leave()
assert open(path, "rb").read(5) == b"after"
PYTHON
wait "$drive" 2>/dev/null || true
exec {words}<&-

# Made anew, and removed.
begin_drive
create --force >out || fail "create --force: $(cat out)"
"$HOTSHELF" cache destroy driven >out || fail "destroy: $(cat out)"
[[ ! -e $CONFIG ]] || fail "its settings are left"
fails_with 'no cache' "$HOTSHELF" cache check "$DRIVE"
end_drive
[[ -z $(find "/dev/shm/hotshelf-$(id -u)" -name 'ssd-*.lock' 2>/dev/null) ]] || fail "a lock is left"
