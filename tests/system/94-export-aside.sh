#!/bin/bash
# `fs export` and `fs import`: a file gets its name when it is whole, whatever ends the command; and a directory's owner, who exchanges
# what root makes there for links, gets nothing of root's changed.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need strace python3 setpriv mkfifo

mkdir src
head -c 12M /dev/urandom >src/large
echo small >src/small
ln src/small src/other
ln -s small src/link
mkfifo -m 666 src/fifo
image=$SCRATCH/image
"$HOTSHELF" fs mkfs "$image" --size 64MiB >/dev/null

# stopped SIGNAL NTH COMMAND...: the signal comes at the Nth write.
stopped() {
    local signal=$1 nth=$2
    shift 2
    strace -f -qq -o /dev/null -e trace=pwrite64 -e inject="pwrite64:signal=$signal:when=$nth" "$@" >said 2>&1 && fail "was not stopped: $*"
    return 0
}

# A file system that is half made is under no name.
for signal in INT KILL; do
    strace -f -qq -o /dev/null -e trace=io_uring_enter,pwrite64 -e inject="io_uring_enter,pwrite64:signal=$signal:when=5" \
        "$HOTSHELF" fs mkfs half --size 64MiB >said 2>&1 && fail "was not stopped: mkfs"
    [[ ! -e half ]] || fail "$signal left half a file system"
done
"$HOTSHELF" fs mkfs half --size 64MiB >/dev/null && "$HOTSHELF" fs check half >/dev/null || fail "mkfs after it was stopped"
refused 1 'is kept' "$HOTSHELF" fs mkfs half --size 64MiB
refused 1 'missing' "$HOTSHELF" fs mkfs missing/image --size 64MiB

# Counts are of files, not of directories, there and back.
"$HOTSHELF" fs import "$image" src / | grep -q '^5 files' || fail "import does not count 5 files"
for signal in INT TERM KILL; do
    rm -rf there
    mkdir there
    stopped $signal 3 "$HOTSHELF" fs export "$image" /src/large there
    [[ ! -e there/large ]] || fail "$signal left a file under its final name"
    if [[ $signal != KILL ]]; then
        grep -q 'stopped by a signal' said || fail "does not say that it was stopped: $(cat said)"
    fi
    [[ -z $(ls -A there) ]] || fail "$signal left $(ls -A there)"
    "$HOTSHELF" fs export "$image" /src/large there >/dev/null || fail "the next export keeps what $signal left"
    cmp src/large there/large || fail "what was exported is not what was imported"
done
rm -rf there
"$HOTSHELF" fs export "$image" / there | grep -q '^5 files' || fail "export does not count 5 files"
diff <(cd src && find . -type f -o -type l | sort) <(cd there/src && find . -type f -o -type l | sort) || fail "names"
[[ there/src/small -ef there/src/other && $(readlink there/src/link) == small && -p there/src/fifo ]] || fail "kinds"
[[ $(stat -c %a there/src/fifo) == 666 ]] || fail "the mode of the fifo"
echo other >there/src/small
fails_with 'is kept' "$HOTSHELF" fs export "$image" /src/small there/src
[[ $(cat there/src/small) == other ]] || fail "it was replaced without --force"
"$HOTSHELF" fs export --force "$image" /src/small there/src >/dev/null || fail "--force"
[[ $(cat there/src/small) == small ]] || fail "it was not replaced with --force"

# An import that is stopped leaves nothing under the final name in the image either.
for signal in INT KILL; do
    "$HOTSHELF" fs mkfs --force "$image" >/dev/null
    strace -f -qq -o /dev/null -e trace=pread64 -P "$SCRATCH/src/large" -e inject="pread64:signal=$signal:when=3" \
        "$HOTSHELF" fs import "$image" src/large / >said 2>&1 && fail "was not stopped by $signal"
    "$HOTSHELF" fs shell "$image" -c 'ls /' | grep -q large && fail "$signal left a file in the image"
    "$HOTSHELF" fs import "$image" src/large / >/dev/null || fail "the next import keeps what $signal left"
done

# The owner of the directory exchanges whatever appears in it. Root is slowed down between making and dressing.
"$HOTSHELF" fs mkfs --force "$image" >/dev/null
mkdir many
for name in 1 2 3 4; do
    mkfifo -m 666 "many/fifo$name"
    ln -s target "many/link$name"
    echo "$name" >"many/file$name"
    chmod 666 "many/file$name"
done
chown -Rh 65534:65534 many
"$HOTSHELF" fs import "$image" many / >/dev/null
mkdir -m 700 victim
echo secret >victim/file
chmod 600 victim/file
mkdir attacked
chown 65534:65534 attacked
up=$SCRATCH
while [[ $up != / ]]; do
    setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$up" || skip "the scratch directory is there of reach for an ordinary user"
    up=$(dirname "$up")
done
setpriv --reuid 65534 --regid 65534 --clear-groups env PATH=/usr/bin:/bin python3 - "$SCRATCH/attacked" "$SCRATCH/victim" <<'PYTHON' &
import itertools, os, sys
top, victim = sys.argv[1:]
open(top + "/ready", "w").close()
done = set()
for count in itertools.count():
    for where, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(where, name)
            if path in done or name == "ready" or name.startswith("moved"):
                continue
            try:
                if os.path.islink(path) and os.readlink(path).startswith(victim):
                    continue
                os.rename(path, os.path.join(top, f"moved{count}-{len(done)}"))
                os.symlink(victim if name in dirs else victim + "/file", path)
                done.add(path)
            except OSError:
                pass
PYTHON
attacker=$!
wait_until 10 test -e attacked/ready
for calls in fchmodat fchownat utimensat fchmod fchown; do
    strace -f -qq -o /dev/null -e trace=$calls -e inject="$calls:delay_enter=60000" \
        "$HOTSHELF" fs export --force "$image" /many/. attacked >said 2>&1 || true
done
kill "$attacker"
wait "$attacker" 2>/dev/null || true
[[ $(stat -c '%a %u' victim/file) == '600 0' && $(stat -c '%a %u' victim) == '700 0' && $(cat victim/file) == secret ]] ||
    fail "root's file was changed: $(stat -c '%A %u %n' victim victim/file)"
[[ $(find victim | wc -l) == 2 ]] || fail "something was made in root's directory: $(find victim)"
grep -q . said || echo "NOTE: the attacker exchanged nothing"
