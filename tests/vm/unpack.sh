#!/bin/bash
# Unpacks Debian packages whose programs a guest needs and nobody wants installed on the host: their services would start there.
#
#   tests/vm/unpack.sh PACKAGE...
#
# Leaves what PACKAGE holds in target/vm/packages/PACKAGE/. Takes no time when it is there. Exit 77 after `SKIP: reason` when a package
# cannot be had here. tests/vm/boot.sh runs this for a script with a line `# packages: PACKAGE...`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
place=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")/vm
# shellcheck source=tests/vm/packages.sh
source "$here/packages.sh"

for package in "$@"; do
    [[ ! -d $place/packages/$package ]] || continue
    command -v apt-get >/dev/null || skip "no apt-get here to get $package with"
    [[ -n $work ]] || make_work
    # shellcheck disable=SC2034 # of packages.sh
    wanted=$package
    unpack "$work/$package" echo "$package"
    mkdir -p "$place/packages"
    # Another run may have been faster.
    mv -T "$work/$package" "$place/packages/$package" 2>/dev/null || [[ -d $place/packages/$package ]] ||
        fail "cannot make $place/packages/$package"
done
