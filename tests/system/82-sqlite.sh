#!/bin/bash
# SQLite's own command line, ported by nothing but `-include hotshelf_posix.h`, on a database on a slow directory: it works in every
# journal mode, shares databases with the unported one and with itself, and after kill -9 its databases are whole, with every
# transaction that was acknowledged.
# TIMEOUT: 280
# TIMEOUT_FULL: 900
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need cc make sqlite3
release=$(dirname "$HOTSHELF")
built=0
"$ROOT/contrib/sqlite/build.sh" "$release" >build.log 2>&1 || built=$?
[[ $built != 77 ]] || skip "$(sed -n 's/^SKIP: //p' build.log | tail -1)"
[[ $built == 0 ]] || fail "SQLite is not ported: $(tail -n 5 build.log)"
ours=${CARGO_TARGET_DIR:-$ROOT/target}/sqlite/usqlite3
ours_of() { HOTSHELF_CONFIG=$SCRATCH/$1.toml "$ours" "${@:2}"; }

mkdir slow
config() {
    local name=$1
    shift
    printf '%s\n' '[cache]' "name = \"$name\"" "runtime_dir = \"$SCRATCH\"" "$@" >"$name.toml"
}
# A memory smaller than the databases, alone and with an SSD; and the SSD in the other modes that keep nothing back.
config memory 'memory = "2MiB"'
config ssd 'memory = "2MiB"' "ssd = \"$SCRATCH/ssd\"" 'ssd_size = "64MiB"'
config through 'memory = "2MiB"' 'mode = "write-through"' "ssd = \"$SCRATCH/ssd2\"" 'ssd_size = "64MiB"'

journals=(delete truncate wal) rows=6000
[[ $FULL == 1 ]] && journals+=(persist) rows=30000

# The shell says `ok` alone when a database is whole.
whole() { [[ $("$@" 'pragma integrity_check') == ok ]]; }

fill='create table t(a integer primary key, b blob, c text unique);
with recursive n(i) as (select 1 union all select i + 1 from n where i < '"$rows"')
insert into t select i, randomblob(100), printf("key %d", i * 7919 % 30011) from n;
create index by_b on t(b); delete from t where a % 3 = 0; update t set b = zeroblob(150) where a % 5 = 0; vacuum;'
for cache in memory ssd through; do
    for journal in "${journals[@]}"; do
        db=slow/$cache.$journal.db
        ours_of "$cache" "$db" "pragma journal_mode = $journal; $fill" >out 2>&1 || fail "$cache, $journal: $(tail -n 3 out)"
        whole ours_of "$cache" "$db" || fail "$cache, $journal: not whole"
        sum='select count(*), sum(a), sum(length(b)), count(distinct c) from t'
        got=$(ours_of "$cache" "$db" "$sum")
        # The last program out of the cache has put everything below.
        [[ $got == $(sqlite3 "$db" "$sum") && $got == $((rows * 2 / 3))\|* ]] ||
            fail "$cache, $journal: the kernel has $(sqlite3 "$db" "$sum"), not $got"
        whole sqlite3 "$db" || fail "$cache, $journal: not whole below"
    done
done

# SQLite through the cache and unmodified SQLite at once: no update is lost. Both lock as SQLite does; the unmodified one sees the backing
# file, so that the other writes through.
for journal in "${journals[@]}"; do
    db=slow/many.$journal.db
    ours_of memory "$db" "pragma journal_mode = $journal; create table n(i integer); insert into n values(0)" >/dev/null
    workers=()
    for _ in 1 2 3; do
        (for _ in $(seq 25); do
            ours_of memory -cmd '.timeout 20000' "$db" 'begin immediate; update n set i = i + 1; commit' || exit 1
        done) >>many.log 2>&1 &
        workers+=($!)
    done
    for worker in "${workers[@]}"; do
        wait "$worker" || fail "$journal: several at once: $(tail -n 3 many.log)"
    done
    [[ $(ours_of memory "$db" 'select i from n') == 75 ]] || fail "$journal: $(ours_of memory "$db" 'select i from n') of 75 updates"
    whole ours_of memory "$db" || fail "$journal: several at once: not whole"
done

# Two connections of one process: what the second opens and closes does not end the first one's locks.
(
    echo "begin immediate; insert into n values(1);"
    echo ".connection 1"
    echo ".open slow/many.delete.db"
    echo "select 'second', count(*) from n;"
    echo ".connection close 1"
    echo ".shell sqlite3 slow/many.delete.db 'begin immediate' 2>&1"
    echo "rollback;"
) | ours_of memory slow/many.delete.db >out 2>&1 || true
grep -q 'second|1' out || fail "a second connection: $(cat out)"
grep -q 'locked' out || fail "the locks of the first connection are gone: $(cat out)"

# kill -9 in the middle of transactions, many times: whole, and nothing acknowledged is missing. A transaction is acknowledged when
# its number was printed after the commit.
kills() {
    local cache=$1 journal=$2 rounds=$3 db=slow/kill.$1.$2.db round pid acknowledged last
    ours_of "$cache" "$db" "pragma journal_mode = $journal; pragma synchronous = full;
        create table t(i integer primary key, b blob)" >/dev/null
    for ((round = 0; round < rounds; round++)); do
        last=$(ours_of "$cache" "$db" 'select coalesce(max(i), 0) from t')
        for ((i = last + 1; i < last + 3000; i++)); do
            echo "insert into t values($i, randomblob($((RANDOM % 6000)))); select $i;"
        done >script.sql
        HOTSHELF_CONFIG=$SCRATCH/$cache.toml "$ours" "$db" <script.sql >acknowledged 2>kill.log &
        pid=$!
        sleep "0.$((RANDOM % 40 + 10))"
        kill -9 "$pid" 2>/dev/null || fail "$cache, $journal: it ended by itself: $(tail -n 3 kill.log)"
        wait "$pid" 2>/dev/null || true
        # A line may be cut off by the kill.
        acknowledged=$(head -c -1 acknowledged | sed '$d' | tail -n 1)
        whole ours_of "$cache" "$db" || fail "$cache, $journal: after kill $round: not whole"
        last=$(ours_of "$cache" "$db" 'select coalesce(max(i), 0) from t')
        ((last >= ${acknowledged:-0})) || fail "$cache, $journal: after kill $round: $last of $acknowledged transactions"
        [[ $(ours_of "$cache" "$db" 'select count(*) from t') == "$last" ]] || fail "$cache, $journal: after kill $round: rows are missing"
    done
    whole sqlite3 "$db" || fail "$cache, $journal: not whole below"
}
rounds=4
[[ $FULL == 1 ]] && rounds=40
for cache in memory ssd; do
    kills "$cache" delete "$rounds"
    [[ $FULL == 0 ]] || kills "$cache" wal "$rounds"
done
