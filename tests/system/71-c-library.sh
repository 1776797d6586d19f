#!/bin/bash
# The C library as a program meets it: installed, linked by pkg-config, as C and as C++, shared and static, on a file and on a block
# device, under valgrind, and with several threads.
# TIMEOUT: 200
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need cc c++ pkg-config make
release=$(dirname "$HOTSHELF")
[[ -f $release/libhotshelf.so && -f $release/libhotshelf.a ]] || fail "libhotshelf is not built: make build"

# Installed as a packager does.
stage=$SCRATCH/stage
(cd "$ROOT" && make --no-print-directory install DESTDIR="$stage" PREFIX=/usr SBINDIR=/sbin) >"$SCRATCH/install.log" 2>&1 ||
    fail "make install: $(tail -n 5 "$SCRATCH/install.log")"
lib=$stage/usr/lib
[[ -L $lib/libhotshelf.so && -L $lib/libhotshelf.so.0 ]] || fail "make install left the library out"
for file in include/hotshelf.h include/hotshelf_posix.h share/man/man3/hotshelf.3; do
    [[ -f $stage/usr/$file ]] || fail "make install left $file out"
done
export PKG_CONFIG_PATH=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1
[[ $(pkg-config --modversion hotshelf) == "$("$HOTSHELF" --version | awk '{ print $NF }')" ]] || fail "pkg-config tells another version"
export LD_LIBRARY_PATH=$lib

example=$ROOT/crates/frontends/capi/examples/raw_device.c
strict=(-Wall -Wextra -Wpedantic -Werror -O2)
read -ra flags < <(pkg-config --cflags --libs hotshelf)
cc -std=c99 -D_DEFAULT_SOURCE "${strict[@]}" -o as_c "$example" "${flags[@]}"
c++ "${strict[@]}" -o as_cpp -x c++ "$example" -x none "${flags[@]}"
cc -std=c99 -D_DEFAULT_SOURCE "${strict[@]}" -o static "$example" -I"$stage/usr/include" "$lib/libhotshelf.a" \
    -lgcc_s -lpthread -lm -ldl
cc -std=c99 "${strict[@]}" -pthread -o behaviour "$ROOT/crates/frontends/capi/tests/behaviour.c" "${flags[@]}"

# well DEVICE: every build of the example agrees with it.
well() {
    local program
    for program in as_c as_cpp static; do
        "./$program" "$1" >out 2>&1 || fail "$program $1: $(cat out)"
        grep -q 'all is well' out || fail "$program $1: $(cat out)"
    done
}

truncate -s 64M file
well memory:16MiB
well file
mkdir conf
./behaviour conf || fail behaviour
loop() { losetup --find --show --direct-io=on --sector-size 4096 "$1" 2>/dev/null || losetup --find --show "$1"; }
if [[ $(id -u) == 0 ]] && device=$(loop file); then
    well "$device"
    # What somebody uses is not ours to overwrite.
    mkfs.ext4 -q "$device" && mkdir mnt && mount "$device" mnt
    ./as_c "$device" >out 2>&1 && fail "a mounted device was opened for writing"
    grep -q 'in use.*Device or resource busy' out || fail "does not say why: $(cat out)"
    umount mnt
    losetup --detach "$device"
else
    echo "no loop device: only memory and a file"
fi

# The kernel's own view: what the library wrote and flushed is there.
cat >write.c <<'EOF'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <hotshelf.h>
int main(int argc, char **argv)
{
    NVMED *device = nvmed_open(argv[argc - 1], O_RDWR);
    NVMED_HANDLE *handle = nvmed_handle_create(nvmed_queue_create(device, 0), NVMED_CACHED);
    int good = nvmed_pwrite(handle, "through the cache", 17, 4090) == 17 && nvmed_flush(handle) == 0;
    if (!good)
        puts(hs_error());
    return !good;
}
EOF
cc -std=c99 "${strict[@]}" -o write write.c "${flags[@]}"
truncate -s 1M other
./write other || fail "write"
[[ $(dd if=other bs=1 skip=4090 count=17 status=none) == "through the cache" ]] || fail "the kernel does not see what was flushed"
./write nowhere >out && fail "a file that is not there"
grep -q 'no handle\|no queue\|NULL' out || fail "says: $(cat out)"

if command -v valgrind >/dev/null; then
    # What is reached by pointers into its middle is how Rust keeps threads, and no leak.
    for run in "./as_c memory:16MiB" "./as_c file" "./behaviour conf"; do
        # shellcheck disable=SC2086
        valgrind --fair-sched=yes --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
            $run >out 2>&1 || fail "valgrind $run: $(cat out)"
    done
fi

(cd "$ROOT" && make --no-print-directory uninstall DESTDIR="$stage" PREFIX=/usr SBINDIR=/sbin) >/dev/null
[[ -z $(find "$stage" -name '*hotshelf*' ! -type d) ]] || fail "make uninstall left $(find "$stage" -name '*hotshelf*' ! -type d)"
