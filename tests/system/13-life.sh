#!/bin/bash
# How a mount begins and ends: in the foreground and background, by signals, by mount(8) and fstab, after a killed daemon.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

mounted() { mountpoint -q "$MNT"; }
gone() { ! mounted; }
# ended PID: waits for a child to end, or checks that it did.
ended() { [[ ! -e /proc/$1 ]] || { grep -q '^State:.Z' "/proc/$1/status" && [[ $(ls "/proc/$1/task") == "$1" ]]; }; }
answers() { "$HOTSHELF" status "$MNT" >/dev/null 2>&1; }
pair=("$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD")
# in_foreground MOUNTPOINT: a daemon in the foreground, which answers; $pid.
in_foreground() {
    "${pair[@]}" --foreground "$1" 2>"$SCRATCH/log" &
    pid=$!
    (wait_until 10 answers) || fail "it does not answer: $(tail -n 5 "$SCRATCH/log") $(grep -s State "/proc/$pid/status")"
}
dead() { [[ $(stat "$MNT" 2>&1) == *'not connected'* ]]; }
mkdir -p "$SSD" "$HDD" "$MNT"
echo data >"$HDD/file"

# Background: it answers when the command returns, and nothing holds the caller's terminal or directory.
mount_pair
[[ $(cat "$MNT/file") == data ]] || fail "the command returned before the mount answered"
pid=$(daemon_pid)
[[ $(readlink "/proc/$pid/fd/0") == /dev/null ]] || fail "the daemon has the caller's standard input"
[[ $(ps -o pgid= -p "$pid" | tr -d ' ') == "$pid" ]] || fail "the daemon is in the caller's process group"
grep -q mounted "$SSD/.hotshelf/log" || fail "nothing in the log"
unmount_pair
ended "$pid" || fail "unmount returned before the daemon had ended"

# Signals: the mount is gone, the history is saved, the daemon says 0, the next mount finds all well.
for signal in TERM INT HUP; do
    in_foreground "$MNT"
    grep -q mounted "$SCRATCH/log" || fail "the foreground does not log to standard error"
    echo "$signal" >"$MNT/$signal"
    kill -s "$signal" "$pid"
    code=0
    wait "$pid" || code=$?
    [[ $code == 0 ]] || fail "SIG$signal: exit $code: $(cat "$SCRATCH/log")"
    gone || fail "SIG$signal: still mounted"
    clean_check
    [[ $(cat "$SSD/$signal") == "$signal" ]] || fail "SIG$signal: what was written is gone"
done
# A file is open: unmount waits for a limited time, then detaches the mount; the data is safe in any case.
mount_pair --log-level info --log-file "$SCRATCH/own.log" --log-json
pid=$(daemon_pid)
exec 8>"$MNT/held"
kill "$pid"
wait_until 20 gone
echo late >&8
exec 8>&-
wait_until 10 ended "$pid"
[[ $(cat "$SSD/held") == late ]] || fail "a write after the mount went out of sight is lost"
sed -n 1p "$SCRATCH/own.log" | grep -q '^{.*}$' || fail "the log is not JSON"

# By configuration file; a flag wins.
printf 'ssd = "%s"\nhdd = "%s"\nmountpoint = "%s"\npolicy = "lfu"\npromotion = "never"\n' "$SSD" "$HDD" "$MNT" >"$SCRATCH/pool.toml"
"$HOTSHELF" mount --config "$SCRATCH/pool.toml" --promotion on-open
[[ $(field policy) == lfu && $(field promotion) == on-open ]] || fail "file and flag"
unmount_pair

# One thread serves everything, moves too.
mount_pair --single-thread
for n in 1 2 3 4; do
    (head -c 3M /dev/urandom | tee "$MNT/t$n" | sha256sum >"$SCRATCH/sum$n") &
done
wait
for n in 1 2 3 4; do
    "$HOTSHELF" migrate "$MNT/t$n" --to hdd >/dev/null
    sha256sum <"$MNT/t$n" | cmp - "$SCRATCH/sum$n" || fail "one thread: t$n differs"
done
unmount_pair

# What `make install` lays down.
dest=$SCRATCH/dest
make -C "$ROOT" --no-print-directory install DESTDIR="$dest" PREFIX=/usr CARGO_TARGET_DIR="$SCRATCH/target" \
    PROGRAM="$HOTSHELF" LIBRARY="$(dirname "$HOTSHELF")/libhotshelf.so" \
    EXTENSION="$(dirname "$HOTSHELF")/libhotshelf_sqlite.so" NOCACHE="$(dirname "$HOTSHELF")/libhotshelf_nocache.so" \
    >"$SCRATCH/install" 2>&1 ||
    fail "make install: $(cat "$SCRATCH/install")"
[[ -x $dest/usr/bin/hotshelf && -s $dest/usr/share/man/man1/hotshelf-mount.1 ]] || fail "make install: $(find "$dest")"
[[ $(readlink "$dest/sbin/mount.fuse.hotshelf") == /usr/bin/hotshelf ]] || fail "no mount helper: $(find "$dest")"
unit=$dest/usr/lib/systemd/system/hotshelf@.service
grep -q '^ExecStart=/usr/bin/hotshelf mount' "$unit" || fail "the unit does not name the installed program"
if command -v systemd-analyze >/dev/null; then
    mkdir "$SCRATCH/units"
    sed "s|/usr/bin/hotshelf|$HOTSHELF|" "$unit" >"$SCRATCH/units/hotshelf@pool.service"
    MANPATH="$dest/usr/share/man:" systemd-analyze verify "$SCRATCH/units/hotshelf@pool.service" >"$SCRATCH/verify" 2>&1 ||
        fail "the unit: $(cat "$SCRATCH/verify")"
    grep -i 'hotshelf@pool.service:' "$SCRATCH/verify" && fail "systemd complains about the unit"
fi

# mount(8) finds the helper, with the words of fstab; and mount.fuse3's way, where the program itself is the helper.
# Both are tried where nobody else sees the link: in a mount namespace.
helped=$SCRATCH/helped
mkdir -p "$helped"
cat >"$SCRATCH/both" <<EOF
mounted() { mountpoint -q "$MNT"; }
used() {
    [[ \$(findmnt -no FSTYPE,SOURCE "$MNT" | tr -s ' ') == "fuse.hotshelf $SSD:$HDD" ]]
    findmnt -no OPTIONS "$MNT" | grep noexec
    [[ \$(cat "$MNT/file") == data ]]
    "$HOTSHELF" status --json "$MNT" | grep '"policy": "lfu"'
    umount "$MNT"
    for _ in \$(seq 200); do
        flock -n "$SSD/.hotshelf/lock" true && return
        sleep 0.05
    done
    exit 1
}
EOF
cat >"$SCRATCH/by-helper" <<EOF
source "$SCRATCH/both"
mount -t tmpfs none "$helped"
cp -a /sbin/. "$helped"
ln -sfn "$HOTSHELF" "$helped/mount.fuse.hotshelf"
mount --bind "$helped" "\$(realpath /sbin)"
mount -t fuse.hotshelf "$SSD:$HDD" "$MNT" -o rw,nofail,x-systemd.automount,allow_other,noexec,policy=lfu
used
echo "$SSD:$HDD $MNT fuse.hotshelf allow_other,nofail,noexec,policy=lfu 0 0" >"$SCRATCH/fstab"
mount -f -T "$SCRATCH/fstab" "$MNT"
if mounted; then exit 1; fi
mount -T "$SCRATCH/fstab" "$MNT"
used
EOF
unshare -m bash -eu "$SCRATCH/by-helper" >"$SCRATCH/out" 2>&1 || fail "mount -t fuse.hotshelf: $(cat "$SCRATCH/out")"
if command -v mount.fuse3 >/dev/null; then
    mkdir -p "$SCRATCH/bin"
    ln -sfn "$HOTSHELF" "$SCRATCH/bin/hotshelf"
    cat >"$SCRATCH/by-fuse" <<EOF
source "$SCRATCH/both"
PATH=$SCRATCH/bin:\$PATH
mount.fuse3 "$SSD:$HDD" "$MNT" -t fuse.hotshelf -o rw,nofail,noexec,policy=lfu
used
EOF
    unshare -m bash -eu "$SCRATCH/by-fuse" >"$SCRATCH/out" 2>&1 || fail "mount.fuse3: $(cat "$SCRATCH/out")"
fi

# A killed daemon leaves a dead mount. Status reports it, and the next mount of the pair replaces it, so a service manager's restart works.
mount_pair
echo kept >"$MNT/kept"
exec 8<"$MNT/kept"
kill -9 "$(daemon_pid)"
wait_until 10 dead
refused 1 "daemon of $MNT is gone: mount it again" "$HOTSHELF" status "$MNT"
refused 1 "daemon of $MNT is gone: mount it again" "$HOTSHELF" why "$MNT/kept"
mkdir -p "$SCRATCH/ssd2" "$SCRATCH/hdd2"
refused 1 "$MNT is a dead mount of $SSD and $HDD.*umount -l $MNT" \
    "$HOTSHELF" mount --ssd "$SCRATCH/ssd2" --hdd "$SCRATCH/hdd2" "$MNT"
mount_pair || fail "a dead mount of the pair is not taken over"
[[ $(cat "$MNT/kept") == kept ]] || fail "kept after the restart"
cat <&8 >/dev/null 2>&1 && fail "a descriptor of the dead mount works"
exec 8<&-
[[ $(grep -c " $MNT " /proc/self/mountinfo) == 1 ]] || fail "the dead mount is below the new one"
# In the foreground as the unit does it, through a link, with a dead mount upon a dead mount; then `unmount` of a dead one.
kill -9 "$(daemon_pid)"
wait_until 10 dead
ln -s "$SCRATCH" "$SCRATCH/link"
in_foreground "$SCRATCH/link/mnt"
grep -q 'removed the dead mount' "$SCRATCH/log" || fail "the log does not tell of the dead mount: $(cat "$SCRATCH/log")"
kill -9 "$pid"
wait_until 10 dead
"$HOTSHELF" unmount "$SCRATCH/link/mnt" || fail "a dead mount cannot be unmounted"
gone || fail "a dead mount is still there"
mount_pair
unmount_pair
clean_check
grep -q '^Restart=on-failure' "$unit" || fail "the unit does not restart a daemon that died"
