#!/bin/bash
# Real programs at work on the mount, with files moving under them.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need git sqlite3 rsync tar

mount_pair --allow-other
cd "$MNT"
cp -a /usr/include/linux tree
rsync -aHAX --checksum --delete -ni /usr/include/linux/ tree/ | grep -v '^\.d\.\.t' >"$SCRATCH/diff" || true
[[ ! -s $SCRATCH/diff ]] || fail "rsync sees a difference: $(head "$SCRATCH/diff")"
tar cf "$SCRATCH/tree.tar" -C tree .
"$HOTSHELF" migrate tree --to hdd >/dev/null
rsync -aHAX --checksum --delete -ni tree/ /usr/include/linux/ | grep -v '^\.d\.\.t' >"$SCRATCH/diff" || true
[[ ! -s $SCRATCH/diff ]] || fail "rsync sees a difference on the HDD: $(head "$SCRATCH/diff")"
tar df "$SCRATCH/tree.tar" -C tree || fail "tar sees a difference"

git -c init.defaultBranch=main init -q repo
(
    cd repo
    git config user.email test@example.org
    git config user.name test
    cp -r ../tree src
    git add -A
    git commit -qm one
    "$HOTSHELF" migrate "$MNT/repo" --to hdd >/dev/null || true
    git mv src moved
    git commit -qm two
    git fsck --full --strict 2>&1 | grep -v '^notice' && exit 1
    git gc -q
    [[ -z $(git status --porcelain) ]]
) || fail "git is not content"
git clone -q repo clone
diff -r repo/moved clone/moved || fail "the clone differs"

sqlite3 db "PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);" >/dev/null
for round in 1 2 3; do
    sqlite3 db "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<20000)
        INSERT INTO t(b) SELECT hex(randomblob(50)) FROM n;"
    "$HOTSHELF" migrate db --to "$([[ $round == 2 ]] && echo ssd || echo hdd)" >/dev/null
    [[ $(sqlite3 db "PRAGMA integrity_check; SELECT count(*) FROM t;") == "ok
$((round * 20000))" ]] || fail "sqlite3 round $round"
done
cd /
unmount_pair
clean_check
