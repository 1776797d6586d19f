#!/bin/bash
# TIMEOUT: 600
# Requests over io_uring: used where the kernel offers it, shown by status and doctor, served for every CPU, not delayed by requests that
# wait for a stalled disk, and ended when the daemon is killed.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need taskset setfattr

switch=/sys/module/fuse/parameters/enable_uring
[[ -w $switch ]] || skip "this kernel has no FUSE over io_uring"
before=$(cat "$switch")
below=$SCRATCH/below
give_back() {
    echo "$before" >"$switch"
    if [[ -n ${below_pid:-} ]]; then kill -CONT "$below_pid" 2>/dev/null || true; fi
    mountpoint -q "$MNT" && umount -l "$MNT"
    mountpoint -q "$below/mnt" && umount -l "$below/mnt"
    true
}
trap give_back EXIT

way_is() { "$HOTSHELF" status "$MNT" | grep -q "requests  *$1" || fail "$2: $("$HOTSHELF" status "$MNT" | grep requests)"; }

# Not offered: the device, and what to do.
echo N >"$switch"
mount_pair
way_is "by /dev/fuse: .*echo Y >$switch" "status of a kernel that does not offer it"
unmount_pair
"$HOTSHELF" doctor | grep -q "^missing  FUSE over io_uring .*echo Y >$switch" || fail "doctor does not tell how to get it"

echo Y >"$switch"
"$HOTSHELF" doctor >"$SCRATCH/doctor"
grep -q "^ok       FUSE over io_uring" "$SCRATCH/doctor" || skip "$(grep 'over io_uring' "$SCRATCH/doctor")"
for flags in "--uring off" --single-thread "-o uring=off"; do
    # shellcheck disable=SC2086
    mount_pair $flags
    way_is "by /dev/fuse: " "$flags"
    unmount_pair
done

# Every CPU has its queue, and receives requests in it.
mount_pair --no-passthrough
way_is "over io_uring" "offered and not declined"
"$HOTSHELF" status --json "$MNT" | grep -q '"uring": *true' || fail "the JSON of status does not say it"
processors=$(nproc)
for ((cpu = 0; cpu < processors; cpu++)); do
    taskset -c "$cpu" sh -c "head -c 3000000 /dev/urandom >'$MNT/f$cpu' && cp '$MNT/f$cpu' '$MNT/g$cpu' && cmp '$MNT/f$cpu' '$MNT/g$cpu'" ||
        fail "processor $cpu"
    cmp "$SSD/f$cpu" "$MNT/g$cpu" || fail "what processor $cpu wrote"
done
[[ $(find "$MNT" -type f | wc -l) == $((2 * processors)) ]] || fail "a listing"
: >"$MNT/many"
for n in $(seq 200); do echo "$n" >>"$MNT/many"; done
setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' x)" "$MNT/many"
[[ $(getfattr --absolute-names --only-values -n user.long "$MNT/many" | wc -c) == 3000 ]] || fail "a long attribute"

# Killed while it is in use: nobody hangs, and the next mount takes the dead one away.
(while cat "$MNT/many" >/dev/null 2>&1 && stat "$MNT/f0" >/dev/null 2>&1; do :; done) &
busy=$!
sleep 0.3
pid=$(daemon_pid)
kill -9 "$pid"
timeout 20 tail --pid="$busy" -f /dev/null || fail "a reader hangs after its daemon was killed"
timeout 20 tail --pid="$pid" -f /dev/null || fail "the daemon outlives kill -9"
said=$(timeout 20 stat "$MNT/never seen" 2>&1 || true)
[[ $said == *"not connected"* || $said == *aborted* ]] || fail "a dead mount says: $said"
"$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
way_is "over io_uring" "mounted again over a dead one"
[[ $(wc -l <"$MNT/many") == 200 ]] || fail "what was written before the kill"
unmount_pair

# A stalled disk delays only the callers that wait for it, on the same CPU too.
mkdir -p "$below/ssd" "$below/hdd" "$below/mnt"
"$HOTSHELF" mount --ssd "$below/ssd" --hdd "$below/hdd" "$below/mnt" --no-passthrough
HDD=$below/mnt/hdd
mount_pair --adopt --promotion never --hdd-only 'cold*'
for n in 1 2 3 4 5 6; do
    head -c 200000 /dev/urandom >"$MNT/cold$n"
    sha256sum <"$MNT/cold$n" >"$SCRATCH/sum$n"
    [[ -e $HDD/cold$n ]] || fail "a rule that is not obeyed"
done
echo warm >"$MNT/warm"
unmount_pair
mount_pair --promotion never --hdd-only 'cold*' --cache-ttl 0
ls -l "$MNT" >/dev/null
below_pid=$(MNT=$below/mnt daemon_pid)
[[ -n $below_pid ]] || fail "the daemon below is not known"
kill -STOP "$below_pid"
readers=()
for n in 1 2 3 4 5 6; do
    taskset -c 0 sh -c "sha256sum <'$MNT/cold$n' | cmp -s - '$SCRATCH/sum$n'" &
    readers+=($!)
done
sleep 1
# With a TTL of 0 each of these calls is a request. In the background: a process that waits for the daemon in the kernel takes no signal.
(
    for n in $(seq 10); do
        taskset -c 0 sh -c "cat '$MNT/warm' && stat '$MNT/warm'" >/dev/null || exit 1
    done
    echo done >"$SCRATCH/served"
) &
for ((tries = 0; tries < 600; tries++)); do
    [[ -e $SCRATCH/served ]] && break
    sleep 0.1
done
[[ -e $SCRATCH/served ]] || fail "held up by a disk that others wait for"
kill -CONT "$below_pid"
for reader in "${readers[@]}"; do wait "$reader" || fail "a reader of the disk that stood still"; done
unmount_pair
"$HOTSHELF" unmount "$below/mnt"
HDD=$SCRATCH/hdd

# What it is made of is there for an ordinary user, too.
if command -v setpriv >/dev/null && [[ -r /dev/fuse && -w /dev/fuse && $(stat -c %a /dev/fuse) == *6 ]]; then
    rm -rf "$SSD" "$HDD" "$below"
    mkdir -p "$SSD" "$HDD"
    chown 65534:65534 "$SSD" "$HDD" "$MNT"
    cp "$HOTSHELF" "$SCRATCH/hotshelf"
    chmod 755 "$SCRATCH/hotshelf"
    as() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    if as test -x "$SCRATCH"; then
        as "$SCRATCH/hotshelf" mount --ssd "$SSD" --hdd "$HDD" "$MNT" || fail "an ordinary user cannot mount"
        as "$SCRATCH/hotshelf" status "$MNT" | grep -q "requests  *over io_uring" || fail "an ordinary user's mount"
        as sh -c "echo hello >'$MNT/f' && test \"\$(cat '$MNT/f')\" = hello" || fail "an ordinary user's file"
        as "$SCRATCH/hotshelf" unmount "$MNT" || fail "an ordinary user unmounts"
    fi
fi
