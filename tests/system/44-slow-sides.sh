#!/bin/bash
# "NAS, network file system" as the slow side: sshfs, bindfs and exFAT cannot do what a move asks of ext4. Files move both ways, a writer
# goes on when the SSD is full, and after kill -9 everything is there.
# TIMEOUT: 240
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only

tested=0
end_sshd() {
    if [[ -f $SCRATCH/ssh/pid ]]; then
        kill "$(cat "$SCRATCH/ssh/pid")"
    fi
}
trap end_sshd EXIT

head -c 16M /dev/urandom >"$SCRATCH/source"
# piece N SIZE: bytes that differ with N.
piece() { tail -c "+$(($1 * 4099 % 8000000 + 1))" "$SCRATCH/source" | head -c "$2" || true; }
same() { piece "$2" "$3" | cmp -s - "$1" || fail "$1 differs on $side: $4"; }
at_least() { (($(field "$1") >= $2)); }
has() { "$HOTSHELF" status --json "$MNT" | grep -q -- "$1"; }

# both_ways: moves, metadata, a full SSD, kill -9 and check; $SSD and $HDD are mounted.
both_ways() {
    mount_pair --high 60% --low 50% --reserve 4MiB --promotion never
    has '"probed": true' || fail "$side was not probed"
    # Up and down, contents and times.
    mkdir -p "$MNT/a/b"
    piece 1 3000000 >"$MNT/a/b/one"
    touch -d '2001-02-03 04:05:06' "$MNT/a/b/one"
    : >"$MNT/a/empty"
    truncate -s 2M "$MNT/a/sparse"
    for to in hdd ssd hdd; do
        "$HOTSHELF" migrate --to "$to" "$MNT/a" || fail "$side: to the $to"
        for file in a/b/one a/empty a/sparse; do
            on "$MNT/$file" "$to" || fail "$side: $file is not on the $to"
        done
        same "$MNT/a/b/one" 1 3000000 "moved to the $to"
        [[ $(stat -c %Y "$MNT/a/b/one") == $(date -d '2001-02-03 04:05:06' +%s) ]] || fail "$side: the time of a moved file"
        [[ $(stat -c %s "$MNT/a/sparse") == 2097152 && ! -s $MNT/a/empty ]] || fail "$side: sizes"
    done
    # A file that somebody makes there is not replaced.
    piece 2 100000 >"$MNT/a/mine"
    echo theirs >"$HDD/a/mine"
    fails_with 'has its name on the other side' "$HOTSHELF" migrate --to hdd "$MNT/a/mine"
    [[ $(cat "$HDD/a/mine") == theirs ]] || fail "$side: a file was replaced"
    same "$MNT/a/mine" 2 100000 "another file of its name"
    rm "$HDD/a/mine"
    no_temporaries || fail "$side: temporaries"
    # Open while it moves, and written meanwhile.
    exec 7>>"$MNT/a/log"
    for n in $(seq 1 40); do
        echo "line $n" >&7
        if ((n == 20)); then
            "$HOTSHELF" migrate --to hdd "$MNT/a/log" || fail "$side: an open file"
        fi
    done
    exec 7>&-
    [[ $(wc -l <"$MNT/a/log") == 40 && $(tail -1 "$MNT/a/log") == 'line 40' ]] || fail "$side: lines were lost by a move"
    # The SSD is full and the slow side has room: writers go on, one large file too.
    for n in $(seq 1 20); do
        piece "$n" 2000000 >"$MNT/a/f$n" || fail "$side: file $n"
    done
    for n in $(seq 1 6); do
        cat "$SCRATCH/source"
    done >"$MNT/a/large" || fail "$side: a large file"
    wait_until 20 at_least demotions 5
    [[ $(field moves_failed) == 0 ]] || fail "$side: moves failed: $("$HOTSHELF" status "$MNT")"
    # Killed while files move.
    "$HOTSHELF" migrate --to hdd "$MNT/a" >/dev/null 2>&1 &
    local migrate=$!
    wait_until 20 bash -c "[[ -n \$(find '$HDD/.hotshelf/tmp' -type f) ]] || ! kill -0 $migrate 2>/dev/null"
    kill -KILL "$(daemon_pid)"
    wait "$migrate" || true
    fusermount3 -uz "$MNT"
    # A server that was restarted numbers its files anew.
    "$again"
    mount_pair --high 60% --low 50% --reserve 4MiB --promotion never
    [[ $(field conflicts) != *a/* ]] || fail "$side: conflicts after kill -9"
    for n in $(seq 1 20); do
        same "$MNT/a/f$n" "$n" 2000000 "after kill -9"
    done
    for n in $(seq 1 6); do
        cat "$SCRATCH/source"
    done | cmp - "$MNT/a/large" || fail "$side: the large file after kill -9"
    same "$MNT/a/b/one" 1 3000000 "after kill -9"
    unmount_pair
    clean_check
}

ssd_of() {
    fs_of_size "$1" 128M -m 0
    SSD=$SCRATCH/$1/pool
    mkdir "$SSD"
}

# sshfs, to a server on this machine with a key of its own.
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
    # It keeps no extended attributes: such a file stays, is not lost, and is told once.
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
    says 'no rename without replacing' || fail "status does not say what sshfs lacks"
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

# A disk with a file system without owners, links and most characters: the kernel's vfat, or exFAT by FUSE.
fat=
truncate -s 300M "$SCRATCH/fat.img"
mkdir -p "$SCRATCH/fat"
if command -v mkfs.vfat >/dev/null && grep -qw vfat /proc/filesystems; then
    side=vfat
    mkfs.vfat "$SCRATCH/fat.img" >/dev/null && mount -o loop,fmask=0133,dmask=0022 "$SCRATCH/fat.img" "$SCRATCH/fat" && fat=1
elif command -v mkfs.exfat >/dev/null && command -v mount.exfat-fuse >/dev/null; then
    side=exfat
    mkfs.exfat "$SCRATCH/fat.img" >/dev/null
    device=$(losetup --find --show "$SCRATCH/fat.img" || true)
    [[ -n $device ]] && mount.exfat-fuse -o fmask=0133,dmask=0022 "$device" "$SCRATCH/fat" && fat=1
fi
if [[ -n $fat ]]; then
    again=true
    ssd_of ssd-fat
    HDD=$SCRATCH/fat/pool
    mkdir "$HDD"
    both_ways
    mount_pair --promotion never
    echo x >"$MNT/a:b?c" || fail "a name that FAT has not"
    fails_with 'does not allow its name' "$HOTSHELF" migrate --to hdd "$MNT/a:b?c"
    mkdir "$MNT/d:e" && echo x >"$MNT/d:e/f"
    fails_with 'does not allow the name of a directory' "$HOTSHELF" migrate --to hdd "$MNT/d:e/f"
    echo x >"$MNT/owned" && chown 1234:1234 "$MNT/owned"
    fails_with 'cannot keep its owner' "$HOTSHELF" migrate --to hdd "$MNT/owned"
    echo x >"$MNT/program" && chmod 755 "$MNT/program"
    fails_with 'cannot keep its permissions' "$HOTSHELF" migrate --to hdd "$MNT/program"
    # Of exFAT the limit is beyond every disk.
    if [[ $side == vfat ]]; then
        truncate -s 5G "$MNT/larger"
        fails_with 'cannot hold a file as large' "$HOTSHELF" migrate --to hdd "$MNT/larger"
    fi
    [[ $(cat "$MNT/a:b?c" "$MNT/d:e/f" "$MNT/owned" "$MNT/program") == $'x\nx\nx\nx' ]] || fail "what stays is not whole"
    unmount_pair
    clean_check
    umount "$SCRATCH/fat"
    [[ -z ${device:-} ]] || losetup --detach "$device"
    tested=$((tested + 1))
else
    echo "NOTE: no vfat in this kernel and no exfat-fuse: not tested with FAT"
fi
unmount_disks
((tested > 0)) || skip "neither sshfs nor bindfs nor vfat is here"
