#!/bin/bash
# TIMEOUT: 120
# Retiring a side: everything goes to the other one, which plain tools find complete: compared with a copy from before, without the
# mount. Mounted and not, from either side, while files are made; killed at every step and gone on with; refused when there is no room.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need rsync setfacl setfattr mkfs.ext4 fallocate python3

# The marks of inode numbers are ours, and of no use to anybody else.
compare=(rsync -n -aHAXx --delete --itemize-changes --exclude=/.hotshelf --exclude=/lost+found --filter='-x trusted.hotshelf.*')

# grow SIDE: every kind of file, on one side of an unmounted pair; some directories are on both.
grow() {
    local side=$1 other=$HDD n
    [[ $side == "$SSD" ]] || other=$SSD
    mkdir -p "$side/dir/sub" "$side/empty/deep" "$side/both" "$other/both"
    chmod 750 "$side/both" "$other/both"
    for n in {1..20}; do head -c $((n * 3000)) /dev/urandom >"$side/dir/$n"; done
    truncate -s 5M "$side/dir/sparse"
    echo other >"$other/both/there"
    echo linked >"$side/dir/linked"
    ln "$side/dir/linked" "$side/linked"
    ln "$side/dir/linked" "$side/dir/sub/linked"
    ln -s ../nowhere "$side/dir/dangling"
    ln -s dir "$side/to-dir"
    mkfifo "$side/dir/pipe"
    mknod "$side/dir/device" c 1 3
    ln "$side/dir/device" "$side/second-device"
    python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$side/dir/socket"
    chown -h 1234:2345 "$side/dir/dangling" "$side/dir/pipe" "$side/dir/3" "$side/empty/deep"
    chmod 2751 "$side/empty/deep"
    chmod 4755 "$side/dir/5"
    setfacl -m u:1234:rwx "$side/dir/4"
    setfacl -m u:1234:rx,d:u:1234:rwx "$side/empty"
    setfattr -n user.note -v kept "$side/dir/6"
    setfattr -n user.note -v kept "$side/empty/deep"
    setfattr -h -n trusted.note -v kept "$side/dir/dangling"
    touch -d '2001-02-03 04:05:06.789' "$side/dir/7" "$side/empty/deep" "$side/dir"
    touch -h -d '2002-03-04 05:06:07.89' "$side/dir/dangling" "$side/dir/pipe"
}

# as_shown DIR: a copy of what the mount shows.
as_shown() {
    mkdir -p "$1"
    rsync -aHAX --exclude=/lost+found "$MNT/" "$1/"
}

# complete SIDE LIKE: the side alone is like the copy.
complete() {
    "${compare[@]}" "$2/" "$1/" >differences || fail "rsync: $(cat differences)"
    [[ ! -s differences ]] || fail "$1 is not complete: $(head differences)"
    diff -r --no-dereference --exclude=.hotshelf --exclude=lost+found "$1" "$2" >differences 2>&1 || true
    # diff compares neither devices nor sockets, and says so.
    grep -v 'is a .* while file\|character special\|fifo\|socket' differences >other-differences || true
    [[ ! -s other-differences ]] || fail "$1 differs: $(head other-differences)"
}

# holds_nothing SIDE: nothing but directories.
holds_nothing() {
    [[ -z $(find "$1" -path "$1/.hotshelf" -prune -o ! -type d -print) ]] || fail "$1 still holds: $(find "$1" ! -type d | head)"
}

anew() {
    ! mountpoint -q "$MNT" || unmount_pair
    rm -rf "$SSD" "$HDD" like
    mkdir -p "$SSD" "$HDD"
}
trap '! mountpoint -q "$MNT" || unmount_pair' EXIT
cd "$SCRATCH"

# Mounted, from each side; files are made meanwhile, and the mount goes on.
for side in ssd hdd; do
    anew
    from=$SSD to=$HDD
    [[ $side == ssd ]] || { from=$HDD to=$SSD; }
    grow "$from"
    mount_pair
    before=$(stat -c %i "$MNT/dir/dangling" "$MNT/linked" "$MNT/dir/1")
    as_shown like
    "$HOTSHELF" retire --dry-run "$MNT" $side >said || fail "--dry-run: $(cat said)"
    grep -q 'would go to the' said || fail "--dry-run says: $(cat said)"
    [[ -e $from/dir/1 ]] || fail "--dry-run moved something"
    mkfifo go
    (for n in {1..30}; do echo "$n" >"$MNT/new-$n"; ((n != 3)) || echo >go; done) &
    read -r <go
    "$HOTSHELF" retire "$MNT" $side >said || fail "retire: $(cat said)"
    wait $!
    rm go
    grep -q 'all is on the' said || fail "retire says: $(cat said)"
    says "retired .*the $side" || fail "status does not say it"
    holds_nothing "$from"
    for n in {1..30}; do echo "$n" >"like/new-$n"; done
    [[ $(cat "$MNT"/new-* | sort -n | tr '\n' ' ') == "$(seq -s ' ' 30) " ]] || fail "new files are not what was written"
    touch -r "$MNT" like
    for n in {1..30}; do touch -r "$MNT/new-$n" "like/new-$n"; done
    [[ $(stat -c %i "$MNT/dir/dangling" "$MNT/linked" "$MNT/dir/1") == "$before" ]] || fail "numbers changed while it is mounted"
    ln -s x "$MNT/later" && [[ -L $to/later ]] || fail "what is new goes to the side that is retired"
    rm "$MNT/later"
    touch -r "$MNT" like
    fails_with 'is being retired' "$HOTSHELF" migrate "$MNT/dir/1" --to $side
    unmount_pair
    rm -rf "$from"
    complete "$to" like
done

# Not mounted; and `migrate` does not say that all is there.
anew
grow "$SSD"
mount_pair
as_shown like
"$HOTSHELF" migrate "$MNT/empty" --to hdd >said || fail "migrate: $(cat said)"
grep -q '1 directories are only on the ssd: `hotshelf retire`' said || fail "migrate says: $(cat said)"
unmount_pair
"$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" ssd >said || fail "not mounted: $(cat said)"
holds_nothing "$SSD"
rm -rf "$SSD"
complete "$HDD" like

# What is on both sides is named, and stays.
anew
echo ssd >"$SSD/same"
echo hdd >"$HDD/same"
fails_with '1 names are still on the hdd: same: ' "$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" hdd
[[ $(cat "$SSD/same" "$HDD/same") == $'ssd\nhdd' ]] || fail "one of two files is gone"
refused 2 'possible values: ssd, hdd' "$HOTSHELF" retire "$MNT"
refused 2 'required' "$HOTSHELF" retire ssd --ssd "$SSD"

# Killed at every step, of the moves, of the names that change sides and of what puts them right; gone on with, it is complete.
for side in ssd hdd; do
    anew
    from=$SSD to=$HDD
    [[ $side == ssd ]] || { from=$HDD to=$SSD; }
    mkdir -p "$from/dir"
    echo moved >"$from/dir/moved"
    echo linked >"$from/dir/linked"
    ln "$from/dir/linked" "$from/linked"
    ln -s nowhere "$from/dir/link"
    touch -h -d '2001-02-03 04:05:06' "$from/dir/link" "$from/dir"
    cp -a "$from" seed
    rm -rf seed/.hotshelf
    touch -d '2001-02-03 04:05:06' seed "$from" "$to"
    killed=0
    for ((step = 1; ; step++)); do
        code=0
        HOTSHELF_CRASH_AT=$step "$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" $side >said 2>&1 || code=$?
        ((code != 0)) || break
        ((code == 137)) || fail "step $step: exit $code: $(cat said)"
        killed=$((killed + 1))
        # Nothing is lost or doubled, whatever mounts it next.
        mount_pair
        [[ $(cat "$MNT/dir/moved" "$MNT/dir/linked" "$MNT/linked" && readlink "$MNT/dir/link") == $'moved\nlinked\nlinked\nnowhere' ]] ||
            fail "$side, step $step: not all is there"
        [[ $(stat -c %i "$MNT/linked") == "$(stat -c %i "$MNT/dir/linked")" ]] || fail "$side, step $step: the links are two files"
        unmount_pair
        "$HOTSHELF" check "$SSD" "$HDD" >said || fail "$side, step $step: $(cat said)"
        # Every step is reached from the beginning.
        find "$from" "$to" -mindepth 1 -maxdepth 1 ! -name .hotshelf -exec rm -rf {} +
        cp -a seed/. "$from"
        touch -r seed "$from" "$to"
    done
    ((killed >= 15)) || fail "only $killed steps"
    holds_nothing "$from"
    complete "$to" seed
    rm -rf seed
done

# kill -9 of the daemon in the middle, with a limit that makes it last.
anew
grow "$SSD"
mount_pair --move-rate 200KiB
as_shown like
"$HOTSHELF" retire "$MNT" ssd >said 2>&1 &
asking=$!
half() { [[ -e $HDD/dir/2 || -e $HDD/dir/3 || -e $HDD/linked ]]; }
wait_until 20 half
daemon=$(daemon_pid)
kill -9 "$daemon"
wait $asking && fail "retire does not say that its daemon was killed"
wait_until 10 bash -c "! kill -0 $daemon 2>/dev/null"
umount -l "$MNT"
mount_pair
"$HOTSHELF" retire "$MNT" ssd >said || fail "after kill -9: $(cat said)"
unmount_pair
holds_nothing "$SSD"
rm -rf "$SSD"
complete "$HDD" like

# No room: refused with both sizes, before anything moves.
anew
fs_of_size ssd 64M
head -c 20M /dev/urandom >"$HDD/big"
fallocate -l 40M "$SSD/fills"
fails_with 'no room: the hdd holds 20.* and the ssd has room for' "$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" hdd
[[ $(stat -c %s "$HDD/big") == 20971520 && ! -e $SSD/big ]] || fail "it was begun"
rm "$SSD/fills"
"$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" hdd >said || fail "with room: $(cat said)"
[[ $(stat -c %s "$SSD/big") == 20971520 && ! -e $HDD/big ]] || fail "with room it did not move"
unmount_disks
