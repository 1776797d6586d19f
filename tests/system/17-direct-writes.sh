#!/bin/bash
# TIMEOUT: 300
# A buffered reader beside a direct writer sees the new data once the write is completed, by whatever call: io_submit(2) completes in
# the kernel, which does not drop the pages that readers brought in meanwhile. ext4 is measured beside, with the same program.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse
need python3
modes="aio-direct aio-writeonly direct writeonly mapped"
switch=/sys/module/fuse/parameters/enable_uring
if [[ -w $switch ]]; then
    before=$(cat "$switch")
    trap 'echo "$before" >"$switch"' EXIT
    echo Y >"$switch"
fi

cat >"$SCRATCH/rounds.py" <<'PYTHON'
# rounds.py FILE ROUNDS MODE: writes a part of the file ROUNDS times, while three processes read the same part through the page cache, and
# counts the rounds after which a reader has old data, and the ends after which stat(2) has an old time.
import ctypes, mmap, os, platform, signal, struct, sys, time

path, rounds, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PART, PARTS = 16 << 10, 16
libc = ctypes.CDLL(None, use_errno=True)
SETUP, SUBMIT, GETEVENTS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}[platform.machine()]
flags = {"aio-direct": os.O_RDWR | os.O_DIRECT, "direct": os.O_RDWR | os.O_DIRECT, "mapped": os.O_RDWR | os.O_DIRECT}.get(mode, os.O_WRONLY)
by_aio = mode in ("aio-direct", "aio-writeonly", "mapped")

def call(*args):
    got = libc.syscall(*[ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args])
    if got < 0:
        raise OSError(ctypes.get_errno(), mode)
    return got

reader = os.open(path, os.O_RDONLY)
view = mmap.mmap(reader, PART * PARTS, prot=mmap.PROT_READ) if mode == "mapped" else None
def read(at):
    return bytes(view[at:at + PART]) if view else os.pread(reader, PART, at)

children = []
for number in range(2):
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_RDONLY)
        while True:
            for part in range(PARTS):
                os.pread(fd, PART, part * PART)
                os.fstat(fd)
    children.append(child)

stale = old_times = 0
try:
    writer = os.open(path, flags)
    context = ctypes.c_ulong(0)
    if by_aio:
        call(SETUP, 8, ctypes.byref(context))
    room = mmap.mmap(-1, PART)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    mtime = os.stat(path).st_mtime_ns
    for n in range(1, rounds + 1):
        at = n * 7 % PARTS * PART
        room[:] = bytes([n % 251 + 1]) * PART
        if by_aio:
            # struct iocb: IOCB_CMD_PWRITE is 1.
            block = ctypes.create_string_buffer(struct.pack("=QIiHhIQQqQII", n, 0, 0, 1, 0, writer, address, PART, at, 0, 0, 0))
            blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
            assert call(SUBMIT, context, 1, blocks) == 1
            event = ctypes.create_string_buffer(32)
            assert call(GETEVENTS, context, 1, 1, event, None) == 1
            assert struct.unpack("=QQqq", event.raw)[2] == PART
        else:
            assert os.pwrite(writer, room, at) == PART
        time_now = os.stat(path).st_mtime_ns
        old_times += time_now <= mtime
        mtime = time_now
        stale += read(at) != room[:]
        if n % 50 == 0:
            # A new open sees them, too, and so does one after all others have closed.
            again = os.open(path, os.O_RDONLY)
            stale += os.pread(again, PART, at) != room[:]
            os.close(again)
        # The clock of file systems has ticks of up to 10 ms; time must be seen to move.
        time.sleep(0.011 if n % 10 == 0 else 0)
        mtime = mtime if n % 10 == 0 else 0
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
print(stale, old_times)
PYTHON

rounds() {
    local count=300
    case $2 in direct | writeonly | mapped) count=60 ;; esac
    python3 "$SCRATCH/rounds.py" "$1" $count "$2" || fail "$3: the program of mode $2"
}

all_modes() {
    local file=$1 what=$2 mode got
    for mode in $modes; do
        got=$(rounds "$file" "$mode" "$what")
        [[ $got == "0 0" ]] || bad+=("$what, $mode: $got")
    done
    # Nothing old is left behind for those that come later.
    cmp "$file" <(dd if="$file" iflag=direct bs=1M status=none) >/dev/null || bad+=("$what: the page cache differs from the file")
}
bad=()

mkdir -p "$HDD" "$SSD" "$MNT"
head -c 262144 /dev/zero >"$SCRATCH/plain"
all_modes "$SCRATCH/plain" "the file system below"
((${#bad[@]} == 0)) || fail "the test itself: ${bad[*]}"

for way in auto off; do
    head -c 262144 /dev/zero >"$HDD/file"
    mount_pair --promotion never --uring "$way"
    [[ $(tier "$MNT/file") == hdd ]] || fail "the file is not on the HDD"
    all_modes "$MNT/file" "a pair, io_uring $way"
    cmp "$MNT/file" "$HDD/file" || fail "the mount shows other data than the HDD has"
    unmount_pair
done

head -c 262144 /dev/zero >"$HDD/file"
mount_pair --promotion never --write-back
all_modes "$MNT/file" "a pair where the kernel gathers writes"
unmount_pair

"$HOTSHELF" fs mkfs "$SCRATCH/image" --size 64MiB >/dev/null
for way in auto off; do
    "$HOTSHELF" fs mount "$SCRATCH/image" "$MNT" --uring "$way"
    head -c 262144 /dev/zero >"$MNT/file"
    all_modes "$MNT/file" "an image, io_uring $way"
    "$HOTSHELF" unmount "$MNT"
done
((${#bad[@]} == 0)) || fail "rounds with old data, and with old times: $(printf '%s; ' "${bad[@]}")"
