#!/bin/bash
# TIMEOUT: 300
# TIMEOUT_FULL: 2400
# PostgreSQL and MariaDB keep their data on a cached mount in write-back mode, and lose no acknowledged row: when the server is killed,
# when the mount's daemon is killed, and when memory is lost: both file systems stop at one moment, and what they have not written is gone.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 xfs_io rsync
cuts=2
[[ $FULL == 1 ]] && cuts=20
name=cached-databases-$$ cache=$SCRATCH/fast/cache DATA=$MNT/data RUN=$SCRATCH/run
pg_bin=$(command -v postgres || find /usr/lib/postgresql -path "*/bin/postgres" 2>/dev/null | sort -V | tail -1)
pg_bin=$(dirname "$(readlink -f "$pg_bin")")
mkdir -p "$MNT" "$RUN"
chmod 755 "$SCRATCH"
server='' writer=''
end_all() {
    local one
    for one in $writer $server $(pgrep -P "${server:-0}") $(daemon_of_mount); do kill -9 "$one" 2>/dev/null || true; done
    for one in $(daemon_of_mount); do wait_until 10 gone "$one"; done
    drop_dead_mount
    "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
    rm -rf /dev/shm/hotshelf-*/"$name".* "/etc/hotshelf/caches/$name"*
}
trap end_all EXIT

mounted() { "$HOTSHELF" mount --cache "$cache" --cache-mode write-back "$SCRATCH/slow/dir" "$MNT" --allow-other; }
unmounted() { "$HOTSHELF" unmount "$MNT" || fail "unmount: $("$HOTSHELF" cache status "$cache" 2>&1 | tail -n 20)"; }
daemon_of_mount() { pgrep -f -- "mount --cache $cache --cache-mode write-back $SCRATCH/slow/dir"; }
# Whether the server answers; what it says if it ended.
is_ready() {
    ! gone "$server" || fail "the server ended: $(tail -n 5 "$RUN/server.log")"
    answers
}
gone() { ! kill -0 "$1" 2>/dev/null; }

# kill_mount: the daemon dies with the mount's files open.
kill_mount() {
    local pid
    pid=$(daemon_of_mount) || fail "the mount has no daemon"
    for one in $pid; do kill -9 "$one"; done
    for one in $pid; do wait_until 10 gone "$one"; done
    drop_dead_mount
}

# lose_power: the daemon does not go on, and neither disk writes anything any more; the memory is lost.
lose_power() {
    local pid
    pid=$(daemon_of_mount) || fail "the mount has no daemon"
    for one in $pid; do kill -STOP "$one"; done
    xfs_io -x -c shutdown "$SCRATCH/slow" || skip "ext4 cannot be shut down here"
    xfs_io -x -c shutdown "$SCRATCH/fast"
    kill_mount
    kill_server
    rm -f /dev/shm/hotshelf-*/"$name".*
    umount "$SCRATCH/slow" "$SCRATCH/fast"
    mount -o loop "$SCRATCH/slow.img" "$SCRATCH/slow"
    mount -o loop "$SCRATCH/fast.img" "$SCRATCH/fast"
}

kill_server() {
    local children
    stop_writer
    children=$(pgrep -P "$server") || true
    kill -9 "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    # Processes of the server end when it does.
    for one in $children; do wait_until 20 gone "$one"; done
    server=''
}

# Writes rows with rising numbers; the number of each acknowledged row is in "$RUN/acknowledged".
start_writer() { write_rows & writer=$!; }
stop_writer() {
    touch "$RUN/stop"
    wait "$writer" 2>/dev/null || true
    writer=''
    rm -f "$RUN/stop"
}
write_rows() {
    local row
    for ((row = $(last) + 1; ; row++)); do
        [[ ! -e $RUN/stop ]] && insert "$row" >"$RUN/insert.log" 2>&1 || break
        echo "$row" >>"$RUN/acknowledged"
    done
}
last() { tail -n 1 "$RUN/acknowledged"; }
has_more_than() { (($(last) > $1)); }
more_rows() { wait_until 60 has_more_than $(($(last) + $1)); }

# Each row that was acknowledged is there with its content. At most one other is: the last one, whose answer did not arrive.
all_rows() {
    local rows
    rows=$(rows_found)
    [[ $rows == "$(last) $(last)" || $rows == "$(($(last) + 1)) $(($(last) + 1))" ]] || fail "$1: $rows rows, $(last) were acknowledged"
    echo "$rows" | cut -d' ' -f1 >"$RUN/acknowledged"
    sound || fail "$1: the server finds damage"
    echo "  $database, $1: $(last) rows"
}

whole_story() {
    local cut
    database=$1
    fs_of_size fast 400M
    fs_of_size slow 800M
    mkdir "$SCRATCH/slow/dir"
    "$HOTSHELF" cache create "$cache" --name "$name" --size 256MiB --memory 64MiB >/dev/null
    mounted
    echo 0 >"$RUN/acknowledged"
    create
    start
    start_writer
    more_rows 50
    kill_server
    start
    all_rows "the server was killed"
    start_writer
    more_rows 50
    kill_mount
    kill_server
    mounted
    start
    all_rows "the mount's daemon was killed"
    for ((cut = 0; cut < cuts; cut++)); do
        start_writer
        more_rows 100
        lose_power
        mounted
        start
        all_rows "power cut $((cut + 1))"
    done
    stop
    unmounted
    mounted
    # The directory is complete without the mount, which shows the same: compared both ways.
    rsync -aHAX --delete --checksum --dry-run --itemize-changes "$DATA/" "$SCRATCH/slow/dir/data/" >"$RUN/differences"
    rsync -aHAX --delete --checksum --dry-run --itemize-changes "$SCRATCH/slow/dir/data/" "$DATA/" >>"$RUN/differences"
    [[ ! -s $RUN/differences ]] || fail "$database: rsync sees differences: $(head -3 "$RUN/differences")"
    unmounted
    "$HOTSHELF" cache destroy "$cache" >/dev/null
    umount "$SCRATCH/slow" "$SCRATCH/fast"
}

postgresql() {
    psql() { "$pg_bin/psql" -h "$RUN" -U hotshelf -d postgres -v ON_ERROR_STOP=1 -qAtX "$@"; }
    as_server() { exec setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    answers() { psql -c 'SELECT 1' >/dev/null 2>&1; }
    create() {
        install -d -o nobody -g nogroup -m 700 "$DATA"
        chown nobody "$RUN"
        (as_server "$pg_bin/initdb" -D "$DATA" -U hotshelf --auth trust >"$RUN/initdb.log" 2>&1) ||
            fail "initdb: $(tail -5 "$RUN/initdb.log")"
        start
        psql -c 'CREATE TABLE said (a INTEGER PRIMARY KEY, b TEXT NOT NULL)'
        stop
    }
    start() {
        rm -f "$DATA/postmaster.pid" "$RUN/server.log"
        as_server "$pg_bin/postgres" -D "$DATA" -k "$RUN" -c listen_addresses= -c shared_buffers=16MB -c max_wal_size=64MB \
            -c checkpoint_timeout=30s >>"$RUN/server.log" 2>&1 &
        server=$!
        wait_until 60 is_ready
    }
    stop() {
        kill -INT "$server"
        wait "$server" || fail "PostgreSQL ended with $?"
        server=''
    }
    insert() { psql -c "INSERT INTO said VALUES ($1, repeat(md5('$1'), 100))"; }
    rows_found() { psql -F ' ' -c "SELECT count(*), max(a) FROM said WHERE b = repeat(md5(a::text), 100)"; }
    sound() {
        psql -c 'SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT sum(length(b)) FROM said' >/dev/null &&
            "$pg_bin/pg_dumpall" -h "$RUN" -U hotshelf >/dev/null && ! grep -E 'PANIC|invalid page|could not read' "$RUN/server.log"
    }
    whole_story PostgreSQL
}

mariadb_server() {
    sql() { mariadb --no-defaults --socket="$RUN/sock" --batch --skip-column-names "$@"; }
    answers() { sql -e 'SELECT 1' >/dev/null 2>&1; }
    create() {
        install -d -o mysql -g mysql -m 700 "$DATA"
        chown mysql "$RUN"
        setpriv --reuid mysql --regid mysql --clear-groups mariadb-install-db --no-defaults --datadir="$DATA" --skip-test-db \
            >"$RUN/install.log" 2>&1 || fail "mariadb-install-db: $(tail -5 "$RUN/install.log")"
        start
        sql -e 'CREATE DATABASE d; CREATE TABLE d.said (a INTEGER PRIMARY KEY, b TEXT NOT NULL) ENGINE=InnoDB'
        stop
    }
    start() {
        rm -f "$RUN/server.log"
        mariadbd --no-defaults --user=mysql --datadir="$DATA" --socket="$RUN/sock" --pid-file="$RUN/pid" --log-error="$RUN/server.log" \
            --tmpdir="$RUN" --skip-networking --innodb-buffer-pool-size=32M --innodb-log-file-size=16M &
        server=$!
        wait_until 60 is_ready
    }
    stop() {
        sql -e SHUTDOWN
        wait "$server" || fail "MariaDB ended with $?"
        server=''
    }
    insert() { sql d -e "INSERT INTO said VALUES ($1, repeat(md5('$1'), 100))"; }
    rows_found() { sql d -e "SELECT count(*), max(a) FROM said WHERE b = repeat(md5(a), 100)" | tr '\t' ' '; }
    sound() { [[ $(sql d -e 'CHECK TABLE said EXTENDED' | cut -f4) == OK ]] && ! grep -E '\[ERROR\]|corrupt' "$RUN/server.log"; }
    whole_story MariaDB
}

found=0
if [[ -x $pg_bin/initdb ]]; then
    found=1
    postgresql
fi
if command -v mariadbd >/dev/null && id mysql >/dev/null 2>&1; then
    found=1
    mariadb_server
fi
((found)) || skip "neither PostgreSQL nor MariaDB is installed"
