#!/bin/bash
# TIMEOUT: 300
# A cache whose SSD cannot be opened, by a new leader or by a new instance: it goes on where nothing can be missed, never answers
# older bytes for what only the SSD had, and says what to do. What was lost stays lost until it is written anew or given up.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/system/_cache-faults.sh
source "$(dirname "$0")/_cache-faults.sh"

# An instance starts while its SSD cannot be used.
case_of begin <<'PYTHON'
from faults import *
import fcntl
path = f"{SCRATCH}/begin.data"
busy = None

def hold(ssd):
    global busy
    busy = open(ssd, "r+b")
    fcntl.flock(busy, fcntl.LOCK_SH)

def patch(ssd, at, some):
    with open(ssd, "r+b") as file:
        for page in (0, 4096):
            file.seek(page + at)
            file.write(some)

ways = {
    "gone": lambda ssd: os.rename(ssd, ssd + ".away"),
    "forbidden": lambda ssd: sh(f"chattr +i {ssd}"),
    "damaged": lambda ssd: patch(ssd, 0, bytes(4096)),
    "later": lambda ssd: patch(ssd, 4, b"\x09"),
    "busy": hold,
}
if number(lambda: sh(f"touch {SCRATCH}/i && chattr +i {SCRATCH}/i && ! touch -c {SCRATCH}/i 2>/dev/null && chattr -i {SCRATCH}/i")):
    del ways["forbidden"]
for mode in ("write-through", "write-back"):
    for way, how in ways.items():
        name = f"{way}-{mode}"
        ssd = f"{SCRATCH}/{name}.ssd"
        content = some(1, 1 << 20)
        open(path, "wb").write(content)
        config = write(name, mode, ssd=ssd, ssd_size="16MiB")
        first = Other(config)
        first.does(f"opened({path!r})")
        first.does(f"bring({config!r}, file, some(1, 1 << 20), 200)")
        if mode == "write-back":
            # Something that no file has; and then, as after a loss of power, nothing of the instance is left.
            first.does(f"(file.pwrite(bytes(9000), 0), file.fsync())")
            first.kill()
            sh(f"rm -rf {os.environ['RUNTIME']}/hotshelf-0/{name}.*")
        else:
            first.leave()
            # With a size said one that is gone is made anew, for nothing of it is missed.
            write(name, mode, ssd=ssd)
        how(ssd)
        again = Other(config)
        said = again.does(f"text(lambda: opened({path!r}))")
        if mode == "write-through":
            assert said == "", said
            sentence = again.does("hotshelf._library.calls['hs_error']().decode()")
            assert "goes on without its SSD" in sentence and (ssd in sentence or way == "later"), sentence
            assert again.does("file.pread(2 << 20, 0)") == content
            again.does("(file.pwrite(b'new', 0), file.fsync())")
            assert open(path, "rb").read() == b"new" + content[3:]
            now = status(config)
            assert "could not be used" in now["ssd"]["failed"] and "could not be used" in now["mode_because"], now
            assert "could not be used" in says(config)
            again.leave()
        else:
            assert "bring it back" in said and ssd in said, said
            assert open(path, "rb").read() == content
            again.kill()
        if way == "forbidden":
            sh(f"chattr -i {ssd}")
        if way == "busy":
            busy.close()
        if mode == "write-back" and way in ("gone", "busy", "forbidden"):
            # It is back, and so is what only it had.
            if way == "gone":
                os.rename(ssd + ".away", ssd)
            more = Other(config)
            more.does(f"opened({path!r})")
            assert more.does("file.pread(1 << 20, 0)") == bytes(9000) + content[9000:]
            more.does("file.close()")
            more.leave()
            assert open(path, "rb").read() == bytes(9000) + content[9000:]
PYTHON

# The leader dies, and the next one finds that the SSD does, too: in write-through nobody notices, in write-back what only the SSD
# had is EIO, exactly that, until it is written anew or given up.
for mode in write-through write-back; do
    fs_of_size "dies-$mode" 48M -b 4096 -m 0
    case_of "dies-$mode" "$mode" <<'PYTHON'
from faults import *
name, mode = sys.argv[1:3]
ssd = f"{SCRATCH}/{name}/cache"
config = write(name, mode, ssd=ssd, ssd_size="16MiB")
one, two, shut = (f"{SCRATCH}/{name}.{which}" for which in ("one", "two", "shut"))
content, new = some(1, 1 << 20), some(2, 1 << 19)
for path in (one, two, shut):
    open(path, "wb").write(content)
leader = Other(config)
leader.does(f"opened({one!r})")
leader.does(f"bring({config!r}, file, some(1, 1 << 20), 200)")
leader.does(f"(file.pwrite(some(2, 1 << 19), 1 << 19), file.fsync())")
leader.does(f"opened({two!r})")
leader.does(f"bring({config!r}, file, some(1, 1 << 20), 400)")
# In a file that is closed by then, and whose record is there.
leader.does(f"opened({shut!r})")
leader.does(f"(file.pwrite(some(2, 1 << 19)[:8192], 0), file.fsync(), file.close())")
leader.does(f"opened({two!r})")
# Reading a part of a page brings the whole page into memory; so the others do not read it.
parts = "[file.pread(100, at) for at in range(0, 1 << 20, PAGE)] and None"
leader.does(parts)
others = [Other(config) for _ in range(2)]
for other in others:
    other.does(f"opened({one!r})")
assert status(config)["leader_pid"] == leader.process.pid
# Nothing of the one file is left in memory.
others[0].does(f"opened({two!r})")
others[0].does(parts)
others[0].does(f"opened({one!r})")
sh(f"xfs_io -x -c shutdown {SCRATCH}/{name}")
drop_caches()
leader.kill()
until(lambda: status(config)["leader_pid"] in [other.process.pid for other in others])
now = is_failed(config)
truth = content[: 1 << 19] + new
reading = "[number(lambda: file.pread(PAGE, at)) for at in range(0, 1 << 20, PAGE)]"

def whole(other, path):
    other.does(f"opened({path!r})")
    return [other.does(f"number(lambda: file.pread(PAGE, {at}))") for at in range(0, 1 << 20, PAGE)]

for other in others:
    got = whole(other, one)
    bad = [n for n, code in enumerate(got) if code]
    if mode == "write-through":
        assert not bad
    else:
        assert bad and set(got) == {0, errno.EIO} and min(bad) >= 128, got
        assert not any(whole(other, two)), "what is clean goes on"
    other.does(f"opened({one!r})")
    for n in set(range(256)) - set(bad):
        assert other.does(f"file.pread(PAGE, {n * PAGE})") == truth[n * PAGE :][:PAGE]
    if bad:
        assert other.does("number(file.fsync)") == errno.EIO

def lost_of(path):
    return sorted(at for told in status(config)["lost"] if told["path"] == path for at in range(told["start"], told["end"], PAGE))

if mode == "write-back":
    assert lost_of(one) == [n * PAGE for n in bad], (lost_of(one), bad)
    assert [code for code in whole(others[1], shut) if code], "of a file that was closed, too"
    others[1].does(f"opened({one!r})")
    # Another leader, and then a new process: it is the same.
    alive = next(other for other in others if other.process.pid == status(config)["leader_pid"])
    rest = next(other for other in others if other is not alive)
    alive.kill()
    until(lambda: status(config)["leader_pid"] == rest.process.pid)
    assert [n for n, code in enumerate(whole(rest, one)) if code] == bad
    rest.kill()
    third = Other(config)
    assert [n for n, code in enumerate(whole(third, one)) if code] == bad
    until(lambda: lost_of(one) == [n * PAGE for n in bad])
    # A part of a lost page is not written, all of it is.
    first = bad[0] * PAGE
    third.does(f"opened({one!r})")
    assert third.does(f"number(lambda: file.pwrite(b'part', {first + 5}))") == errno.EIO
    assert third.does(f"file.pwrite({truth[first:][:PAGE]!r}, {first})") == PAGE
    assert third.does("number(file.fsync)") == errno.EIO, "the others are lost still"
    assert third.does(f"file.pread(PAGE, {first})") == truth[first:][:PAGE]
    until(lambda: lost_of(one) == [n * PAGE for n in bad[1:]])
    # Cut off, they are of no interest any more.
    last = bad[-1] * PAGE
    third.does(f"file.truncate({last})")
    assert lost_of(one) == [n * PAGE for n in bad[1:-1]]
    # The rest is given up.
    given_up = cli("flush", "--config", config, "--discard-lost", "--json")
    assert given_up.returncode == 0, given_up
    assert json.loads(given_up.stdout)["discarded"] >= len(bad) - 2
    until(lambda: status(config)["lost"] == [])
    assert third.does("number(file.fsync)") in (0, errno.EIO) and third.does("number(file.fsync)") == 0
    at = bad[1] * PAGE
    assert third.does(f"file.pread(PAGE, {at})") == content[at:][:PAGE], "what is below"
    third.kill()
else:
    others[0].does(f"(file.pwrite(b'new', 0), file.fsync())")
    assert open(one, "rb").read() == b"new" + truth[3:]
    for other in others:
        other.leave()
PYTHON
    umount "$SCRATCH/dies-$mode"
done

# The SSD is missing while all processes die: its data is EIO, and available again when the SSD is back.
case_of away <<'PYTHON'
from faults import *
ssd = f"{SCRATCH}/away.ssd"
config = write("away", ssd=ssd, ssd_size="16MiB")
path, content, new = f"{SCRATCH}/away.data", some(1, 1 << 20), some(2, 1 << 19)
open(path, "wb").write(content)
first = Other(config)
first.does(f"opened({path!r})")
first.does(f"(file.pwrite(some(2, 1 << 19), 0), file.fsync())")
first.does("file.pread(1 << 20, 0) and None")
first.does("file.pread(1 << 19, 1 << 19) and None")
first.kill()
os.rename(ssd, ssd + ".away")
second = Other(config)
second.does(f"opened({path!r})")
got = [second.does(f"number(lambda: file.pread(PAGE, {at}))") for at in range(0, 1 << 20, PAGE)]
assert set(got[:128]) == {0, errno.EIO} and set(got[128:]) == {0}, got
assert second.does("number(file.fsync)") == errno.EIO
is_failed(config)
second.kill()
os.rename(ssd + ".away", ssd)
third = Other(config)
third.does(f"opened({path!r})")
until(lambda: third.does("number(file.fsync)") == 0)
assert third.does("file.pread(1 << 20, 0)") == new + content[1 << 19 :]
assert open(path, "rb").read() == new + content[1 << 19 :]
third.does("file.close()")
third.leave()
# The file was written past the SSD: the SSD's pages must not be used.
fourth = Other(config)
said = fourth.does(f"text(lambda: opened({path!r}))")
assert "create --force" in said, said
fourth.kill()
made = cli("create", ssd, "--force", "--size", "16MiB", "--name", "away-again")
assert made.returncode == 0, made
fifth = Other(config)
fifth.does(f"opened({path!r})")
assert fifth.does("file.pread(1 << 20, 0)") == new + content[1 << 19 :]
fifth.kill()
gone = cli("destroy", "--discard", ssd)
assert gone.returncode == 0, gone
PYTHON
unmount_disks
