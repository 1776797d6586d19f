#!/bin/bash
# TIMEOUT: 240
# TIMEOUT_FULL: 900
# A cached mount of more files than its daemon may open, as root and as an ordinary user; and files that another program removes.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 python3 setpriv fusermount3

files=20000 limit=1024 copied='00[0-3]'
[[ $FULL == 1 ]] && copied='*'
slow=$SCRATCH/slow cache=$SCRATCH/cache
mkdir -p "$MNT"
parity=$(dirname "$HOTSHELF")/parity
[[ -x $parity ]] || fail "no $parity: cargo build --release --package sim"
as=() owner=0:0
trap '"${as[@]}" "$HOTSHELF" unmount "$MNT" 2>/dev/null || true; "${as[@]}" "$HOTSHELF" cache destroy "$cache" >/dev/null 2>&1 || true' EXIT

fs_of_size slow 1G -b 4096 -N 100000
mount -o remount,nosuid,nodev "$slow"

make_tree() {
    python3 - "$1" $files <<'END'
import os, sys
for number in range(int(sys.argv[2])):
    directory = f"{sys.argv[1]}/{number // 500:03}/x"
    if number % 500 == 0:
        os.makedirs(directory)
    with open(f"{directory}/{number:05}", "w") as file:
        file.write(str(number))
END
    chown -R "$owner" "$1"
}

descriptors() { find "/proc/$(pgrep -f -- "mount --cache $cache" | head -1)/fd" -mindepth 1 | wc -l; }

# Looks at all files, holds some open, copies and removes, each as an ordinary program does.
use_many() {
    local dir=$1 found
    make_tree "$dir/many"
    (ulimit -n $limit && "${as[@]}" "$HOTSHELF" mount --cache "$cache" "$dir" "$MNT")
    found=$("${as[@]}" find "$MNT/many" -type f -links 1 -size -2 | wc -l)
    [[ $found == "$files" ]] || fail "find sees $found of $files files"
    (($(descriptors) < limit * 3 / 4)) || fail "$(descriptors) of $limit descriptors are open"
    "${as[@]}" ls -lR "$MNT/many" >"$SCRATCH/out" || fail "ls -lR"
    [[ $(grep -c '^-' "$SCRATCH/out") == "$files" ]] || fail "ls -lR shows $(grep -c '^-' "$SCRATCH/out") files"
    "${as[@]}" mkdir "$MNT/copy"
    "${as[@]}" cp -a "$MNT/many/"$copied "$MNT/copy/" || fail "cp -a"
    for name in "$dir/copy"/*; do
        diff -r "$dir/many/${name##*/}" "$name" || fail "the copy differs: $name"
    done
    # A process stays in its directory and keeps its files while others use up the descriptors.
    "${as[@]}" bash -eu -c 'cd "$1/many/005/x"
        exec 5<02500 6>>02501
        find "$1/many" -type f -newermt 2000-01-01 >/dev/null
        [[ $(cat <&5) == 2500 && $(cat 02502) == 2502 ]]
        echo more >&6' - "$MNT" || fail "open and relative files"
    [[ $(cat "$dir/many/005/x/02501") == 2501more ]] || fail "an append to an open file"
    # Files that the mount moves are found again.
    "${as[@]}" mv "$MNT/many/006" "$MNT/many/moved"
    "${as[@]}" find "$MNT/many" -type f -size -2 >/dev/null
    [[ $("${as[@]}" cat "$MNT/many/moved/x/03001") == 3001 ]] || fail "a file in a renamed directory"
    "${as[@]}" rm -r "$MNT/copy" "$MNT/many" || fail "rm -r"
    [[ ! -e $dir/many && ! -e $dir/copy ]] || fail "rm -r left files"
    "${as[@]}" "$HOTSHELF" unmount "$MNT"
}

# Root.
mkdir "$slow/dir"
"$HOTSHELF" cache create "$cache" --name "cached-many-$$" --size 256MiB --memory 64MiB >/dev/null
use_many "$slow/dir"

# Programs may have more than a quarter of the limit open, though the kernel knows more files than the limit allows descriptors.
mkdir "$slow/dir/open"
(files=2000 && make_tree "$slow/dir/open")
(ulimit -n $limit && "$HOTSHELF" mount --cache "$cache" "$slow/dir" "$MNT")
find "$MNT/open" -type f -size -2 >/dev/null
python3 - "$MNT/open" <<'END' || fail "more open files than a quarter of the limit"
import os, sys
names = [f"{dir}/{name}" for dir, _, names in os.walk(sys.argv[1]) for name in names][:290]
files = [open(name, "r+b", buffering=0) for name in names]
for file in files:
    file.seek(0, 2)
    file.write(b"more")
    os.fsync(file.fileno())
os.link(names[0], f"{sys.argv[1]}/link")
os.rename(f"{sys.argv[1]}/link", f"{sys.argv[1]}/renamed")
os.unlink(f"{sys.argv[1]}/renamed")
assert len(os.listdir(sys.argv[1])) == 4
new = [open(f"{sys.argv[1]}/new-{number}", "w+b", buffering=0) for number in range(10)]
END
[[ $(grep -rl more "$slow/dir/open" | wc -l) == 290 ]] || fail "not all appends are below"
"$HOTSHELF" unmount "$MNT"

# Random calls while nearly every descriptor is closed at once.
mkdir "$slow/plain"
rm -rf "${slow:?}/dir"
mkdir "$slow/dir"
(ulimit -n 192 && "$parity" --hotshelf "$HOTSHELF" --cache "$cache" --directory "$slow/dir" --mnt "$MNT" --plain "$slow/plain" \
    --seed 49 --steps 1000) || fail "--seed 49 --steps 1000"

# A file that another program removes frees its blocks, though the kernel knows its name; one that is open does when it is closed.
rm -rf "${slow:?}/dir"
mkdir "$slow/dir"
"$HOTSHELF" mount --cache "$cache" "$slow/dir" "$MNT"
free() { stat -f -c %f "$slow"; }
head -c 64M /dev/zero >"$MNT/large"
head -c 64M /dev/zero >"$MNT/open"
exec 5<"$MNT/open"
sync -f "$slow"
before=$(free)
rm "$slow/dir/large" "$slow/dir/open"
freed_64m() { (($(free) > before + 16000)); }
wait_until 20 freed_64m
[[ ! -e $MNT/large && $(wc -c <&5) == 67108864 ]] || fail "a removed file is there, or an open one is not whole"
before=$(free)
exec 5<&-
wait_until 20 freed_64m
echo new >"$slow/dir/large"
wait_until 10 grep -q new "$MNT/large"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" cache destroy "$cache" >/dev/null

# An ordinary user, whose daemon cannot open files by handle.
fuse_mode=$(stat -c %a /dev/fuse)
[[ $fuse_mode == *6 ]] || { chmod 666 /dev/fuse; trap 'chmod "$fuse_mode" /dev/fuse' EXIT; }
owner=65534:65534
as=(setpriv --reuid 65534 --regid 65534 --clear-groups env "HOME=$SCRATCH/home")
mkdir "$SCRATCH/home" "$slow/user"
cp "$HOTSHELF" "$SCRATCH/hotshelf"
HOTSHELF=$SCRATCH/hotshelf cache=$SCRATCH/home/cache
mkdir -p "$XDG_STATE_HOME"
chown -R "$owner" "$SCRATCH/home" "$slow/user" "$MNT" "$XDG_STATE_HOME"
"${as[@]}" test -x "$SCRATCH" || skip "the scratch directory is out of reach for an ordinary user"
"${as[@]}" "$HOTSHELF" cache create "$cache" --name "cached-many-user-$$" --size 64MiB --memory 16MiB >/dev/null
files=5000 limit=512 copied=000
use_many "$slow/user"
# A file whose mode does not allow what the call that creates it may do, as git makes its objects.
"${as[@]}" "$HOTSHELF" mount --cache "$cache" "$slow/user" "$MNT"
"${as[@]}" python3 - "$MNT/read-only" <<'END' || fail "a new file of mode 0444 cannot be written"
import os, sys
for flags, name in ((os.O_RDWR, "-1"), (os.O_WRONLY, "-2")):
    file = os.open(sys.argv[1] + name, flags | os.O_CREAT | os.O_EXCL, 0o444)
    os.write(file, b"kept")
    os.fsync(file)
    os.close(file)
END
[[ $(cat "$slow/user/read-only-1" "$slow/user/read-only-2") == keptkept ]] || fail "a new file of mode 0444 is not below"
"${as[@]}" "$HOTSHELF" unmount "$MNT"
"${as[@]}" "$HOTSHELF" cache destroy "$cache" >/dev/null
as=()
unmount_disks
