#!/bin/bash
# Programs with more rights than their caller (set-uid, set-gid, file capabilities) that link the C library, load the SQLite extension or
# have the library of nocache: nothing that the caller's environment names is touched. The same programs without the bits obey it, so
# that each variable is known to matter here.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need cc strace setpriv setcap sqlite3
release=$(dirname "$HOTSHELF")
for file in libhotshelf.so libhotshelf_sqlite.so libhotshelf_nocache.so; do
    [[ -f $release/$file ]] || fail "$release/$file is not built: make build"
done
# shellcheck source=tests/system/_drive.sh
source "$(dirname "$0")/_drive.sh"

caller=65534
own=$SCRATCH/own trap_dir=$SCRATCH/trap bin=$SCRATCH/bin
mkdir "$own" "$trap_dir" "$bin"
chmod 1777 "$own" "$trap_dir"
cp "$release"/libhotshelf{,_sqlite,_nocache}.so "$bin"
ln -s libhotshelf.so "$bin/libhotshelf.so.0"
chmod 755 "$bin"/*
up=$SCRATCH
while [[ $up != / ]]; do
    setpriv --reuid $caller --regid $caller --clear-groups test -x "$up" ||
        skip "the scratch directory is out of reach for an ordinary user"
    up=$(dirname "$up")
done

# One program for everything of the library that reads a variable: the settings, notes of the SSD, a drive's recorder.
cat >"$bin/uses.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "hotshelf.h"
int main(int argc, char **argv)
{
    if (strcmp(argv[1], "library") == 0) {
        if (hs_init(NULL) != 0) {
            fprintf(stderr, "init: %s\n", hs_error());
            return 3;
        }
        int ufd = uopen(argv[2], O_RDONLY);
        if (ufd >= 0)
            uclose(ufd);
        else
            fprintf(stderr, "uopen: %s\n", hs_error());
        return hs_shutdown();
    }
    if (strcmp(argv[1], "drive") == 0) {
        NVMED *drive = nvmed_open(argv[2], 0);
        if (drive == NULL) {
            fprintf(stderr, "drive: %s\n", hs_error());
            return 3;
        }
        return nvmed_close(drive);
    }
    char byte;
    int fd = open(argv[2], O_RDONLY);
    return fd >= 0 && read(fd, &byte, 1) == 1 ? 0 : 3;
}
C
cc -O1 -I"$ROOT/include" -o "$bin/plain" "$bin/uses.c" "$bin/libhotshelf.so" -Wl,-rpath,"$bin" || fail "the program does not compile"
# Linked, since the dynamic linker drops LD_PRELOAD here; /etc/ld.so.preload would bring it in as this does.
cc -O1 -I"$ROOT/include" -o "$bin/plain-nocache" "$bin/uses.c" -Wl,--no-as-needed "$bin/libhotshelf_nocache.so" "$bin/libhotshelf.so" \
    -Wl,-rpath,"$bin" || fail "the program does not compile with nocache"
cp "$(command -v sqlite3)" "$bin/plain-sqlite3"
for program in plain plain-nocache plain-sqlite3; do
    cp "$bin/$program" "$bin/${program/plain/setuid}"
    cp "$bin/$program" "$bin/${program/plain/setgid}"
    cp "$bin/$program" "$bin/${program/plain/caps}"
    # Not to root: that user has other defaults, and fewer variables count.
    chown 65533:0 "$bin/${program/plain/setuid}"
    chgrp 65533 "$bin/${program/plain/setgid}"
    chmod 4755 "$bin/${program/plain/setuid}"
    chmod 2755 "$bin/${program/plain/setgid}"
    setcap cap_net_raw+ep "$bin/${program/plain/caps}"
done
cp "$bin/plain" "$bin/root-setuid"
chmod 4755 "$bin/root-setuid"
findmnt -no OPTIONS -T "$bin" | grep -qw nosuid && skip "the scratch directory is on a nosuid file system"

echo content >"$own/file"
chmod 644 "$own/file"
printf '%s\n' '[cache]' 'name = "trapped"' "runtime_dir = \"$trap_dir\"" 'memory = "2MiB"' "ssd = \"$trap_dir/ssd\"" 'ssd_size = "8MiB"' \
    >"$trap_dir/settings.toml"
mkdir "$trap_dir/home" "$trap_dir/tmp"
"$HOTSHELF" fs mkfs "$trap_dir/image" --size 16MiB >/dev/null
chown -R $caller "$trap_dir"
variables=(
    "HOTSHELF_CONFIG=$trap_dir/settings.toml" "HOTSHELF_RECORD_FILE=$trap_dir/record" "HOTSHELF_IMAGE=$trap_dir/image"
    "HOTSHELF_NOCACHE=all" "HOTSHELF_LOG=trace" "HOTSHELF_CRASH_AT=1" "HOME=$trap_dir/home" "TMPDIR=$trap_dir/tmp"
    "XDG_CONFIG_HOME=$trap_dir/config" "XDG_STATE_HOME=$trap_dir/state" "XDG_RUNTIME_DIR=$trap_dir/run" "XDG_CACHE_HOME=$trap_dir/cache"
    "SQLITE_TMPDIR=$trap_dir/tmp" "RUST_LOG=trace" "RUST_BACKTRACE=full" "MALLOC_CONF=stats_print:true" "_RJEM_MALLOC_CONF=stats_print:true"
)

# run PROGRAM WORD...: as the caller, every call written down. strace lets the bits of the program count.
run() {
    env -i PATH=/usr/bin:/bin "${variables[@]}" strace -f -qq -s 400 -u nobody -o "$SCRATCH/calls" "$@" >"$SCRATCH/said" 2>&1 </dev/null
}
[[ $(id -u nobody) == "$caller" ]] || skip "nobody is not user $caller here"

# obeys PROGRAM NAMES WORD...: without the bits each of the names is used.
obeys() {
    local program=$1 names=$2 name
    shift 2
    run "$bin/$program" "$@" || true
    for name in $names; do
        # Not in a pipe: one that has read enough ends the other.
        grep -v execve "$SCRATCH/calls" >"$SCRATCH/seen"
        grep -q -- "$name" "$SCRATCH/seen" || fail "$program $1 does not use $name: $(cat "$SCRATCH/said")"
    done
}
# ignores PROGRAM WORD...: with the bits nothing of the caller's.
ignores() {
    local program=$1
    shift
    run "$bin/$program" "$@" || fail "$program $*: $(cat "$SCRATCH/said")"
    grep -v execve "$SCRATCH/calls" | grep -F "$trap_dir" && fail "$program $1 obeys its caller"
    grep -qi 'jemalloc\|trace\|debug' "$SCRATCH/said" && fail "$program $1 says what its caller wants: $(cat "$SCRATCH/said")"
    return 0
}

obeys plain 'settings.toml trap/state' library "$own/file"
for kind in setuid setgid caps root-setuid; do
    ignores "$kind" library "$own/file"
done

start_drive --size 64MiB
chmod 777 "$SOCKET"
obeys plain 'trap/record' drive "$DRIVE"
for kind in setuid setgid caps; do
    ignores "$kind" drive "$DRIVE"
done
end_drive

sqlite=(-cmd ".load $bin/libhotshelf_sqlite.so" -cmd ".open file:/db?vfs=hotshelf" :memory: "select 1;")
obeys plain-sqlite3 'trap/image' "${sqlite[@]}"
grep -qi jemalloc "$SCRATCH/said" || echo "NOTE: the extension has no jemalloc here: MALLOC_CONF is not tried"
for kind in setuid setgid caps; do
    run "$bin/$kind-sqlite3" "${sqlite[@]}" || true
    grep -v execve "$SCRATCH/calls" | grep -F "$trap_dir/image" && fail "$kind-sqlite3 obeys its caller"
    grep -q 'unable to open' "$SCRATCH/said" || fail "$kind-sqlite3 opened something: $(cat "$SCRATCH/said")"
    grep -qi jemalloc "$SCRATCH/said" && fail "the allocator obeys the caller in $kind-sqlite3"
done

# Under it the file's pages are given up after the read.
obeys plain-nocache 'fadvise64' read "$own/file"
for kind in setuid setgid caps; do
    ignores "$kind-nocache" read "$own/file"
    grep -q fadvise64 "$SCRATCH/calls" && fail "nocache obeys the caller in $kind-nocache"
done

# The command itself has options that name files: it does not run so at all.
cp "$HOTSHELF" "$bin/hotshelf"
chmod 4755 "$bin/hotshelf"
setpriv --reuid $caller --regid $caller --clear-groups "$bin/hotshelf" --version >"$SCRATCH/said" 2>&1 && fail "hotshelf runs set-uid"
grep -q 'refuses to run set-uid' "$SCRATCH/said" || fail "hotshelf does not say why: $(cat "$SCRATCH/said")"
exit 0
