#!/bin/bash
# Builds fio's engine for hotshelf, target/fio/libhotshelf_fio.so (make fio-engine):
#
#   fio/build.sh [FIO]      for that program (default: fio), with the headers of its version
#
# The headers are those of $FIO_SOURCE, a source tree of that version, if it is set; else of Debian's source package, for which apt
# gets a configuration of its own below target/fio/: nothing of the system's is changed. libhotshelf is linked in.
# Exit 77 after `SKIP: reason` when no headers can be had here; 1 when something that should work did not.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/fio fio=${1:-fio} archive=$target/release/libhotshelf.a

skip() { echo "SKIP: $*"; exit 77; }
fail() { echo "fio/build.sh: $*" >&2; exit 1; }

command -v "$fio" >/dev/null || skip "$fio is not installed"
[[ -f $archive ]] || fail "no $archive: make build"
cc=${CC:-cc}
command -v "$cc" >/dev/null || skip "$cc is not installed"
version=$("$fio" --version)
version=${version#fio-}
mkdir -p "$place"

apt() {
    apt-get -q -o Dir::Etc::sourcelist="$place/apt/deb-src.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$place/apt/lists" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::Retries=1 \
        -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" >"$place/apt.log" 2>&1 </dev/null
}

# deb_src: where this system gets its packages from, as places of sources; in both forms that apt reads.
deb_src() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        if [[ -f $file ]]; then
            # deb [options] place suite part... -> the fields of the other form
            sed -nE 's/^deb +(\[[^]]*\] *)?([^ ]+) +([^ ]+) +(.*)$/Types: deb-src\nURIs: \2\nSuites: \3\nComponents: \4\n/p' "$file"
        fi
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        if [[ -f $file ]]; then
            sed -E 's/^Types:.*/Types: deb-src/' "$file"
            echo
        fi
    done
}

# get_source DIR: unpacks the source of the installed package's version there.
get_source() {
    local package
    command -v apt-get >/dev/null || skip "no apt-get here: set FIO_SOURCE to the source of fio $version"
    package=$(dpkg-query -W -f='${source:Package}=${source:Version}' fio 2>/dev/null) ||
        skip "fio is no package here: set FIO_SOURCE to the source of fio $version"
    rm -rf "$place/apt" "$place/get"
    mkdir -p "$place/apt/lists/partial" "$place/get"
    deb_src >"$place/apt/deb-src.sources"
    apt update || true
    (cd "$place/get" && apt source --download-only "$package") ||
        skip "cannot get the source of $package: $(sed -n 's/^[EW]: *//p' "$place/apt.log" | tail -1)"
    rm -rf "$1"
    mkdir "$1"
    tar xf "$(find "$place/get" -name 'fio_*.orig.tar.*' ! -name '*.asc')" -C "$1" --strip-components=1
    rm -rf "$place/apt" "$place/get"
}

source=${FIO_SOURCE:-$place/fio-$version}
if [[ ! -f $source/ioengines.h ]]; then
    [[ -z ${FIO_SOURCE:-} ]] || fail "$source has no ioengines.h"
    get_source "$source.new"
    rm -rf "$source"
    mv "$source.new" "$source"
fi
# What configure finds here changes no structure an engine sees: the engine checks that when it is loaded.
if [[ ! -f $source/config-host.h ]]; then
    (cd "$source" && ./configure --cc="$cc" --disable-native >"$place/configure.log" 2>&1) ||
        fail "fio's configure: $(tail -n 1 "$place/configure.log")"
fi
# -z nodelete: fio unloads engines, and threads of the library may still be ending.
"$cc" -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -fPIC -shared -D_GNU_SOURCE -include "$source/config-host.h" \
    -isystem "$source" -Iinclude -o "$place/libhotshelf_fio.so.new" fio/hotshelf_fio.c "$archive" \
    -Wl,--exclude-libs,ALL,-z,nodelete,--gc-sections,--strip-debug -lgcc_s -lpthread -lm -ldl
mv "$place/libhotshelf_fio.so.new" "$place/libhotshelf_fio.so"
echo "fio/build.sh: $place/libhotshelf_fio.so, for fio $version"
