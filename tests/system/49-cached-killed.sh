#!/bin/bash
# The daemon of a cached mount that writes back is killed at any moment, again and again; at every third time the cache's memory is lost,
# too, as in a power cut. Each time the next mount has what fsync(2) had returned for, or write(2) if only the daemon died, and nothing that
# was never written, and the SSD has its pages. 30 kills; 1,000 in the full run.
# TIMEOUT: 240
# TIMEOUT_FULL: 3000
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3

slow=$SCRATCH/slow cache=$SCRATCH/cache name=cached-killed-$$
mkdir -p "$slow" "$MNT"
clean() {
    "$HOTSHELF" unmount "$MNT" >/dev/null 2>&1 || umount -l "$MNT" 2>/dev/null || true
    "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
}
trap clean EXIT
"$HOTSHELF" cache create "$cache" --name "$name" --size 128MiB --memory 16MiB >/dev/null
cat >"$SCRATCH/killed.py" <<'END'
import json, os, random, signal, struct, subprocess, sys, time

hotshelf, cache, segment, slow, mnt, kills, seed = sys.argv[1:]
kills, random_source = int(kills), random.Random(int(seed))
FILES, BLOCKS, BLOCK = 4, 500, 4096
synced = [[0] * BLOCKS for _ in range(FILES)]
returned = [[0] * BLOCKS for _ in range(FILES)]
written = [[0] * BLOCKS for _ in range(FILES)]


def block(file, number, version):
    return struct.pack("<Q", version << 16 | number << 4 | file) * (BLOCK // 8)


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def mount():
    run(hotshelf, "mount", "--cache", cache, "--cache-mode", "write-back", "--uring", "off", slow, mnt)


def daemon():
    return int(run("pgrep", "-f", f"mount --cache {cache} .* {mnt} --ready-pipe").split()[0])


def ssd_pages():
    return json.loads(run(hotshelf, "cache", "status", "--json", cache))["ssd"]["pages"]


def work(until):
    """Writes and syncs until then, or until the daemon is gone. What it has written is counted before, what it has synced after."""
    try:
        files = [os.open(f"{mnt}/{file}", os.O_RDWR | os.O_CREAT) for file in range(FILES)]
    except OSError:
        return
    # What was written before the last kill, and not synced, may be gone.
    unsynced = [{} for _ in range(FILES)]
    try:
        while time.monotonic() < until:
            file = random_source.randrange(FILES)
            for _ in range(random_source.choice([1, 1, 8, 60])):
                number = random_source.randrange(BLOCKS)
                written[file][number] += 1
                os.pwrite(files[file], block(file, number, written[file][number]), number * BLOCK)
                unsynced[file][number] = returned[file][number] = written[file][number]
            if random_source.random() < 0.7:
                os.fsync(files[file])
                for number, version in unsynced[file].items():
                    synced[file][number] = version
                unsynced[file].clear()
    except OSError:
        pass
    finally:
        for fd in files:
            try:
                os.close(fd)
            except OSError:
                pass


def check(top, when, least):
    """Checks that each block has at least this version, and none that was never written."""
    for file in range(FILES):
        try:
            with open(f"{top}/{file}", "rb") as opened:
                content = opened.read()
        except FileNotFoundError:
            assert not any(least[file]), f"{when}: file {file} is not there"
            continue
        for number in range(BLOCKS):
            found = content[number * BLOCK:(number + 1) * BLOCK]
            if len(found) < BLOCK:
                assert least[file][number] == 0, f"{when}: file {file} ends before block {number}"
                continue
            for word in set(struct.unpack(f"<{BLOCK // 8}Q", found)):
                version = word >> 16
                assert word == 0 or word & 0xffff == number << 4 | file, f"{when}: file {file}, block {number}: foreign data {word:x}"
                assert least[file][number] <= version <= written[file][number], (
                    f"{when}: file {file}, block {number} has version {version}, at least {least[file][number]}, "
                    f"written {written[file][number]}")


lost_memory = 0
for kill in range(kills):
    mount()
    check(mnt, f"kill {kill}", synced)
    pages, process = ssd_pages(), daemon()
    child = os.fork()
    if child == 0:
        # By time, from another process: the moment has nothing to do with what is written.
        time.sleep(random_source.random() * 0.25)
        os.kill(process, signal.SIGKILL)
        os._exit(0)
    work(time.monotonic() + 20)
    os.waitpid(child, 0)
    run("umount", "-l", mnt)
    while os.path.exists(f"/proc/{process}/fd/0"):
        time.sleep(0.001)
    if kill % 3 == 2:
        os.unlink(segment)
        lost_memory += 1
    mount()
    # The leader counts them when it has begun.
    deadline = time.monotonic() + 20
    while (after := ssd_pages()) < pages * 0.95 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert after >= pages * 0.95, f"kill {kill}: {pages} pages on the SSD, {after} now"
    # The death of the daemon alone loses nothing that a write returned for.
    check(mnt, f"after kill {kill}", synced if kill % 3 == 2 else returned)
    run(hotshelf, "unmount", mnt)
    check(slow, f"in the slow directory after kill {kill}", synced if kill % 3 == 2 else returned)
    # What is there now counts: what was not synced may be of any version.
    for file in range(FILES):
        returned[file] = list(synced[file])
        if os.path.exists(f"{slow}/{file}"):
            with open(f"{slow}/{file}", "rb") as opened:
                content = opened.read()
            for number in range(min(BLOCKS, len(content) // BLOCK)):
                words = struct.unpack(f"<{BLOCK // 8}Q", content[number * BLOCK:(number + 1) * BLOCK])
                synced[file][number] = returned[file][number] = min(word >> 16 for word in words)
print(f"NOTE: {kills} kills, {lost_memory} of them with the memory lost: {sum(map(sum, written))} blocks written, nothing lost")
END
kills=30
[[ $FULL != 1 ]] || kills=1000
python3 "$SCRATCH/killed.py" "$HOTSHELF" "$cache" "/dev/shm/hotshelf-0/$name.segment" "$slow" "$MNT" "$kills" "${SEED:-$RANDOM}" ||
    fail "a kill"
