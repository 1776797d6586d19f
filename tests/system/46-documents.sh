#!/bin/bash
# The documents are right: after `make install`, every command and program of README.md, docs/, the manual pages and the help texts runs as
# written, and every JSON field, metric and configuration key is described. The reader has an empty machine: the system's files under an
# overlay in memory.
# TIMEOUT: 280
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need python3 unshare chroot cc make pkg-config setpriv sqlite3 jq losetup mkfs.ext4
release=$(dirname "$HOTSHELF")
[[ -c /dev/fuse ]] || skip "there is no /dev/fuse"
for file in libhotshelf.so libhotshelf.a libhotshelf_sqlite.so libhotshelf_nocache.so; do
    [[ -f $release/$file ]] || fail "$release/$file is not built: make build"
done
if [[ -z ${DOCUMENTS_INSIDE:-} ]]; then
    DOCUMENTS_INSIDE=1 unshare --mount --propagation private bash "$0" || exit
    exit 0
fi
only_own_mounts

# The reader's home directory.
home=/srv/alice
mkdir "$SCRATCH/layer"
mount -t tmpfs none "$SCRATCH/layer"
mkdir "$SCRATCH"/layer/{upper,work,root}
new=$SCRATCH/layer/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$SCRATCH/layer/upper,workdir=$SCRATCH/layer/work" "$new" 2>/dev/null ||
    skip "overlayfs cannot be mounted over this system's root"
for dir in proc sys; do
    mount --rbind "/$dir" "$new/$dir"
done
for dir in dev tmp run var/lib; do
    mount -t tmpfs none "$new/$dir"
done
mkdir -p "$new"/dev/{shm,vg} "$new"/{ssd,hdd,nas,pool,mnt,data,srv} "$new$home" "$new/var/lib/prometheus/node-exporter"
mount -t tmpfs none "$new/dev/shm"
chmod 1777 "$new/dev/shm" "$new/tmp"
for node in null zero full random urandom tty fuse loop-control; do
    cp -a "/dev/$node" "$new/dev/"
done
chmod 666 "$new/dev/fuse"
ln -s /proc/self/fd "$new/dev/fd"
for dir in "$ROOT" "$release"; do
    mkdir -p "$new$dir"
    mount --bind "$dir" "$new$dir"
    # The checkout does not change, whatever the commands of the documents do.
    mount -o remount,bind,ro "$new$dir"
done

# disk NAME SIZE: a loop device that has that name inside.
disk() {
    local device
    truncate -s "$2" "$SCRATCH/$(basename "$1").disk"
    device=$(losetup --find --show "$SCRATCH/$(basename "$1").disk") || skip "there are no loop devices"
    cp -a "$device" "$new/dev/"
    ln -s "/dev/$(basename "$device")" "$new/dev/$1"
    chmod 666 "$new/dev/$(basename "$device")"
}
for name in nvme0n1 nvme1n1 nvme0n1p3 vg/volume sdb; do
    disk "$name" 64M
done
for side in ssd hdd nas; do
    truncate -s 4G "$SCRATCH/$side.img"
    mkfs.ext4 -q "$SCRATCH/$side.img"
    mount -o loop "$SCRATCH/$side.img" "$new/$side" || skip "there are no loop devices"
done

# A reader's machine: a user, photos, a database, directories in use.
grep -q '^alice:' "$new/etc/passwd" || echo "alice:x:4711:4711::$home:/bin/bash" >>"$new/etc/passwd"
grep -q '^alice:' "$new/etc/group" || echo 'alice:x:4711:' >>"$new/etc/group"
mkdir -p "$new$home"/photos "$new"/ssd/pool/projects "$new"/hdd/pool "$new"/nas/pool
echo picture >"$new$home/photos/cat.jpg"
echo work >"$new/ssd/pool/projects/file"
sqlite3 "$new/data/db" 'create table t(a); insert into t values(1);'
echo word >"$new/data/word"
printf '[job]\nfilename=/dev/sdb\nrw=randread\nsize=1M\n' >"$new$home/job.fio"
cp "$new$home/job.fio" "$new$HOME/"
chown -R 4711:4711 "$new$home" "$new/ssd" "$new/hdd" "$new/nas" "$new/pool" "$new/mnt"
chmod 755 "$new$home"

inside() { chroot "$new" "$@"; }
inside cc --version >/dev/null 2>&1 || skip "the system's programs do not run in another root directory here"
inside make -C "$ROOT" --no-print-directory install "CARGO_TARGET_DIR=$(dirname "$release")" >install.log 2>&1 ||
    fail "make install: $(tail -n 5 install.log)"
status=0
inside env SCRATCH="$SCRATCH" python3 "$ROOT/tests/system/_documents.py" "$ROOT" "$home" || status=$?
for device in $(losetup --list --noheadings --raw --output NAME,BACK-FILE | awk -v at="$SCRATCH/" 'index($2, at) == 1 { print $1 }'); do
    losetup --detach "$device" 2>/dev/null || true
done
exit "$status"
