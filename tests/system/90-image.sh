#!/bin/bash
# TIMEOUT: 120
# A file system in an image: made, mounted, used by ordinary programs, killed, looked over; and what is said when it cannot be.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need git sqlite3 tar rsync mountpoint
root_only

image=$SCRATCH/image
mkdir -p "$MNT"
# What cannot be.
refused 2 'say how large' "$HOTSHELF" fs mkfs "$image"
refused 1 'image' "$HOTSHELF" fs mount "$image" "$MNT"
refused 1 'sizes that do not fit' "$HOTSHELF" fs mkfs "$image" --size 64KiB
[[ ! -e $image ]] || fail "a refused mkfs leaves a file"
head -c 8M /dev/urandom >"$SCRATCH/data"
refused 1 'is kept' "$HOTSHELF" fs mkfs "$SCRATCH/data"
refused 1 'no file system of hotshelf' "$HOTSHELF" fs mount "$SCRATCH/data" "$MNT"
"$HOTSHELF" fs mkfs "$SCRATCH/data" --force >/dev/null

# A tree goes in and comes back the same, through a clean end and through a kill.
"$HOTSHELF" fs mkfs "$image" --size 512MiB --json | grep -q data_bytes || fail "mkfs --json"
refused 1 'hotshelf file system' "$HOTSHELF" fs mkfs "$image"
"$HOTSHELF" fs mount "$image" "$MNT"
refused 1 'in use' "$HOTSHELF" fs check "$image"
refused 1 'in use' "$HOTSHELF" fs mkfs "$image" --force
cp -a /usr/include "$MNT/include"
tar -C /usr/include -cf - . | tar -C "$MNT" -xf - --one-top-level=again
diff -r --no-dereference /usr/include "$MNT/include" || fail "cp -a"
diff -r --no-dereference /usr/include "$MNT/again" || fail "tar"
rsync -aHAX --checksum --dry-run --itemize-changes /usr/include/ "$MNT/include/" >"$SCRATCH/out"
[[ ! -s $SCRATCH/out ]] || fail "rsync sees differences: $(head -3 "$SCRATCH/out")"
mv "$MNT/again" "$MNT/a directory of another name"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" fs check "$image" >"$SCRATCH/out" || fail "check: $(cat "$SCRATCH/out")"
grep -q clean "$SCRATCH/out" || fail "$(cat "$SCRATCH/out")"
"$HOTSHELF" fs mount "$image" "$MNT"
diff -r --no-dereference /usr/include "$MNT/a directory of another name" || fail "after it was unmounted"

# What programs synced is there after a kill.
(
    cd "$MNT" && git init -q repository && cd repository && cp -r /usr/include/asm-generic . && git add -A &&
        git -c user.name=n -c user.email=e commit -qm all && git fsck --strict 2>&1 && git status --short
) >"$SCRATCH/out" || fail "git: $(cat "$SCRATCH/out")"
sqlite3 "$MNT/data.db" 'pragma journal_mode=wal; create table t(a integer primary key, b blob);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) insert into t select i, randomblob(200) from n' \
    >/dev/null
# The kernel does not hand syncfs to file systems of our kind.
find "$MNT/repository" -type f -print0 | xargs -0 sync
sums() { (cd "$MNT" && find include repository -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }
before=$(sums)
kill -9 "$(pgrep -f "fs mount $image" | head -1)"
umount -l "$MNT"
wait_until 10 "$HOTSHELF" fs check "$image" >"$SCRATCH/out" || fail "check after a kill: $(cat "$SCRATCH/out")"
"$HOTSHELF" fs mount "$image" "$MNT"
[[ $(sums) == "$before" ]] || fail "what was synced differs after a kill"
[[ $(sqlite3 "$MNT/data.db" 'pragma integrity_check; select count(*) from t') == $'ok\n5000' ]] || fail "the database after a kill"
git -C "$MNT/repository" fsck --strict >/dev/null 2>&1 || fail "the repository after a kill"
"$HOTSHELF" unmount "$MNT"

# Full: what does not fit is refused, what was there stays, and removing makes room.
"$HOTSHELF" fs mount "$image" "$MNT"
if head -c 600M /dev/zero >"$MNT/large" 2>"$SCRATCH/out"; then sync "$MNT/large" 2>/dev/null && fail "600 MB fit into 512 MiB"; fi
[[ -f $MNT/data.db ]] || fail "a full image has lost a file"
rm "$MNT/large"
echo more >"$MNT/more" && sync "$MNT/more" || fail "there is no room after a removal"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" fs check "$image" >"$SCRATCH/out" || fail "check after it was full: $(cat "$SCRATCH/out")"

# Cut off, of the future, damaged: said, not guessed.
cp --sparse=always "$image" "$SCRATCH/cut" && truncate -s 64M "$SCRATCH/cut"
refused 1 'cut off' "$HOTSHELF" fs mount "$SCRATCH/cut" "$MNT"
dd if=/dev/urandom of="$SCRATCH/cut" bs=4096 count=2 conv=notrunc status=none
refused 1 "$SCRATCH/cut" "$HOTSHELF" fs mount "$SCRATCH/cut" "$MNT"
refused 1 'not a directory' "$HOTSHELF" fs mount "$image" "$SCRATCH/nowhere"
