#!/bin/bash
# A file system in user space may give a file's inode number to another file at its next mount. A cache with an SSD keeps no unwritten pages
# of such files: a write is in the file when it returns. On the disk's own file system the same cache keeps them back.
# TIMEOUT: 60
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3 bindfs
[[ -c /dev/fuse && -w /dev/fuse ]] || skip "no /dev/fuse that we may open"
export HOTSHELF_LIBRARY
HOTSHELF_LIBRARY=$(dirname "$HOTSHELF")/libhotshelf.so
[[ -f $HOTSHELF_LIBRARY ]] || fail "libhotshelf is not built: make build"
export PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1 HOTSHELF_CONFIG=$SCRATCH/cache.toml
mkdir disk fuse runtime
printf '%s\n' '[cache]' "name = \"fuse-$$\"" "runtime_dir = \"$SCRATCH/runtime\"" 'memory = "4MiB"' 'dirty_age = "1h"' \
    "ssd = \"$SCRATCH/image\"" 'ssd_size = "16MiB"' >cache.toml
[[ $(id -u) == 0 ]] && others=() || others=(--no-allow-other)
bindfs "${others[@]}" disk fuse || skip "bindfs does not mount"
for file in disk/direct fuse/through; do
    python3 -c 'import os, sys, hotshelf
path = sys.argv[1]
open(path, "wb").write(b"1" * 20000)
file = hotshelf.File(path, "r+")
file.pwrite(b"2" * 4096, 4096)
with open(path, "rb") as theirs:
    is_written = theirs.read()[4096:8192] == b"2" * 4096
assert is_written == (sys.argv[2] == "written"), f"{path}: {is_written}"
assert file.pread(4096, 4096) == b"2" * 4096' "$file" "$([[ $file == fuse/* ]] && echo written || echo kept)" || fail "$file"
done
umount fuse || fusermount3 -u fuse
