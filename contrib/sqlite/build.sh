#!/bin/bash
# Builds SQLite's command line as target/sqlite/usqlite3: its files go through the cache, ported by nothing but
# `-include hotshelf_posix.h`.
#
#   contrib/sqlite/build.sh [LIBDIR]    with libhotshelf.so.0 there (default: of the release build)
#
# The source is $SQLITE_SOURCE, a directory with sqlite3.c, sqlite3.h and shell.c, if it is set; else that of Debian's package.
# Exit 77 after `SKIP: reason` where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/sqlite libdir=$(realpath "${1:-$target/release}") cc=${CC:-cc}

skip() { echo "SKIP: $*"; exit 77; }
fail() { echo "contrib/sqlite/build.sh: $*" >&2; exit 1; }

command -v "$cc" >/dev/null || skip "$cc is not installed"
[[ -f $libdir/libhotshelf.so ]] || fail "no $libdir/libhotshelf.so: make build"
mkdir -p "$place"
source=${SQLITE_SOURCE:-$place/amalgamation}

# The one file of all, made from Debian's source as SQLite's own makefile does.
if [[ -z ${SQLITE_SOURCE:-} && ! -f $source/shell.c ]]; then
    command -v tclsh >/dev/null || skip "tclsh is not installed: the source of SQLite is put together with it"
    scripts/debian-source.sh sqlite3 "$place/source" || exit
    rm -rf "$place/build" "$source"
    mkdir "$place/build" "$source"
    (cd "$place/build" && ../source/configure --disable-tcl && make sqlite3.c shell.c) >"$place/log" 2>&1 ||
        fail "SQLite's own build: $(tail -n 1 "$place/log")"
    cp "$place/build"/{sqlite3.c,sqlite3.h,shell.c} "$source/"
fi

# compile FILE FLAGS...: where something is newer than what is there.
compile() {
    local file=$1 object=$place/$1.o
    shift
    if [[ $object -nt $source/$file.c && $object -nt include/hotshelf.h && $object -nt include/hotshelf_posix.h ]]; then
        return
    fi
    "$cc" -DSQLITE_THREADSAFE=1 -DUSE_PREAD -DHAVE_POSIX_FALLOCATE=1 -I"$source" -Iinclude -include hotshelf_posix.h "$@" \
        -c -o "$object" "$source/$file.c"
}
compile sqlite3 -O2
compile shell -O1
ln -sfn "$libdir/libhotshelf.so" "$place/libhotshelf.so.0"
"$cc" -o "$place/usqlite3" "$place/sqlite3.o" "$place/shell.o" "$place/libhotshelf.so.0" -Wl,-rpath,"$place" -lm -lpthread -ldl
