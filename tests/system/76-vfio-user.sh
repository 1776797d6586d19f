#!/bin/bash
# A drive in another process, behind a vfio-user socket: file systems, queues and C programs on it by its name; what is left when the
# drive is killed, loses power or is not there.
# TIMEOUT: 180
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/system/_drive.sh
source "$(dirname "$0")/_drive.sh"
need cc
shell() { "$HOTSHELF" fs shell "$@"; }

# Without a drive, or with a name that is none.
refused 1 'No such file' "$HOTSHELF" fs df "$DRIVE"
refused 1 'is no device' "$HOTSHELF" fs df vfio-user:
touch plain
refused 1 'Connection refused\|Socket operation\|refused' "$HOTSHELF" fs df "vfio-user:$SCRATCH/plain"

# A file system on it, by everything that takes an image.
start_drive --size 96MiB --file "$SCRATCH/disk" --namespaces 2
"$HOTSHELF" fs mkfs "$DRIVE" >out || fail "mkfs: $(cat out)"
refused 1 'is kept' "$HOTSHELF" fs mkfs "$DRIVE/1"
head -c 3M /dev/urandom >random
"$HOTSHELF" fs import "$DRIVE" random / >/dev/null || fail "import"
shell "$DRIVE" -c 'mkdir a; cp random a/copy; export a/copy back' >/dev/null || fail "shell"
cmp random back || fail "what came back is not what went in"
"$HOTSHELF" fs df "$DRIVE" | grep -q '^data' || fail "df"
"$HOTSHELF" fs check "$DRIVE" >out || fail "check: $(cat out)"
grep -q 'clean$' out || fail "check: $(cat out)"
# The second namespace is another device; the first does not change.
shell "$DRIVE/2" -c 'mkfs; mkdir other' >/dev/null || fail "the second namespace"
shell "$DRIVE" -c 'ls /' | grep -q random || fail "the first namespace"
refused 1 'has no namespace 3' "$HOTSHELF" fs df "$DRIVE/3"
if [[ $(id -u) == 0 && -c /dev/fuse ]]; then
    mkdir mnt
    "$HOTSHELF" fs mount "$DRIVE" mnt || fail "mount"
    cmp random mnt/a/copy || fail "seen through the kernel it is something else"
    echo through the kernel >mnt/a/new
    umount mnt
    # The daemon lets go of the drive when it has written everything.
    wait_until 20 shell "$DRIVE" -c 'cat a/new' >out
    grep -q 'through the kernel' out || fail "what the kernel wrote: $(cat out)"
fi

# A C program's queues.
mkdir lib
ln -s "$release/libhotshelf.so" lib/libhotshelf.so
ln -s "$release/libhotshelf.so" lib/libhotshelf.so.0
cat >device.c <<'END'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <hotshelf.h>
int main(int argc, char **argv)
{
    char page[4096] = "", back[4096] = "";
    NVMED *device = nvmed_open(argv[argc - 1], O_RDWR);
    NVMED_HANDLE *handle = nvmed_handle_create(nvmed_queue_create(device, 0), 0);
    memset(page, 'x', sizeof page);
    int good = nvmed_pwrite(handle, page, sizeof page, 8192) == sizeof page && nvmed_flush(handle) == 0
        && nvmed_pread(handle, back, sizeof back, 8192) == sizeof back && memcmp(page, back, sizeof page) == 0;
    puts(good ? "the same" : hs_error());
    return !good;
}
END
cc -std=c99 -Wall -Wextra -Werror -I"$ROOT/include" -o device device.c -Llib -lhotshelf "-Wl,-rpath,$SCRATCH/lib"
./device "$DRIVE/2" >out || fail "a C program: $(cat out)"

# Queues of it for other processes; each of them may be killed.
at=(--socket "$SCRATCH/q.sock")
me=$(id -un)
"$HOTSHELF" queue grant --journal "$SCRATCH/grants" "$me" "$DRIVE" --queues 2 --depth 32 >/dev/null || fail "grant"
mkfifo serving
"$HOTSHELF" queue serve "${at[@]}" --journal "$SCRATCH/grants" "$DRIVE" >serving 2>>broker.log &
broker=$!
read -r said <serving || fail "the broker: $(tail -n 2 broker.log)"
"$HOTSHELF" queue try "${at[@]}" "$DRIVE" --queues 2 --depth 32 >out || fail "try: $(cat out)"
grep -q '^2 queues of .* blocks of 4096 bytes' out || fail "try: $(cat out)"
kill -KILL "$broker"
wait "$broker" 2>/dev/null || true
"$HOTSHELF" fs check "$DRIVE" >out || fail "after a killed broker: $(cat out)"
end_drive

# The drive is killed under a file system: errors with words, no hang; what was saved is there with the next drive.
start_drive --size 96MiB --file "$SCRATCH/disk"
mkfifo input
HOTSHELF_RECORD_FILE=$SCRATCH/flight shell "$DRIVE" <input >shell.out 2>&1 &
shell=$!
exec {fd}>input
printf 'mkdir saved\nsync\nls /\n' >&"$fd"
wait_until 20 grep -q saved shell.out
# Where the environment says, as long as the drive is in use.
"$HOTSHELF" queue record "$SCRATCH/flight" >out || fail "the flight recorder: $(cat out)"
grep -q 'command.*write' out || fail "the flight recorder has no write: $(cat out)"
kill -KILL "$drive"
wait "$drive" 2>/dev/null || true
exec {words}<&-
printf 'import random lost\nsync\nquit\n' >&"$fd"
exec {fd}>&-
code=0
wait "$shell" || code=$?
((code == 1)) || fail "a shell whose drive was killed ends with $code: $(cat shell.out)"
start_drive --size 96MiB --file "$SCRATCH/disk"
shell "$DRIVE" -c 'ls /' 2>/dev/null | grep -q saved || fail "what was saved is not there"
"$HOTSHELF" fs check "$DRIVE" >out || fail "after a killed drive: $(cat out)"
end_drive

# The power goes, with a write cache: what was synced is there, and the file system is whole.
for round in 1 2 3; do
    start_drive --size 96MiB --file "$SCRATCH/disk" --volatile-cache --end-at-power-cut --seed "$round"
    mkfifo "in$round"
    shell "$DRIVE" <"in$round" >"out$round" 2>&1 &
    shell=$!
    exec {fd}>"in$round"
    printf 'mkdir round%s\nsync\nmkdir later%s\nls /\n' "$round" "$round" >&"$fd"
    wait_until 20 grep -q "later$round" "out$round"
    kill -USR1 "$drive"
    read -r said <&"$words" || fail "the drive ends without a word"
    wait "$drive" || fail "a drive without power ends with $?: $said"
    exec {words}<&-
    exec {fd}>&-
    # It may notice at its end, or have nothing to write.
    wait "$shell" || true
    start_drive --size 96MiB --file "$SCRATCH/disk"
    "$HOTSHELF" fs check --repair "$DRIVE" >out || fail "power cut $round: $(cat out)"
    shell "$DRIVE" -c 'ls /' 2>/dev/null | grep -q "round$round" || fail "power cut $round: what was synced is gone"
    end_drive
done
[[ ! -e $SOCKET ]] || fail "the socket is left"
