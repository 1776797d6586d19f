#!/bin/bash
# nocache says of every Go program that it cannot see it, however it was linked: with a note or none, the first of its notes or not.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need go gcc strip
export HOTSHELF_NOCACHE_LIB=${HOTSHELF_NOCACHE_LIB:-$(dirname "$HOTSHELF")/libhotshelf_nocache.so}
export GOCACHE=$SCRATCH/go HOME=$SCRATCH GOFLAGS=-mod=mod GO111MODULE=off GOTOOLCHAIN=local CGO_ENABLED=1
printf 'package main\n\n// int one(void) { return 1; }\nimport "C"\n\nfunc main() { println(C.one()) }\n' >main.go
build() { go build -o "$@" main.go >build.log 2>&1 || skip "go builds nothing with cgo here: $(tail -n1 build.log)"; }
build external -ldflags '-linkmode external'
build nameless -ldflags '-linkmode external -buildid='
cp external stripped
strip stripped
mkdir data
for program in external nameless stripped; do
    "./$program" >/dev/null 2>&1 || fail "$program does not run"
    readelf -l "$program" >parts
    grep -q INTERP parts || fail "$program is not dynamically linked"
    fails_with 'Go program' "$HOTSHELF" nocache --path data -- "./$program"
done
"$HOTSHELF" nocache --path data -- /bin/true || fail "another program is refused"
