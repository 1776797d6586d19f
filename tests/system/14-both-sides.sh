#!/bin/bash
# Paths that both sides hold: directories are joined; of anything else the SSD's is shown, the HDD's is kept and told.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse

mkdir -p "$SSD"/{shared/deep,dir-on-ssd,link-on-hdd} "$HDD"/{shared/deep,file-on-ssd,only}
echo s >"$SSD/shared/s"
echo h >"$HDD/shared/h"
echo ds >"$SSD/shared/deep/s"
echo dh >"$HDD/shared/deep/h"
echo fast >"$SSD/file-on-ssd"
echo below >"$HDD/file-on-ssd/below"
echo slow >"$HDD/dir-on-ssd"
echo in >"$SSD/dir-on-ssd/in"
ln -s only "$HDD/link-on-hdd"
echo there >"$SSD/link-on-hdd/there"
mount_pair

# One directory, the union of both, each name once; with the attributes of one.
[[ $(cd "$MNT/shared" && find . -type f | sort | paste -sd' ') == './deep/h ./deep/s ./h ./s' ]] || fail "the union: $(find "$MNT/shared")"
[[ $(ls "$MNT") == $'dir-on-ssd\nfile-on-ssd\nlink-on-hdd\nonly\nshared' ]] || fail "names: $(ls "$MNT")"
[[ $(cat "$MNT/shared/"{s,h,deep/s,deep/h} | paste -sd' ') == 's h ds dh' ]] || fail "content of the union"
rmdir "$MNT/shared/deep" 2>/dev/null && fail "a directory that is empty on neither side was removed"
rm "$MNT/shared/deep/s"
rmdir "$MNT/shared/deep" 2>/dev/null && fail "a directory that is not empty on the HDD was removed"
rm "$MNT/shared/deep/h"
rmdir "$MNT/shared/deep" || fail "a directory that is empty on both sides"
[[ ! -e $SSD/shared/deep && ! -e $HDD/shared/deep ]] || fail "an empty directory is left on a side"
mv "$MNT/shared" "$MNT/renamed"
[[ -e $SSD/renamed/s && -e $HDD/renamed/h && ! -e $SSD/shared && ! -e $HDD/shared ]] || fail "a directory of both sides renamed"
chmod 700 "$MNT/renamed"
[[ $(stat -c %a "$SSD/renamed") == 700 && $(stat -c %a "$MNT/renamed") == 700 ]] || fail "mode of a directory of both sides"

# A file here and a directory there: the SSD's, and what the HDD has is not touched.
[[ $(cat "$MNT/file-on-ssd") == fast && $(cat "$MNT/dir-on-ssd/in") == in && $(cat "$MNT/link-on-hdd/there") == there ]] || fail "the SSD's"
echo more >"$MNT/dir-on-ssd/more"
echo changed >"$MNT/file-on-ssd"
[[ $(cat "$HDD/file-on-ssd/below") == below && $(cat "$HDD/dir-on-ssd") == slow && -L $HDD/link-on-hdd ]] || fail "the HDD's was changed"
fails_with 'not moved' "$HOTSHELF" migrate "$MNT/file-on-ssd" --to hdd
[[ $(cat "$MNT/file-on-ssd") == changed && -d $HDD/file-on-ssd ]] || fail "a conflicting file after a refused move"
no_temporaries || fail "a refused move left a copy"
for name in file-on-ssd dir-on-ssd link-on-hdd; do
    wait_until 10 says "on both sides     $name"
done
unmount_pair
"$HOTSHELF" check "$SSD" "$HDD" >"$SCRATCH/check" && fail "check finds nothing"
for name in file-on-ssd dir-on-ssd link-on-hdd; do
    grep -q "^conflict: $name" "$SCRATCH/check" || fail "check does not tell of $name: $(cat "$SCRATCH/check")"
done
[[ $(cat "$HDD/file-on-ssd/below") == below && $(cat "$HDD/dir-on-ssd") == slow && -L $HDD/link-on-hdd ]] || fail "the HDD's is gone"
