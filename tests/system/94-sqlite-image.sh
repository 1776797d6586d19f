#!/bin/bash
# TIMEOUT: 200
# TIMEOUT_FULL: 900
# Debian's unmodified sqlite3 with databases on a raw image, through the loadable extension: every journal mode, several databases in one
# transaction, two connections that contend, repeated kill -9, a full image, and the messages for an image that cannot be opened.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need sqlite3
extension=$(dirname "$HOTSHELF")/libhotshelf_sqlite.so
[[ -e $extension ]] || fail "$extension is not built"
image=$SCRATCH/image
uri() { echo "file:/$1?vfs=hotshelf&image=${2:-$image}"; }
# on_image DB [STATEMENT...]: the unmodified command line on a database of the image; statements also from standard input.
on_image() {
    local db=$1
    shift
    { printf '%s\n' '.log stderr' ".load $extension" ".open '$(uri "$db")'" '.bail on' "$@"; [[ $# -gt 0 ]] || cat; } | sqlite3 -batch 2>log
}
clean() { "$HOTSHELF" fs check "$image" >out || fail "$1: check: $(cat out)"; }
"$HOTSHELF" fs mkfs "$image" --size 192MiB >/dev/null

# The same statements give the same as on ext4, in every journal mode; with a cache so small that pages are written early.
rows=3000
[[ $FULL == 1 ]] && rows=40000
statements() {
    printf '%s\n' "pragma journal_mode = $1;" 'pragma cache_size = 20;' 'create table t(a integer primary key, b blob, c text unique);' \
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < $rows)
         insert into t select i, zeroblob(i % 700), printf('key %d', i * 7919 % 30011) || i from n;" \
        'create index by_b on t(b); delete from t where a % 3 = 0; update t set b = zeroblob(150) where a % 5 = 0;' \
        'begin; update t set c = c || c; rollback; begin; insert into t select a + 100000, b, c || 1 from t; commit;' \
        'savepoint s; delete from t where a % 7 = 1; rollback to s; release s; pragma auto_vacuum; vacuum;' \
        'select count(*), sum(a), sum(length(b)), count(distinct c), max(c) from t; pragma integrity_check; pragma journal_mode;'
}
for journal in delete truncate persist memory wal; do
    statements "$journal" | sqlite3 -batch "$SCRATCH/$journal.db" >expected
    statements "$journal" | on_image "$journal.db" >got || fail "$journal: $(cat log)"
    cmp -s expected got || fail "$journal: $(diff expected got | head -5)"
    [[ $(on_image "$journal.db" 'pragma integrity_check; select count(*) from t;') == ok$'\n'* ]] || fail "$journal: not whole: $(cat log)"
    clean "$journal"
done

# A random mix of statements, the same on both.
mix() {
    awk -v seed="${SEED:-5}" -v n="$((FULL ? 20000 : 1500))" 'BEGIN {
        srand(seed); print "create table r(a integer primary key, b text, c integer); create index rc on r(c);"
        for (i = 0; i < n; i++) {
            x = int(rand() * 12); k = int(rand() * 400)
            if (x < 4) printf "insert or replace into r values(%d, hex(zeroblob(%d)), %d);\n", k, rand() * rand() * 3000, rand() * 50
            else if (x < 6) printf "update r set c = c + 1, b = b || %d where a between %d and %d;\n", i, k, k + 5
            else if (x < 7) printf "delete from r where c = %d;\n", rand() * 50
            else if (x < 8 && !open) { print "begin;"; open = 1 }
            else if (x < 10 && open) { print rand() < 0.5 ? "commit;" : "rollback;"; open = 0 }
            else if (x < 11) printf "select count(*), sum(length(b)), sum(c) from r where c < %d;\n", rand() * 50
            else if (!open && rand() < 0.1) printf "pragma journal_mode = %s;\n", rand() < 0.5 ? "wal" : "delete"
        }
        if (open) print "commit;"
        print "select count(*), sum(length(b)), sum(c), max(b) from r; pragma integrity_check;" }'
}
mix | sqlite3 -batch "$SCRATCH/mix.db" >expected
mix | on_image mix.db >got || fail "the mix: $(cat log)"
cmp -s expected got || fail "the mix, seed ${SEED:-5}: $(diff expected got | head -5)"

# Several databases in one transaction; names in the image's words.
on_image one.db "attach '$(uri two.db)' as two;" 'create table x(n); create table two.y(n);' \
    'begin; insert into x values(1); insert into two.y values(1); commit;' 'select n from x, y using(n);' 'pragma database_list;' >got
[[ $(cat got) == "1"$'\n'"0|main|$image//one.db"* ]] || fail "two databases: $(cat got log)"

# Two connections of one process: a writer is in the way of another, a reader in a WAL sees what it saw before.
for journal in delete wal; do
    on_image contend.db "pragma journal_mode = $journal; create table if not exists n(i);" \
        'delete from n; insert into n values(1);' >/dev/null
    {
        printf '%s\n' '.log off' ".load $extension" ".open '$(uri contend.db)'" 'begin immediate; update n set i = i + 1;' \
            '.connection 1' ".open '$(uri contend.db)'" 'select "sees", i from n;' 'begin immediate;' 'begin; select "old", i from n;' \
            '.connection 0' 'commit;' 'select "has", i from n;' \
            '.connection 1' 'select "still", i from n; commit; select "new", i from n;' \
            '.connection 0' 'commit;' 'select "last", i from n;'
    } | sqlite3 -batch >got 2>&1 || true
    grep -q 'database is locked' got || fail "$journal: a second writer is not refused: $(cat got)"
    for line in 'sees|1' 'old|1' 'last|2'; do grep -qx "$line" got || fail "$journal: no $line: $(cat got)"; done
    if [[ $journal == wal ]]; then
        for line in 'has|2' 'still|1' 'new|2'; do grep -qx "$line" got || fail "$journal: no $line: $(cat got)"; done
    fi
done

# In use by another process.
mkfifo hold
sqlite3 -batch <hold >held 2>&1 &
holder=$!
exec 7>hold
printf '%s\n' ".load $extension" ".open '$(uri contend.db)'" 'select "here", i from n;' >&7
wait_until 20 grep -q 'here' held
# The shell goes on with a database in memory.
on_image contend.db 'pragma hotshelf_image;' >out
[[ ! -s out ]] || fail "an image in use is opened"
grep -q "is in use by process $holder" log || fail "it is not said who has the image: $(cat log)"
printf '%s\n' '.log off' ".load $extension" ".open '$(uri contend.db)'" 'select hotshelf_error();' | sqlite3 -batch >out 2>&1 || true
grep -q "is in use by process $holder" out || fail "hotshelf_error(): $(cat out)"
exec 7>&-
wait "$holder" || fail "the holder: $(cat held)"

# kill -9 in the middle of transactions: the image is clean, the database whole, nothing acknowledged is missing. A transaction is
# acknowledged when its number was printed after the commit.
rounds=10
[[ $FULL == 1 ]] && rounds=60
for journal in delete wal; do
    on_image "kill.$journal.db" "pragma journal_mode = $journal; create table t(i integer primary key, b blob);" >/dev/null
    for ((round = 0; round < rounds; round++)); do
        last=$(on_image "kill.$journal.db" 'select coalesce(max(i), 0) from t;')
        {
            printf '%s\n' ".load $extension" ".open '$(uri "kill.$journal.db")'" 'pragma synchronous = full; pragma cache_size = 20;'
            for ((i = last + 1; i < last + 3000; i++)); do
                echo "insert into t values($i, randomblob($((RANDOM % 9000)))); select $i;"
            done
        } >script.sql
        : >acknowledged
        sqlite3 -batch <script.sql >acknowledged 2>kill.log &
        pid=$!
        wait_until 20 test -s acknowledged
        sleep "0.0$((RANDOM % 90 + 10))"
        kill -9 "$pid" 2>/dev/null || fail "$journal: it ended by itself: $(tail -n 3 kill.log)"
        wait "$pid" 2>/dev/null || true
        # A line may be cut off by the kill.
        acknowledged=$(head -c -1 acknowledged | sed '$d' | tail -n 1)
        clean "$journal, after kill $round"
        [[ $(on_image "kill.$journal.db" 'pragma integrity_check;') == ok ]] || fail "$journal: after kill $round: not whole: $(cat log)"
        last=$(on_image "kill.$journal.db" 'select coalesce(max(i), 0) from t;')
        ((last >= ${acknowledged:-0})) || fail "$journal: after kill $round: $last of $acknowledged transactions"
        [[ $(on_image "kill.$journal.db" 'select count(*) from t;') == "$last" ]] || fail "$journal: after kill $round: rows are missing"
        on_image "kill.$journal.db" 'delete from t;' >/dev/null || fail "$journal: $(cat log)"
    done
done

# A full image: the error is that of any disk, the database stays intact, and there is room again when rows were removed.
main=$image
image=$SCRATCH/small
"$HOTSHELF" fs mkfs "$image" --size 48MiB >/dev/null
on_image full.db 'create table t(a integer primary key, b blob);' 'insert into t values(1, zeroblob(1000));' >/dev/null
for size in 5000000 20000; do
    for ((n = 0; n < 400; n++)); do echo "insert into t(b) values(randomblob($size));"; done | on_image full.db >out &&
        fail "more than 48 MiB fit"
    grep -q 'full' log || fail "a full image: $(cat log)"
    [[ $(on_image full.db 'pragma integrity_check;') == ok ]] || fail "after it was full: $(cat log)"
done
[[ $(on_image full.db 'pragma secure_delete = off;' 'delete from t where a > 1; insert into t values(2, 2);' \
    'select count(*) from t;') == 0$'\n2' ]] || fail "there is no room after a removal: $(cat log)"
clean 'after it was full'

# The result of each statement is true, in every journal mode: a program that counts successful inserts finds as many rows, at once and when
# it opens the database again. After a failed DROP TABLE reading works, and room can be made.
for journal in delete truncate persist memory wal; do
    image=$SCRATCH/full-$journal
    "$HOTSHELF" fs mkfs "$image" --size 10MiB >/dev/null
    on_image told.db "pragma journal_mode = $journal;" \
        'create table t(a integer primary key, b blob); create table u(a, b blob);' >/dev/null
    # What failed says its line; the inserts begin on the fourth.
    {
        printf '%s\n' ".load $extension" ".open '$(uri told.db)'" \
            "pragma journal_mode = $journal; pragma secure_delete = off; pragma cache_size = 20;"
        for ((n = 1; n <= 900; n++)); do
            echo "insert into $([[ $((n % 2)) == 0 ]] && echo t || echo u)(a, b) values($n, randomblob(15000));"
        done
        printf '%s\n' "select 'rows', (select count(*) from t) + (select count(*) from u);" 'drop table u;' \
            "select 'after', count(*) from t;" 'delete from t where a % 4 = 0;' \
            "insert into t values(1, randomblob(9000)) returning 'room';" \
            "select 'left', count(*) from t; pragma integrity_check;"
    } | sqlite3 -batch >got 2>errors || true
    failed=$(sed -n 's/.*near line \([0-9]*\): .*full.*/\1/p' errors | awk '$1 <= 903' | wc -l) told=$((900 - failed))
    t=$(on_image told.db 'select count(*) from t;')
    ((failed > 10)) || fail "$journal: more than 10 MiB fit: $(tail -n 3 errors)"
    grep -qx "rows|$told" got || fail "$journal: told ok $told, $(grep rows got) ($(tail -n 3 errors))"
    grep -q '^after|' got || fail "$journal: reading fails after a failed DROP TABLE: $(tail -n 5 errors)"
    grep -qx room got || fail "$journal: no room can be made: $(tail -n 5 errors)"
    grep -qx "left|$t" got && tail -n 2 got | grep -qx ok || fail "$journal: $(tail -n 3 got), then $t rows"
    clean "$journal, full"
done
image=$main

# What is no image.
[[ $(on_image any.db 'create table a(b); pragma hotshelf_image;') == "$image" ]] || fail "$(cat log)"
image=$SCRATCH/nowhere
on_image any.db 'pragma hotshelf_image;' >out
[[ ! -s out ]] || fail "an image that is not there is opened"
grep -q 'there is no such image' log || fail "$(cat log)"
head -c 1M /dev/urandom >"$SCRATCH/noise"
image=$SCRATCH/noise
on_image any.db 'pragma hotshelf_image;' >out
[[ ! -s out ]] || fail "noise is opened"
grep -q 'no file system of hotshelf' log || fail "$(cat log)"
image=$main
printf '%s\n' '.log stderr' ".load $extension" ".open 'file:/x?vfs=hotshelf'" | sqlite3 -batch >out 2>&1 || true
grep -q 'HOTSHELF_IMAGE' out || fail "no image at all: $(cat out)"
printf '%s\n' ".load $extension" ".open 'file:/any.db?vfs=hotshelf'" 'create table e(a); select "by environment";' |
    HOTSHELF_IMAGE=$image sqlite3 -batch >out 2>&1 || fail "$(cat out)"
grep -q 'by environment' out || fail "$(cat out)"

# The requested limit of memory holds.
asked() {
    local statements=('.log stderr' ".load $extension" ".open '$(uri any.db)&memory=$1'" 'pragma hotshelf_image;')
    printf '%s\n' "${statements[@]}" | sqlite3 -batch >out 2>log || true
}
asked 64MiB
grep -q "$image" out || fail "64MiB: $(cat log)"
for memory in lots 20% 1MiB; do
    asked "$memory"
    [[ ! -s out ]] || fail "memory=$memory is taken"
    case $memory in
        1MiB) grep -q 'memory: this image needs [0-9]* bytes at least' log || fail "$memory: $(cat log)" ;;
        *) grep -q "memory: .$memory. is not a size" log || fail "$memory: $(cat log)" ;;
    esac
done
clean 'at the end'
