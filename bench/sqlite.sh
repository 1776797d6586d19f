#!/bin/bash
# SQLite's own command line on a database on a disk of 150 reads a second, looking up random rows; the database is larger than the
# memory for caching. As it is (Debian's sqlite3, the kernel's page cache), and ported by `-include hotshelf_posix.h` with a cache of
# memory and SSD. Both run in a control group of the same size; both have read the whole database before, until a pass reads next to
# nothing from the disk, or WARM (6) times. The SSD is a file on the disk of TMPDIR.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need sqlite3 cc tclsh
[[ $(id -u) == 0 ]] || { echo "SKIP: loop devices and throttling need root"; exit 0; }
root=$(realpath "$(dirname "$0")/..")
built=0
"$root/contrib/sqlite/build.sh" "$(dirname "$HOTSHELF")" || built=$?
[[ $built != 77 ]] || exit 0
[[ $built == 0 ]] || exit 1
ours=${CARGO_TARGET_DIR:-$root/target}/sqlite/usqlite3
db_mib=${DB_MIB:-96} group_mib=${GROUP_MIB:-64} memory_mib=${MEMORY_MIB:-24} lookups=${LOOKUPS:-2000} runs=${RUNS:-3}

disk hddfs 1G
db=$SCRATCH/hddfs/data.db
rows=$((db_mib * 1024))
sqlite3 "$db" "create table t(a integer primary key, b blob);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < $rows) insert into t select i, randomblob(950) from n"
# What made it had it in memory that is counted to nobody's group.
umount "$SCRATCH/hddfs"
mount "$loop" "$SCRATCH/hddfs"
device=$(cat "/sys/block/$(basename "$loop")/dev")
blkio=/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device
[[ -w $blkio ]] || { echo "SKIP: no blkio control group here"; exit 0; }
throttled=$device
echo "$device 150" >"$blkio"
group=/sys/fs/cgroup/memory/hotshelf-bench-$$
mkdir "$group" 2>/dev/null || { echo "SKIP: no memory control group here"; exit 0; }
runtime=$(mktemp -d /dev/shm/hotshelf-bench.XXXXXX)
trap 'rmdir "$group" 2>/dev/null; rm -rf "$runtime"; clean_up' EXIT
echo "$((group_mib << 20))" >"$group/memory.limit_in_bytes"

cat >"$SCRATCH/cache.toml" <<EOF
[cache]
memory = "${memory_mib}MiB"
files = 64
runtime_dir = "$runtime"
ssd = "$SCRATCH/cache.ssd"
ssd_size = "$((db_mib * 2))MiB"
keep = true
rules = [{ glob = "*.db", admit = "always" }]
EOF
within() { (echo "$BASHPID" >"$group/cgroup.procs" && exec "$@"); }
kernel() { within sqlite3 "$db"; }
cached() { HOTSHELF_CONFIG=$SCRATCH/cache.toml within "$ours" "$db"; }
script() {
    awk -v n="$lookups" -v rows="$rows" -v seed="$1" 'BEGIN {
        srand(seed); print "pragma locking_mode = exclusive;"
        for (i = 0; i < n; i++) printf "select length(b) from t where a = %d;\n", 1 + int(rand() * rows) }'
}
# seconds WHO SEED
seconds() {
    local begin
    script "$2" >"$SCRATCH/script"
    begin=$(now)
    "$1" <"$SCRATCH/script" >"$SCRATCH/out"
    awk "BEGIN { print $(now) - $begin }"
    [[ $(grep -c '^950$' "$SCRATCH/out") == "$lookups" ]] || { echo "wrong answers" >&2; exit 1; }
}

pages_read() { awk '{ print int($3 / 8) }' "/sys/block/$(basename "$loop")/stat"; }
for who in kernel cached; do
    for ((pass = 1; pass <= ${WARM:-6}; pass++)); do
        reads=$(pages_read)
        echo 'select sum(length(b)) from t;' | "$who" >/dev/null
        reads=$(($(pages_read) - reads))
        ((reads * 100 > db_mib * 256)) || break
    done
    echo "  $who: $reads pages read from the disk in the last of $((pass > ${WARM:-6} ? ${WARM:-6} : pass)) passes"
done
k=() c=()
for ((run = 1; run <= runs; run++)); do
    k+=("$(seconds kernel "$run")")
    c+=("$(seconds cached "$run")")
done
kernel_s=$(median "${k[@]}") cached_s=$(median "${c[@]}")
echo "  $lookups random lookups in $db_mib MiB, $group_mib MiB of memory for all, disk of 150 reads a second:"
echo "  the kernel's path $kernel_s s (${k[*]}), through the cache $cached_s s (${c[*]}): $(ratio "$kernel_s" "$cached_s") times as fast"
note sqlite "db_mib=$db_mib" "group_mib=$group_mib" "memory_mib=$memory_mib" "lookups=$lookups" "kernel_s=$kernel_s" "cached_s=$cached_s"
