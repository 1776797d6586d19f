#!/bin/bash
# The kernel knows a file of the mount by its number for an hour. Meanwhile the ordinary user who owns its directory gives its name to
# another file: nothing is read, written or changed of that file with the rights that the first gave, nor is it believed to have the
# first's ACL.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3 setfacl

USER_ID=4242
as_user() { setpriv --reuid $USER_ID --regid $USER_ID --clear-groups "$@"; }

# Of its own, so that the number of a removed file is given to the next.
fs_of_size ssd 64M -I 256
mkdir -p "$SSD/mine" "$SSD/sticky" "$HDD" "$MNT"
chmod 711 "$SCRATCH" "$SSD"
chown $USER_ID:$USER_ID "$SSD/mine"
chmod 1777 "$SSD/sticky"
mount_pair --allow-other
dir=$MNT/mine below=$SSD/mine

# A file of root's that has the backing inode of a removed file of the user's.
reused() {
    local kind=$1 number
    case $kind in
        file) as_user sh -c "echo old >'$below/a'; chmod 666 '$below/a'" ;;
        directory) as_user mkdir -m 777 "$below/a" ;;
    esac
    number=$(stat -c %i "$below/a")
    as_user stat "$dir/a" >/dev/null
    as_user rm -rf "$below/a"
    for n in $(seq 200); do
        case $kind in
            file) (umask 077 && echo secret >"$below/root-$n") ;;
            directory) mkdir -m 700 "$below/root-$n" && echo secret >"$below/root-$n/inner" ;;
        esac
        if [[ $(stat -c %i "$below/root-$n") == "$number" ]]; then
            as_user mv "$below/root-$n" "$below/a"
            return
        fi
    done
    fail "no $kind got the number of the removed one"
}

reused file
if as_user cat "$dir/a" 2>/dev/null | grep -q secret; then
    fail "root's file is read under the number of the user's"
fi
as_user sh -c "echo overwritten >>'$dir/a'" 2>/dev/null || true
as_user chmod 666 "$dir/a" 2>/dev/null || true
as_user truncate -s 0 "$dir/a" 2>/dev/null || true
as_user setfattr -n user.x -v y "$dir/a" 2>/dev/null || true
[[ $(cat "$below/a") == secret ]] || fail "root's file was changed: $(cat "$below/a")"
[[ $(stat -c '%u %a' "$below/a") == "0 600" ]] || fail "root's file has become $(stat -c '%u %a' "$below/a")"
rm -f "$below"/*

# The kernel knows the attributes of a directory for a second.
reused directory
if as_user ls "$dir/a" 2>/dev/null | grep -q inner; then
    fail "root's directory is listed under the number of the user's"
fi
rm -rf "${below:?}"/*

# Files known before an exchange: their numbers stay with them, attributes and ACLs too.
echo secret >"$below/secret"
chmod 640 "$below/secret"
as_user sh -c "echo bait >'$below/bait'; chmod 640 '$below/bait'; setfacl -m u:$USER_ID:rw '$below/bait'"
# As its owner may: both are in the user's directory.
exchange() {
    python3 -c 'import ctypes, os, sys
libc = ctypes.CDLL(None)
os.setgroups([])
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
sys.exit(libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2) and 1)' "$below/secret" "$below/bait"
}
stat "$dir/secret" >/dev/null
exchange
as_user getfacl "$dir/secret" >/dev/null 2>&1 || true
exchange
if as_user cat "$dir/secret" 2>/dev/null; then
    fail "root's file is read by an ACL of another file"
fi
as_user sh -c "echo overwritten >>'$dir/secret'" 2>/dev/null || true
[[ $(cat "$below/secret") == secret ]] || fail "root's file was written by an ACL of another file"

# In a sticky directory everybody removes and renames their own, whatever the kernel believes to be there.
as_user sh -c "echo mine >'$SSD/sticky/name'"
as_user stat "$MNT/sticky/name" >/dev/null
for how in remove rename replace; do
    as_user sh -c "echo mine >'$SSD/sticky/name'"
    as_user ls -l "$MNT/sticky/name" >/dev/null
    as_user mv "$SSD/sticky/name" "$SSD/sticky/away"
    echo "root's" >"$SSD/sticky/name"
    as_user touch "$dir/other"
    case $how in
        remove) as_user rm -f "$MNT/sticky/name" 2>/dev/null || true ;;
        rename) as_user mv -f "$MNT/sticky/name" "$dir/taken" 2>/dev/null || true ;;
        replace) as_user mv -fT "$dir/other" "$MNT/sticky/name" 2>/dev/null || true ;;
    esac
    [[ $(cat "$SSD/sticky/name" 2>/dev/null) == "root's" ]] || fail "$how took root's file from a sticky directory"
    rm -f "$SSD/sticky/name" "$SSD/sticky/away" "$below/other" "$below/taken"
done
as_user sh -c "echo mine >'$MNT/sticky/own' && mv '$MNT/sticky/own' '$MNT/sticky/own2' && rm '$MNT/sticky/own2'" ||
    fail "one's own cannot be removed"

# The kernel remembers an owner for an hour: one that root has changed in the backing directory does not give rights any more.
as_user sh -c "printf '#!/bin/sh\\nid -u\\n' >'$dir/prog'; chmod 755 '$dir/prog'"
for what in "chmod 4755" "chmod 777" "chown $USER_ID" "setfacl -m u:$USER_ID:rwx"; do
    chown "$USER_ID:$USER_ID" "$below/prog"
    chmod 755 "$below/prog"
    as_user stat "$dir/prog" >/dev/null
    chown 0:0 "$below/prog"
    # shellcheck disable=SC2086
    as_user $what "$dir/prog" 2>/dev/null || true
    [[ $(stat -c '%u %a' "$below/prog") == '0 755' ]] || fail "$what of root's file: $(stat -c '%u %a' "$below/prog")"
    [[ $(getfacl -cn "$below/prog" 2>&1) != *"user:$USER_ID:"* ]] || fail "$what of root's file gave an ACL"
done
chown "$USER_ID:$USER_ID" "$below/prog"
as_user chmod 700 "$dir/prog" || fail "an owner cannot change the mode"
unmount_pair
unmount_disks
