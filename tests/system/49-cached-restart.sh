#!/bin/bash
# TIMEOUT: 900
# The daemon of a cached mount is restarted, again and again, with the program that is installed at that moment: programs that use the mount
# see a pause, and no error. A program that cannot take over is refused, and the mount goes on.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 python3 setpriv sha256sum

here=$(dirname "$0")
slow=$SCRATCH/slow cache=$SCRATCH/cache name=cached-restart-$$ bin=$SCRATCH/bin log=$SCRATCH/log installed=$SCRATCH/bin/hotshelf
mkdir -p "$MNT" "$bin"
chmod 755 "$SCRATCH" "$bin"
nobody=65534 users_cache=
clean() {
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || true
    if [[ -n $users_cache ]]; then as_nobody "$HOTSHELF" unmount "$SCRATCH/theirs" 2>/dev/null || true; fi
    "$HOTSHELF" cache destroy "$cache" >/dev/null 2>&1 || true
    unmount_disks
}
trap clean EXIT

as_nobody() {
    env HOME="$SCRATCH/home" XDG_RUNTIME_DIR="$SCRATCH/run" XDG_CONFIG_HOME="$SCRATCH/home" \
        setpriv --reuid "$nobody" --regid "$nobody" --clear-groups "$@"
}
# install PROGRAM: as package managers do, by rename.
install_program() { cp "$1" "$installed.new" && chmod 755 "$installed.new" && mv "$installed.new" "$installed"; }
# install_script TEXT: a program that is none of ours.
install_script() { printf '#!/bin/bash\n%s\n' "$1" >"$installed.new" && chmod 755 "$installed.new" && mv "$installed.new" "$installed"; }
mount_cached() { "$installed" mount --cache "$cache" "$slow/dir" "$MNT" --allow-other --uring off --log-file "$log" "$@"; }
daemon_of_mount() { pgrep -f -- "^$installed .*mount --cache $cache" | head -n1; }
has_no_daemon() { ! stat "$MNT" >/dev/null 2>&1; }
is_unmounted() { ! is_mounted "$MNT"; }
goes_on() {
    local word="$RANDOM$RANDOM"
    echo "$word" >"$MNT/goes-on" || fail "$1: the mount cannot be written"
    [[ $(cat "$MNT/goes-on") == "$word" && $(cat "$slow/dir/goes-on") == "$word" ]] || fail "$1: other content"
    rm "$MNT/goes-on"
}
failed_mentions() { refused 1 "$1" "$HOTSHELF" restart "$MNT"; }

fs_of_size slow 1G -b 4096
mkdir "$slow/dir"
"$HOTSHELF" cache create "$cache" --name "$name" --size 128MiB --memory 32MiB >/dev/null

# Programs go on over 20 restarts, in both modes; what they leave is on the slow side.
for mode in write-through write-back; do
    rm -rf "${slow:?}/dir" "$SCRATCH"/expected*
    mkdir "$slow/dir"
    install_program "$HOTSHELF"
    mount_cached --cache-mode "$mode"
    before=$(daemon_of_mount)
    python3 "$here/_cached-restart.py" "$HOTSHELF" "$MNT" 20 >"$SCRATCH/out" || fail "$mode: $(tail -n 20 "$SCRATCH/out")"
    echo "NOTE: $mode: $(cat "$SCRATCH/out")"
    [[ $(daemon_of_mount) == "$before" ]] || fail "$mode: another process serves the mount"
    [[ $(ls "/proc/$before/fd" | wc -l) -lt 6000 ]] || fail "$mode: descriptors are left over"
    "$HOTSHELF" unmount "$MNT" || fail "$mode: not unmounted"
    cat "$SCRATCH"/expected.* >"$SCRATCH/expected"
    (cd "$slow/dir" && sha256sum --quiet -c "$SCRATCH/expected") || fail "$mode: other content on the slow side"
    grep -E 'ERROR|lost|panick' "$log" && fail "$mode: errors in the log"
done

# A program that was replaced since: the daemon runs the new file, and its name is not that of the old one.
mount_cached
pid=$(daemon_of_mount)
old_file=$(stat -Lc %i "/proc/$pid/exe")
exec 7>"$MNT/open" 8<"$MNT"
echo one >&7
install_program "$HOTSHELF"
"$HOTSHELF" restart "$MNT" >"$SCRATCH/out"
grep -q 'was replaced by .* open file, a pause of' "$SCRATCH/out" || fail "says $(cat "$SCRATCH/out")"
new_file=$(stat -Lc %i "/proc/$pid/exe")
[[ $new_file == "$(stat -c %i "$installed")" && $new_file != "$old_file" ]] || fail "the old program still runs"
echo two >&7
exec 7>&- 8<&-
[[ $(cat "$slow/dir/open") == $'one\ntwo' ]] || fail "a file that was open over a replaced program"
"$HOTSHELF" status "$MNT" >/dev/null
goes_on "after a replaced program"

# What a program says that can take over.
consent=$("$HOTSHELF" takeover --check 2)

# Programs that cannot take over, or that are not safe: refused, and the mount goes on.
install_script 'exit 1'
failed_mentions 'cannot take over'
goes_on "a program that fails"
install_script 'echo "hotshelf 99.0 takes over version 99"'
failed_mentions 'cannot take over'
goes_on "a program of another version"
install_script 'echo "hotshelf 99.0 takes over version 2 with cache 1 1 1"'
failed_mentions 'cannot take over'
goes_on "a program with another layout of the cache"
rm "$installed"
failed_mentions 'cannot be used'
goes_on "no program"
echo "not a program" >"$installed"
chmod 755 "$installed"
failed_mentions 'cannot be started'
goes_on "a text"
install_program "$HOTSHELF"
chmod 757 "$installed"
failed_mentions 'others may write to'
chmod 755 "$installed"
chown "$nobody" "$bin"
failed_mentions 'belongs to user'
chown 0 "$bin"
chmod 777 "$bin"
failed_mentions 'others may write to'
chmod 755 "$bin"
goes_on "a program that others could replace"

# The new program cannot be started when the mount is handed over already: the old one takes it back, with its open files.
exec 7>"$MNT/back" 8<>"$MNT/removed"
rm "$MNT/removed"
echo one >&7
echo kept >&8
install_script "[[ \$2 == --check ]] && touch \"\$0\" && echo '$consent'"
failed_mentions 'replaced meanwhile'
echo two >&7
exec 7>&-
[[ $(cat "$slow/dir/back") == $'one\ntwo' && $(cat /proc/$$/fd/8) == kept ]] || fail "open files after a failed exec"
goes_on "after a failed exec"
install_program "$HOTSHELF"
"$HOTSHELF" restart "$MNT" >/dev/null
[[ $(cat /proc/$$/fd/8) == kept ]] || fail "a removed file after a failed exec and a restart"
exec 8>&-

# Remembered names and the deadline are handed over.
"$HOTSHELF" unmount "$MNT"
wait_until 20 test ! -e "/proc/$pid"
mkdir "$slow/dir/known" && touch "$slow/dir/known/"{a,b,c}
mount_cached --names memory --cache-ttl 1 --deadline 20
pid=$(daemon_of_mount)
[[ $(ls "$MNT/known") == $'a\nb\nc' ]] || fail "names: $(ls "$MNT/known")"
exec 7>"$MNT/known/open" 8<"$MNT/known"
for _ in 1 2 3; do
    "$HOTSHELF" restart "$MNT" >/dev/null
    "$HOTSHELF" status "$MNT" | grep -q 'slow side: replies' || fail "no deadline after a restart"
    echo line >&7
    [[ $(ls "$MNT/known" "/proc/$$/fd/8/") == *open*open* ]] || fail "names after a restart: $(ls "$MNT/known")"
    goes_on "remembered names after a restart"
done
exec 7>&- 8<&-
[[ $(wc -l <"$slow/dir/known/open") == 3 ]] || fail "a file that was open over restarts with remembered names"

# SIGTERM unmounts also after a restart.
kill -TERM "$pid"
wait_until 20 is_unmounted
wait_until 20 test ! -e "/proc/$pid"

# A program that fails when it has been started: the mount must not hang.
mount_cached
install_script "[[ \$2 == --check ]] && echo '$consent' && exit 0; exit 1"
failed_mentions 'did not restart'
got=0
timeout 10 ls "$MNT" >/dev/null 2>"$SCRATCH/out" || got=$?
[[ $got == 2 ]] && grep -q 'not connected' "$SCRATCH/out" || fail "a mount without a daemon: $got $(cat "$SCRATCH/out")"
# The kernel believes the attributes that it has for a second.
wait_until 10 has_no_daemon
failed_mentions 'is gone'
"$HOTSHELF" unmount "$MNT"
install_program "$HOTSHELF"
mount_cached
goes_on "mounted again"

# What cannot be restarted: no mount, another kind of mount, somebody else's.
refused 1 'no hotshelf is mounted' "$HOTSHELF" restart "$SCRATCH"
mkdir "$SCRATCH/pair"
"$HOTSHELF" mount --ssd "$SCRATCH/ssd" --hdd "$SCRATCH/hdd" "$SCRATCH/pair" 2>/dev/null || {
    mkdir -p "$SCRATCH/ssd" "$SCRATCH/hdd"
    "$HOTSHELF" mount --ssd "$SCRATCH/ssd" --hdd "$SCRATCH/hdd" "$SCRATCH/pair"
}
refused 1 'not supported for this kind' "$HOTSHELF" restart "$SCRATCH/pair"
"$HOTSHELF" unmount "$SCRATCH/pair"
refused 1 'is mounted by user 0' as_nobody "$HOTSHELF" restart "$MNT"
# By the socket of the mount itself: only its owner gets a reply.
socket=$(find /run /dev/shm -maxdepth 4 -name "mount-$(mountpoint -d "$MNT").sock" -uid 0 2>/dev/null | head -n1)
[[ -S $socket ]] || fail "no socket of the mount"
cat >"$SCRATCH/ask.py" <<'END'
"""ask.py SOCKET WORD USER: what the socket replies to a word from this user. Python itself may be where only root finds it."""
import os, socket, sys
user = int(sys.argv[3])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
to = socket.socket(socket.AF_UNIX)
to.settimeout(30)
try:
    to.connect(sys.argv[1])
    to.sendall(sys.argv[2].encode() + b"\n")
    reply = to.recv(1000)
except (PermissionError, ConnectionResetError, BrokenPipeError):
    reply = b""
print(reply.decode())
END
[[ $(python3 "$SCRATCH/ask.py" "$socket" hello 0) == *'not a request'* ]] || fail "the owner's connection was not served"
restarts=$(grep -c restarting "$log")
for word in hello restart; do
    reply=$(python3 "$SCRATCH/ask.py" "$socket" "$word" "$nobody") || fail "a stranger's connection"
    [[ -z $reply ]] || fail "a stranger's connection was served: $reply"
done
[[ $(grep -c restarting "$log") == "$restarts" ]] || fail "a stranger restarted the mount"
goes_on "strangers"
"$HOTSHELF" unmount "$MNT"

# An ordinary user's own mount, through fusermount3.
if command -v fusermount3 >/dev/null; then
    mkdir -p "$SCRATCH/home" "$SCRATCH/run" "$SCRATCH/theirs" "$SCRATCH/their-files"
    chown "$nobody" "$SCRATCH/home" "$SCRATCH/run" "$SCRATCH/theirs" "$SCRATCH/their-files"
    chmod 700 "$SCRATCH/run"
    users_cache=default
    as_nobody "$installed" mount --cache "$users_cache" --uring off "$SCRATCH/their-files" "$SCRATCH/theirs"
    as_nobody sh -c "echo theirs >'$SCRATCH/theirs/file'"
    as_nobody "$HOTSHELF" restart "$SCRATCH/theirs" >"$SCRATCH/out" || fail "an ordinary user's mount: $(cat "$SCRATCH/out")"
    [[ $(as_nobody cat "$SCRATCH/theirs/file") == theirs ]] || fail "an ordinary user's file"
    refused 1 "is mounted by user $nobody" "$HOTSHELF" restart "$SCRATCH/theirs"
    as_nobody "$HOTSHELF" unmount "$SCRATCH/theirs"
    users_cache=
else
    echo "NOTE: no fusermount3: ordinary users' mounts were not tested"
fi
