#!/bin/bash
# A move changes the side of a file and nothing else that users see.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setfattr getfattr setfacl getfacl

mount_pair --allow-other
cd "$MNT"
mkdir -p a/b
chown 1234:2345 a/b
chmod 2751 a/b
head -c 3000000 /dev/urandom >a/b/file
truncate -s 50M a/b/sparse
printf end | dd of=a/b/sparse bs=1 seek=40000000 conv=notrunc status=none
setfattr -n user.note -v 'a value' a/b/file
setfacl -m u:1234:rw a/b/file
chown 1234:2345 a/b/file
chmod 4755 a/b/file
touch -d '2001-02-03 04:05:06.123456789' a/b/file
ln -s file a/b/link
mkfifo a/b/pipe
head -c 100 /dev/zero >a/b/one
ln a/b/one a/b/two

facts() {
    (cd "$MNT" && find a -printf '%p %i %m %u %g %y %T@ %l\n' | sort
     find a -type f -exec sha256sum {} + | sort
     getfattr -d -R a 2>/dev/null | sort; getfacl -R a 2>/dev/null | sort)
}
before=$(facts)

"$HOTSHELF" migrate a --to hdd && fail "hard links must be reported as staying"
on a/b/file hdd || fail "file did not move"
on a/b/sparse hdd || fail "sparse did not move"
on a/b/one ssd || fail "a hard-linked file moved"
[[ -e $HDD/a/b/file && ! -e $SSD/a/b/file ]] || fail "file is not where why says"
(($(stat -c %b "$HDD/a/b/sparse") < 1000)) || fail "the holes were filled"
[[ $(facts) == "$before" ]] || { diff <(echo "$before") <(facts); fail "users see a difference after demotion"; }
cd /
unmount_pair
mount_pair --allow-other
[[ $(facts) == "$before" ]] || { diff <(echo "$before") <(facts); fail "users see a difference after a remount"; }
"$HOTSHELF" migrate "$MNT/a/b/file" --to ssd
"$HOTSHELF" migrate "$MNT/a/b/sparse" --to ssd
on "$MNT/a/b/file" ssd || fail "file did not come back"
[[ $(facts) == "$before" ]] || { diff <(echo "$before") <(facts); fail "users see a difference after promotion"; }
getfattr -d -m - "$MNT/a/b/file" 2>/dev/null | grep -q user.hotshelf && fail "our attribute shows"

# Second touch: opened twice on the HDD, it comes up by itself.
"$HOTSHELF" migrate "$MNT/a/b/file" --to hdd
cat "$MNT/a/b/file" >/dev/null
cat "$MNT/a/b/file" >/dev/null
wait_until 20 on "$MNT/a/b/file" ssd
unmount_pair
clean_check
