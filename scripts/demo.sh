#!/bin/bash
# The main jobs on real files: a hybrid mount over a small fast directory and a big slow one, and a cached mount of a slow directory.
# Uses scratch directories only, and takes them away again, also when it fails. Needs root for loop devices and
# throttling; without root it shows the same with plain directories.
set -euo pipefail
HOTSHELF=${HOTSHELF:-target/release/hotshelf}
PATH="$PATH:/usr/sbin:/sbin"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/hotshelf-demo.XXXXXX")
mnt=$scratch/pool ssd=$scratch/ssd hdd=$scratch/hdd
loops=() throttled= cache=

clean_up() {
    cd /
    "$HOTSHELF" unmount "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null || true
    [[ -z $cache ]] || "$HOTSHELF" cache destroy "$cache" --discard >/dev/null 2>&1 || true
    if [[ -n $throttled ]]; then
        echo "$throttled 0" >"$cgroup/blkio.throttle.read_iops_device" 2>/dev/null || true
        echo $$ >"$(dirname "$cgroup")/tasks" 2>/dev/null || true
        rmdir "$cgroup" 2>/dev/null || true
    fi
    umount "$scratch/ssd" "$scratch/hdd" 2>/dev/null || true
    for loop in "${loops[@]}"; do losetup -d "$loop" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '  $ %s\n' "$*"; "$@" 2>&1 | sed 's/^/    /'; }
seconds() {
    local begin end
    begin=$(date +%s.%N)
    "$@" >/dev/null
    end=$(date +%s.%N)
    awk "BEGIN { printf \"%.2f\", $end - $begin }"
}
drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true; }

disk() {
    local name=$1 size=$2 loop
    truncate -s "$size" "$scratch/$name.img"
    mkfs.ext4 -q "$scratch/$name.img" && loop=$(losetup --find --show "$scratch/$name.img") || return 1
    loops+=("$loop")
    mkdir -p "$scratch/$name" && mount "$loop" "$scratch/$name"
}

say "1. A small fast disk and a big slow one"
if [[ $(id -u) == 0 ]] && disk ssd 192M && disk hdd 2G; then
    echo "  192 MiB and 2 GiB, each an ext4 of its own on a loop device."
    cgroup=/sys/fs/cgroup/blkio/hotshelf-demo-$$
    if mkdir "$cgroup" 2>/dev/null; then
        device=$(cat "/sys/block/$(basename "${loops[1]}")/dev")
        if echo "$device 150" >"$cgroup/blkio.throttle.read_iops_device" 2>/dev/null && echo $$ >"$cgroup/tasks"; then
            throttled=$device
            echo "  The slow one is held to 150 reads a second, as a rotating disk is."
        else
            rmdir "$cgroup"
        fi
    fi
    [[ -n $throttled ]] || echo "  (This machine cannot throttle it: no blkio control group. The slow one is as fast as the fast one.)"
    small=1
else
    umount "$scratch/ssd" 2>/dev/null || true
    mkdir -p "$ssd" "$hdd"
    echo "  Plain directories: loop devices need root. They are equally fast; look at where the files go."
    small=
fi
ssd=$scratch/ssd/shelf hdd=$scratch/hdd/store
mkdir -p "$ssd" "$hdd" "$mnt"
run "$HOTSHELF" mount --ssd "$ssd" --hdd "$hdd" "$mnt"

say "2. A real tree goes in: the system's own headers and documentation"
cp -a /usr/include/linux "$mnt/headers"
cp -a /usr/share/doc/bash "$mnt/doc" 2>/dev/null || cp -a /usr/share/common-licenses "$mnt/doc"
echo "  $(find "$mnt" -type f | wc -l) files, $(du -sh --apparent-size "$mnt" | cut -f1)"
(cd "$mnt" && find . -type f -exec sha256sum {} + | sort -k2) >"$scratch/sums"

say "3. Ordinary programs work on it"
cd "$mnt"
git -c init.defaultBranch=main init -q repo
cp -r headers repo/src
git -C repo add -A
git -C repo -c user.name=demo -c user.email=demo@example.org commit -qm "headers"
run git -C repo fsck --full
tar cf headers.tar headers && echo "  tar: $(tar df headers.tar && echo no difference)"
sqlite3 words.db "CREATE TABLE w(x TEXT);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 50000) INSERT INTO w SELECT hex(randomblob(20)) FROM n;"
echo "  sqlite3: $(sqlite3 words.db 'SELECT count(*) FROM w; PRAGMA integrity_check;' | paste -sd' ')"
echo "  grep: $(grep -rl 'ioctl' headers | wc -l) headers mention ioctl"

say "4. Where a file lives, and why"
run "$HOTSHELF" why "$mnt/words.db"

if [[ -n $small ]]; then
    say "5. More than fits: the SSD fills, what is coldest leaves"
    for n in $(seq 1 12); do head -c 20M /dev/urandom >"$mnt/data$n"; done
    head -c 300M /dev/urandom >"$mnt/one-large-file"
    sha256sum data* one-large-file >>"$scratch/sums"
    run "$HOTSHELF" status "$mnt"
    echo "  240 MiB of files and one of 300 MiB were written through an SSD of 192 MiB; no write failed."
    run "$HOTSHELF" why "$mnt/data1"
else
    say "5. A file is sent to the slow directory"
    run "$HOTSHELF" migrate "$mnt/headers.tar" --to hdd
fi

say "6. Use brings files up: the second open of data1 promotes it"
"$HOTSHELF" migrate "$mnt/data1" --to hdd >/dev/null 2>&1 || true
target=$([[ -e $mnt/data1 ]] && echo data1 || echo headers.tar)
cat "$target" >/dev/null
cat "$target" >/dev/null
for _ in $(seq 100); do
    "$HOTSHELF" why --json "$mnt/$target" | grep -q '"tier": "ssd"' && break
    sleep 0.1
done
run "$HOTSHELF" why "$mnt/$target"

say "7. Speed: 500 random reads of 4 KiB, nothing cached"
cat >"$scratch/random.py" <<'PY'
import os, random, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
pages = os.fstat(fd).st_size // 4096
random.seed(1)
for _ in range(500):
    os.pread(fd, 4096, random.randrange(pages) * 4096)
PY
if command -v python3 >/dev/null; then
    cp "$target" "$scratch/hdd/alone" 2>/dev/null || cp "$target" "$hdd/../alone"
    drop_caches
    slow=$(seconds python3 "$scratch/random.py" "$scratch/hdd/alone")
    drop_caches
    fast=$(seconds python3 "$scratch/random.py" "$mnt/$target")
    times=$(awk "BEGIN { printf \"%.0f\", $slow / ($fast > 0 ? $fast : 0.01) }")
    echo "  on the slow directory alone: $slow s; on the mount: $fast s ($times times)"
else
    echo "  (python3 is not installed: skipped)"
fi

say "8. Unmount, and every byte is where it was"
cd /
run "$HOTSHELF" unmount "$mnt"
run "$HOTSHELF" check "$ssd" "$hdd"
while read -r sum path; do
    found=$hdd/$path
    [[ -e $ssd/$path ]] && found=$ssd/$path
    [[ $(sha256sum <"$found" | cut -d' ' -f1) == "$sum" ]] || { echo "  $path differs"; exit 1; }
done <"$scratch/sums"
echo "  $(wc -l <"$scratch/sums") files verified by checksum, read from the two directories without hotshelf."
rm -rf "${ssd:?}" "${hdd:?}"

say "9. A NAS that must stay complete: the cached mount"
nas=$scratch/hdd/nas
mkdir "$nas"
cp -a /usr/include/linux "$nas/headers"
head -c 48M /dev/urandom >"$nas/table"
echo "  $nas stands in for a NAS: the same slow disk, with $(find "$nas" -type f | wc -l) files."
run "$HOTSHELF" cache create "$scratch/ssd/nas-cache" --name "demo-$$" --size 96MiB --memory 16MiB
cache=$scratch/ssd/nas-cache
run "$HOTSHELF" mount --cache "$cache" "$nas" "$mnt"
if command -v python3 >/dev/null; then
    drop_caches
    first=$(seconds python3 "$scratch/random.py" "$mnt/table")
    run "$HOTSHELF" cache warm "$mnt/table"
    drop_caches
    second=$(seconds python3 "$scratch/random.py" "$mnt/table")
    times=$(awk "BEGIN { printf \"%.0f\", $first / ($second > 0 ? $second : 0.01) }")
    echo "  500 random reads of 4 KiB, the first time: $first s; when the SSD has the file: $second s ($times times)"
fi
run "$HOTSHELF" why "$mnt/table"

say "10. Each write is on the NAS when the program has closed its file"
echo "written through the mount" >"$mnt/note"
run cat "$nas/note"
run "$HOTSHELF" unmount "$mnt"
diff -r /usr/include/linux "$nas/headers"
echo "  The NAS has every file, and is read without hotshelf."
say "Done. The scratch directories are removed."
