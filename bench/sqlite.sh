#!/bin/bash
# SQLite's own command line on a database on a disk of 150 reads a second, looking up random rows; the database is larger than the
# memory for caching. As it is (Debian's sqlite3, the kernel's page cache), and ported by `-include hotshelf_posix.h` with a cache of
# memory and SSD. Both run in a control group of the same size; both have read the whole database twice before.
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
sync
device=$(cat "/sys/block/$(basename "$loop")/dev")
blkio=/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device
[[ -w $blkio ]] || { echo "SKIP: no blkio control group here"; exit 0; }
throttled=$device
echo "$device 150" >"$blkio"
group=/sys/fs/cgroup/memory/hotshelf-bench-$$
mkdir "$group" 2>/dev/null || { echo "SKIP: no memory control group here"; exit 0; }
trap 'rmdir "$group" 2>/dev/null; clean_up' EXIT
echo "$((group_mib << 20))" >"$group/memory.limit_in_bytes"

cat >"$SCRATCH/cache.toml" <<EOF
[cache]
memory = "${memory_mib}MiB"
runtime_dir = "$SCRATCH"
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

for who in kernel cached; do
    for _ in 1 2; do
        echo 'select sum(length(b)) from t;' | "$who" >/dev/null
    done
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
