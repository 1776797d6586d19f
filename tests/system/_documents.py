"""Runs every command and program of the documents as written: README.md, docs/, the manual page of the C library, the headers, and the
examples of every command's help (its man page has the same text). Then compares the reference pages with what the program prints. Runs
inside the root directory that 46-documents.sh makes.

A console block is one session: `$` lines are run by an ordinary user, `#` lines by root, `name> ` lines go to the program before. A block
behind `<!-- not run: REASON -->` is not run; so are the commands of NOT_RUN. Both are printed, with the reason.
"""
import glob
import json
import os
import re
import subprocess
import sys

ROOT, USER, HOME, ROOT_HOME = sys.argv[1], "alice", sys.argv[2], os.environ["HOME"]
AS_USER = f"setpriv --reuid {USER} --regid {USER} --init-groups env HOME={HOME}"

# A command that cannot be run here, and why.
NOT_RUN = [
    (r"^hotshelf nvme ", "needs an NVMe drive behind an IOMMU; tests/vm runs these"),
    (r"nvme:0000:", "needs an NVMe drive behind an IOMMU; tests/vm runs these"),
    (r"^hotshelf bench (run|report|compare)", "takes minutes to hours; 98-bench.sh and 99-report.sh run these"),
    (r"^hotshelf queue record", "needs a recording of a drive; 76-vfio-user.sh makes one"),
    (r"^mount -t fuse", "needs the helper in /sbin; 13-life.sh installs it and does this"),
    (r"^hotshelf cache (export|discard|force)", "needs a file in conflict with the cache; crates/cache/cachedfs/tests/ours.rs makes some"),
    (r"hotshelf cache (warm|evict) (/data|--list)", "needs files of the reader's; 49-cached-look.sh runs these"),
    (r"hotshelf restart ", "needs a cached mount that is there; 49-cached-restart.sh does this"),
    (r"^hotshelf (generate|ahead)", "for the build and for the daemon alone"),
]
# What this machine has less of than the reader's: the command is run with the other size.
SMALLER = [(r"--size 100GiB", "--size 64MiB"), (r"--size 200GiB", "--size 96MiB"), (r"--memory [248]GiB", "--memory 64MiB"),
           (r"--first 0 --blocks 2097152", "--first 0 --blocks 8192"), (r"--size 10GiB", "--size 256MiB"), (r" 20GiB", " 512MiB"),
           (r"reserve=5GiB", "reserve=64MiB"),
           (r"--interval 2s", "--interval 200ms")]
# These run until they are ended.
ENDLESS = r"^hotshelf (cache (serve|top)|queue serve)\b(?!.*&)"

failures, ran, left_out = [], 0, 0


def note(where, command, reason):
    global left_out
    left_out += 1
    print(f"not run: {where}: {command}: {reason}")


def run(where, command, user=None, stdin=""):
    """Runs one command of a document; what goes wrong is kept for the end."""
    global ran
    for pattern, reason in NOT_RUN:
        if re.search(pattern, command):
            return note(where, command, reason)
    adapted = command
    for pattern, smaller in SMALLER:
        adapted = re.sub(pattern, smaller, adapted)
    if "fio " in adapted and subprocess.run("command -v fio", shell=True, capture_output=True).returncode:
        return note(where, command, "fio is not installed")
    if re.search(ENDLESS, adapted):
        # The shell's comment stays behind it.
        adapted = "ended=0\ntimeout -k 10 -s INT 2 " + adapted.split("  #")[0] + " || ended=$?\ntest $ended = 124 -o $ended = 0"
    words = ["bash", "-eo", "pipefail", "-c", adapted]
    home = HOME if user else ROOT_HOME
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": home, "LANG": "C.UTF-8"}
    environment["SCRATCH"] = os.environ["SCRATCH"]
    environment.update(exported)
    if user:
        words = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", *words]
    done = subprocess.run(words, cwd=home, env=environment, input=stdin, capture_output=True, text=True, timeout=100)
    ran += 1
    said = done.stdout + done.stderr
    if done.returncode or re.search(r"^(Runtime|Parse)? ?[Ee]rror", said, re.M):
        failures.append(f"{where}: {command}\n    exit {done.returncode}: {said.strip()[-600:]}")
    return None


exported = {}


def session(where, lines):
    """One console block."""
    commands = []
    for line in lines:
        prompt, _, rest = line.partition(" ")
        if prompt in "$#" and prompt:
            commands.append([USER if prompt == "$" else None, rest, ""])
        elif prompt.endswith(">"):
            commands[-1][2] += rest + "\n"
    for user, command, stdin in commands:
        assigned = re.match(r"export (\w+)=(\S+)", command)
        if assigned:
            exported[assigned[1]] = assigned[2].replace("~", HOME)
            continue
        if command.split("#")[0].rstrip().endswith("&"):
            background(command.split("#")[0].rstrip().rstrip("&"))
            continue
        run(where, command, user, stdin)
    exported.clear()
    reset()


servers = []


def background(command):
    server = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=os.setsid)
    # It says so when it serves.
    server.stdout.readline()
    servers.append(server)


def quietly(command):
    subprocess.run(command, shell=True, capture_output=True, timeout=100)


def reset():
    """Nothing is mounted, served or attached any more."""
    for server in servers:
        os.killpg(server.pid, 15)
        server.wait()
    servers.clear()
    for point in ("/pool", "/mnt"):
        if any(line.split()[4] == point for line in open("/proc/self/mountinfo", encoding="utf-8")):
            quietly(f"hotshelf unmount {point}")
    for who in ("", AS_USER):
        quietly(f"{who} hotshelf cache detach /ssd/cache")


def program(where, lines):
    """One program in C."""
    source = f"{HOME}/program.c"
    with open(source, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    commands = set()
    for manual in ("docs/tutorials/link-the-library.md", "include/hotshelf.h", "crates/frontends/capi/man/hotshelf.3"):
        text = open(f"{ROOT}/{manual}", encoding="utf-8").read().replace("\\-", "-")
        commands |= set(re.findall(r"cc program\.c \$\(pkg-config [^)]*\)", text))
    assert commands, "no document says how a program is linked"
    for command in sorted(commands):
        run(where, f"cd {HOME} && {command} -Wall -Werror -o program && ./program")


def markdown(path):
    name = os.path.relpath(path, ROOT)
    language, block, reason, begin = None, [], None, 0
    for number, line in enumerate(open(path, encoding="utf-8").read().splitlines(), 1):
        if language is None and line.startswith("```"):
            language, block, begin = line[3:].strip() or "text", [], number
        elif language is not None and line.startswith("```"):
            where = f"{name}:{begin}"
            if reason:
                note(where, f"a block of {len(block)} lines", reason)
            elif language in ("console", "sh", "bash", "shell"):
                session(where, block if language == "console" else [f"$ {one}" for one in block])
            elif language == "c":
                program(where, block)
            language, reason = None, None
        elif language is not None:
            block.append(line)
        elif line.startswith("<!-- not run: "):
            reason = line.removeprefix("<!-- not run: ").removesuffix(" -->")
        elif line.strip():
            reason = None


def help_of(words):
    environment = dict(os.environ, COLUMNS="400")
    return subprocess.run(["hotshelf", *words, "--help"], env=environment, capture_output=True, text=True, check=True).stdout


def commands_of(words):
    """Every command below this one, with its help."""
    text = help_of(words)
    yield words, text
    if len(words) < 2:
        inside = False
        for line in text.splitlines():
            inside = line == "Commands:" or (inside and line != "")
            found = re.match(r"  (\w\S*)  ", line)
            if inside and found and found[1] != "help":
                yield from commands_of([*words, found[1]])


def prepare(command):
    """What the reader of this example has already."""
    reset()
    os.chdir(ROOT_HOME)
    gone = f"/ssd/* /hdd/* /etc/hotshelf {ROOT_HOME}/.config /tmp/restored /tmp/all /tmp/q.sock /tmp/grants /dev/shm/hotshelf*"
    made = "/ssd/pool/photos /ssd/pool/db /ssd/pool/old-projects /hdd/pool"
    quietly(f"rm -rf --one-file-system {gone}; mkdir -p {made}")
    for file in ("photos/2024.tar", "db/file", "old-projects/file"):
        quietly(f"echo x > /ssd/pool/{file}")
    if re.match(r"hotshelf (unmount|umount|status|why|pin|unpin|migrate|set|stop)\b", command) and "/mnt" not in command:
        quietly("hotshelf mount --ssd /ssd/pool --hdd /hdd/pool /pool")
    if re.match(r"hotshelf retire .*/pool ssd", command) and "--hdd" not in command:
        quietly("hotshelf mount --ssd /ssd/pool --hdd /hdd/pool /pool")
    if re.match(r"hotshelf unpin", command):
        quietly("hotshelf pin /pool/db")
    if "nvme0n1p3" in command:
        quietly("dd if=/dev/zero of=/dev/nvme0n1p3 bs=1M count=64")
    if re.match(r"hotshelf check /ssd/pool", command):
        quietly("hotshelf mount --ssd /ssd/pool --hdd /hdd/pool /pool; hotshelf unmount /pool")
    if "cache" in command and not command.startswith("hotshelf cache create"):
        for name in ("cache", "fast"):
            quietly(f"hotshelf cache create /ssd/{name} --name {name} --size 64MiB --memory 16MiB")
        if re.search("detach|--json|status|top|flush", command):
            quietly("hotshelf cache attach /ssd/cache; hotshelf cache create default --memory 16MiB")
    if command.startswith(("hotshelf fs", "hotshelf unmount /mnt")) and "mkfs" not in command:
        quietly("hotshelf fs mkfs /ssd/image --size 64MiB; echo x > notes.txt")
        if "import" not in command:
            quietly("hotshelf fs import /ssd/image /etc/passwd /etc; hotshelf fs import /ssd/image /etc/passwd /backup/etc")
        quietly("hotshelf fs mkfs /dev/vg/volume --force; mkdir -p photos /var/lib/app; echo x > photos/x")
        if "unmount" in command:
            quietly("hotshelf fs mount /ssd/image /mnt")
    if command.startswith("hotshelf queue") and "serve" not in command:
        quietly("rm -f /var/lib/hotshelf/*grants*; groupadd readers; truncate -s 16M /srv/image")
        background("hotshelf queue serve /dev/nvme0n1 /srv/image")
        if "grant" not in command:
            for grant in ("alice /dev/nvme0n1", "root /dev/nvme0n1 --queues 8 --depth 256", "alice /srv/image"):
                quietly(f"hotshelf queue grant {grant}")


def manuals():
    """The examples of the help texts."""
    for words, text in commands_of([]):
        _, _, examples = text.partition("Example:\n")
        for line in examples.splitlines():
            if not line.startswith("  ") or not re.match(r"  (hotshelf|mount) ", line):
                continue
            command = line.strip()
            prepare(command)
            run(f"hotshelf {' '.join(words)} --help", command)
    reset()


def fresh():
    """An empty machine, with a pair that was mounted once."""
    reset()
    gone = f"/ssd/* /hdd/* /nas/* /etc/hotshelf {ROOT_HOME}/.config {HOME}/.config /tmp/restored /dev/shm/hotshelf*"
    quietly(f"rm -rf --one-file-system {gone}; mkdir -p /ssd/pool/projects /hdd/pool /nas/pool; echo work > /ssd/pool/projects/file")
    quietly(f"chown -R {USER}: /ssd /hdd /nas")
    quietly(f"{AS_USER} hotshelf mount --ssd /ssd/pool --hdd /hdd/pool /pool; {AS_USER} hotshelf unmount /pool")


def keys(value):
    """Every key of a JSON value, and of the values in it."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from keys(inner)


def reference():
    """Every JSON field, metric and configuration key is in the reference pages."""
    fresh()
    cache = "create /ssd/cache --size 64MiB --memory 16MiB"
    for command in ("mount --ssd /ssd/pool --hdd /hdd/pool /pool", f"cache {cache}", "cache attach /ssd/cache"):
        quietly(f"{AS_USER} hotshelf {command}")

    def output(command):
        done = subprocess.run(f"{AS_USER} hotshelf {command}", shell=True, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    wanted = {page: set() for page in ("json", "metrics", "mount-configuration", "cache-configuration")}
    for command in ("status --json /pool", "why --json /pool/projects/file", "cache status --json /ssd/cache"):
        wanted["json"].update(keys(json.loads(output(command))))
    wanted["metrics"].update(re.findall(r"^# TYPE (\S+)", output("status --prometheus"), re.M))
    wanted["metrics"].update(re.findall(r"^# TYPE (\S+)", output("cache status --prometheus /ssd/cache"), re.M))
    with open(f"{ROOT}/contrib/example.toml", encoding="utf-8") as template:
        wanted["mount-configuration"].update(re.findall(r"^#?([a-z-]+) = ", template.read(), re.M))
    with open(f"{ROOT}/crates/cache/cachedfs/src/config.rs", encoding="utf-8") as settings:
        tables = re.findall(r"pub struct \w*Config \{(.*?)^\}", settings.read(), re.M | re.S)
    wanted["cache-configuration"].update(re.findall(r"^    pub (\w+):", "".join(tables), re.M))
    reset()
    for page, names in wanted.items():
        with open(f"{ROOT}/docs/reference/{page}.md", encoding="utf-8") as file:
            text = file.read()
        assert len(names) > 15, f"{page}: only {sorted(names)} were found"
        failures.extend(f"docs/reference/{page}.md does not describe `{name}`" for name in sorted(names) if f"`{name}`" not in text)


for document in [f"{ROOT}/README.md", *sorted(glob.glob(f"{ROOT}/docs/**/*.md", recursive=True))]:
    fresh()
    markdown(document)
manuals()
reference()
for failure in failures:
    print(f"FAILED: {failure}")
print(f"{ran} commands and programs ran, {left_out} could not run here, {len(failures)} failed")
assert ran > 60, "the documents were not found"
sys.exit(1 if failures else 0)
