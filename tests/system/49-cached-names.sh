#!/bin/bash
# TIMEOUT: 600
# TIMEOUT_FULL: 1800
# A cached directory whose names are remembered (--names): its calls are those of the directory, what was asked once is answered while the
# slow side does not reply, changes by other programs are seen after a check, and a remount still knows all.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 python3 git sshfs
has_sshfs || skip "there is no SFTP server"

parity=$(dirname "$HOTSHELF")/parity
[[ -x $parity ]] || fail "no $parity: cargo build --release --package sim"
slow=$SCRATCH/slow plain=$SCRATCH/plain cache=$SCRATCH/cache nas=$SCRATCH/nas name=cached-names-$$
export XDG_STATE_HOME=$SCRATCH/state
mkdir -p "$MNT" "$nas"
clean() {
    if [[ -n ${server:-} ]]; then kill -CONT "$server" 2>/dev/null || true; fi
    if [[ -n ${holder:-} ]]; then kill "$holder" 2>/dev/null || true; fi
    "$HOTSHELF" unmount "$MNT" 2>/dev/null || true
    umount -q "$nas" || true
    "$HOTSHELF" cache destroy "$cache" >/dev/null 2>&1 || true
    unmount_disks
}
trap clean EXIT
"$HOTSHELF" cache create "$cache" --name "$name" --size 256MiB --memory 64MiB >/dev/null

# Wrong words.
refused 2 'required' "$HOTSHELF" mount --ssd "$SCRATCH" --hdd "$nas" "$MNT" --names memory
refused 2 'invalid value' "$HOTSHELF" mount --cache "$cache" --names sometimes "$nas" "$MNT"

# Calls are those of ext4, whether what is remembered is fresh for long or old at once.
fs_of_size slow 1G -b 4096
fs_of_size plain 1G -b 4096
mount -o remount,nosuid,nodev "$slow"
mount -o remount,nosuid,nodev "$plain"
seed=${HOTSHELF_SEED:-6} steps=2500
[[ $FULL == 1 ]] && seed=${HOTSHELF_SEED:-$((RANDOM * 32768 + RANDOM))} steps=20000
for flags in '-- --names memory' '-- --names memory --cache-ttl 0' '--cache-mode write-back -- --names persistent' \
    '--cache-mode write-back -- --names memory --cache-ttl 3600'; do
    rm -rf "${plain:?}/dir" "${slow:?}/dir"
    mkdir "$plain/dir" "$slow/dir"
    # shellcheck disable=SC2086 # words
    "$parity" --hotshelf "$HOTSHELF" --cache "$cache" --directory "$slow/dir" --mnt "$MNT" --plain "$plain/dir" --seed "$seed" \
        --steps "$steps" $flags || fail "--seed $seed --steps $steps $flags"
    seed=$((seed + 1))
done

# A tree on a server that can be stopped, with a state directory that has no names yet.
export XDG_STATE_HOME=$SCRATCH/empty
rm -rf "${slow:?}/dir"
mkdir -p "$slow/dir/sub/deep"
for n in $(seq 40); do echo "$n" >"$slow/dir/sub/$n"; done
ln -s sub/1 "$slow/dir/link"
echo deep >"$slow/dir/sub/deep/file"
echo cold >"$slow/dir/never-read"
git init -q "$slow/dir/work"
cp -r "$ROOT/docs/decisions" "$slow/dir/work/"
git -C "$slow/dir/work" add -A
git -C "$slow/dir/work" -c user.name=a -c user.email=a@b commit -qm one
mount_sshfs "$slow/dir" "$nas"
server=$(pgrep -nf "passive,allow_other :$slow/dir $nas") || fail "no sshfs"
log=$SCRATCH/log
mount_names() {
    "$HOTSHELF" mount --cache "$cache" "$nas" "$MNT" --allow-other --names persistent --log-file "$log" --log-level info "$@"
}
look() { (cd "$1" && find . -mindepth 1 ! -path './work/.git/index' -printf '%p %y %s %m %u %n %l\n' | sort); }

mount_names
look "$MNT" >"$SCRATCH/first"
look "$nas" | cmp - "$SCRATCH/first" || fail "the first look differs from the directory"
# The first one writes the index, which the second one reads.
git -C "$MNT/work" status --porcelain >/dev/null || fail "git status"
git -C "$MNT/work" --no-optional-locks status --porcelain >"$SCRATCH/git" || fail "git status"
[[ ! -s $SCRATCH/git ]] || fail "git status: $(cat "$SCRATCH/git")"
cat "$MNT"/sub/* >"$SCRATCH/content" 2>/dev/null || true

# The server does not reply: names, absent names, attributes, links and files that the kernel has are there.
kill -STOP "$server"
timeout 30 bash -c "$(declare -f look); look '$MNT'" >"$SCRATCH/second" || fail "a look waited for the server"
cmp "$SCRATCH/first" "$SCRATCH/second" || fail "the second look differs"
timeout 30 bash -c "! [[ -e $MNT/sub/nothing || -e $MNT/nothing ]] && [[ \$(readlink $MNT/link) == sub/1 ]]" ||
    fail "names without the server"
timeout 30 git -C "$MNT/work" --no-optional-locks status --porcelain >"$SCRATCH/git" || fail "git status without the server"
[[ ! -s $SCRATCH/git ]] || fail "git status without the server: $(cat "$SCRATCH/git")"
timeout 30 cat "$MNT"/sub/[0-9]* | cmp - <(cd "$slow/dir" && cat sub/[0-9]*) || fail "files that the kernel has"
kill -CONT "$server"

# A remount knows the same.
"$HOTSHELF" unmount "$MNT"
ls "$XDG_STATE_HOME"/hotshelf/names-* >/dev/null || fail "no names were saved"
mount_names
! ls "$XDG_STATE_HOME"/hotshelf/names-* 2>/dev/null || fail "the saved names stay while the directory is mounted"
kill -STOP "$server"
timeout 30 bash -c "$(declare -f look); look '$MNT'" >"$SCRATCH/third" || fail "a look after the remount waited for the server"
cmp "$SCRATCH/first" "$SCRATCH/third" || fail "the look after the remount differs"
kill -CONT "$server"
cat "$MNT"/sub/[0-9]* | cmp - <(cd "$slow/dir" && cat sub/[0-9]*) || fail "files after the remount"

# What the cache has of a file is read without opening it below: of a file that is looked at before the server stops, and of any once the
# side is away. The first and the second half of the files, so that the kernel has no pages of either. Another process keeps their inodes in
# memory, as sshfs numbers those.
"$HOTSHELF" unmount "$MNT"
descriptors=()
python3 -c 'import signal, sys; files = [open(path) for path in sys.argv[1:]]; signal.pause()' "$nas"/sub/[0-9]* &
holder=$!
is_held() { [[ $(find "/proc/$holder/fd" -lname '*/sub/*' | wc -l) == 40 ]]; }
wait_until 20 is_held
"$HOTSHELF" cache warm --cache "$cache" "$nas/sub" >/dev/null
mount_names --deadline 2 --cache-ttl 1
for file in "$MNT"/sub/[12]*; do
    exec {descriptor}<"$file"
    descriptors+=("$descriptor")
done
stat "$MNT"/sub/[3-9]* >/dev/null
kill -STOP "$server"
for descriptor in "${descriptors[@]}"; do
    timeout 30 cat <&"$descriptor" || fail "a read from the cache waited for the server"
done | cmp - <(cd "$slow/dir" && cat sub/[12]*) || fail "files that are not open below"
for descriptor in "${descriptors[@]}"; do exec {descriptor}<&-; done
! timeout 30 cat "$MNT/never-read" >/dev/null 2>"$SCRATCH/error" || fail "the cache does not have this file, and it is read"
grep -q 'timed out' "$SCRATCH/error" || fail "a file that the cache does not have: $(cat "$SCRATCH/error")"
"$HOTSHELF" status "$MNT" | grep -q 'slow side: away' || fail "the side is not away: $("$HOTSHELF" status "$MNT")"
timeout 30 bash -c "cat '$MNT'/sub/[3-9]*" | cmp - <(cd "$slow/dir" && cat sub/[3-9]*) || fail "files of a side that is away"
kill -CONT "$server"
kill "$holder"
replies() { "$HOTSHELF" status "$MNT" | grep -q 'slow side: replies'; }
wait_until 20 replies
# Another program changes a file: what the cache has is of another version, also where the size stays.
has() { [[ $(cat "$MNT/sub/7") == "$1" ]]; }
echo x >"$nas/sub/7"
wait_until 20 has x || fail "a file that was changed below: $(cat "$MNT/sub/7")"
# Times have seconds there.
echo 7 >"$nas/sub/7" && touch -d '2001-01-01' "$nas/sub/7"
wait_until 20 has 7 || fail "a file that was changed back below: $(cat "$MNT/sub/7")"
# A program that has a file, of which it has read only what the cache has, sees what another program appends, as does one that opens it.
"$HOTSHELF" unmount "$MNT"
mount_names --deadline 2 --cache-ttl 1
exec {descriptor}<"$MNT/sub/7"
[[ $(cat <&"$descriptor") == 7 ]] || fail "a file that another program is about to change"
echo appended >>"$nas/sub/7"
has_all() { has $'7\nappended'; }
wait_until 20 has_all || fail "a file that was appended to: $(cat "$MNT/sub/7")"
got=$(cat <&"$descriptor") || fail "a file that was appended to while it was open cannot be read"
[[ $got == appended ]] || fail "a file that was appended to while it was open: '$got'"
has_all || fail "reads by an older descriptor changed what a file has: $(cat "$MNT/sub/7")"
exec {descriptor}<&-
# One that is replaced stays what it is for a program that has read it for a second.
daemon=$(pgrep -nf "mount --cache $cache .*$MNT") || fail "no daemon"
python3 - "$MNT/sub/8" "$nas/sub/8" "/proc/$daemon/fd" <<'PYTHON' || fail "a file that was replaced"
import os, sys, time
path, below, descriptors = sys.argv[1:]
file = os.open(path, os.O_RDONLY)
assert os.pread(file, 9, 0) == b"8\n"

def is_open_below():
    for name in os.listdir(descriptors):
        try:
            flags = open(f"{descriptors}/../fdinfo/{name}").read().split("flags:")[1].split()[0]
            if os.readlink(f"{descriptors}/{name}") == below and not int(flags, 8) & os.O_PATH:
                return True
        except FileNotFoundError:
            pass
    return False

end = time.monotonic() + 20
while not is_open_below():
    assert time.monotonic() < end, "a file that is read for long is not opened"
    time.sleep(0.05)
with open(f"{below}.new", "w") as new:
    new.write("other\n")
os.rename(f"{below}.new", below)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(file, 9, 0) == b"8\n", os.pread(file, 9, 0)
PYTHON
echo 8 >"$nas/sub/8"
is_as_below() { look "$MNT" | cmp -s - <(look "$nas"); }
wait_until 20 is_as_below || fail "changes by others: $(diff <(look "$MNT") <(look "$nas"))"

# Own changes are seen at once.
echo new >"$MNT/sub/new"
mv "$MNT/sub/1" "$MNT/sub/one"
rm "$MNT/sub/2"
mkdir "$MNT/sub/more"
[[ $(cat "$MNT/sub/new") == new && ! -e $MNT/sub/1 && ! -e $MNT/sub/2 && -d $MNT/sub/more && $(cat "$MNT/sub/one") == 1 ]] ||
    fail "own changes: $(ls "$MNT/sub")"
look "$nas/sub" >"$SCRATCH/below"
look "$MNT/sub" | cmp - "$SCRATCH/below" || fail "own changes are not those of the directory"
"$HOTSHELF" unmount "$MNT"

# Other programs change the directory while it is not mounted, and while it is: seen after a look, and content never of two versions.
echo 'changed below' >"$nas/sub/3"
rm "$nas/sub/4"
mv "$nas/sub/5" "$nas/sub/five"
mount_names --cache-ttl 1
# Names that are gone may still be listed once.
ls -lR "$MNT" >/dev/null 2>&1 || true
wait_until 20 is_as_below || fail "changes while it was not mounted: $(diff <(look "$MNT") <(look "$nas"))"
[[ $(cat "$MNT/sub/3") == 'changed below' ]] || fail "a file that was changed: $(cat "$MNT/sub/3")"
echo 'changed again, and longer' >"$nas/sub/3"
touch "$nas/sub/deep/added"
rm "$nas/sub/6"
wait_until 20 is_as_below || fail "changes while it was mounted: $(diff <(look "$MNT") <(look "$nas"))"
[[ $(cat "$MNT/sub/3") == 'changed again, and longer' ]] || fail "a file that was changed while mounted"
"$HOTSHELF" unmount "$MNT"

# Damaged and foreign files of names are not used: they hold what the directory has, so only the log tells. A good one is, and a killed
# daemon leaves none.
saved=$(ls "$XDG_STATE_HOME"/hotshelf/names-*)
not_used=' not used'
grep -q "$not_used" "$log" && fail "good names were not used: $(grep "$not_used" "$log")"
printf 'x' | dd of="$saved" bs=1 seek=40 conv=notrunc status=none
mount_names
grep -q 'or damaged: not used' "$log" || fail "a damaged file of names was used"
is_as_below || fail "after a damaged file of names"
"$HOTSHELF" unmount "$MNT"
chmod 666 "$saved"
: >"$log"
mount_names
grep -q 'others may write it' "$log" || fail "a file of names that all may write was used"
is_as_below || fail "after a file of names that all may write"
"$HOTSHELF" unmount "$MNT"
chown 65534 "$saved"
: >"$log"
mount_names
grep -q "another user's" "$log" || fail "another user's file of names was used"
is_as_below || fail "after another user's file of names"
"$HOTSHELF" unmount "$MNT"
: >"$log"
mount_names
grep -q "$not_used" "$log" && fail "good names were not used: $(grep "$not_used" "$log")"
daemon=$(pgrep -nf "mount --cache $cache .*$MNT") || fail "no daemon"
kill -9 "$daemon"
drop_dead_mount
[[ -z $(ls "$XDG_STATE_HOME"/hotshelf/names-* 2>/dev/null) ]] || fail "names of a killed daemon"
mount_names
is_as_below || fail "after a killed daemon"
