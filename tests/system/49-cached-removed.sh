#!/bin/bash
# TIMEOUT: 120
# Files that are removed while programs have them, in a cached mount: in write-back mode their newest data may be in the cache only. A
# program that has one by an O_PATH descriptor, which the kernel opens without a request, opens it again and reads all of it.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 mkfs.ext4
name=cached-removed-$$ cache=$SCRATCH/cache
fs_of_size slow 256M
mkdir "$SCRATCH/slow/dir" "$MNT"
trap '"$HOTSHELF" unmount "$MNT" 2>/dev/null || true; "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true' EXIT
"$HOTSHELF" cache create "$cache" --name "$name" --size 64MiB --memory 32MiB >/dev/null

# Few descriptors for the daemon: none is kept longer than needed.
(ulimit -n 1024 && "$HOTSHELF" mount --cache "$cache" --cache-mode write-back "$SCRATCH/slow/dir" "$MNT")
daemon=$(pgrep -f -- "mount --cache $cache") || fail "no daemon"
python3 - "$MNT" "$SCRATCH/slow/dir" "$daemon" <<'END' || fail "a removed file"
import os, sys, time
seen, below, daemon = sys.argv[1:]
data = os.urandom(300_000)
def make(name, synced):
    with open(f"{seen}/{name}", "wb") as file:
        file.write(data)
        if synced:
            file.flush()
            os.fsync(file.fileno())
    return os.open(f"{seen}/{name}", os.O_PATH)
def content(held):
    with open(f"/proc/self/fd/{held}", "rb") as file:
        return file.read()
held = {}
for synced in False, True:
    # Removed while nobody has it open, replaced, and removed while it is open.
    held["unlink", synced] = make(f"unlinked-{synced}", synced)
    os.unlink(f"{seen}/unlinked-{synced}")
    held["rename", synced] = make(f"replaced-{synced}", synced)
    with open(f"{seen}/new-{synced}", "w") as file:
        file.write("new")
    os.rename(f"{seen}/new-{synced}", f"{seen}/replaced-{synced}")
    held["open", synced] = make(f"open-{synced}", synced)
    with open(f"{seen}/open-{synced}", "r+b") as file:
        os.unlink(f"{seen}/open-{synced}")
for _ in range(2):
    for how, descriptor in held.items():
        assert content(descriptor) == data, how
        assert os.fstat(descriptor).st_nlink == 0, how
    # Known files are looked at every two seconds.
    time.sleep(2.5)
for synced in False, True:
    assert open(f"{seen}/replaced-{synced}").read() == "new"

# Opened and closed again and again, a removed file costs the daemon a few descriptors.
def descriptors():
    return len(os.listdir(f"/proc/{daemon}/fd"))
before = descriptors()
for _ in range(500):
    assert len(content(held["open", False])) == len(data)
assert descriptors() < before + 20, (before, descriptors())

# When the program has closed them their blocks are free, and their data is in no cache.
for descriptor in held.values():
    os.close(descriptor)
END
"$HOTSHELF" cache flush "$cache" >/dev/null
is_clean() { "$HOTSHELF" cache status "$cache" | grep -q '^  dirty  *0 B in all'; }
wait_until 10 is_clean
is_freed() { (($(df --output=used -B1 "$SCRATCH/slow" | tail -1) < 2 << 20)); }
wait_until 10 is_freed

# Many are removed at the same time, by several programs; and the mount ends at once after that.
python3 - "$MNT" <<'END' || fail "many removals"
import os, sys, threading
seen, = sys.argv[1:]
failed = []
def work(n):
    try:
        for m in range(150):
            with open(f"{seen}/{n}-{m}", "wb") as file:
                file.write(b"x" * 20_000)
        for m in range(150):
            os.unlink(f"{seen}/{n}-{m}")
    except OSError as error:
        failed.append(error)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failed, failed[:3]
END
"$HOTSHELF" unmount "$MNT" || fail "unmount after many removals"
[[ $(ls "$SCRATCH/slow/dir") == $'replaced-False\nreplaced-True' ]] || fail "left: $(ls "$SCRATCH/slow/dir" | head -5)"

# A directory or file whose name another one has since: a mount on the new directory stays, and so does the name of the new file.
"$HOTSHELF" mount --cache "$cache" --cache-mode write-back "$SCRATCH/slow/dir" "$MNT"
mkdir "$MNT/x"
(cd "$MNT/x" && rmdir "$MNT/x" && mkdir "$MNT/x" && mount -t tmpfs none "$MNT/x" && sleep 4.5)
mountpoint -q "$MNT/x" || fail "a mount is gone"
umount "$MNT/x"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" cache destroy "$cache" >/dev/null
trap - EXIT
unmount_disks
