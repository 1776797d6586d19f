#!/bin/bash
# An ordinary user who owns a part of the directories behind root's mount gains nothing: no right, no file, no denial of the mount.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3
mkdir -p "$SSD" "$HDD" "$MNT"
chmod 755 "$SCRATCH"
user() { setpriv --reuid 4242 --regid 4242 --clear-groups "$@"; }
# For a script that python3 begins as root: it may be where an ordinary user has no way to.
export TO_USER='os.setgroups([]), os.setresgid(4242, 4242, 4242), os.setresuid(4242, 4242, 4242)'
up=$SCRATCH
while [[ $up != / ]]; do
    user test -x "$up" || skip "the scratch directory is out of reach for an ordinary user"
    up=$(dirname "$up")
done

# Root's own directory is not taken for the hidden one: what is in its tmp would be removed, and its log written to.
for what in tmp log key; do
    for side in "$SSD" "$HDD"; do
        mkdir -p "$side/roots"
        chown 4242:4242 "$side"
        if [[ $what == tmp ]]; then
            mkdir "$side/roots/tmp"
            echo kept >"$side/roots/tmp/file"
        else
            for _ in {1..20}; do echo kept; done >"$side/roots/$what"
        fi
        find "$side/roots" -type f -exec cat {} + >"$SCRATCH/before"
        user mv "$side/roots" "$side/.hotshelf"
        refused 1 "holds .$what" "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" --allow-other
        user mv "$side/.hotshelf" "$side/roots"
        find "$side/roots" -type f -exec cat {} + >"$SCRATCH/after"
        cmp "$SCRATCH/before" "$SCRATCH/after" || fail "root's $what in $side was changed"
        rm -r "$side/roots"
        rm -rf "$SSD/.hotshelf" "$HDD/.hotshelf"
    done
done
chown 0:0 "$SSD" "$HDD"

# Whoever owns the top of one side has no more rights to root's files in the other one than root has given.
chown 4242:4242 "$SSD"
echo root >"$HDD/of-root"
mkdir "$HDD/dir-of-root"
mount_pair --allow-other
user rm -f "$MNT/of-root" 2>/dev/null && fail "root's file is removed by the owner of the other side"
user mv "$MNT/dir-of-root" "$MNT/moved" 2>/dev/null && fail "root's directory is renamed by the owner of the other side"
[[ -e $HDD/of-root && -e $HDD/dir-of-root ]] || fail "root's files are gone"
unmount_pair
chown 0:0 "$SSD"

for side in "$SSD" "$HDD"; do
    mkdir -p "$side/shared"
    chown 4242:4242 "$side/shared"
done
mkdir "$SSD/shared/team" "$HDD/shared/private"
echo secret >"$HDD/shared/private/secret"
chown -R 4444:4445 "$SSD/shared/team" "$HDD/shared/private"
chmod 770 "$SSD/shared/team"
chmod 750 "$HDD/shared/private"
python3 - "$SSD/shared/team" <<'PYTHON' || skip "the file system has no access control lists"
import os, struct, sys
entries = [(1, 7, 0xffffffff), (2, 7, 4242), (4, 7, 0xffffffff), (16, 7, 0xffffffff), (32, 0, 0xffffffff)]
os.setxattr(sys.argv[1], "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries))
PYTHON
mkdir "$SCRATCH/below" "$SSD/shared/below"
chown 4242:4242 "$SCRATCH/below" "$SSD/shared/below"
mount --bind "$SCRATCH/below" "$SSD/shared/below"
mount -o remount,bind,ro "$SSD/shared/below"
mount_pair --allow-other

# A directory with an access list that lets a user in is not merged with a half that keeps the user out.
user ls "$MNT/shared/team" >/dev/null || fail "the list lets him in"
user mv "$SSD/shared/team" "$SSD/shared/private"
user ls "$MNT/shared/private" >/dev/null 2>&1 && fail "a closed directory is listed"
user cat "$MNT/shared/private/secret" >/dev/null 2>&1 && fail "a file in a closed directory is read"

# A file of others that gets a name which the kernel has just seen to be free is not opened as a new one, without asking who may.
(umask 077 && echo secret >"$SSD/shared/secret")
python3 - "$SSD/shared" "$MNT/shared" <<'PYTHON' || fail "a file of others is opened as if it were new"
import os, sys
eval(os.environ["TO_USER"])
below, mount = sys.argv[1:]
for n in range(30):
    name = f"free{n}"
    assert not os.path.exists(f"{mount}/{name}")
    os.rename(f"{below}/secret", f"{below}/{name}")
    try:
        print(os.read(os.open(f"{mount}/{name}", os.O_CREAT | os.O_RDWR, 0o600), 100))
        sys.exit(1)
    except PermissionError:
        os.rename(f"{below}/{name}", f"{below}/secret")
# An own one is opened, whatever the kernel knew.
assert not os.path.exists(f"{mount}/own")
with open(f"{below}/own", "w") as file:
    file.write("own")
assert os.read(os.open(f"{mount}/own", os.O_CREAT | os.O_RDWR, 0o600), 100) == b"own"
PYTHON
[[ $(cat "$SSD/shared/secret") == secret ]] || fail "a file of others is written as if it were new"

# What is made private in the backing directory is so at once, whatever the kernel remembers of it.
echo public >"$SSD/shared/report"
chmod 666 "$SSD/shared/report"
user cat "$MNT/shared/report" >/dev/null || fail "all may read it"
chmod 600 "$SSD/shared/report"
echo private >"$SSD/shared/report"
user cat "$MNT/shared/report" >/dev/null 2>&1 && fail "a private file is read"
user sh -c "echo attacked >>'$MNT/shared/report'" 2>/dev/null && fail "a private file is written"
user truncate -s 0 "$MNT/shared/report" 2>/dev/null && fail "a private file is cut"
[[ $(cat "$SSD/shared/report" "$MNT/shared/report") == private*private ]] || fail "a private file is changed"

# A directory of others does not go to another parent under the name of an own one.
for side in "$SSD" "$HDD"; do mkdir -p -m 777 "$side/common" && chmod 777 "$side/common"; done
user mkdir "$SSD/common/mine"
mkdir "$SSD/common/of-root"
echo root >"$SSD/common/of-root/file"
user ls "$MNT/common/mine" >/dev/null
user mv "$SSD/common/mine" "$SSD/common/aside"
user mv "$SSD/common/of-root" "$SSD/common/mine"
python3 -c 'import os, sys; eval(os.environ["TO_USER"]); os.rename(*sys.argv[1:])' "$MNT/common/mine" "$MNT/shared/taken" 2>/dev/null &&
    fail "root's directory is carried away"
[[ -e $SSD/common/mine/file ]] || fail "root's directory is not where it was"

whole() { "$HOTSHELF" status --json "$MNT" | python3 -c 'import json, sys
status = json.load(sys.stdin)
sys.exit(any(status[side]["degraded"] for side in ("ssd", "hdd")))'; }
whole || fail "a side is said to be broken from the start"

# What a file system that is mounted below a side answers is no fault of the side, nor is a socket in the place of a file.
user touch "$MNT/shared/below/new" 2>/dev/null || true
whole || fail "a read-only file system below the side makes new files go elsewhere"
user sh -c "echo mine >'$SSD/shared/mine'"
user cat "$MNT/shared/mine" >/dev/null
python3 - "$SSD/shared/mine" <<'PYTHON'
import os, socket, sys
eval(os.environ["TO_USER"])
os.rename(sys.argv[1], sys.argv[1] + ".away")
os.chdir(os.path.dirname(sys.argv[1]))
socket.socket(socket.AF_UNIX).bind(os.path.basename(sys.argv[1]))
PYTHON
user cat "$MNT/shared/mine" >/dev/null 2>&1 && fail "a socket is read"
whole || fail "a socket in the place of a file makes new files go elsewhere"

# Leases of a file's owner (fcntl(2)) make nobody wait: one is broken after 45 seconds, and there are fewer threads than files.
python3 - "$SSD/shared" "$MNT/shared" <<'PYTHON' || fail "leases keep the mount from answering"
import fcntl, os, signal, sys, threading, time
eval(os.environ["TO_USER"])
below, mount = sys.argv[1:]
signal.signal(signal.SIGIO, signal.SIG_IGN)
FILES, leased = 24, []
for n in range(FILES):
    with open(f"{below}/leased{n}", "w") as file:
        file.write("x")
    os.stat(f"{mount}/leased{n}")
reading = [os.open(f"{mount}/leased{n}", os.O_RDONLY) for n in range(0, FILES, 2)]
for n in range(FILES):
    leased.append(os.open(f"{below}/leased{n}", os.O_RDONLY))
    fcntl.fcntl(leased[-1], fcntl.F_SETLEASE, fcntl.F_RDLCK)
def use(path, n):
    try:
        # Half of them are open for reading already.
        os.close(os.open(path, os.O_WRONLY)) if n % 2 == 0 else os.truncate(path, 0)
    except BlockingIOError:
        pass
threads = [threading.Thread(target=use, args=(f"{mount}/leased{n}", n), daemon=True) for n in range(FILES)]
[thread.start() for thread in threads]
end = time.monotonic() + 15
[thread.join(max(0, end - time.monotonic())) for thread in threads]
waiting = sum(thread.is_alive() for thread in threads)
if waiting:
    print(f"{waiting} of {FILES} calls wait", flush=True)
    os._exit(1)
PYTHON
user sh -c "echo more >>'$MNT/shared/mine.away'" || fail "the mount does not answer"
unmount_pair
umount "$SSD/shared/below"

# A disk that somebody else prepared is mounted nosuid: its set-id programs do not become such by a move.
rm -rf "$HDD" "$SSD"
mkdir -p "$HDD" "$SSD"
mount -t tmpfs -o nosuid tmpfs "$HDD" || skip "no file system can be mounted here"
install -m 4755 /bin/true "$HDD/program"
install -m 755 /bin/true "$HDD/plain"
mount_pair --allow-other --min-file-size 0
"$HOTSHELF" migrate "$MNT/plain" --to ssd >/dev/null
"$HOTSHELF" migrate "$MNT/program" --to ssd >"$SCRATCH/said" 2>&1 || true
[[ -e $SSD/plain && ! -e $SSD/program && -u $HDD/program ]] || fail "a program got rights by a move"
grep -q nosuid "$SCRATCH/said" || fail "it is not said why it stays: $(cat "$SCRATCH/said")"
unmount_pair
umount "$HDD"
