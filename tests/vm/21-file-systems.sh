#!/bin/bash
# What hotshelf does on file systems that the host's kernel may lack: NFS as the slow side (the kernel's client and server, 4.2 and 3),
# quotas of ext4, and in the full run vfat as the slow side. The last two are tests of tests/system, which run here once more.
# packages: nfs-kernel-server
# memory: 1G
# TIMEOUT: 600
export SSD_MIB=24 FILES=8
guest=$SCRATCH
SCRATCH=$guest/nfs
mkdir "$SCRATCH"
# shellcheck source=tests/system/lib.sh
source "$ROOT/tests/system/lib.sh"
# shellcheck source=tests/system/_slow-sides.sh
source "$ROOT/tests/system/_slow-sides.sh"
need mount.nfs rpcbind
PATH=$PATH:$PACKAGES/nfs-kernel-server/usr/sbin
# The server grants no locks during the grace period, in which earlier clients may reclaim theirs.
modprobe lockd nlm_grace_period=1
modprobe -a loop ext4 fuse nfsd nfsv3 nfsv4 vfat nls_cp437 nls_ascii nls_utf8 quota_v2

# step WHAT: where the guest is, and since when.
step() { local up; read -r up _ </proc/uptime; echo "$up: $*"; }

# The server exports a separate ext4, with no_root_squash: the documentation requires it for a daemon that runs as root.
step "server"
fs_of_size served 200M -m 0
mkdir -p /run/rpcbind /var/lib/nfs/v4recovery "$SCRATCH/remote"
touch /var/lib/nfs/{etab,rmtab}
mount -t nfsd nfsd /proc/fs/nfsd
rpcbind -w
echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,sync,no_root_squash,no_subtree_check,fsid=0 "127.0.0.1:$SCRATCH/served"
rpc.mountd
rpc.nfsd --no-udp 2
# Nobody has anything to claim back from a server that never ran.
echo Y >/proc/fs/nfsd/v4_end_grace

# nfs VERSION PATH LACKS...: both_ways on the export, mounted hard by that version, and what it cannot do.
nfs() {
    side="NFS $1"
    step "$side"
    connect() { mount -t nfs -o "vers=$1,hard,proto=tcp" "127.0.0.1:$2" "$SCRATCH/remote"; }
    # What the client remembers of the server goes.
    eval "again_nfs() { wait_until 20 umount '$SCRATCH/remote' && connect '$1' '$2'; }"
    again=again_nfs
    connect "$1" "$2"
    ssd_of "ssd-$1"
    HDD=$SCRATCH/remote/pool
    mkdir "$HDD"
    both_ways
    mount_pair --promotion never
    lacks 'no rename without replacing: moves use a hard link instead' RENAME_EXCHANGE O_TMPFILE "${@:3}"
    # The client renames an open file that is removed or replaced. A listing of the directory does not show that name, and the client
    # removes it when the file is closed.
    echo removed >"$MNT/a/open" && echo replaced >"$MNT/a/over"
    "$HOTSHELF" migrate --to hdd "$MNT/a/open" "$MNT/a/over"
    exec 7<"$MNT/a/open" 8<"$MNT/a/over"
    rm "$MNT/a/open"
    echo new >"$MNT/a/new" && "$HOTSHELF" migrate --to hdd "$MNT/a/new" && mv "$MNT/a/new" "$MNT/a/over"
    [[ -n $(compgen -G "$HDD/a/.nfs*") ]] || fail "$side: the client made no name: this tests nothing"
    find "$MNT/a" -name '.nfs*' -ls >"$SCRATCH/seen"
    [[ ! -s $SCRATCH/seen ]] || fail "$side: the client's names are seen: $(cat "$SCRATCH/seen")"
    [[ $(cat <&7; cat <&8; cat "$MNT/a/over") == $'removed\nreplaced\nnew' ]] || fail "$side: a removed file that is open"
    exec 7<&- 8<&-
    # The daemon hears of a close after close(2) has returned, so a file that was read just now may get such a name, too, and its
    # directory stays until that is gone.
    none_left() { [[ -z $(find "$HDD/a" -name '.nfs*') ]]; }
    wait_until 20 none_left
    find "$MNT/a" -type f -delete
    wait_until 20 none_left
    rm -r "$MNT/a" || fail "$side: a directory cannot be removed"
    unmount_pair
    clean_check
    rm -r "$HDD"
    umount "$SCRATCH/remote"
}
nfs 4.2 / 'no access control lists'
nfs 3 "$SCRATCH/served" 'no extended attributes' 'no preallocation' FALLOC_FL_PUNCH_HOLE
unmount_disks 2>/dev/null || true

# again_here TEST: a test of tests/system, which must not be skipped here.
again_here() {
    local code=0
    step "$1"
    mkdir "$guest/$1"
    SCRATCH=$guest/$1 bash "$ROOT/tests/system/$1.sh" || code=$?
    ((code == 0)) || fail "$1: exit $code"
}
# The kernels of most hosts have vfat, so that it runs there.
[[ $FULL != 1 ]] || again_here 44-slow-fat
again_here 64-quotas
step "done"
