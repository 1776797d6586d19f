#!/bin/bash
# TIMEOUT: 120
# `hotshelf nocache`: every call is tried from C; ordinary programs do what they do without it, and their second run reads the device
# again; what cannot be seen is said.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need cc git python3 sqlite3 fincore
root_only
export HOTSHELF_NOCACHE_LIB=${HOTSHELF_NOCACHE_LIB:-$(dirname "$HOTSHELF")/libhotshelf_nocache.so}
[[ -e $HOTSHELF_NOCACHE_LIB ]] || fail "$HOTSHELF_NOCACHE_LIB is not built"

fs_of_size disk 256M -b 4096
disk=$SCRATCH/disk
device=$(findmnt -no SOURCE "$disk")
name=$(basename "$device")

# Sectors read and written so far.
sectors() { awk '{ print $3, $7 }' "/sys/block/$name/stat"; }

# reads_again BYTES COMMAND...: under it the command answers as without, and reads at least so much from the device, twice.
reads_again() {
    local bytes=$1 run before after read
    shift
    "$@" >"$SCRATCH/plain" 2>&1 || fail "without it: $*: $(cat "$SCRATCH/plain")"
    for run in first second; do
        before=$(sectors)
        "$HOTSHELF" nocache --device "$device" -- "$@" >"$SCRATCH/under" 2>&1 || fail "$run run: $*: $(cat "$SCRATCH/under")"
        after=$(sectors)
        cmp "$SCRATCH/plain" "$SCRATCH/under" || fail "$run run of $* answers differently"
        read=$(((${after% *} - ${before% *}) * 512))
        ((read >= bytes)) || fail "$run run of $* read $read bytes of the device, not $bytes"
    done
}

cc -O2 -w -D_FORTIFY_SOURCE=2 -o "$SCRATCH/calls" "$ROOT/crates/tools/nocache/tests/calls.c" -pthread
"$HOTSHELF" nocache --path "$disk" -- "$SCRATCH/calls" "$disk" || fail "calls"
"$HOTSHELF" nocache --device "$device" -- "$SCRATCH/calls" "$disk" read || fail "calls, by device"
# The test can fail: without the library, and for what is not chosen.
"$SCRATCH/calls" "$disk" read >/dev/null && fail "pages were not in memory without the library"
mkdir "$disk/other"
"$HOTSHELF" nocache --path "$disk/other" -- "$SCRATCH/calls" "$disk" read >/dev/null && fail "what is not chosen was dropped"

# A write is on the device when the call has returned.
before=$(sectors)
"$HOTSHELF" nocache --device "$device" -- dd if=/dev/zero of="$disk/zeros" bs=64k count=64 status=none
after=$(sectors)
(((${after#* } - ${before#* }) * 512 >= 4 << 20)) || fail "4 MiB were not written to the device"

# With a write cache calls return before: at most so much is not on the device then, all of it when the file is closed.
cat >"$SCRATCH/writes.py" <<'PYTHON'
import os, random, sys
name, stat = sys.argv[1:]
written = lambda: int(open(stat).read().split()[6]) * 512
blocks, random, before = 5120, random.Random(3), written()
file = os.open(name, os.O_RDWR | os.O_CREAT)
places = random.sample(range(blocks), blocks)
most = 0
for count, place in enumerate(places, 1):
    os.pwrite(file, place.to_bytes(4, "little") * 1024, place * 4096)
    if count % 256 == 0:
        most = max(most, count * 4096 - (written() - before))
assert most <= 4 << 20, f"{most} bytes were not on the device"
assert all(os.pread(file, 4, place * 4096) == place.to_bytes(4, "little") for place in places[::7])
os.close(file)
assert written() - before >= blocks * 4096, "not all is on the device at the close"
PYTHON
"$HOTSHELF" nocache --path "$disk" --write-cache 4MiB -- python3 "$SCRATCH/writes.py" "$disk/blocks" "/sys/block/$name/stat" ||
    fail "a write cache"
[[ $(fincore -nbo RES "$disk/blocks") -eq 0 ]] || fail "what went through a write cache stays in memory"
python3 -c 'import sys
data = open(sys.argv[1], "rb").read()
assert all(data[at:at + 4096] == (at // 4096).to_bytes(4, "little") * 1024 for at in range(0, 5120 * 4096, 4096))' "$disk/blocks" ||
    fail "what went through a write cache is not what was written"
rm "$disk/blocks"
refused 2 "at most 128MiB" "$HOTSHELF" nocache --write-cache 1GiB -- true
refused 2 "give bytes" "$HOTSHELF" nocache --write-cache 5% -- true

python3 - "$disk" <<'PYTHON'
import random, sys
random.seed(7)
disk = sys.argv[1]
with open(f"{disk}/lines", "w") as file:
    for n in range(60000):
        file.write(f"{n} {random.random()} word{n % 97}\n")
open(f"{disk}/script.py", "w").write("""
import mmap, sys
total = sum(len(line) for line in open(sys.argv[1]))
data = open(sys.argv[1], "rb").read()
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
    print(total, len(data), view.find(b"word96"), hash(data) == hash(view[:]))
""")
PYTHON
size=$(stat -c %s "$disk/lines")
sqlite3 "$disk/db" "create table t(a, b); insert into t with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
    select i, hex(randomblob(40)) from n"
export GIT_CONFIG_NOSYSTEM=1 HOME=$SCRATCH GIT_OPTIONAL_LOCKS=0
mkdir "$disk/tree"
for n in $(seq 200); do echo "file $n word$((n % 10))" >"$disk/tree/file$n"; done
git -C "$disk/tree" init -q
git -C "$disk/tree" add .
git -C "$disk/tree" -c user.name=t -c user.email=t@example.org commit -qm all
echo change >>"$disk/tree/file7"
sync -f "$disk"

reads_again "$(stat -c %s "$disk/db")" sqlite3 "$disk/db" "select count(*), sum(length(b)) from t"
reads_again "$size" cp "$disk/lines" "$disk/copy"
cmp "$disk/lines" "$disk/copy" || fail "the copy differs"
reads_again $((200 * 4096)) grep -r word7 "$disk/tree" --exclude-dir=.git
reads_again 4096 git -C "$disk/tree" status --short
reads_again "$size" python3 "$disk/script.py" "$disk/lines"
# shellcheck disable=SC2016
reads_again "$size" bash -c 'cat "$1" | cut -d" " -f3 | sort | uniq -c | sort -rn | head -3; wc -l <"$1"; env -i wc -c "$1"' - "$disk/lines"

# Changes, too: the same database, tree and file in the end.
"$HOTSHELF" nocache --device "$device" -- sqlite3 "$disk/db" "update t set b = 'x' where a % 2; pragma integrity_check" >"$SCRATCH/said"
[[ $(cat "$SCRATCH/said") == ok ]] || fail "sqlite3: $(cat "$SCRATCH/said")"
[[ $(sqlite3 "$disk/db" "select count(*) from t where b = 'x'") == 10000 ]] || fail "sqlite3's update"
"$HOTSHELF" nocache --device "$device" -- git -C "$disk/tree" -c user.name=t -c user.email=t@example.org commit -qam again
git -C "$disk/tree" fsck --strict >/dev/null 2>&1 || fail "git fsck"
# shellcheck disable=SC2016
"$HOTSHELF" nocache --device "$device" -- sh -c 'seq 1000 >"$1"; sed -i s/7/x/ "$1"; sort -o "$1" "$1"' - "$disk/numbers"
[[ $(md5sum <"$disk/numbers") == "$(seq 1000 | sed s/7/x/ | sort | md5sum)" ]] || fail "a shell's file"

# Status and signals are the program's; its own words are its own.
"$HOTSHELF" nocache -- sh -c 'exit 7' && fail "status" || [[ $? == 7 ]] || fail "status"
"$HOTSHELF" nocache -- sh -c 'kill -TERM $$' && fail "signal" || [[ $? == 143 ]] || fail "signal"
[[ $("$HOTSHELF" nocache -- echo --device -x) == "--device -x" ]] || fail "arguments"

# What cannot be done is said.
echo 'int main(void) { return 3; }' >"$SCRATCH/still.c"
cc -static -o "$SCRATCH/still" "$SCRATCH/still.c"
printf '#!%s\n' "$SCRATCH/still" >"$SCRATCH/script"
chmod +x "$SCRATCH/script"
refused 1 "statically linked" "$HOTSHELF" nocache -- "$SCRATCH/still"
refused 1 "its interpreter .*statically linked" "$HOTSHELF" nocache -- "$SCRATCH/script"
"$HOTSHELF" nocache --anyway -- "$SCRATCH/still" && fail "--anyway" || [[ $? == 3 ]] || fail "--anyway"
refused 1 "no program" "$HOTSHELF" nocache -- no-such-program
refused 1 "/nowhere" "$HOTSHELF" nocache --path /nowhere -- true
refused 1 "no block device" "$HOTSHELF" nocache --device "$disk/lines" -- true
refused 1 "on tmpfs" "$HOTSHELF" nocache --path /dev/shm -- true
refused 2 "PROGRAM" "$HOTSHELF" nocache
HOTSHELF_NOCACHE_LIB=/nowhere refused 1 "/nowhere" "$HOTSHELF" nocache -- true
[[ $("$HOTSHELF" nocache --no-io-uring -- python3 -c 'import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 0, None), ctypes.get_errno() == errno.ENOSYS)') == "-1 True" ]] || fail "io_uring is not refused"

# io_uring that is not refused is reported: at setup through the C library, or at the end if a ring still exists.
cat >"$SCRATCH/ring.c" <<'C'
#include <sys/syscall.h>
#include <unistd.h>
static char how[120];
int main(int count, char **words)
{
    (void)words;
    long ring = count > 1 ? syscall(SYS_io_uring_setup, 4, how) : 0;
    if (count == 1) /* nobody sees it made */
        __asm__ volatile("syscall" : "=a"(ring) : "a"(SYS_io_uring_setup), "D"(4), "S"(how) : "rcx", "r11", "memory");
    return ring < 0 ? 9 : 0;
}
C
if [[ $(uname -m) == x86_64 ]]; then
    cc -o "$SCRATCH/ring" "$SCRATCH/ring.c"
    if "$SCRATCH/ring"; then
        for how in "" call; do
            # shellcheck disable=SC2086
            said=$("$HOTSHELF" nocache -- "$SCRATCH/ring" $how 2>&1)
            [[ $said == "hotshelf nocache: ring uses io_uring, "*--no-io-uring* ]] || fail "io_uring ($how) is not told of: $said"
            # shellcheck disable=SC2086
            said=$(HOTSHELF_NOCACHE=off "$SCRATCH/ring" $how 2>&1)
            [[ -z $said ]] || fail "io_uring is told of without being asked: $said"
        done
        said=$("$HOTSHELF" nocache --no-io-uring -- "$SCRATCH/ring" call 2>&1) && fail "a ring that was refused"
        [[ -z $said ]] || fail "io_uring that was refused is told of: $said"
    else
        echo "NOTE: no io_uring on this machine: that it is told of was not tried"
    fi
fi
"$HOTSHELF" nocache --help | grep -q 'Not seen.*io_uring' || fail "--help does not say what is not seen"
"$HOTSHELF" doctor | grep -q 'nocache .*unseen: .*io_uring' || fail "doctor does not say what is not seen"
unmount_disks
