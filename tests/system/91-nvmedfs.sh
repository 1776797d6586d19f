#!/bin/bash
# The library file system as C programs meet it (nvmedfs_*): as C and as C++, on an image and on a block device, killed in the middle,
# under valgrind; and what it leaves is what `hotshelf fs` finds.
# TIMEOUT: 200
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need cc c++
release=$(dirname "$HOTSHELF")
[[ -f $release/libhotshelf.so ]] || fail "libhotshelf is not built: make build"
mkdir lib
ln -s "$release/libhotshelf.so" lib/libhotshelf.so
ln -s "$release/libhotshelf.so" lib/libhotshelf.so.0
source=$ROOT/crates/frontends/capi/tests/nvmedfs.c
flags=(-Wall -Wextra -Wpedantic -Werror -O2 -I"$ROOT/include" -Llib -lhotshelf "-Wl,-rpath,$SCRATCH/lib" -pthread)
cc -std=c11 -o as_c "$source" "${flags[@]}"
c++ -o as_cpp -x c++ "$source" -x none "${flags[@]}"

for program in as_c as_cpp; do
    mkdir "images-$program"
    "./$program" "images-$program" >out 2>&1 || fail "$program: $(cat out)"
    grep -q 'all is well' out || fail "$program: $(cat out)"
    # Killed again and again, and unmounted in the end.
    "$HOTSHELF" fs check "images-$program/image" >out 2>&1 || fail "what $program left: $(cat out)"
    grep -q 'clean$' out || fail "what $program left: $(cat out)"
done

# A program that uses an image excludes the command. A killed program leaves nothing behind.
mkfifo said
./as_c hold images-as_c/image >said &
pid=$!
exec 9<said
read -r -n 1 -t 60 -u 9 || fail "the image was not mounted"
"$HOTSHELF" fs df images-as_c/image >out 2>&1 && fail "an image in use was opened"
grep -q 'in use' out || fail "does not say why: $(cat out)"
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
exec 9<&-
"$HOTSHELF" fs check images-as_c/image >out 2>&1 || fail "after a kill: $(cat out)"
grep -q 'not unmounted cleanly' out || fail "after a kill: $(cat out)"

# A block device.
cat >device.c <<'EOC'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <hotshelf.h>
int main(int argc, char **argv)
{
    char back[8] = "";
    NVMEDFS *fs;
    int fd;
    int good = nvmedfs_mkfs(argv[argc - 1], NULL) == 0 && (fs = nvmedfs_mount(argv[argc - 1], NULL)) != NULL &&
               (fd = nvmedfs_open(fs, "/file", O_CREAT | O_RDWR, 0644)) >= 0 &&
               nvmedfs_write(fd, "text", 4) == 4 && nvmedfs_fsync(fd) == 0 &&
               nvmedfs_pread(fd, back, 8, 0) == 4 && strcmp(back, "text") == 0 && hs_shutdown() == 0;
    puts(good ? "well" : hs_error());
    return !good;
}
EOC
cc -std=c11 -o device device.c "${flags[@]}"
truncate -s 64M file
if [[ $(id -u) == 0 ]] && loop=$(losetup --find --show file); then
    ./device "$loop" >out || fail "a block device: $(cat out)"
    ./device "$loop" >out && fail "a file system was overwritten"
    grep -q 'NVMEDFS_FORCE' out || fail "does not say why: $(cat out)"
    losetup --detach "$loop"
else
    echo "no loop device: only files"
fi

if command -v valgrind >/dev/null; then
    # What threads had is lost in the child of a fork: leaks are looked for where there is none.
    mkdir images-valgrind
    valgrind --fair-sched=yes --quiet --error-exitcode=9 \
        --leak-check=no ./as_c images-valgrind >out 2>&1 || fail "valgrind: $(tail -n 30 out)"
    truncate -s 64M other
    valgrind --fair-sched=yes --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
        ./device other >out 2>&1 || fail "valgrind: $(tail -n 30 out)"
fi
