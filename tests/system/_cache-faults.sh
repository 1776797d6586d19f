# Shared by the tests of faults under a running cache; sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2154
root_only
need python3 xfs_io losetup mkfs.ext4 fallocate
export HOTSHELF_LIBRARY PYTHONPATH=$ROOT/python
HOTSHELF_LIBRARY=$(dirname "$HOTSHELF")/libhotshelf.so
[[ -f $HOTSHELF_LIBRARY ]] || fail "libhotshelf is not built: make build"
unset HOTSHELF_CONFIG
runtime=/dev/shm/$(basename "$SCRATCH")
mkdir "$runtime"
trap 'rm -rf "$runtime"' EXIT

cat >"$SCRATCH/faults.py" <<'PYTHON'
"""What the cases have in common."""
import errno, json, os, random, subprocess, sys, time
import hotshelf

SCRATCH, PAGE = os.environ["SCRATCH"], 4096

def write(name, mode="write-back", **more):
    """The settings of a cache of 256 KiB of memory by this name; more settings as they are."""
    path = f"{SCRATCH}/{name}.toml"
    settings = {"name": name, "memory": "256KiB", "mode": mode, "runtime_dir": os.environ["RUNTIME"], "second_touch": False,
                "dirty_age": "1h", "dirty_limit": "80%", "stream_cutoff": "1GiB", "read_ahead": "0"} | more
    with open(path, "w") as file:
        file.write("[cache]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    return path

def begin(name, mode="write-back", **more):
    path = write(name, mode, **more)
    hotshelf.init(path)
    return path

class Other:
    """Another process that takes part, and does what it is told: Python, of which it answers the value."""
    def __init__(self, config):
        loop = "import faults, sys\nfor line in sys.stdin: print(repr(eval(line, vars(faults))), flush=True)"
        self.process = subprocess.Popen([sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.does(f"hotshelf.init({config!r})")

    def does(self, words):
        print(words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"it died of {words[:200]}: {self.process.wait()}"
        return eval(answer)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leave(self):
        self.process.stdin.close()
        assert self.process.wait() == 0

def opened(path, mode="r+b"):
    """Keeps it open, for those who are told by a line."""
    global file
    file = hotshelf.File(path, mode)

def text(call):
    """The sentence that a call fails with; "": it does not."""
    try:
        call()
        return ""
    except OSError as error:
        return str(error)

def cli(*words):
    return subprocess.run([os.environ["HOTSHELF"], "cache", *words], capture_output=True, text=True)

def status(config):
    out = subprocess.run([os.environ["HOTSHELF"], "cache", "status", "--config", config, "--json"], capture_output=True, text=True)
    assert out.returncode == 0, out
    return json.loads(out.stdout)

def says(config):
    return subprocess.run([os.environ["HOTSHELF"], "cache", "status", "--config", config], capture_output=True, text=True).stdout

def until(what, seconds=20):
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.02)

def number(call):
    """The errno that a call fails with; 0: it does not."""
    try:
        call()
        return 0
    except OSError as error:
        return error.errno

def some(seed, count):
    return random.Random(seed).randbytes(count)

def sh(words):
    return subprocess.run(words, shell=True, check=True, capture_output=True, text=True).stdout

def drop_caches():
    sh("sync; echo 3 >/proc/sys/vm/drop_caches")

def bring(config, file, content, pages):
    """Reads until the SSD has so many pages of it."""
    def is_there():
        for at in range(0, len(content), PAGE):
            assert file.pread(PAGE, at) == content[at : at + PAGE]
        return status(config)["ssd"]["pages"] >= pages
    until(is_there)

def is_failed(config):
    """The SSD is known to have failed, and status says so, in words too."""
    now = until(lambda: (lambda now: now["ssd"]["failed"] and now)(status(config)))
    assert now["mode_because"] and "SSD failed" in now["mode_because"], now
    assert "SSD failed" in says(config), says(config)
    return now
PYTHON
export RUNTIME=$runtime PYTHONPATH=$SCRATCH:$PYTHONPATH

# case NAME: runs the Python on standard input, and reports a signal that ends it (SIGBUS).
case_of() {
    local code=0
    echo "# $1"
    timeout 60 python3 - "$@" >"$SCRATCH/out" 2>&1 || code=$?
    ((code < 128)) || fail "$1: ended by signal $((code - 128)): $(cat "$SCRATCH/out")"
    [[ $code == 0 ]] || fail "$1: $(cat "$SCRATCH/out")"
    [[ -z $(find "$runtime" -name '*.segment') ]] || rm -rf "${runtime:?}"/*
}
