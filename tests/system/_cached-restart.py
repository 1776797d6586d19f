#!/usr/bin/env python3
"""Programs that use a mount while its daemon is restarted: none may see an error, and each checks what it reads.

usage: _cached-restart.py HOTSHELF MOUNTPOINT ROUNDS

Restarts the daemon ROUNDS times, each time after all programs have gone on. Prints the longest pauses. What the programs leave on the
mount is listed in MOUNTPOINT/../expected, as lines of sha256sum(1), for a comparison with the slow directory.
"""

import ctypes
import fcntl
import hashlib
import mmap
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
import traceback

HOTSHELF, MOUNT, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
PAGE = 4096
WAIT_MAX = 120
# Generous: the machine may be busy. The measured pause is printed.
PAUSE_MAX = 5


class Worker:
    """One program. `step` runs again and again; `finish` returns the names and contents that it leaves."""

    def __init__(self, progress, slowest, stop):
        self.progress, self.slowest, self.stop = progress, slowest, stop
        self.random = random.Random(type(self).__name__)

    def path(self, name):
        return os.path.join(MOUNT, name)

    def run(self):
        try:
            self.start()
            while not self.stop.value:
                begun = time.monotonic()
                self.step()
                self.slowest.value = max(self.slowest.value, time.monotonic() - begun)
                self.progress.value += 1
                # The machine is shared.
                time.sleep(0.002)
            left = self.finish() or {}
            with open(os.path.join(os.path.dirname(MOUNT), f"expected.{type(self).__name__}"), "w") as out:
                for name, content in left.items():
                    out.write(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def start(self):
        pass

    def finish(self):
        return {}


class ReadsAndWrites(Worker):
    """Random writes, reads, truncations and fsync of one file, compared with memory."""

    name, flags, bytes = "random", os.O_RDWR | os.O_CREAT, 1 << 20

    def start(self):
        self.file = os.open(self.path(self.name), self.flags, 0o640)
        self.model = bytearray()

    def step(self):
        at, size = self.random.randrange(self.bytes), self.random.randrange(1, 40000)
        what = self.random.randrange(10)
        if what < 5:
            data = self.random.randbytes(size)
            assert os.pwrite(self.file, data, at) == size
            if len(self.model) < at:
                self.model.extend(bytes(at - len(self.model)))
            self.model[at : at + size] = data
        elif what < 8:
            assert os.pread(self.file, size, at) == self.model[at : at + size], f"{self.name}: other data at {at}"
        elif what == 8:
            os.ftruncate(self.file, at)
            self.model = self.model[:at] + bytes(max(0, at - len(self.model)))
        else:
            os.fsync(self.file)
        assert os.fstat(self.file).st_size == len(self.model)

    def finish(self):
        assert os.pread(self.file, len(self.model) + 1, 0) == self.model
        os.close(self.file)
        return {self.name: bytes(self.model)}


class Durable(ReadsAndWrites):
    name, flags, bytes = "durable", os.O_RDWR | os.O_CREAT | os.O_DSYNC, 200_000


class Removed(ReadsAndWrites):
    """A file without a name, used by two descriptors, one of which came by /proc."""

    name, bytes = "removed", 300_000

    def start(self):
        super().start()
        os.write(self.file, b"before")
        self.model = bytearray(b"before")
        self.by_name_only = os.open(self.path(self.name), os.O_PATH)
        os.unlink(self.path(self.name))

    def step(self):
        super().step()
        again = os.open(f"/proc/self/fd/{self.by_name_only}", os.O_RDWR)
        assert os.pread(again, 5000, 0) == self.model[:5000], "a removed file that was opened again"
        data = self.random.randbytes(100)
        os.pwrite(again, data, 0)
        os.close(again)
        self.model[:100] = data
        assert os.fstat(self.file).st_nlink == 0

    def finish(self):
        super().finish()
        assert not os.path.exists(self.path(self.name))


class ClosedRemoved(Worker):
    """A file without a name that nobody has open, only by name: its data must stay."""

    def start(self):
        self.turn = 0

    def step(self):
        self.turn += 1
        data = self.random.randbytes(20000)
        path = self.path(f"closed-{self.turn}")
        with open(path, "wb") as out:
            out.write(data)
        held = os.open(path, os.O_PATH)
        os.unlink(path)
        time.sleep(0.05)
        with open(f"/proc/self/fd/{held}", "rb") as back:
            assert back.read() == data, "a removed file that was closed"
        os.close(held)


class Appends(Worker):
    """Lines at the end, by two descriptors; one is O_DSYNC."""

    def start(self):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self.files = [os.open(self.path("appended"), flags | more, 0o644) for more in (0, os.O_DSYNC)]
        self.all = b""

    def step(self):
        line = f"line {self.progress.value} {self.random.random()}\n".encode()
        assert os.write(self.files[self.progress.value % 2], line) == len(line)
        self.all += line
        assert os.stat(self.path("appended")).st_size == len(self.all)

    def finish(self):
        with open(self.path("appended"), "rb") as back:
            assert back.read() == self.all, "appended lines"
        return {"appended": self.all}


class Renames(Worker):
    """Whole new versions by rename, links, directories."""

    def start(self):
        os.mkdir(self.path("names"))
        self.version = b""

    def step(self):
        at = self.path("names")
        self.version = f"{self.progress.value} ".encode() * 3000
        with open(f"{at}/new", "wb") as out:
            out.write(self.version)
            out.flush()
            os.fsync(out.fileno())
        before = os.stat(f"{at}/new").st_ino
        os.rename(f"{at}/new", f"{at}/current")
        assert os.stat(f"{at}/current").st_ino == before
        with open(f"{at}/current", "rb") as back:
            assert back.read() == self.version, "the version that was renamed"
        os.link(f"{at}/current", f"{at}/link")
        os.symlink("current", f"{at}/symlink")
        os.mkdir(f"{at}/dir")
        assert sorted(os.listdir(at)) == ["current", "dir", "link", "symlink"]
        os.unlink(f"{at}/link")
        os.unlink(f"{at}/symlink")
        os.rmdir(f"{at}/dir")

    def finish(self):
        return {"names/current": self.version}


class Lists(Worker):
    """A long directory, read in pieces over restarts."""

    def start(self):
        os.makedirs(self.path("many"), exist_ok=True)
        # Long ones: the directory does not fit into one call.
        self.names = {f"{n}-{'long-name-' * 20}" for n in range(600)}
        for name in self.names:
            os.close(os.open(self.path(f"many/{name}"), os.O_CREAT | os.O_WRONLY, 0o644))
        self.entries, self.seen = None, set()

    def step(self):
        if self.entries is None:
            self.entries, self.seen = os.scandir(self.path("many")), set()
        for _ in range(60):
            entry = next(self.entries, None)
            if entry is None:
                assert self.seen == self.names, "a listing over a restart"
                self.entries.close()
                self.entries = None
                return
            assert entry.name not in self.seen
            self.seen.add(entry.name)
        os.stat(self.path(f"many/7-{'long-name-' * 20}"))


class Locks(Worker):
    """A child holds locks; they must hold all the time."""

    def start(self):
        self.file = os.open(self.path("locked"), os.O_RDWR | os.O_CREAT, 0o644)
        ready, told = os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            held = os.open(self.path("locked"), os.O_RDWR)
            fcntl.flock(held, fcntl.LOCK_EX)
            fcntl.lockf(held, fcntl.LOCK_EX, 100, 50)
            os.write(told, b"x")
            while os.getppid() == parent and not self.stop.value:
                time.sleep(0.01)
            os._exit(0)
        assert os.read(ready, 1) == b"x"

    def step(self):
        for lock in (lambda: fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB),
                     lambda: fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 60)):
            try:
                lock()
            except BlockingIOError:
                continue
            assert self.stop.value, "a lock was lost"
        time.sleep(0.005)

    def finish(self):
        os.wait()
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Maps(Worker):
    """A shared mapping that is written, synced, and read by read(2)."""

    pages = 64

    def start(self):
        self.file = os.open(self.path("mapped"), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self.file, self.pages * PAGE)
        self.map = mmap.mmap(self.file, self.pages * PAGE)
        self.model = bytearray(self.pages * PAGE)

    def step(self):
        at = self.random.randrange(self.pages) * PAGE
        data = self.random.randbytes(PAGE)
        self.map[at : at + PAGE] = data
        self.model[at : at + PAGE] = data
        self.map.flush()
        other = self.random.randrange(self.pages) * PAGE
        assert self.map[other : other + PAGE] == self.model[other : other + PAGE], "a mapping"
        assert os.pread(self.file, PAGE, other) == self.model[other : other + PAGE], "a mapping, by read(2)"

    def finish(self):
        self.map.close()
        return {"mapped": bytes(self.model)}


class WorkingDirectory(Worker):
    """A process inside of the mount."""

    def start(self):
        os.makedirs(self.path("work/inner"))
        os.chdir(self.path("work/inner"))

    def step(self):
        with open("../file", "w") as out:
            out.write(str(self.progress.value))
        with open("../file") as back:
            assert back.read() == str(self.progress.value)
        assert os.getcwd() == self.path("work/inner")
        os.stat("/proc/self/cwd/.")

    def finish(self):
        os.chdir("/")


class Reads(Worker):
    """A larger file that is read again and again, past the kernel's pages."""

    def start(self):
        self.data = self.random.randbytes(24 << 20)
        with open(self.path("large"), "wb") as out:
            out.write(self.data)
        self.file = os.open(self.path("large"), os.O_RDONLY)
        os.fsync(self.file)
        self.at = 0

    def step(self):
        size = 300_000
        assert os.pread(self.file, size, self.at) == self.data[self.at : self.at + size], "a larger file"
        os.posix_fadvise(self.file, self.at, size, os.POSIX_FADV_DONTNEED)
        self.at = 0 if self.at + size >= len(self.data) else self.at + size

    def finish(self):
        return {"large": self.data}


class Direct(Worker):
    """O_DIRECT writes and reads beside a reader with the kernel's pages."""

    def start(self):
        self.file = os.open(self.path("direct"), os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        self.other = os.open(self.path("direct"), os.O_RDONLY)
        self.buffer = mmap.mmap(-1, 16 * PAGE)
        self.last = b""

    def step(self):
        self.last = self.random.randbytes(16 * PAGE)
        self.buffer[:] = self.last
        assert os.pwrite(self.file, self.buffer, 0) == len(self.last)
        assert os.pread(self.other, len(self.last), 0) == self.last, "after a direct write"

    def finish(self):
        return {"direct": self.last}


def restart(pauses):
    done = subprocess.run([HOTSHELF, "restart", MOUNT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pause = re.search(r"hotshelf (\S+) was replaced by (\S+); \d+ open files, a pause of (\d+) ms", done.stdout)
    assert pause, done.stdout
    pauses.append(int(pause.group(3)))


def main():
    kinds = [ReadsAndWrites, Durable, Removed, ClosedRemoved, Appends, Renames, Lists, Locks, Maps, WorkingDirectory, Reads, Direct]
    stop = multiprocessing.Value(ctypes.c_bool, False)
    running = []
    for kind in kinds:
        progress, slowest = multiprocessing.Value(ctypes.c_long, 0), multiprocessing.Value(ctypes.c_double, 0)
        worker = kind(progress, slowest, stop)
        process = multiprocessing.Process(target=worker.run)
        process.start()
        running.append((kind.__name__, process, progress, slowest))

    pauses = []

    def go_on():
        """Waits until each program has made some steps."""
        before = [progress.value for _, _, progress, _ in running]
        end = time.monotonic() + WAIT_MAX
        while True:
            behind = [name for (name, _, progress, _), was in zip(running, before) if progress.value < was + 3]
            ended = [name for name, process, _, _ in running if not process.is_alive()]
            if ended or time.monotonic() > end:
                stop.value = True
                steps = [f"{name} {progress.value - was}" for (name, _, progress, _), was in zip(running, before)]
                sys.exit(f"after {len(pauses)} restarts: {ended} ended, {behind} do not go on; steps: {', '.join(steps)}")
            if not behind:
                return
            time.sleep(0.005)

    try:
        go_on()
        for _ in range(ROUNDS):
            restart(pauses)
            go_on()
    finally:
        stop.value = True
        for _, process, _, _ in running:
            process.join(WAIT_MAX)
            if process.is_alive():
                process.kill()
    failed = [name for name, process, _, _ in running if process.exitcode != 0]
    assert not failed, failed
    slowest = max(running, key=lambda one: one[3].value)
    print(f"{ROUNDS} restarts: the longest pause {max(pauses)} ms, the median {sorted(pauses)[len(pauses) // 2]} ms; the longest step of a "
          f"program {slowest[3].value * 1000:.0f} ms ({slowest[0]})")
    assert max(pauses) < PAUSE_MAX * 1000, pauses


main()
