#!/bin/bash
# Builds fio's engine for hotshelf, target/fio/libhotshelf_fio.so (make fio-engine):
#
#   fio/build.sh [FIO]      for that program (default: fio), with the headers of its version
#   fio/build.sh --headers  says where those headers are (for bench/fio-block)
#
# The headers are those of $FIO_SOURCE, a source tree of that version, if it is set; else of Debian's source package
# (scripts/debian-source.sh). libhotshelf is linked in.
# Exit 77 after `SKIP: reason` when no headers are available here; 1 when something that should work did not.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
headers=no
[[ ${1:-} != --headers ]] || { headers=yes; shift; }
place=$target/fio fio=${1:-fio} archive=$target/release/libhotshelf.a

skip() { echo "SKIP: $*"; exit 77; }
fail() { echo "fio/build.sh: $*" >&2; exit 1; }

command -v "$fio" >/dev/null || skip "$fio is not installed"
[[ $headers == yes || -f $archive ]] || fail "no $archive: make build"
cc=${CC:-cc}
command -v "$cc" >/dev/null || skip "$cc is not installed"
version=$("$fio" --version)
version=${version#fio-}
mkdir -p "$place"

source=${FIO_SOURCE:-$place/fio-$version}
if [[ ! -f $source/ioengines.h ]]; then
    [[ -z ${FIO_SOURCE:-} ]] || fail "$source has no ioengines.h"
    rm -rf "$source"
    scripts/debian-source.sh fio "$source" || exit
fi
# What configure finds here changes no structure an engine sees: the engine checks that when it is loaded.
if [[ ! -f $source/config-host.h ]]; then
    (cd "$source" && ./configure --cc="$cc" --disable-native >"$place/configure.log" 2>&1) ||
        fail "fio's configure: $(tail -n 1 "$place/configure.log")"
fi
if [[ $headers == yes ]]; then
    echo "$source"
    exit
fi
# -z nodelete: fio unloads engines, and threads of the library may still be ending.
"$cc" -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -fPIC -shared -D_GNU_SOURCE -include "$source/config-host.h" \
    -isystem "$source" -Iinclude -o "$place/libhotshelf_fio.so.new" fio/hotshelf_fio.c "$archive" \
    -Wl,--exclude-libs,ALL,-z,nodelete,--gc-sections,--strip-debug -lgcc_s -lpthread -lm -ldl
mv "$place/libhotshelf_fio.so.new" "$place/libhotshelf_fio.so"
echo "fio/build.sh: $place/libhotshelf_fio.so, for fio $version"
