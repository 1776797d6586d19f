#!/bin/bash
# TIMEOUT: 400
# TIMEOUT_FULL: 3600
# PostgreSQL and MariaDB keep their data on a cached mount that writes back. Servers and daemons are killed, and the power is cut: every row
# whose commit was reported is there afterwards, and the database is sound.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 xfs_io python3
rounds=1
[[ $FULL != 1 ]] || rounds=20
name=databases-$$ settings=/etc/hotshelf/caches/databases-$$.toml runtime=/dev/shm/$(basename "$SCRATCH") run=$SCRATCH/run
clean() {
    "$HOTSHELF" unmount "$MNT" >/dev/null 2>&1 || true
    "$HOTSHELF" cache destroy --discard "$name" >/dev/null 2>&1 || true
    rm -rf "$runtime" "$settings"
}
trap clean EXIT
mkdir -p "$MNT" "$runtime"
install -d -m 777 "$run"

FS_OPTIONS=noatime
fs_of_size fast 512M
fs_of_size slow 2G
mkdir "$SCRATCH/slow/data"
"$HOTSHELF" cache create "$SCRATCH/fast/cache" --name "$name" --size 256MiB --memory 16MiB >/dev/null
# In a directory of its own, which a power cut empties.
sed -i "s|^\[cache\]\$|&\nruntime_dir = \"$runtime\"|" "$settings"
mount_cached() { "$HOTSHELF" mount --cache "$name" --cache-mode write-back "$SCRATCH/slow/data" "$MNT" --allow-other; }
daemon_pid() { pgrep -f -- "mount --cache $name " | head -1; }

# kill_tree PID: ends a process and its children.
kill_tree() {
    local pids pid
    pids="$1 $(pgrep -P "$1" || true)"
    for pid in $pids; do
        kill -9 "$pid" 2>/dev/null || true
    done
    for pid in $pids; do
        wait_until 20 is_process_gone "$pid"
    done
}

kill_daemon() {
    local pid
    pid=$(daemon_pid)
    kill -9 "$pid"
    wait_until 20 is_process_gone "$pid"
}
is_process_gone() { [[ ! -e /proc/$1 ]]; }

cut_power() {
    local side
    kill -STOP "$(daemon_pid)"
    for side in $1; do
        # Without a flush: what the file system has not written is lost.
        xfs_io -x -c shutdown "$SCRATCH/$side" || skip "ext4 cannot be shut down here"
    done
    kill_daemon
}

power_back() {
    local side
    drop_dead_mount
    rm -rf "${runtime:?}"/*
    for side in fast slow; do
        disk_again "$side"
    done
    mount_cached
}

# PostgreSQL.
as_postgres() { (cd / && setpriv --reuid postgres --regid postgres --init-groups "$@"); }
postgres_make() {
    install -d -o postgres -g postgres -m 700 "$MNT/postgres"
    as_postgres "$bin/initdb" -D "$MNT/postgres" --auth=trust >"$run/initdb" 2>&1 || fail "initdb: $(tail -5 "$run/initdb")"
}
postgres_start() {
    as_postgres "$bin/pg_ctl" -D "$MNT/postgres" -l "$run/postgres.log" -w -t 60 \
        -o "-k $run -c listen_addresses= -c shared_buffers=8MB -c max_wal_size=64MB -c checkpoint_timeout=30s" start >"$run/start" 2>&1 ||
        fail "PostgreSQL does not start: $(tail -5 "$run/postgres.log")"
    server=$(head -n 1 "$MNT/postgres/postmaster.pid")
}
postgres_kill() { kill_tree "$server"; rm -f "$run"/.s.PGSQL*; }
postgres_stop() { as_postgres "$bin/pg_ctl" -D "$MNT/postgres" -w -m fast stop >/dev/null; }
postgres_sql() { psql -h "$run" -U postgres -qAt -v ON_ERROR_STOP=1 postgres "$@"; }
postgres_fill() {
    pgbench -h "$run" -U postgres -q -i -s 3 postgres >/dev/null 2>&1 || fail "pgbench cannot fill its tables"
    postgres_sql -c 'create extension amcheck'
}
postgres_load() { pgbench -h "$run" -U postgres -n -c 2 -T 100 postgres >/dev/null 2>&1 & }
postgres_sound() {
    [[ $(postgres_sql -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)
        and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)') == t ]] || fail "sums differ $1"
    postgres_sql -c "select bt_index_check(c.oid, true) from pg_index i join pg_class c
        on c.oid = i.indexrelid join pg_am a on a.oid = c.relam where a.amname = 'btree' and c.relpersistence = 'p'" >/dev/null ||
        fail "an index is damaged $1"
}

# MariaDB.
mariadb_make() {
    install -d -o mysql -g mysql -m 700 "$MNT/mariadb"
    setpriv --reuid mysql --regid mysql --clear-groups mariadb-install-db --no-defaults --datadir="$MNT/mariadb" --skip-test-db \
        >"$run/install" 2>&1 || fail "mariadb-install-db: $(tail -5 "$run/install")"
}
mariadb_start() {
    rm -f "$run/mariadb.log"
    mariadbd --no-defaults --user=mysql --datadir="$MNT/mariadb" --socket="$run/sock" --pid-file="$run/pid" --log-error="$run/mariadb.log" \
        --tmpdir="$run" --skip-networking --innodb-buffer-pool-size=16M --innodb-log-file-size=16M &
    server=$!
    wait_until 60 mariadb_answers
}
mariadb_answers() { mariadb_sql -e 'SELECT 1' >/dev/null 2>&1; }
mariadb_kill() { kill_tree "$server"; wait "$server" 2>/dev/null || true; }
mariadb_stop() { mariadb_sql -e SHUTDOWN; wait "$server" || fail "MariaDB ended with $?"; }
mariadb_sql() { mariadb --no-defaults --socket="$run/sock" --batch --skip-column-names "$@"; }
mariadb_fill() { mariadb_sql -e 'CREATE DATABASE d; USE d; CREATE TABLE filled (a INTEGER PRIMARY KEY, b VARCHAR(500)) ENGINE=InnoDB;
    INSERT INTO filled SELECT seq, repeat(char(65 + seq % 26), 400) FROM seq_1_to_40000'; }
mariadb_load() {
    (while mariadb_sql -e 'UPDATE d.filled SET b = reverse(concat(b, a)) WHERE a % 50 = floor(rand() * 50)'; do :; done) 2>/dev/null &
}
mariadb_sound() {
    [[ $(mariadb_sql -e 'CHECK TABLE d.filled EXTENDED' | cut -f4) == OK ]] || fail "CHECK TABLE is not content $1"
    [[ $(mariadb_sql -e 'SELECT count(*) FROM d.filled') == 40000 ]] || fail "rows are missing $1"
    ! grep -E '\[ERROR\]|corrupt' "$run/mariadb.log" || fail "the server's log has errors $1"
}

# Commits rows one after the other from $1 on, and notes each whose commit was reported.
commit_rows() {
    local n
    for ((n = $1; ; n++)); do
        "${db}_sql" "$flag" "insert into $said values ($n)" 2>/dev/null || return 0
        echo "$n" >>"$run/said"
    done
}

crash() {
    case $1 in
        server) "${db}_kill" ;;
        daemon)
            kill_daemon
            "${db}_kill"
            drop_dead_mount
            mount_cached
            ;;
        power)
            cut_power "$2"
            "${db}_kill"
            power_back
            ;;
    esac
}

# whole_story DB: what is reported as committed survives every crash.
whole_story() {
    db=$1
    "${db}_make"
    "${db}_start"
    "${db}_fill"
    "${db}_sql" "$flag" "create table $said (a integer primary key)"
    : >"$run/said"
    local n how begun=$SECONDS
    for ((n = 0; n < rounds; n++)); do
        for how in 'power fast slow' daemon 'power slow fast' server; do
            "${db}_load"
            local load=$! before
            before=$(wc -l <"$run/said")
            commit_rows $(($(tail -n 1 "$run/said") + 2)) &
            local committing=$!
            wait_until 60 has_lines $((before + 20 + RANDOM % 100))
            # shellcheck disable=SC2086
            crash ${how%% *} "${how#* }"
            wait $committing || true
            kill $load 2>/dev/null || true
            wait $load 2>/dev/null || true
            "${db}_start"
            "${db}_sql" "$flag" "select a from $said" >"$run/there"
            sort "$run/said" >"$run/expected"
            [[ -z $(sort "$run/there" | comm -23 "$run/expected" -) ]] || fail "$db: reported commits are lost after: $how"
            "${db}_sound" "after: $how"
            echo "  $((SECONDS - begun)) s: $db, $how: $(wc -l <"$run/expected") commits are there"
        done
    done
    "${db}_stop"
}
has_lines() { (($(wc -l <"$run/said") >= $1)); }

mount_cached
tested=
bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -1)
if [[ -x $bin/postgres ]] && command -v psql >/dev/null && command -v pgbench >/dev/null && id postgres >/dev/null 2>&1; then
    flag=-c said=said
    whole_story postgres
    tested=1
else
    echo "NOTE: PostgreSQL is not installed"
fi
if command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null && id mysql >/dev/null 2>&1; then
    flag=-e said=d.said
    whole_story mariadb
    tested=1
else
    echo "NOTE: MariaDB is not installed"
fi
[[ -n $tested ]] || skip "neither PostgreSQL nor MariaDB is installed"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" cache check "$name" >"$SCRATCH/out" || fail "the cache: $(cat "$SCRATCH/out")"
unmount_disks
