#!/bin/bash
# A virtual machine has its disk's image on a cached mount: it makes a file system there, writes and flushes; the mount's daemon is killed;
# another guest runs a program from the image, and writes on. The image is whole in the slow directory, too.
# RUNS: on the host
# TIMEOUT: 600
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need e2fsck python3
[[ $(id -u) == 0 ]] || skip "needs root"
target=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")
export HOTSHELF=${HOTSHELF:-$target/release/hotshelf}
slow=$SCRATCH/slow mnt=$SCRATCH/mnt cache=$SCRATCH/cache name=cached-image-$$
mkdir "$slow" "$mnt"
clean() {
    "$HOTSHELF" unmount "$mnt" >/dev/null 2>&1 || umount -l "$mnt" 2>/dev/null || true
    "$HOTSHELF" cache destroy --discard "$cache" >/dev/null 2>&1 || true
}
trap clean EXIT
"$HOTSHELF" cache create "$cache" --name "$name" --size 256MiB --memory 32MiB >/dev/null
mounted() { "$HOTSHELF" mount --cache "$cache" --cache-mode write-back "$slow" "$mnt"; }
busybox=$target/vm/kernel-${KERNEL:-6.1}/busybox
# guest: boots one whose work is what comes on standard input.
guest() {
    sed "s:@BUSYBOX@:$busybox:" >"$SCRATCH/in-cached-image.sh"
    IMAGES=$mnt "$ROOT/tests/vm/boot.sh" "$SCRATCH/in-cached-image.sh" >"$SCRATCH/said" 2>&1 </dev/null ||
        fail "the guest: $(cat "$SCRATCH/said")"
}

mounted
guest <<'GUEST'
# drives: disk=size:64M
source "$ROOT/tests/vm/lib.sh"
modprobe ext4
mkfs.ext4 -q "$(block disk)"
mount "$(block disk)" /mnt
mkdir /mnt/bin /mnt/data
cp @BUSYBOX@ /mnt/bin/busybox
head -c 20M /dev/urandom >/mnt/data/random
(cd /mnt/data && sha256sum random >sums)
sync /mnt/data/random /mnt/data/sums
# Not synced, not unmounted: a guest that loses its power.
echo lost perhaps >/mnt/data/late
GUEST
kill -9 "$(pgrep -f -- "mount --cache $cache ")"
umount -l "$mnt"
mounted
guest <<'GUEST'
# drives: disk=size:64M
source "$ROOT/tests/vm/lib.sh"
modprobe ext4
mount "$(block disk)" /mnt
chroot /mnt /bin/busybox sh -c 'cd data && busybox sha256sum -c sums' || fail "the image is damaged"
echo more >/mnt/data/more
umount /mnt
GUEST
"$HOTSHELF" unmount "$mnt"
e2fsck -fn "$slow/disk-1.img" >"$SCRATCH/said" 2>&1 || fail "the image in the slow directory: $(cat "$SCRATCH/said")"
debugfs -R 'cat data/more' "$slow/disk-1.img" 2>/dev/null | grep -q more || fail "what the second guest wrote is not in the slow directory"
