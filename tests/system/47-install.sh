#!/bin/bash
# `make install` by root out of an ordinary user's checkout: nothing of root's is left in it, the programs are small and their debug
# symbols apart, every header is there, and the user can go on.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need make setpriv readelf objcopy
release=$(dirname "$HOTSHELF")
[[ -f $release/libhotshelf.a && -f $release/libhotshelf_sqlite.so && -f $release/libhotshelf_nocache.so ]] || fail "not built: make build"

tree=$SCRATCH/tree stage=$SCRATCH/stage
mkdir -p "$tree/target/release" "$tree/crates"
cp -r "$ROOT"/{Makefile,Cargo.toml,LICENSE,README.md,scripts,include,contrib} "$tree"
mkdir -p "$tree/crates/frontends/capi" "$tree/crates/base/policy"
cp -r "$ROOT/crates/frontends/capi/man" "$tree/crates/frontends/capi"
cp -r "$ROOT/crates/base/policy/include" "$tree/crates/base/policy"
cp "$HOTSHELF" "$release"/libhotshelf.{so,a} "$release"/libhotshelf_{sqlite,nocache}.so "$tree/target/release/"
chown -R 65534:65534 "$tree"
make_as() { (cd "$tree" && env -u CARGO_TARGET_DIR "$@" PREFIX=/usr SBINDIR=/sbin); }
user=(setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/nonexistent)

make_as make install DESTDIR="$stage" >log 2>&1 || fail "make install: $(tail -n 5 log)"
[[ -z $(find "$tree" -user root) ]] || fail "root's files are in the checkout: $(find "$tree" -user root)"
for file in include/hotshelf.h include/hotshelf_posix.h include/hotshelf_policy.h share/man/man1/hotshelf-mount.1 \
    share/man/man3/hotshelf.3 share/man/man5/hotshelf-mount.toml.5 \
    share/bash-completion/completions/hotshelf lib/pkgconfig/hotshelf.pc; do
    [[ -s $stage/usr/$file ]] || fail "make install left $file out"
done
for file in bin/hotshelf lib/libhotshelf.so.0.1.0 lib/libhotshelf_sqlite.so lib/libhotshelf_nocache.so; do
    installed=$stage/usr/$file
    [[ -f $installed ]] || installed=$(echo "$stage"/usr/lib/libhotshelf.so.[0-9]*.*)
    readelf -S --wide "$installed" >sections
    grep -Eq '\.symtab|\.debug_info' sections && fail "$file has its symbols still"
    grep -q gnu_debuglink sections || fail "$file does not say where its symbols are"
    symbols=$stage/usr/lib/debug${installed#"$stage"}.debug
    readelf -S --wide "$symbols" >sections
    grep -q '\.symtab' sections || fail "$symbols has no symbols"
done
(($(stat -c %s "$stage/usr/bin/hotshelf") < 30 << 20)) || fail "the program is $(stat -c %s "$stage/usr/bin/hotshelf") bytes"
"$stage/usr/bin/hotshelf" --version >/dev/null || fail "the installed program does not run"
echo 'int hs_shutdown(void); int main(void) { return hs_shutdown(); }' >program.c
cc -o program program.c "$stage/usr/lib/libhotshelf.a" -lgcc_s -lpthread -lm -ldl || fail "the static library cannot be linked"
./program || fail "linked with the static library"

# The user goes on where root was.
make_as "${user[@]}" make install DESTDIR="$tree/own" >log 2>&1 || fail "the user's make install after root's: $(tail -n 5 log)"
make_as make uninstall DESTDIR="$stage" >log 2>&1 || fail "make uninstall: $(tail -n 5 log)"
[[ -z $(find "$stage" -name '*hotshelf*' ! -type d) ]] || fail "make uninstall left $(find "$stage" -name '*hotshelf*' ! -type d)"

# What is not built root does not build in a checkout that is not root's.
rm "$tree/target/release/hotshelf"
make_as make install DESTDIR="$stage" >log 2>&1 && fail "root built in the user's checkout"
grep -q 'run `make build` as' log || fail "does not say who builds: $(cat log)"
[[ -z $(find "$tree" -user root) ]] || fail "root's files are in the checkout"
make_as make install DESTDIR="$stage" STRIP=no -n >/dev/null 2>&1 || true
