#!/bin/bash
# TIMEOUT: 120
# Options of mount(8) are done, which is tested by what they do, or refused with a reason; settings and flags of a running mount are
# changed; a migration stops when its command is interrupted.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need setpriv python3 mkfs.ext4 findmnt

for option in sync dirsync strictatime nodiratime lazytime mand; do
    mkdir -p "$SSD" "$HDD" "$MNT"
    "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" -o $option >"$SCRATCH/out" 2>&1 && fail "-o $option is accepted"
    grep -q -- "-o $option cannot be done: " "$SCRATCH/out" || fail "-o $option is refused without a reason: $(cat "$SCRATCH/out")"
done

# The kernel reads files that bypass the daemon with the SSD's own mount: that must have the option, then.
if ! findmnt -no OPTIONS -T "$SSD" | grep -q noatime; then
    refused 1 'add --no-passthrough' "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" -o noatime
fi
FS_OPTIONS=noatime fs_of_size quiet 64M
mkdir "$SCRATCH/quiet/ssd"
echo data >"$SCRATCH/quiet/ssd/file"
touch -a -d '2001-01-01' "$SCRATCH/quiet/ssd/file"
"$HOTSHELF" mount --ssd "$SCRATCH/quiet/ssd" --hdd "$HDD" "$MNT" --adopt -o noatime
cat "$MNT/file" >/dev/null
unmount_pair
[[ $(stat -c %x "$SCRATCH/quiet/ssd/file") == 2001* ]] || fail "noatime with passthrough"
umount "$SCRATCH/quiet"
rm -r "${HDD:?}"
mkdir "$HDD"

# Access times: relatime's rule is met by times of long ago.
mkdir -p "$HDD/dir" "$SSD/dir"
old() { touch -a -d '2001-01-01' "$@" && touch -m -d '2002-02-02' "$@"; }
for side in ssd hdd; do
    for options in "-o noatime --no-passthrough" "-o noatime,write_back" "-o atime" "-o relatime --no-passthrough"; do
        file=$SCRATCH/$side/dir/file
        echo data >"$file"
        old "$file" "$SSD/dir" "$HDD/dir"
        # shellcheck disable=SC2086
        mount_pair --promotion never $options
        cat "$MNT/dir/file" >/dev/null
        find "$MNT/dir" >/dev/null
        years="$(stat -c %x "$file" | cut -c1-4) $(stat -c %x "$SSD/dir" | cut -c1-4) $(stat -c %x "$HDD/dir" | cut -c1-4)"
        unmount_pair
        rm "$file"
        case $options in
            *noatime*) [[ $years == "2001 2001 2001" ]] || fail "$options on the $side: read in $years" ;;
            *) [[ ${years%% *} != 2001 && ${years#* } != "2001 2001" ]] || fail "$options on the $side: read in $years" ;;
        esac
    done
done

# The others.
printf '#!/bin/sh\nexit 0\n' >"$SSD/program"
cp /usr/bin/id "$SSD/set-id"
chmod 4755 "$SSD/set-id"
chmod 755 "$SSD/program"
mknod "$SSD/null" c 1 3
chmod 666 "$SSD/null"
as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
runs() { "$MNT/program" 2>/dev/null; }
is_root() { [[ $(as_user "$MNT/set-id" -u) == 0 ]]; }
has_device() { (echo x >"$MNT/null") 2>/dev/null; }
writes() { (: >"$MNT/new") 2>/dev/null && rm "$MNT/new"; }
mount_pair --allow-other -o noexec
! runs || fail "noexec: a program runs"
unmount_pair
mount_pair --allow-other
runs && ! is_root && ! has_device && writes || fail "the defaults: exec, nosuid, nodev, rw"
unmount_pair
mount_pair --allow-other -o suid,dev
is_root || fail "suid: the bit does not count"
has_device || fail "dev: the device does not count"
unmount_pair
mount_pair -o ro
! writes || fail "ro: a file was made"
refused 1 'mounted read-only' "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" -o remount,rw
unmount_pair

# Another set of flags and settings for a running mount.
mount_pair --allow-other
again() { "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" -o "remount,$1"; }
again ro
! writes || fail "remount,ro: a file was made"
again rw,noexec
writes || fail "remount,rw: no file can be made"
! runs || fail "remount,noexec: a program runs"
again exec,high=70%,low=60%
runs || fail "remount,exec: no program runs"
for option in allow_root turbo threads=3 noatime sync; do
    refused 2 'remount cannot change' "$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT" -o "remount,$option"
done
capacity=$("$HOTSHELF" status --json "$MNT" | python3 -c 'import json, sys; print(json.load(sys.stdin)["ssd"]["capacity_bytes"])')
[[ $(field high_bytes) == $((capacity * 70 / 100)) ]] || fail "remount,high=70%: $(field high_bytes) of $capacity"
"$HOTSHELF" set "$MNT" high=95% low=85% policy=lfu reserve=1% max-file-size=1MiB >"$SCRATCH/out" || fail "set"
says 'policy  *lfu' && says 'limits .*1.00 MiB' || fail "set is not shown: $("$HOTSHELF" status "$MNT")"
[[ $(field high_bytes) == $((capacity * 95 / 100)) && $(field low_bytes) == $((capacity * 85 / 100)) ]] || fail "set high and low"
refused 1 'high=95%' "$HOTSHELF" set "$MNT" high=95
refused 1 'above the high mark' "$HOTSHELF" set "$MNT" low=99%
refused 1 'more than the SSD has' "$HOTSHELF" set "$MNT" reserve=9000TiB
refused 1 'cannot be set on a running mount' "$HOTSHELF" set "$MNT" threads=3
refused 2 'NAME=VALUE' "$HOTSHELF" set "$MNT" high
[[ $(field policy) == lfu && $(field high_bytes) == $((capacity * 95 / 100)) ]] || fail "a refused change changes something"
"$HOTSHELF" status --prometheus "$MNT" >"$SCRATCH/out"
grep -q "^hotshelf_mount_high_bytes{mount=\"$MNT\"} $((capacity * 95 / 100))\$" "$SCRATCH/out" || fail "--prometheus: $(cat "$SCRATCH/out")"

# Ctrl-C: the daemon stops, says how far it came, and nothing is left of the copy.
mkdir "$SSD/many"
for n in 1 2 3 4 5 6; do head -c 40M /dev/zero | tr '\0' "$n" >"$SSD/many/$n"; done
unmount_pair
mount_pair --move-rate 20MiB --promotion never
"$HOTSHELF" migrate "$MNT/many" --to hdd >"$SCRATCH/out" 2>&1 &
client=$!
wait_until 30 says 'now .*to the hdd: [1-9]'
kill -INT "$client"
code=0
wait "$client" || code=$?
[[ $code == 1 ]] && grep -q 'stopped: [0-5] of 6 files were moved to the hdd' "$SCRATCH/out" ||
    fail "an interrupted migration: $code, $(cat "$SCRATCH/out")"
! says 'now .*to the hdd' || fail "the daemon goes on"
# A client that is killed, too.
"$HOTSHELF" migrate "$MNT/many" --to hdd >/dev/null 2>&1 &
client=$!
wait_until 30 says 'now .*to the hdd: [1-9]'
kill -KILL "$client"
wait "$client" 2>/dev/null || true
is_idle() { ! says 'now .*to the hdd'; }
wait_until 30 is_idle
for n in 1 2 3 4 5 6; do
    [[ $(head -c 1 "$MNT/many/$n")$(stat -c %s "$MNT/many/$n") == "$n$((40 << 20))" ]] || fail "file $n"
done
[[ $(find "$SSD/many" -type f | wc -l) -gt 0 ]] || fail "all was moved for nobody"
no_temporaries || fail "a part of a copy is left"
unmount_pair

# What a mount hides is said, once it is mounted.
echo hidden >"$MNT/file"
mount_pair 2>"$SCRATCH/err"
grep -q "warning: $MNT was not empty" "$SCRATCH/err" || fail "nothing is said of a mount point with files in it"
unmount_pair
rm "$MNT/file"
mount_pair 2>"$SCRATCH/err"
[[ ! -s $SCRATCH/err ]] || fail "an empty mount point: $(cat "$SCRATCH/err")"
unmount_pair
clean_check
