# Shared by the system tests; sourced, never run. The runner gives HOTSHELF, SCRATCH and FULL and cleans up.
# shellcheck shell=bash
set -euo pipefail

SSD=$SCRATCH/ssd HDD=$SCRATCH/hdd MNT=$SCRATCH/mnt

fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "SKIP: $*"; exit 77; }

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "$program is not installed"
    done
}

root_only() { [[ $(id -u) == 0 ]] || skip "needs root"; }

# A test that mounts and is for ordinary users too.
needs_fuse() {
    [[ -r /dev/fuse && -w /dev/fuse ]] || skip "this user cannot open /dev/fuse"
    [[ $(id -u) == 0 ]] || need fusermount3
}

# fs_of_size NAME SIZE [MKFS-ARGUMENT...]: an ext4 on a new loop device, mounted on $SCRATCH/NAME.
# With FS_OPTIONS it is mounted with these, too.
fs_of_size() {
    local name=$1 size=$2
    shift 2
    truncate -s "$size" "$SCRATCH/$name.img"
    mkfs.ext4 -q "$@" "$SCRATCH/$name.img"
    mkdir -p "$SCRATCH/$name"
    mount -o "loop${FS_OPTIONS:+,$FS_OPTIONS}" "$SCRATCH/$name.img" "$SCRATCH/$name" || skip "loop devices cannot be mounted here"
}

# disk_again NAME: takes $SCRATCH/NAME, which fs_of_size mounted, away and mounts it anew, as after a power cut. Where another test runs
# in a copy of the mount table, the file system lives on there after `umount`, and a mount of its image would show it as it was, shut down.
disk_again() {
    wait_until 20 umount "$SCRATCH/$1"
    wait_until 100 is_image_free "$SCRATCH/$1.img"
    mount -o "loop${FS_OPTIONS:+,$FS_OPTIONS}" "$SCRATCH/$1.img" "$SCRATCH/$1"
}
is_image_free() { [[ -z $(losetup --associated "$1") ]]; }

# only_own_mounts: for a test in a mount namespace of its own: what other tests have mounted goes from it, so that they can unmount it.
only_own_mounts() {
    local point
    cut -d' ' -f5 /proc/self/mountinfo | tac | while IFS= read -r point; do
        case $point in
            "$SCRATCH"/*) ;;
            "$(dirname "$SCRATCH")"/hotshelf-*) umount -l "$point" ;;
        esac
    done
}

# unmount_disks: what fs_of_size mounted, and whatever else is mounted below the scratch directory.
unmount_disks() {
    local dir
    for dir in "$SCRATCH"/*/; do
        if mountpoint -q "$dir"; then
            umount "$dir"
        fi
    done
}

# mount_pair [FLAGS]: mounts $SSD and $HDD on $MNT.
mount_pair() {
    mkdir -p "$SSD" "$HDD" "$MNT"
    "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" "$@"
}

unmount_pair() { "$HOTSHELF" unmount "$MNT"; }

# is_mounted DIR: by the kernel's table, since every call to a mount whose daemon ends at this moment may fail or be answered from a cache.
is_mounted() { cut -d' ' -f5 /proc/self/mountinfo | grep -qxF -- "$1"; }

sftp_server=/usr/lib/openssh/sftp-server
has_sshfs() { command -v sshfs >/dev/null && [[ -x $sftp_server ]]; }

# mount_sshfs DIR AT: shows DIR at AT through sshfs and an SFTP server, without a network. Every user may enter.
mount_sshfs() {
    python3 - "$sftp_server" "$1" "$2" <<'END'
import socket, subprocess, sys
ours, theirs = socket.socketpair()
subprocess.Popen([sys.argv[1]], stdin=theirs, stdout=theirs, start_new_session=True)
theirs.close()
client = ["sshfs", "-f", "-o", "passive,allow_other", ":" + sys.argv[2], sys.argv[3]]
subprocess.Popen(client, stdin=ours, stdout=ours, start_new_session=True)
END
    wait_until 10 is_mounted "$2"
}

# drop_dead_mount: detaches $MNT after its daemon was killed.
drop_dead_mount() {
    while is_mounted "$MNT"; do
        umount -l "$MNT"
    done
}

# field NAME: one number or word of the status.
field() { "$HOTSHELF" status --json "$MNT" | sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" | head -n1; }

daemon_pid() { field pid; }

# refused CODE WORDS COMMAND...: the command must fail with the code and say the words, on one line.
refused() {
    local code=$1 words=$2 got=0
    shift 2
    "$@" >"$SCRATCH/out" 2>&1 || got=$?
    [[ $got == "$code" ]] || fail "exit $got, not $code: $* ($(cat "$SCRATCH/out"))"
    grep -q -- "$words" "$SCRATCH/out" || fail "does not say '$words': $* ($(cat "$SCRATCH/out"))"
    [[ $code == 2 || $(wc -l <"$SCRATCH/out") == 1 ]] || fail "not one line: $* ($(cat "$SCRATCH/out"))"
}

# fails_with WORDS COMMAND...: the command must fail, and the words be in what it says.
fails_with() {
    local words=$1
    shift
    "$@" >"$SCRATCH/out" 2>&1 && fail "did not fail: $*"
    grep -q -- "$words" "$SCRATCH/out" || fail "does not say '$words': $* ($(cat "$SCRATCH/out"))"
}

# says WORDS: the status for people has the words.
says() { "$HOTSHELF" status "$MNT" | grep -q -- "$1"; }

# wait_until SECONDS COMMAND...: polls until COMMAND succeeds.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || fail "not within the time: $*"
        sleep 0.05
    done
}

# tier PATH: ssd or hdd.
tier() { "$HOTSHELF" why --json "$1" | sed -n 's/^ *"tier": "\([^"]*\)",\{0,1\}$/\1/p'; }

on() { [[ $(tier "$1") == "$2" ]]; }

# labels_are_reported FILE: without SELinux in the kernel a label that is not there is not supported, so that `ls -l` asks once; one that is
# there is read, and other attributes are as ever.
labels_are_reported() {
    python3 - "$1" <<'PYTHON' || fail "labels of $1"
import errno, os, sys
file = sys.argv[1]
def number(name):
    try:
        os.getxattr(file, name)
        return 0
    except OSError as error:
        return error.errno
absent = errno.ENODATA if os.path.exists("/sys/fs/selinux") else errno.EOPNOTSUPP
assert number("security.selinux") == absent and number("user.none") == number("security.none") == errno.ENODATA
if absent != errno.ENODATA:
    os.setxattr(file, "security.selinux", b"a:b:c")
    assert os.getxattr(file, "security.selinux") == b"a:b:c" and "security.selinux" in os.listxattr(file)
    os.removexattr(file, "security.selinux")
    assert number("security.selinux") == absent
PYTHON
}

no_temporaries() { [[ -z $(find "$SSD/.hotshelf/tmp" "$HDD/.hotshelf/tmp" -mindepth 1) ]]; }

clean_check() {
    "$HOTSHELF" check "$SSD" "$HDD" || fail "check found something"
    no_temporaries || fail "temporaries are left"
}
