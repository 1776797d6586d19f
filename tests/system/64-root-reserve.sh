#!/bin/bash
# TIMEOUT: 120
# Blocks that a file system keeps for root bind users of a mount whose daemon is root: when they write and when their files move. Root
# itself may still use what is kept for it. Quotas: 64-quotas.sh.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv mkfs.ext4 python3

user() { setpriv --reuid 4242 --regid 4242 --clear-groups "$@"; }
# blocks SIDE: free for everybody, and for root.
blocks() { stat -f -c '%a %f' "$1"; }
kept() { local avail free; read -r avail free < <(blocks "$1"); echo $((free - avail)); }
free() { stat -f -c %f "$1"; }
# What is written when nobody waits for the disk is counted when it is allocated.
settle() { sync -f "$SSD" && sync -f "$HDD"; }

# The blocks for root. Small files, large ones, reserved and copied ones, with passthrough and without.
fs_of_size ssd 64M -m 10
fs_of_size hdd 64M -m 10
kept_ssd=$(kept "$SSD") kept_hdd=$(kept "$HDD")
((kept_ssd > 1000 && kept_hdd > 1000)) || fail "nothing is kept for root: $kept_ssd $kept_hdd"
for flag in '' --no-passthrough; do
    # shellcheck disable=SC2086 # none or one
    mount_pair --allow-other --high 100% --low 100% --reserve 0 $flag
    user mkdir "$MNT/mine" 2>/dev/null && fail "the top directory is not root's"
    mkdir -p "$MNT/mine"
    chown 4242:4242 "$MNT/mine"
    cat >"$SCRATCH/fill.py" <<'PYTHON'
import errno, os, sys
top, n = sys.argv[1], 0
os.setgroups([])
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
def until_full(step):
    global n
    while True:
        n += 1
        fd = os.open(f"{top}/{n}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            step(fd)
        except OSError as error:
            assert error.errno in (errno.ENOSPC, errno.EDQUOT), error
            return
        finally:
            os.close(fd)
    os.sync()
for size in (6 << 20, 1 << 20, 64 << 10, 4096):
    until_full(lambda fd: os.posix_fallocate(fd, 0, size))
    data = os.urandom(size)
    def write_all(fd):
        at = 0
        while at < size:
            at += os.write(fd, data[at:])
        os.fsync(fd)
    until_full(write_all)
PYTHON
    python3 "$SCRATCH/fill.py" "$MNT/mine" || fail "filling both sides"
    settle
    # What names and lists of blocks take is not counted as data.
    for side in "$SSD" "$HDD"; do
        left=$(free "$side")
        ((left >= kept_ssd - 300)) || fail "$side${flag:+, $flag}: of $kept_ssd blocks for root only $left are left"
    done
    # Root may use them.
    before=$(free "$SSD")
    head -c 1M /dev/urandom >"$MNT/root's" || fail "root cannot write"
    settle
    (($(free "$SSD") + $(free "$HDD") < kept_ssd + kept_hdd || before < kept_ssd)) || fail "root's file took nothing that is kept for root"
    rm -rf "$MNT/root's" "$MNT/mine"
    unmount_pair
done
unmount_disks
