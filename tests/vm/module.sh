#!/bin/bash
# Builds kernel/nofscache for the guest's kernel, against Debian's headers, all below target/vm/.
#
#   [KERNEL=6.1|6.12] tests/vm/module.sh
#
# Leaves in target/vm/kernel-$KERNEL/nofscache/ nofscache.ko and calls, which is tests/vm/calls.c built. Takes 20 s, or none when
# they are newer than what they are made of. Exit 77 after `SKIP: reason` when it cannot be built here (no compiler, no headers to
# be had), 1 when it should and could not.
# tests/vm/boot.sh runs this for a script with a line `# module: nofscache`, after prepare.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
KERNEL=${KERNEL:-6.1}
PATH="$PATH:/usr/sbin:/sbin"
place=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")/vm
kernel=$place/kernel-$KERNEL
source=$ROOT/kernel/nofscache
built=$kernel/nofscache/nofscache.ko
# shellcheck source=tests/vm/packages.sh
source "$here/packages.sh"

# needed PATTERN: the package that the headers depend on.
needed() { apt-cache depends "linux-headers-$version" 2>/dev/null | grep -oE "$1" | head -1 || true; }
common() { needed 'linux-headers-.*-common$'; }
tools() { needed 'linux-kbuild-[^ ]*$'; }

# The headers of that kernel into $kernel/headers, with the paths they have there.
get_headers() {
    local tree=$work/headers own
    wanted="headers of Debian's kernel $version (a newer kernel is out: make clean)"
    unpack "$tree" echo "linux-headers-$version"
    unpack "$tree" common
    unpack "$tree" tools
    own=$tree/usr/src/linux-headers-$version
    sed -i "s|/usr/src/|$kernel/headers/usr/src/|" "$own/Makefile"
    mv -T "$tree" "$kernel/headers" 2>/dev/null || [[ -d $kernel/headers ]] || fail "cannot make $kernel/headers"
}

build() {
    # A copy, so that nothing is made beside the source.
    cp -r "$source" "$work/nofscache"
    # Type information is of no use to it, and its maker (pahole) not installed.
    make -C "$work/nofscache" "KDIR=$kernel/headers/usr/src/linux-headers-$version" CONFIG_DEBUG_INFO_BTF_MODULES= >"$work/log" 2>&1 || {
        cat "$work/log"
        fail "kernel/nofscache does not build for $version"
    }
    cc -O1 -static -Wall -Wextra -Werror -o "$work/calls" "$here/calls.c" >"$work/log" 2>&1 || {
        cat "$work/log"
        fail "tests/vm/calls.c does not build"
    }
    mkdir -p "$kernel/nofscache"
    mv "$work/calls" "$kernel/nofscache/"
    mv "$work/nofscache/nofscache.ko" "$built"
}

[[ -d $kernel/modules ]] || fail "no kernel in $kernel: run tests/vm/prepare.sh first"
if [[ -f $built && -z $(find "$source" "$here/calls.c" -newer "$built" -print -quit) ]]; then
    exit 0
fi
for program in make gcc-12; do
    command -v "$program" >/dev/null || skip "$program is not installed (scripts/setup.sh vm)"
done
version=$(ls "$kernel/modules")
make_work
[[ -d $kernel/headers ]] || get_headers
build
say "ready: $built"
