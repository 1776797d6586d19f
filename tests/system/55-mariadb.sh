#!/bin/bash
# MariaDB keeps its data on the mount: a table larger than the SSD, TPC-H query 1, a killed server, another mount.
# TIMEOUT: 600
# TIMEOUT_FULL: 3000
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mariadbd mariadb mariadb-install-db sqlite3
id mysql >/dev/null 2>&1 || skip "there is no user mysql"

ssd_mib=256 orders=560000
[[ $FULL != 1 ]] || ssd_mib=1024 orders=2560000
fs_of_size ssdfs ${ssd_mib}M
fs_of_size hddfs $((ssd_mib * 5))M
SSD=$SCRATCH/ssdfs/pool HDD=$SCRATCH/hddfs/pool DATA=$MNT/data TABLE=$MNT/data/tpch/lineitem.ibd
install -d -o mysql "$SCRATCH/run"

# LINEITEM as section 4.2.3 of the TPC-H specification has it, about four rows an order: uniform order dates from 1992-01-01
# to 1998-08-02, shipped 1 to 121 days later, received 1 to 30 after that; A or R when received by 1995-06-17, else N; O when
# shipped later than that, else F; quantity 1 to 50, price by the formula for parts, discount 0.00 to 0.10, tax 0.00 to 0.08.
# Other than there: rand() of this awk, order keys without gaps, comments of eight words.
rows() {
    awk -v orders="$1" -v first="$2" '
        function upto(n) { return int(rand() * n) }
        BEGIN {
            srand(19980802 + first)
            split("31 28 31 30 31 30 31 31 30 31 30 31", month)
            for (y = 1992; y <= 1998; y++)
                for (m = 1; m <= 12; m++)
                    for (d = 1; d <= month[m] + (m == 2 && y % 4 == 0); d++) {
                        date[days++] = sprintf("%d-%02d-%02d", y, m, d)
                        if (date[days - 1] == "1995-06-17") current = days - 1
                        if (date[days - 1] == "1998-08-02") last = days - 1
                    }
            instructs = split("DELIVER IN PERSON|COLLECT COD|NONE|TAKE BACK RETURN", instruct, "|")
            modes = split("REG AIR|AIR|RAIL|SHIP|TRUCK|MAIL|FOB", mode, "|")
            words = split("furiously quickly slyly carefully final even ironic regular deposits foxes pinto beans", word, " ")
            for (order = first; order < first + orders; order++) {
                ordered = upto(last + 1)
                lines = 1 + upto(7)
                for (line = 1; line <= lines; line++) {
                    part = 1 + upto(200000)
                    quantity = 1 + upto(50)
                    cents = quantity * (90000 + int(part / 10) % 20001 + 100 * (part % 1000))
                    shipped = ordered + 1 + upto(121)
                    received = shipped + 1 + upto(30)
                    comment = word[1 + upto(words)]
                    for (n = upto(5); n > 0; n--) comment = comment " " word[1 + upto(words)]
                    printf "%d|%d|%d|%d|%d|%d.%02d|0.%02d|0.%02d|%s|%s|%s|%s|%s|%s|%s|%s\n", order, part, 1 + upto(10000), line,
                        quantity, int(cents / 100), cents % 100, upto(11), upto(9),
                        (received > current ? "N" : upto(2) ? "R" : "A"), (shipped > current ? "O" : "F"),
                        date[shipped], date[ordered + 30 + upto(61)], date[received],
                        instruct[1 + upto(instructs)], mode[1 + upto(modes)], comment
                }
            }
        }'
}

# The same question to sqlite3, all numbers whole: prices in cents, discount and tax in hundredths.
expected() {
    cut -d'|' -f5-11 "$SCRATCH"/rows.* | tr -d . >"$SCRATCH/q1"
    sqlite3 :memory: 'CREATE TABLE l(q INTEGER, p INTEGER, d INTEGER, t INTEGER, rf, ls, shipped)' ".import $SCRATCH/q1 l" \
        "WITH s AS (SELECT rf, ls, sum(q) AS q, sum(p) AS p, sum(p * (100 - d)) AS dp,
            sum(p * (100 - d) * (100 + t)) AS c, sum(d) AS d, count(*) AS n FROM l WHERE shipped <= '1998-09-02' GROUP BY rf, ls)
        SELECT rf, ls, printf('%d.00', q), printf('%d.%02d', p / 100, p % 100), printf('%d.%04d', dp / 10000, dp % 10000),
            printf('%d.%06d', c / 1000000, c % 1000000), printf('%d.%06d', aq / 1000000, aq % 1000000),
            printf('%d.%06d', ap / 1000000, ap % 1000000), printf('%d.%06d', ad / 1000000, ad % 1000000), n
        FROM (SELECT *, (q * 2000000 + n) / (2 * n) AS aq, (p * 20000 + n) / (2 * n) AS ap, (d * 20000 + n) / (2 * n) AS ad
            FROM s) ORDER BY rf, ls" | tr '|' '\t'
    rm "$SCRATCH/q1"
}

sql() { mariadb --no-defaults --socket="$SCRATCH/run/sock" --batch --skip-column-names "$@"; }
answers() { sql -e 'SELECT 1' >/dev/null 2>&1; }
gone() { ! kill -0 "$1" 2>/dev/null; }

start_server() {
    mariadbd --no-defaults --user=mysql --datadir="$DATA" --socket="$SCRATCH/run/sock" --pid-file="$SCRATCH/run/pid" \
        --log-error="$SCRATCH/run/log.err" --tmpdir="$SCRATCH/run" --skip-networking --local-infile=1 \
        --innodb-buffer-pool-size=64M --innodb-log-file-size=32M &
    server=$!
    wait_until 60 answers
}
stop_server() {
    sql -e SHUTDOWN
    wait $server || fail "the server ended with $?"
}

query_1() {
    sql tpch -e "select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
        sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
        sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty,
        avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
        from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day
        group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus"
}
right_answer() {
    query_1 >"$SCRATCH/answer"
    diff "$SCRATCH/expected" "$SCRATCH/answer" || fail "another answer $1"
    echo "  $((SECONDS - begun)) s: the right answer $1"
}
sound() {
    [[ $(sql tpch -e 'CHECK TABLE lineitem EXTENDED' | cut -f4) == OK ]] || fail "CHECK TABLE is not content $1"
    ! grep -E '\[ERROR\]|corrupt' "$SCRATCH/run/log.err" || fail "the server's log has errors $1"
}

# Moves the database to and fro until "$SCRATCH/stay" exists; what is held or too large is refused, and stays.
moving() {
    until [[ -e $SCRATCH/stay ]]; do
        "$HOTSHELF" migrate "$DATA" --to hdd || true
        "$HOTSHELF" migrate "$DATA" --to ssd || true
    done >"$SCRATCH/migrate.log" 2>&1
}
start_moving() { rm -f "$SCRATCH/stay"; moving & mover=$!; }
stop_moving() { touch "$SCRATCH/stay"; wait $mover; }

# whole_story [FLAGS]: on a new pair mounted with FLAGS.
whole_story() {
    mount_pair --allow-other "$@"
    install -d -o mysql -g mysql -m 700 "$DATA"
    setpriv --reuid mysql --regid mysql --clear-groups mariadb-install-db --no-defaults --datadir="$DATA" \
        --skip-test-db >"$SCRATCH/install.log" 2>&1 || fail "mariadb-install-db: $(tail -5 "$SCRATCH/install.log")"
    start_server
    sql -e "CREATE DATABASE tpch CHARACTER SET latin1; USE tpch; CREATE TABLE lineitem (
        l_orderkey INTEGER NOT NULL, l_partkey INTEGER NOT NULL, l_suppkey INTEGER NOT NULL, l_linenumber INTEGER NOT NULL,
        l_quantity DECIMAL(15,2) NOT NULL, l_extendedprice DECIMAL(15,2) NOT NULL, l_discount DECIMAL(15,2) NOT NULL,
        l_tax DECIMAL(15,2) NOT NULL, l_returnflag CHAR(1) NOT NULL, l_linestatus CHAR(1) NOT NULL, l_shipdate DATE NOT NULL,
        l_commitdate DATE NOT NULL, l_receiptdate DATE NOT NULL, l_shipinstruct CHAR(25) NOT NULL, l_shipmode CHAR(10) NOT NULL,
        l_comment VARCHAR(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber)) ENGINE=InnoDB;
        CREATE TABLE said (a INTEGER PRIMARY KEY) ENGINE=InnoDB"
    for part in 1 2 3; do
        sql tpch -e "LOAD DATA LOCAL INFILE '$SCRATCH/rows.$part' INTO TABLE lineitem FIELDS TERMINATED BY '|'" ||
            fail "part $part could not be loaded: $(grep -v Note "$SCRATCH/run/log.err" | tail -5)"
        echo "  $((SECONDS - begun)) s: part $part is in, $(($(stat -c %s "$TABLE") >> 20)) MiB on the $(tier "$TABLE")"
        ((part > 1)) || { stop_server; start_server; start_moving; }
    done
    [[ $(sql tpch -e 'SHOW COUNT(*) WARNINGS') == 0 ]] || fail "the load warned"
    (($(stat -c %s "$TABLE") > ssd_mib << 20)) || fail "the table is not larger than the SSD"
    right_answer "while files move"
    stop_moving
    echo "  $(($(stat -c %s "$TABLE") >> 20)) MiB in lineitem.ibd, on the $(tier "$TABLE"); SSD $ssd_mib MiB;" \
        "$(field promotions) promotions, $(field demotions) demotions"
    on "$TABLE" hdd || fail "a table larger than the SSD is not on the HDD"
    sound "after the load"

    # Killed in the middle of a change: what was committed is there, what was not is not.
    sql tpch -e 'BEGIN; UPDATE lineitem SET l_tax = l_tax + 1; COMMIT' 2>/dev/null &
    changing() { (($(sql -e "SHOW GLOBAL STATUS LIKE 'Handler_update'" | cut -f2) > 20000)); }
    wait_until 30 changing
    sql tpch -e 'INSERT INTO said VALUES (42)'
    kill -9 $server
    wait $server 2>/dev/null || true
    start_server
    [[ $(sql tpch -e 'SELECT a FROM said') == 42 ]] || fail "a committed row is gone"
    right_answer "after the server was killed"
    sound "after the server was killed"
    stop_server
    unmount_pair
    clean_check
}

begun=$SECONDS last=(0 1 4 8) # eighths of the orders in each part
for part in 1 2 3; do
    rows $((orders / 8 * last[part] - orders / 8 * last[part - 1])) $((orders / 8 * last[part - 1] + 1)) >"$SCRATCH/rows.$part" &
done
wait
expected >"$SCRATCH/expected"
[[ $(wc -l <"$SCRATCH/expected") == 4 ]] || fail "not the four groups of TPC-H: $(cat "$SCRATCH/expected")"
echo "  $((SECONDS - begun)) s: $(cat "$SCRATCH"/rows.* | wc -l) rows made"
whole_story

mount_pair --allow-other --no-passthrough
start_server
start_moving
right_answer "on another mount, through the daemon, while files move"
stop_moving
sound "on another mount"
stop_server
unmount_pair
clean_check

if [[ $FULL == 1 ]]; then
    rm -rf "$SSD" "$HDD"
    whole_story --no-passthrough
fi

unmount_disks
