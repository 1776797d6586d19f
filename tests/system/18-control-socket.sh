#!/bin/bash
# TIMEOUT: 120
# Root's status connects to the daemons of all users. None of them can delay it, exhaust its memory, or write to its terminal. A socket that
# does not belong to the mounting user is not used, and other users' mounts cause no errors in an ordinary user's status.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 setpriv fusermount3
[[ -e /dev/fuse ]] || skip "there is no /dev/fuse"
mode_before=$(stat -c %a /dev/fuse)
impostor_pid=
give_back() {
    chmod "$mode_before" /dev/fuse
    [[ -z $impostor_pid ]] || kill "$impostor_pid" 2>/dev/null || true
}
trap give_back EXIT
chmod 666 /dev/fuse
as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_STATE_HOME HOME=/nonexistent "$@"; }
cp "$HOTSHELF" "$SCRATCH/hotshelf"
chmod 755 "$SCRATCH/hotshelf"
user=$SCRATCH/user
mkdir -p "$user/ssd" "$user/hdd" "$user/mnt"
chown -R 65534:65534 "$user"

# impostor SOCKET HOW: an ordinary user's own program answers at a socket.
impostor() {
    [[ -z $impostor_pid ]] || { kill "$impostor_pid" && wait "$impostor_pid" || true; }
    rm -f "$1"
    python3 - "$1" "$2" <<'PYTHON' &
import json, os, socket, sys, threading, time
path, how = sys.argv[1:]
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path + ".new")
listener.listen(8)
os.rename(path + ".new", path)
tier = dict(directory="/a\x1b]0;title\x07", capacity_bytes=1, used_bytes=1, free_bytes=0, files=0, degraded=None)
status = dict(version="\x1b[31m", pid=1, mountpoint="/m\x1b[2J\nhotshelf: all is well", uptime_s=1, ssd=tier, hdd=tier, policy="lru\x9b",
    promotion="never", high_bytes=0, low_bytes=0, passthrough=False, passthrough_reason="\x1b[1m",
    hits=0, misses=0, hit_ratio=0.0, promotions=0, demotions=0,
    moved_bytes=0, moves_dropped=0, moves_failed=0, queue=0, running=[], open_files=0, pinned=["\x1b[5m"], conflicts=[], scan_done=True,
    warnings=["\x1b[7m\u202e"])
def serve(client):
    try:
        if how == "endless":
            while True:
                client.sendall(b"x" * 65536)
        if how == "slow":
            while True:
                client.sendall(b"x")
                time.sleep(0.1)
        if how == "silent":
            time.sleep(600)
        client.recv(65536)
        if how == "escapes":
            client.sendall(json.dumps(dict(answer="status", **status)).encode() + b"\n")
        if how == "failed":
            client.sendall(json.dumps(dict(answer="failed", message="\x1b[2Jno\nhotshelf: yes")).encode() + b"\n")
    except OSError:
        pass
while True:
    client, _ = listener.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
PYTHON
    impostor_pid=$!
    wait_until 20 test -S "$1"
}

# The ordinary user has a mount, whose socket is another program's.
as_user "$SCRATCH/hotshelf" mount --ssd "$user/ssd" --hdd "$user/hdd" "$user/mnt"
mount_pair
control=$user/ssd/.hotshelf/control
# It fails if another mount of that user, which is not of this test, has lost its daemon.
as_user "$SCRATCH/hotshelf" status >"$SCRATCH/out" 2>"$SCRATCH/err" || [[ -s $SCRATCH/err ]] || fail "an ordinary user's status fails"
! grep -v ' is gone: mount it again' "$SCRATCH/err" || fail "an ordinary user is shown errors: $(cat "$SCRATCH/err")"
! grep -F "$SCRATCH" "$SCRATCH/err" || fail "an ordinary user's status: $(cat "$SCRATCH/err")"
grep -q "^$user/mnt " "$SCRATCH/out" && ! grep -q "^$MNT " "$SCRATCH/out" || fail "an ordinary user's status: $(cat "$SCRATCH/out")"
fails_with "you must be the user who mounted it" as_user "$SCRATCH/hotshelf" status "$MNT"

as_user mv "$control" "$user/ssd/.hotshelf/real"
for how in endless slow silent escapes failed; do
    impostor "$control" "$how"
    begin=$SECONDS code=0
    # Far less memory than an endless line would take; the limit is the address space, of which the threads' stacks are a part.
    (ulimit -v 1000000 && exec timeout 60 "$HOTSHELF" status) >"$SCRATCH/out" 2>&1 || code=$?
    ((SECONDS - begin < 30)) || fail "$how: root waited for $((SECONDS - begin)) s"
    grep -q "^$MNT " "$SCRATCH/out" || fail "$how: root's own mount is not shown: $(cat -v "$SCRATCH/out")"
    [[ $how == escapes || $code == 1 ]] || fail "$how: exit $code: $(cat -v "$SCRATCH/out")"
    ! LC_ALL=C grep -q $'[\x01-\x09\x0b-\x1f\x7f]' "$SCRATCH/out" || fail "$how: control characters reach the terminal"
    ! grep -q "^hotshelf: \(all is well\|yes\)" "$SCRATCH/out" || fail "$how: a line is forged"
    case $how in
        silent | slow) grep -q 'no answer within\|no valid reply: timed out' "$SCRATCH/out" || fail "$how: $(cat "$SCRATCH/out")" ;;
        escapes) grep -qF '\u001b[2J\u000ahotshelf: all is well' "$SCRATCH/out" || fail "$how: $(cat -v "$SCRATCH/out")" ;;
    esac
done
# As JSON it is still JSON, without a character that a terminal acts on.
impostor "$control" escapes
# It fails if another mount of this machine has lost its daemon, which is not of this test.
{ "$HOTSHELF" status --json || true; } >"$SCRATCH/out"
! LC_ALL=C grep -q $'[\x01-\x09\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]' "$SCRATCH/out" || fail "JSON has control characters"
python3 -c 'import json, sys; assert "lru\x9b" in [one.get("policy") for one in json.load(open(sys.argv[1]))]' "$SCRATCH/out" ||
    fail "JSON is not as it was sent"
kill "$impostor_pid" && wait "$impostor_pid" || true
impostor_pid=
as_user mv "$user/ssd/.hotshelf/real" "$control"
as_user "$SCRATCH/hotshelf" unmount "$user/mnt"

# Root's pair, in whose SSD directory an ordinary user can rename: root does not connect to that user's socket.
chown 65534 "$SSD"
as_user mv "$SSD/.hotshelf" "$SSD/hidden"
as_user mkdir "$SSD/.hotshelf"
impostor "$SSD/.hotshelf/control" escapes
fails_with "is not of the user who mounted it" "$HOTSHELF" status "$MNT"
kill "$impostor_pid" && wait "$impostor_pid" || true
impostor_pid=
# Nor is the socket of another of root's daemons, by a link.
rm -r "${SSD:?}/.hotshelf"
ln -s hidden "$SSD/.hotshelf"
fails_with "cannot be reached" "$HOTSHELF" status "$MNT"
rm "$SSD/.hotshelf"
mv "$SSD/hidden" "$SSD/.hotshelf"
chown 0 "$SSD"
"$HOTSHELF" status "$MNT" >/dev/null || fail "the real daemon is not asked any more"

# Names of files neither.
printf -v name 'a\nforged line \033[2J'
echo data >"$MNT/$name"
"$HOTSHELF" why "$MNT/$name" >"$SCRATCH/out" || fail "why of an odd name"
grep -qF 'a\u000aforged line \u001b[2J' "$SCRATCH/out" || fail "why: $(cat -v "$SCRATCH/out")"
unmount_pair
"$HOTSHELF" check "$SSD" "$HDD" >"$SCRATCH/out" || fail "check"
