#!/bin/bash
# The C library over an NVMe drive: its example, written from hotshelf.h alone, through passthrough and through the block node,
# with 512 and 4096 bytes a block.
# drives: ssd512=size:64M ssd4096=size:64M,lbas:4096
# TIMEOUT: 240
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need cc
lib=$(dirname "$HOTSHELF")
[[ -f $lib/libhotshelf.so ]] || skip "libhotshelf is not built: make build"
ln -s "$lib/libhotshelf.so" libhotshelf.so.0
cc -std=c99 -D_DEFAULT_SOURCE -O2 -o raw_device "$ROOT/crates/frontends/capi/examples/raw_device.c" -I"$ROOT/include" \
    "$PWD/libhotshelf.so.0" -Wl,-rpath,"$PWD"

# well DEVICE: cached, direct, synchronous and asynchronous I/O, flush and discard, and a bad block is EIO.
well() {
    ./raw_device "$1" >out 2>&1 || fail "$1: $(cat out)"
    grep 'all is well' out || fail "$1: $(cat out)"
    head -1 out
}

for drive in ssd512 ssd4096; do
    well "$(char $drive)"
    well "$(block $drive)"
done
