#!/bin/bash
# "NAS, network file system" as the slow side: sshfs and bindfs cannot do what a move needs of ext4. Files move both ways, a writer goes
# on when the SSD is full, and after kill -9 everything is there. FAT: 44-slow-fat.sh. NFS, and vfat: tests/vm/21-slow-sides.sh.
# TIMEOUT: 240
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/system/_slow-sides.sh
source "$(dirname "$0")/_slow-sides.sh"
root_only

tested=0
end_sshd() {
    if [[ -f $SCRATCH/ssh/pid ]]; then
        kill "$(cat "$SCRATCH/ssh/pid")"
    fi
}
trap end_sshd EXIT

# sshfs, to a server on this machine with a key made for this test.
if command -v sshfs >/dev/null && [[ -x /usr/sbin/sshd ]]; then
    side=sshfs
    mkdir -m 700 "$SCRATCH/ssh"
    mkdir -p "$SCRATCH/served" "$SCRATCH/remote" /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$SCRATCH/ssh/key"
    ssh-keygen -q -t ed25519 -N '' -f "$SCRATCH/ssh/host"
    port=$((20000 + RANDOM % 20000))
    cat >"$SCRATCH/ssh/config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
HostKey $SCRATCH/ssh/host
AuthorizedKeysFile $SCRATCH/ssh/key.pub
PidFile $SCRATCH/ssh/pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
CONFIG
    /usr/sbin/sshd -f "$SCRATCH/ssh/config" -E "$SCRATCH/ssh/log"
    connect_sshfs() {
        sshfs -p "$port" -o "IdentityFile=$SCRATCH/ssh/key,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,IdentitiesOnly=yes" \
            "root@127.0.0.1:$SCRATCH/served" "$SCRATCH/remote"
    }
    wait_until 10 bash -c "[[ -f '$SCRATCH/ssh/pid' ]]"
    connect_sshfs
    again_sshfs() {
        # The daemon that was killed may not have closed its files yet.
        wait_until 10 fusermount3 -u "$SCRATCH/remote"
        connect_sshfs
    }
    again=again_sshfs
    ssd_of ssd-sshfs
    HDD=$SCRATCH/remote/pool
    mkdir "$HDD"
    both_ways
    # It keeps no extended attributes: such a file stays, is not lost, and is reported once.
    mount_pair --promotion never
    for n in 1 2 3; do
        piece 5 50000 >"$MNT/with-attribute$n"
        setfattr -n user.note -v kept "$MNT/with-attribute$n"
        fails_with 'cannot keep one of its extended attributes' "$HOTSHELF" migrate --to hdd "$MNT/with-attribute$n"
        on "$MNT/with-attribute$n" ssd || fail "a file left without its attribute"
    done
    [[ $(getfattr --only-values -n user.note "$MNT/with-attribute1" 2>/dev/null) == kept ]] || fail "the attribute"
    says '3 to the hdd: the other side cannot keep one of its extended attributes' || fail "status does not say what stays"
    [[ $(grep -c 'cannot keep one of its' "$SSD/.hotshelf/log") == 1 ]] || fail "logged more than once"
    lacks 'no rename without replacing' 'no extended attributes' 'no access control lists' 'O_TMPFILE' 'no preallocation' \
        'FALLOC_FL_PUNCH_HOLE' 'no device nodes' 'steps of 1000 ms' 'fsync of directories'
    no_temporaries || fail "temporaries of what stays"
    # Kinds that it does not have are made on the SSD, also when new files go to the slow side.
    mkfifo "$MNT/pipe" || fail "a pipe"
    unmount_pair
    "$HOTSHELF" doctor --ssd "$SSD" --hdd "$HDD" | grep -q 'hdd: fuse.sshfs' || fail "doctor does not say what it is"
    no_temporaries || fail "doctor left something"
    [[ -z $(find "$HDD" "$SSD" -name '*probe*' -o -name '*doctor*') ]] || fail "doctor left its probes"
    fusermount3 -u "$SCRATCH/remote"
    tested=$((tested + 1))
fi

# bindfs, as either side.
if command -v bindfs >/dev/null; then
    side=bindfs
    mkdir -p "$SCRATCH/bound" "$SCRATCH/bind"
    again=true
    bindfs "$SCRATCH/bound" "$SCRATCH/bind"
    ssd_of ssd-bindfs
    HDD=$SCRATCH/bind/pool
    mkdir "$HDD"
    both_ways
    mount_pair --promotion never
    lacks 'no rename without replacing' 'RENAME_EXCHANGE' 'O_TMPFILE' 'fsync of directories'
    unmount_pair
    retired
    fusermount3 -u "$SCRATCH/bind"

    side='bindfs as SSD'
    fs_of_size ssd-below 128M -m 0
    mkdir -p "$SCRATCH/bind-ssd"
    bindfs "$SCRATCH/ssd-below" "$SCRATCH/bind-ssd"
    SSD=$SCRATCH/bind-ssd/pool HDD=$SCRATCH/hdd-plain
    mkdir "$SSD" "$HDD"
    both_ways
    fusermount3 -u "$SCRATCH/bind-ssd"
    tested=$((tested + 1))
fi

unmount_disks
((tested > 0)) || skip "neither sshfs nor bindfs is here"
