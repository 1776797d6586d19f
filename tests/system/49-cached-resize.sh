#!/bin/bash
# A mounted cache gets another size, and loses its SSD and gets it back, while programs read and write: they wait, and see no error. Where
# it cannot be done nothing is changed, and the mounts go on. A command that is killed in the middle, a daemon that is told to end there.
# TIMEOUT: 240
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 mkfs.ext4 setpriv chattr

fs_of_size ssdfs 400M
fs_of_size slowfs 300M
slow=$SCRATCH/slowfs/dir other=$SCRATCH/slowfs/other other_mnt=$SCRATCH/other-mnt cache=$SCRATCH/ssdfs/cache name=cached-resize-$$
mkdir -p "$slow" "$other" "$MNT" "$other_mnt"
background=
clean() {
    [[ -z $background ]] || kill -9 $background 2>/dev/null || true
    for at in "$MNT" "$other_mnt"; do
        "$HOTSHELF" unmount "$at" >/dev/null 2>&1 || umount -l "$at" 2>/dev/null || true
    done
    chattr -i "$slow/dirty" 2>/dev/null || true
    mountpoint -q "$SCRATCH/ssdfs" || mount -o loop "$SCRATCH/ssdfs.img" "$SCRATCH/ssdfs" 2>/dev/null || true
    "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
    unmount_disks
}
trap clean EXIT

change() { "$HOTSHELF" cache "$@" >"$SCRATCH/out" 2>&1 || fail "cache $*: $(cat "$SCRATCH/out")"; }
# cache_field EXPRESSION: of the status of the cache as JSON.
cache_field() {
    "$HOTSHELF" cache status --json "$cache" | python3 -c "import json, sys; status = json.load(sys.stdin); print($1)"
}
daemon_of() { pgrep -f -- "mount --cache $cache .* $1 --ready-pipe"; }
has_open() { [[ -n $(find "/proc/$1/fd" -lname "$2" 2>/dev/null) ]]; }

head -c 16M /dev/urandom >"$slow/file"
head -c 4M /dev/urandom >"$other/file"
"$HOTSHELF" cache create "$cache" --name "$name" --size 64MiB --memory 16MiB >/dev/null
mount_first() { "$HOTSHELF" mount --cache "$cache" --cache-mode write-back --uring off "$slow" "$MNT"; }
mount_first
"$HOTSHELF" mount --cache "$cache" --uring off "$other" "$other_mnt"

# Programs that write, sync, and read what they wrote, without a pause, and one that reads files. They end without an error when told.
cat >"$SCRATCH/works.py" <<'END'
import mmap, os, signal, sys
path, count = sys.argv[1:]
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"\0" * 8192, 0)
page = mmap.mmap(file, 8192)
n = 0
while not told:
    n += 1
    os.pwrite(file, b"%8d" % n, 0)
    page[4096:4104] = b"%8d" % n
    if n % 8 == 0:
        os.fsync(file)
    assert os.pread(file, 8, 0) == b"%8d" % n and page[4096:4104] == b"%8d" % n, n
page.flush()
os.fsync(file)
with open(count, "w") as out:
    print(n, file=out)
END
for number in 1 2; do
    at=$MNT
    ((number == 1)) || at=$other_mnt
    python3 "$SCRATCH/works.py" "$at/works" "$SCRATCH/count-$number" 2>"$SCRATCH/works-$number.err" &
    background="$background $!"
done
reads_on() {
    while [[ ! -e $SCRATCH/enough ]]; do
        cmp -s "$MNT/file" "$slow/file" && cmp -s "$other_mnt/file" "$other/file" || return 1
    done
}
reads_on &
reader=$!
background="$background $reader"

# Larger, smaller, more memory, without the SSD and with it again.
change resize "$cache" --size 160MiB
grep -q 'its 2 mounts waited for [0-9]* ms' "$SCRATCH/out" || fail "nothing is said of the mounts: $(cat "$SCRATCH/out")"
[[ $(stat -c %s "$cache") == $((160 << 20)) ]] || fail "it did not grow"
(($(cache_field 'status["ssd"]["bytes"]') > 150 << 20)) || fail "the mounts do not use the new size"
change resize "$cache" --size 48MiB --json
python3 -c 'import json, sys; said = json.load(open(sys.argv[1])); assert said["mounts"] == 2 and said["pause_ms"] > 0, said' "$SCRATCH/out"
[[ $(stat -c %s "$cache") == $((48 << 20)) ]] || fail "it did not shrink"
change resize "$cache" --memory 24MiB
[[ $(cache_field 'status["memory"]["bytes"]') == $((24 << 20)) ]] || fail "the memory has its old size"
change drain "$cache"
for at in "$MNT" "$other_mnt"; do
    ! has_open "$(daemon_of "$at")" "$cache" || fail "the SSD is open still"
done
"$HOTSHELF" cache status "$cache" >"$SCRATCH/out"
grep -q 'drained: not used until' "$SCRATCH/out" || fail "the status does not say that it is drained: $(cat "$SCRATCH/out")"
change drain "$cache"
grep -q 'drained already' "$SCRATCH/out" || fail "drained twice: $(cat "$SCRATCH/out")"
change drain "$cache" --json
python3 -c 'import json, sys; said = json.load(open(sys.argv[1])); assert said["drained"] and not said["changed"], said' "$SCRATCH/out"
change drain --undo "$cache"
has_open "$(daemon_of "$MNT")" "$cache" || fail "the SSD is not open again"
change drain --undo "$cache"
grep -q 'in use already' "$SCRATCH/out" || fail "undone twice: $(cat "$SCRATCH/out")"

# A program that uses the cache itself is in the way; what cannot be leaves all as it is.
change attach "$cache"
fails_with 'is in use by process' "$HOTSHELF" cache resize "$cache" --size 64MiB
fails_with 'is in use by process' "$HOTSHELF" cache drain "$cache"
change detach "$cache"
fails_with 'MiB are free' "$HOTSHELF" cache resize "$cache" --size 3GiB
fails_with 'too few for a cache' "$HOTSHELF" cache resize "$cache" --size 4KiB
fails_with 'more than this machine has' "$HOTSHELF" cache resize "$cache" --memory 900TiB
# Its output on a mount: it would wait for itself.
fails_with 'send its output elsewhere' sh -c "'$HOTSHELF' cache drain '$cache' 3>'$MNT/out'"
fails_with 'send its output elsewhere' sh -c "'$HOTSHELF' cache resize '$cache' --size 64MiB 3<'$MNT/file'"
fails_with 'cannot be used while its cache changes' env XDG_STATE_HOME="$MNT/state" "$HOTSHELF" cache drain "$cache"
"$HOTSHELF" cache resize "$cache" --size 64MiB --dry-run | grep -q 'would have 64.00 MiB' || fail "a dry run of a mounted cache"
[[ $(stat -c %s "$cache") == $((48 << 20)) && $(cache_field 'status["ssd"]["drained"]') == False ]] || fail "something was changed"

touch "$SCRATCH/enough"
wait $reader || fail "a reader found something else"
for number in 1 2; do
    read -r pid _ <<<"$background"
    background=${background# "$pid"}
    kill "$pid"
    wait "$pid" || fail "a program failed: $(cat "$SCRATCH/works-$number.err")"
    echo "$(cat "$SCRATCH/count-$number") writes"
done
background=

# What is dirty cannot be written back: nothing is changed, and it is there.
echo dirty >"$MNT/dirty"
sync "$MNT/dirty"
chattr +i "$slow/dirty"
fails_with 'nothing is changed' "$HOTSHELF" cache drain "$cache"
fails_with 'nothing is changed' "$HOTSHELF" cache resize "$cache" --size 64MiB
[[ $(cat "$MNT/dirty") == dirty ]] || fail "dirty data is gone"
[[ $(cache_field 'status["ssd"]["drained"]') == False ]] || fail "drained, with a file that is not written back"
chattr -i "$slow/dirty"

# The SSD is taken away; what is synced then is in the file. It comes back: what it had is used, but not what was changed meanwhile.
cat "$MNT/file" "$MNT/file" >/dev/null
change drain "$cache"
[[ $(cat "$slow/dirty") == dirty ]] || fail "drained, and a file is not written back"
umount "$SCRATCH/ssdfs" || fail "the file system of the drained SSD is in use"
cmp "$MNT/file" "$slow/file" || fail "a file without the SSD"
echo written without it | dd of="$MNT/synced" conv=fsync status=none
dd if=/dev/urandom of="$MNT/file" bs=4k count=1 seek=7 conv=notrunc,fsync status=none
kill -9 "$(daemon_of "$MNT")"
drop_dead_mount
[[ $(cat "$slow/synced") == "written without it" ]] || fail "what was synced without the SSD is not in the file"
mount_first
fails_with 'is not there: bring it back' "$HOTSHELF" cache drain --undo "$cache"
cmp "$MNT/file" "$slow/file" || fail "after an SSD that is not there was to be used"
mount -o loop "$SCRATCH/ssdfs.img" "$SCRATCH/ssdfs"
change drain --undo "$cache"
dd if="$MNT/file" iflag=nocache count=0 status=none
cmp "$MNT/file" "$slow/file" || fail "the SSD shows what was there before it was taken away"
dd if="$other_mnt/file" iflag=nocache count=0 status=none
cmp "$other_mnt/file" "$other/file" || fail "the other mount"
hits=$(cache_field '[tier["hits"] for tier in status["tiers"] if tier["name"] == "ssd"][0]')
((hits > 0)) || fail "nothing is read from the SSD that came back"

# The settings say that it is drained, and it is not: a command was killed between the two. What is only on the SSD is not lost, and the
# next command does it.
settings=/etc/hotshelf/caches/$name.toml
sed -i 's/^drained = false/drained = true/' "$settings"
echo only on the SSD | dd of="$MNT/dirty" conv=fsync,notrunc status=none
kill -9 "$(daemon_of "$MNT")" "$(daemon_of "$other_mnt")"
umount -l "$other_mnt"
drop_dead_mount
rm -f "/dev/shm/hotshelf-0/$name.segment"
mount_first
[[ $(cat "$MNT/dirty") == "only on the SSD" ]] || fail "an SSD with unwritten data is left out"
"$HOTSHELF" mount --cache "$cache" --uring off "$other" "$other_mnt"
change drain "$cache"
! has_open "$(daemon_of "$MNT")" "$cache" || fail "drained, and the SSD is open"
change drain --undo "$cache"

# Another SSD takes its place, and has no cache yet.
change drain "$cache"
umount "$SCRATCH/ssdfs"
mkfs.ext4 -qF "$SCRATCH/ssdfs.img"
mount -o loop "$SCRATCH/ssdfs.img" "$SCRATCH/ssdfs"
fails_with 'is not there: bring it back' "$HOTSHELF" cache drain --undo "$cache"
change drain --undo "$cache" --size 80MiB
[[ $(stat -c %s "$cache") == $((80 << 20)) ]] || fail "the new SSD has another size"
cmp "$MNT/file" "$slow/file" || fail "a file with a new SSD"

# Whoever asks the daemon to leave the cache, and ends without a word: it goes on as before, with a killed command too.
cat >"$SCRATCH/hold.py" <<'END'
import glob, os, socket, subprocess, sys
mnt, cache, hotshelf, daemon = sys.argv[1:]
device = os.stat(mnt).st_dev
path = f"/dev/shm/hotshelf-0/mount-{os.major(device)}:{os.minor(device)}.sock"
def hold():
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.sendall(b"hold\n")
    said = client.makefile().readline()
    assert said == '"held"\n', said
    return client
for goodbye in b"", b"nonsense\n", b'"change"\n', b'{"go_on": {"settings": "[cache]\\nname = 7"}}\n':
    client = hold()
    reader = subprocess.Popen(["cat", mnt + "/dirty"], stdout=subprocess.PIPE)
    try:
        reader.wait(0.5)
        raise SystemExit("a mount without its cache replies")
    except subprocess.TimeoutExpired:
        pass
    # Whoever waits for it can be ended.
    waits = subprocess.Popen(["cat", mnt + "/file"], stdout=subprocess.DEVNULL)
    waits.kill()
    waits.wait(20)
    client.sendall(goodbye)
    client.close()
    assert reader.communicate(timeout=30)[0] == b"only on the SSD\n"
# Told to end while nobody serves the mount: it goes on, and unmounts.
client = hold()
os.kill(int(daemon), 15)
client.close()
END
pid=$(daemon_of "$MNT")
python3 "$SCRATCH/hold.py" "$MNT" "$cache" "$HOTSHELF" "$pid" || fail "a command that ends in the middle"
is_unmounted() { ! is_mounted "$MNT"; }
wait_until 20 is_unmounted
timeout 20 tail --pid="$pid" -f /dev/null || fail "the daemon was told to end, and goes on"
mount_first
[[ $(cat "$MNT/dirty") == "only on the SSD" ]] || fail "mounted again"

# The SSD is removed for good, with its mounts in use; the settings go when they are not.
fails_with 'is in use by process' "$HOTSHELF" cache destroy "$cache"
change drain "$cache"
change destroy "$cache"
[[ ! -e $cache ]] || fail "the SSD is there still"
cmp "$MNT/file" "$slow/file" && echo new >"$MNT/new" && cmp "$other_mnt/file" "$other/file" || fail "a mount without its SSD"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" unmount "$other_mnt"
[[ $(cat "$slow/new") == new ]] || fail "what was written without the SSD"
change destroy "$cache"
[[ ! -e /etc/hotshelf/caches/$name.toml ]] || fail "the settings are there still"

# Shared memory that has room for the cache's once: the old one goes before the new one is made.
mkdir "$SCRATCH/run" "$SCRATCH/small"
mount -t tmpfs -o size=150M tmpfs "$SCRATCH/run"
"$HOTSHELF" cache create "$SCRATCH/small/cache" --name "$name" --size 64MiB --memory 16MiB >/dev/null
echo "runtime_dir = \"$SCRATCH/run\"" >>"/etc/hotshelf/caches/$name.toml"
"$HOTSHELF" mount --cache "$SCRATCH/small/cache" --uring off "$slow" "$MNT"
cmp "$MNT/file" "$slow/file" || fail "with little shared memory"
for words in "--size 96MiB" "--memory 20MiB"; do
    # shellcheck disable=SC2086
    change resize "$SCRATCH/small/cache" $words
    cmp "$MNT/file" "$slow/file" || fail "with little shared memory, after resize $words"
done
fails_with 'No space left' "$HOTSHELF" cache resize "$SCRATCH/small/cache" --memory 200MiB
cmp "$MNT/file" "$slow/file" || fail "with little shared memory, after a refused resize"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" cache destroy "$SCRATCH/small/cache" >/dev/null
umount "$SCRATCH/run"

# An ordinary user's own cache and mount.
if command -v fusermount3 >/dev/null && [[ $(stat -c %a /dev/fuse) == 666 ]]; then
    cp "$HOTSHELF" "$SCRATCH/hotshelf"
    mkdir "$SCRATCH/user" && chown 65534:65534 "$SCRATCH/user"
    as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$SCRATCH/user" XDG_STATE_HOME="$SCRATCH/user" "$@"; }
    as_user mkdir "$SCRATCH/user/slow" "$SCRATCH/user/mnt"
    as_user "$SCRATCH/hotshelf" cache create "$SCRATCH/user/cache" --name "$name" --size 64MiB --memory 16MiB >/dev/null
    as_user "$SCRATCH/hotshelf" mount --cache "$SCRATCH/user/cache" --uring off "$SCRATCH/user/slow" "$SCRATCH/user/mnt"
    as_user sh -c "echo mine >$SCRATCH/user/mnt/mine"
    for words in "resize $SCRATCH/user/cache --size 96MiB" "drain $SCRATCH/user/cache"; do
        # shellcheck disable=SC2086
        as_user "$SCRATCH/hotshelf" cache $words >"$SCRATCH/out" || fail "an ordinary user: cache $words: $(cat "$SCRATCH/out")"
    done
    [[ $(as_user cat "$SCRATCH/user/mnt/mine") == mine ]] || fail "an ordinary user's file"
    as_user "$SCRATCH/hotshelf" unmount "$SCRATCH/user/mnt"
    as_user "$SCRATCH/hotshelf" cache destroy "$SCRATCH/user/cache" >/dev/null
else
    echo "NOTE: no mounts for ordinary users here: theirs were not tested"
fi
