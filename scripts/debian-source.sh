#!/bin/bash
# Gets the source of an installed Debian package, in its version, without changing anything of the system's:
#
#   scripts/debian-source.sh PACKAGE DIR     unpacks it as DIR; nothing to do if that is there
#
# apt uses a separate configuration beside DIR meanwhile. Exits 77 after `SKIP: reason` if the source is not available.
set -euo pipefail
package=$1 dir=$2 place=$2.apt

skip() { echo "SKIP: $*"; exit 77; }

apt() {
    apt-get -q -o Dir::Etc::sourcelist="$place/deb-src.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$place/lists" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::Retries=1 \
        -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" >"$place/log" 2>&1 </dev/null
}

# Where this system gets its packages from, as places of sources; in both forms that apt reads.
deb_src() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        if [[ -f $file ]]; then
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

[[ ! -d $dir ]] || exit 0
command -v apt-get >/dev/null || skip "no apt-get here to get the source of $package with"
# shellcheck disable=SC2016 # the fields are dpkg-query's
source=$(dpkg-query -W -f='${source:Package}=${source:Version}' "$package" 2>/dev/null) || skip "$package is not installed"
rm -rf "$place"
mkdir -p "$place/lists/partial" "$place/get"
place=$(realpath "$place")
dir=$(realpath -m "$dir")
deb_src >"$place/deb-src.sources"
apt update || true
(cd "$place/get" && apt source --download-only "$source") ||
    skip "cannot get the source of $source: $(sed -n 's/^[EW]: *//p' "$place/log" | tail -1)"
mkdir "$place/tree"
tar xf "$(find "$place/get" -name "${source%=*}_*.orig.tar.*" ! -name '*.asc')" -C "$place/tree" --strip-components=1
# Somebody may have been faster.
mv -T "$place/tree" "$dir" 2>/dev/null || [[ -d $dir ]]
rm -rf "$place"
