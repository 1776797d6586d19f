#!/bin/bash
# TIMEOUT: 120
# TIMEOUT_FULL: 1800
# Random system calls on an image that is mounted and on a plain ext4 directory, as root and as others: both must say and hold the
# same. Mounted by root, and by an ordinary user.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 setpriv fusermount3

parity=$(dirname "$HOTSHELF")/parity
[[ -x $parity ]] || fail "no $parity: cargo build --release --package sim"
[[ -r /dev/fuse && -w /dev/fuse ]] || skip "/dev/fuse cannot be opened"
before=$(stat -c %a /dev/fuse)
trap 'chmod "$before" /dev/fuse' EXIT
chmod 666 /dev/fuse
cp "$HOTSHELF" "$parity" "$SCRATCH"
chmod 755 "$SCRATCH/hotshelf" "$SCRATCH/parity"
user_mode=1
setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$SCRATCH/parity" || user_mode=0
image=$SCRATCH/image plain=$SCRATCH/plain

# fresh: a new image, and a new ext4 as large.
fresh() {
    rm -f "$image" "$SCRATCH/plain.img"
    "$HOTSHELF" fs mkfs "$image" --size 1GiB >/dev/null
    fs_of_size plain 1G -b 4096
    mount -o remount,nosuid,nodev "$plain"
    mkdir -p "$MNT"
}

# compare MODE SEED STEPS
compare() {
    local mode=$1 seed=$2 steps=$3 as=()
    fresh
    if [[ $mode == user ]]; then
        as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
        rmdir "$plain/lost+found"
        # Its top directory is root's, and the mount checks as the kernel does.
        "$HOTSHELF" fs mount "$image" "$MNT"
        chown 65534:65534 "$MNT"
        "$HOTSHELF" unmount "$MNT"
        chown 65534:65534 "$image" "$plain" "$MNT" "$SCRATCH"
    fi
    "${as[@]}" "$SCRATCH/parity" --hotshelf "$SCRATCH/hotshelf" --image "$image" --mnt "$MNT" --plain "$plain" \
        --seed "$seed" --steps "$steps" || fail "$mode, --seed $seed --steps $steps"
    chown 0:0 "$MNT" "$SCRATCH"
    wait_until 10 "$HOTSHELF" fs check "$image" >"$SCRATCH/out" || fail "check: $(cat "$SCRATCH/out")"
    umount "$plain"
}

# The short run is the same each time; the long one goes where no run has been.
seed=${HOTSHELF_SEED:-4242}
[[ $FULL == 1 ]] && seed=${HOTSHELF_SEED:-$((RANDOM * 32768 + RANDOM))}
end=$((SECONDS + 1))
steps=1500
[[ $FULL == 1 ]] && end=$((SECONDS + 900)) steps=10000
while ((SECONDS < end)); do
    compare root "$seed" "$steps"
    compare root $((seed + 1)) "$steps"
    ((user_mode == 0)) || compare user "$seed" "$steps"
    seed=$((seed + 2))
done

