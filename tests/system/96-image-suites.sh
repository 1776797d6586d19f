#!/bin/bash
# TIMEOUT: 300
# TIMEOUT_FULL: 1800
# The public POSIX suites on an image that is mounted, and on ext4 beside it: we fail nothing that ext4 passes.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
root_only
need mkfs.ext4 pjdfstest fsx

image=$SCRATCH/image plain=$SCRATCH/plain
mkdir -p "$MNT"
fs_of_size plain 1G -b 4096
"$HOTSHELF" fs mkfs "$image" --size 1GiB >/dev/null
"$HOTSHELF" fs mount "$image" "$MNT" --allow-other --suid --dev

cat >"$SCRATCH/pjdfstest.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
# pjd DIRECTORY OTHER: the names of what failed, in DIRECTORY.failed.
pjd() {
    pjdfstest -c "$SCRATCH/pjdfstest.toml" -s "$2" -p "$1" >"$1.out" 2>&1 || true
    tail -1 "$1.out"
    grep -q '^Summary: .* passed' "$1.out" || fail "pjdfstest did not end: $(tail -3 "$1.out")"
    sed -n 's/ *FAILED$//p' "$1.out" | sort >"$1.failed"
}
pjd "$plain" "$MNT"
pjd "$MNT" "$plain"
ours=$(comm -13 "$plain.failed" "$MNT.failed")
[[ -z $ours ]] || fail "pjdfstest: ext4 passes what we fail: $ours"

cat >"$SCRATCH/fsx.toml" <<'END'
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
truncate = 1
fsync = 0.2
fdatasync = 0.2
read = 10
write = 10
mapread = 10
mapwrite = 10
punch_hole = 3
posix_fallocate = 3
sendfile = 1
posix_fadvise = 1
copy_file_range = 3
END
seed=${HOTSHELF_SEED:-7} count=2000
[[ $FULL == 1 ]] && seed=${HOTSHELF_SEED:-$RANDOM} count=100000
fsx -f "$SCRATCH/fsx.toml" -N "$count" -S "$seed" -P "$SCRATCH" "$MNT/fsx" >"$SCRATCH/out" 2>&1 ||
    fail "fsx -S $seed: $(tail -5 "$SCRATCH/out")"
umount "$plain"
"$HOTSHELF" unmount "$MNT"
"$HOTSHELF" fs check "$image" >"$SCRATCH/out" || fail "check: $(cat "$SCRATCH/out")"
