#!/bin/bash
# An ordinary user who owns backing files cannot take the place of somebody else's file by forging the mark of its inode number.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3
mkdir -p "$SSD" "$HDD" "$MNT"
chmod 755 "$SCRATCH" "$SSD" "$HDD"
user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
up=$SCRATCH
while [[ $up != / ]]; do
    user test -x "$up" || skip "the scratch directory is out of reach for an ordinary user"
    up=$(dirname "$up")
done

# What the user owns: a directory and a file on each side.
for side in "$SSD" "$HDD"; do
    name=$(basename "$side")
    install -d -o 65534 -g 65534 "$side/dir-$name"
    echo mine | install -o 65534 -g 65534 -m 644 /dev/stdin "$side/file-$name"
done
# Root's directories in a directory of the user, one on each side; the other half will be the user's.
for side in "$SSD" "$HDD"; do
    install -d -o 65534 -g 65534 "$side/home-$(basename "$side")"
    install -d -m 700 "$side/home-$(basename "$side")/of-root"
    echo "of root" >"$side/home-$(basename "$side")/of-root/inner"
done

mount_pair --allow-other --promotion never
# What root owns, and from now on there may be marks on both sides.
mkdir -m 700 "$MNT/secret"
echo "of root" >"$MNT/secret/inner"
(umask 077 && echo "of root" >"$MNT/private")
echo moves >"$MNT/moved"
was=$(stat -c %i "$MNT/moved")
for to in hdd ssd hdd; do "$HOTSHELF" migrate "$MNT/moved" --to $to >/dev/null; done
[[ $(stat -c %i "$MNT/moved") == "$was" ]] || fail "the number changed by a move"

# forge BACKING NUMBER FORMAT: as the ordinary user; the format of 0.1 or a guess at the present one.
cat >"$SCRATCH/forge.py" <<'PYTHON'
import errno, os, struct, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
path, number = sys.argv[1], int(sys.argv[2])
old = b"hsi1" + struct.pack("<QQ", os.stat(path).st_ino, number)
old += struct.pack("<II", crc32c(old), 0)
new = b"hsi2" + struct.pack("<QqIQ", os.stat(path).st_ino, 0, 0, number) + bytes(16)
value = {"old": old, "new": new}[sys.argv[3]]
os.setxattr(path, "user.hotshelf.ino", value)
try:
    os.setxattr(path, "trusted.hotshelf.ino", value)
    sys.exit("an ordinary user has set a trusted attribute")
except OSError as error:
    assert error.errno == errno.EPERM, error
PYTHON
secret=$(stat -c %i "$MNT/secret") private=$(stat -c %i "$MNT/private")
forge() { python3 "$SCRATCH/forge.py" "$1" "$2" "$3"; }

# harmless PHASE: nothing of root's is reached by what the user has forged.
harmless() {
    local side
    for side in ssd hdd; do
        local dir=$MNT/dir-$side file=$MNT/file-$side
        [[ $(user stat -c %i "$dir") != "$secret" ]] || fail "$1: the directory on the $side has the number of root's"
        [[ $(user stat -c %i "$file") != "$private" ]] || fail "$1: the file on the $side has the number of root's"
        [[ -z $(user ls "$dir") ]] || fail "$1: root's directory was listed on the $side: $(user ls "$dir")"
        user cat "$dir/inner" 2>/dev/null && fail "$1: root's file was read by way of the $side"
        user touch "$dir/made" || fail "$1: the own directory cannot be used"
        [[ ! -e $MNT/secret/made ]] || fail "$1: made in root's directory by way of the $side"
        user rm "$dir/made" || fail "$1: the own directory cannot be used"
        user chmod 755 "$dir" "$file"
        [[ $(user cat "$file") == mine* ]] || fail "$1: root's open file was read by way of the $side"
        user sh -c "echo more >>'$file'" || fail "$1: the own file cannot be written"
    done
    [[ $(stat -c %a "$MNT/secret" "$MNT/private") == $'700\n600' ]] || fail "$1: a mode of root's was changed"
    [[ $(cat "$MNT/private" "$MNT/secret/inner") == $'of root\nof root' ]] || fail "$1: a file of root's was changed"
}

# forget: what nobody has open. The daemon hears of it a moment later; whether it has makes no difference to what must hold.
forget() { sync; echo 2 >/proc/sys/vm/drop_caches; }

exec 5<>"$MNT/private" 6<"$MNT/secret"
for format in old new; do
    for side in "$SSD" "$HDD"; do
        forge "$side/dir-$(basename "$side")" "$secret" $format
        forge "$side/file-$(basename "$side")" "$private" $format
    done
    ls "$MNT/secret" >/dev/null
    harmless "known ($format)"
    forget
    harmless "open ($format)"
done
exec 5>&- 6<&-
forget
harmless "forgotten, the user first"
forget
ls "$MNT/secret" >/dev/null
cat "$MNT/private" >/dev/null
harmless "forgotten, root first"
unmount_pair
mount_pair --allow-other --promotion never
harmless "marked before the mount"
exec 5<>"$MNT/private" 6<"$MNT/secret"
harmless "marked before the mount, and open"
exec 5>&- 6<&-

# A directory that the user makes on the other side does not become a half of root's.
user touch "$MNT/home-hdd/x" "$MNT/home-ssd/x"
"$HOTSHELF" migrate "$MNT/home-ssd/x" --to hdd >/dev/null
user mkdir "$SSD/home-hdd/of-root" "$HDD/home-ssd/of-root"
user touch "$SSD/home-hdd/of-root/planted" "$HDD/home-ssd/of-root/planted"
for look in known forgotten; do
    [[ $look == known ]] || forget
    user ls "$MNT/home-ssd/of-root" >/dev/null 2>&1 && fail "root's directory on the SSD was listed ($look)"
    [[ $(ls "$MNT/home-ssd/of-root") == inner ]] || fail "something was planted in root's directory ($look)"
    user cat "$MNT/home-hdd/of-root/inner" 2>/dev/null && fail "root's file on the HDD was read through the user's half ($look)"
done

# Root's tools copy attributes along: the copy is another file.
python3 - "$HDD/moved" "$HDD/copied" <<'PYTHON' || fail "copying with attributes"
import os, shutil, sys
shutil.copy2(*sys.argv[1:])
names = [name for name in os.listxattr(sys.argv[1]) if "hotshelf" in name]
assert names == ["trusted.hotshelf.ino"], names
for name in names:
    os.setxattr(sys.argv[2], name, os.getxattr(sys.argv[1], name))
PYTHON
[[ $(stat -c %i "$MNT/moved") == "$was" ]] || fail "the number of a moved file changed by a remount"
[[ $(stat -c %i "$MNT/copied") != "$was" ]] || fail "a copy with its mark has the number of the original"
if command -v rsync >/dev/null; then
    rsync -aX "$HDD/moved" "$HDD/synced"
    [[ $(stat -c %i "$MNT/synced") != "$was" ]] || fail "a copy by rsync -X has the number of the original"
fi

# Nobody sees or changes marks through the mount.
python3 - "$MNT/moved" <<'PYTHON' || fail "marks through the mount"
import errno, os, sys
file = sys.argv[1]
assert not [name for name in os.listxattr(file) if "hotshelf" in name]
for name in ["user.hotshelf.ino", "trusted.hotshelf.ino"]:
    for call, number in [(lambda: os.getxattr(file, name), errno.ENODATA), (lambda: os.setxattr(file, name, b"x"), errno.EPERM),
                         (lambda: os.removexattr(file, name), errno.ENODATA)]:
        try:
            call()
            sys.exit("done: " + name)
        except OSError as error:
            assert error.errno == number, (name, error)
PYTHON
unmount_pair
clean_check
