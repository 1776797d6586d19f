#!/bin/bash
# A hidden directory that another user prepared, or exchanges while it is mounted, makes root's daemon touch nothing else.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3
mkdir -p "$SSD" "$HDD" "$MNT"
chmod 755 "$SCRATCH"
chown 65534:65534 "$SSD" "$HDD"
user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
up=$SCRATCH
while [[ $up != / ]]; do
    user test -x "$up" || skip "the scratch directory is out of reach for an ordinary user"
    up=$(dirname "$up")
done
victim=$SCRATCH/victim
echo untouched >"$victim"
untouched() {
    [[ $(cat "$victim") == untouched && $(stat -c %a "$victim") == 644 ]] || fail "$1: root's file was touched: $(cat "$victim")"
}
chmod 644 "$victim"

# The whole directory is the user's, and each file in it leads elsewhere.
for side in "$SSD" "$HDD"; do
    user mkdir "$side/.hotshelf" "$side/.hotshelf/tmp"
    for name in log id key journal intent history pins lock control; do user ln -s "$victim" "$side/.hotshelf/$name"; done
    refused 1 "prepared by somebody else" "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
    untouched "a prepared directory on $side"
    # Of a side that was never mounted there is nothing to check.
    [[ $side == "$HDD" ]] || refused 1 "prepared by somebody else" "$HOTSHELF" check "$SSD" "$HDD"
    rm -r "$side/.hotshelf"
done

# The directory itself leads elsewhere.
mkdir "$SCRATCH/other"
user ln -s "$SCRATCH/other" "$SSD/.hotshelf"
fails_with "." "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
[[ -z $(ls -A "$SCRATCH/other") ]] || fail "a link was followed"
user rm "$SSD/.hotshelf"
rm -rf "$HDD/.hotshelf"

# Our own directory that others may write, and files in it that do not belong there.
mount_pair --allow-other
unmount_pair
chmod 770 "$SSD/.hotshelf"
refused 1 "prepared by somebody else" "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
chmod 700 "$SSD/.hotshelf"
for name in id key journal intent history pins lock; do
    touch "$SSD/.hotshelf/$name"
    mv "$SSD/.hotshelf/$name" "$SCRATCH/kept"
    for kind in link fifo stranger writable; do
        case $kind in
            link) ln -s "$victim" "$SSD/.hotshelf/$name" ;;
            fifo) mkfifo "$SSD/.hotshelf/$name" ;;
            stranger) install -o 65534 -m 600 "$SCRATCH/kept" "$SSD/.hotshelf/$name" ;;
            writable) install -m 666 "$SCRATCH/kept" "$SSD/.hotshelf/$name" ;;
        esac
        if [[ $name == history ]]; then
            # It is only heat: the mount goes on without.
            mount_pair --allow-other
            unmount_pair
        else
            fails_with "hotshelf/$name" timeout 20 "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
        fi
        untouched "$name is a $kind"
        rm -f "$SSD/.hotshelf/$name"
    done
    mv "$SCRATCH/kept" "$SSD/.hotshelf/$name"
done
for kind in link fifo stranger; do
    rm -f "$SSD/.hotshelf/log"
    case $kind in
        link) ln -s "$victim" "$SSD/.hotshelf/log" ;;
        fifo) mkfifo "$SSD/.hotshelf/log" ;;
        stranger) install -o 65534 -m 600 /dev/null "$SSD/.hotshelf/log" ;;
    esac
    mount_pair --allow-other
    unmount_pair
    untouched "the log is a $kind"
    [[ ! -s $SSD/.hotshelf/log || $kind == link ]] || fail "written to a log that is a $kind"
done
rm -f "$SSD/.hotshelf/log"

# What the root's default ACL grants does not come upon the files that move.
if command -v setfacl >/dev/null && user setfacl -d -m u:65533:rwx "$HDD" 2>/dev/null; then
    rm -r "$HDD/.hotshelf"
    mount_pair --allow-other --adopt
    (umask 077 && echo private >"$MNT/private")
    chmod 660 "$MNT/private"
    "$HOTSHELF" migrate "$MNT/private" --to hdd >/dev/null
    setpriv --reuid 65533 --regid 65533 --clear-groups cat "$HDD/private" 2>/dev/null && fail "a moved file has got an ACL"
    unmount_pair
    user setfacl -k "$HDD"
fi

# While it is mounted the owner exchanges it: moves, the log, pins and the end use the one that was opened.
mount_pair --allow-other
echo one >"$MNT/one"
for side in "$SSD" "$HDD"; do
    user mv "$side/.hotshelf" "$side/hidden-away"
    user mkdir "$side/.hotshelf"
    user ln -s "$SCRATCH/other" "$side/.hotshelf/tmp"
    for name in log id id.new key journal intent history history.new pins pins.new lock; do
        user ln -s "$victim" "$side/.hotshelf/$name"
    done
done
# A name with a line feed that both sides hold is in the log as one line.
user sh -c "echo a >'$SSD/x
forged line $(printf '\033')[2J'; echo b >'$HDD/x
forged line $(printf '\033')[2J'"
ls "$MNT" >/dev/null
umount "$MNT"
wait_until 20 "$HOTSHELF" --version
wait_until 20 flock -n "$SSD/hidden-away/lock" true
untouched "exchanged while mounted"
[[ -z $(ls -A "$SCRATCH/other") ]] || fail "a temporary was made through a link"
for side in "$SSD" "$HDD"; do
    user rm -r "$side/.hotshelf"
    user mv "$side/hidden-away" "$side/.hotshelf"
done
mount_pair --allow-other
wait_until 20 grep -q 'both sides hold' "$SSD/.hotshelf/log"
unmount_pair
grep -q '^forged line' "$SSD/.hotshelf/log" && fail "a file's name began a line of the log"
grep -q "$(printf '\033')" "$SSD/.hotshelf/log" && fail "a file's name put an escape sequence into the log"
grep -q 'x.*forged line' "$SSD/.hotshelf/log" || fail "the log does not name the file"
[[ $(cat "$MNT/one" "$SSD/one" 2>/dev/null) == one ]] || fail "the file is lost"
