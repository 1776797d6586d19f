#!/bin/bash
# TIMEOUT: 240
# TIMEOUT_FULL: 1800
# Random system calls on a mount and on a plain ext4 directory, while files move: both must say and hold the same.
# In passthrough mode, without it, with the kernel's write-back cache, and mounted by an ordinary user.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need mkfs.ext4 setpriv fusermount3

parity=$(dirname "$HOTSHELF")/parity
[[ -x $parity ]] || fail "no $parity: cargo build --release --package sim"
user_mode=1
[[ -r /dev/fuse && -w /dev/fuse ]] || skip "/dev/fuse cannot be opened"
before=$(stat -c %a /dev/fuse)
trap 'chmod "$before" /dev/fuse' EXIT
chmod 666 /dev/fuse
cp "$HOTSHELF" "$parity" "$SCRATCH"
chmod 755 "$SCRATCH/hotshelf" "$SCRATCH/parity"
setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$SCRATCH/parity" || user_mode=0

is_free() { flock --nonblock "$SSD/.hotshelf/lock" true; }

# compare MODE SEED STEPS: on fresh disks. What happens depends on when files move, too.
compare() {
    local mode=$1 seed=$2 steps=$3 name as=() flags=() code=0
    for name in ssd hdd plain; do
        rm -f "$SCRATCH/$name.img"
        fs_of_size "$name" 1G -b 4096
        mount -o remount,nosuid,nodev "$SCRATCH/$name"
    done
    mkdir -p "$MNT"
    case $mode in
        through-us) flags=(-- --no-passthrough) ;;
        gathered) flags=(-- --write-back) ;;
        user)
            as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
            rmdir "$SSD/lost+found" "$HDD/lost+found" "$SCRATCH/plain/lost+found"
            chown 65534:65534 "$SSD" "$HDD" "$SCRATCH/plain" "$MNT"
            ;;
    esac
    "${as[@]}" "$SCRATCH/parity" --hotshelf "$SCRATCH/hotshelf" --ssd "$SSD" --hdd "$HDD" --mnt "$MNT" --plain "$SCRATCH/plain" \
        --seed "$seed" --steps "$steps" "${flags[@]}" >"$SCRATCH/said" 2>&1 || code=$?
    cat "$SCRATCH/said"
    ((code == 0)) || fail "$mode, --seed $seed --steps $steps"
    # An ordinary user may have no access to directories of the test, and cannot wait for the daemon's end then.
    wait_until 10 is_free
    # The user may have shut itself out of directories: root takes the pair over and checks all of it.
    [[ $mode != user ]] || chown -R 0:0 "$SSD/.hotshelf" "$HDD/.hotshelf"
    "$HOTSHELF" check "$SSD" "$HDD" >"$SCRATCH/out" || fail "check: $(cat "$SCRATCH/out")"
    unmount_disks
    chown 0:0 "$MNT"
}

# The short run is the same each time, but for the moves; the long one goes where no run has been.
seed=${HOTSHELF_SEED:-4242}
[[ $FULL == 1 ]] && seed=${HOTSHELF_SEED:-$((RANDOM * 32768 + RANDOM))}
end=$((SECONDS + 1))
steps=1500
[[ $FULL == 1 ]] && end=$((SECONDS + 1200)) steps=10000
while ((SECONDS < end)); do
    for mode in passthrough through-us gathered user; do
        if [[ $mode == user && $user_mode == 0 ]]; then
            continue
        fi
        compare "$mode" "$seed" "$steps"
        compare "$mode" $((seed + 1)) "$steps"
    done
    seed=$((seed + 2))
done
