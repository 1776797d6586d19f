#!/bin/bash
# NVMe commands can be given through io_uring on the character nodes, for both block sizes: fio writes and verifies.
# Where this fio or this kernel cannot, the same goes through io_uring on the block nodes, and the output says so.
# drives: ssd512=size:64M ssd4096=size:64M,lbas:4096
# shellcheck source=tests/vm/lib.sh
source "$(dirname "$0")/lib.sh"
need fio

# verified NODE FIO-ARGUMENT...: 2 MiB of random writes to each drive's block or char node, read back and compared.
verified() {
    local node=$1 drive jobs=()
    shift
    for drive in ssd512 ssd4096; do
        jobs+=(--name="$drive" --filename="$("$node" "$drive")")
    done
    fio --rw=randwrite --bs=16k --size=2M --iodepth=8 --verify=crc32c --do_verify=1 --randseed=1 --output=said --output-format=terse \
        --terse-version=3 "$@" "${jobs[@]}" || fail "fio on the $node nodes: $(tail -n 5 said)"
    # Fields of the terse lines: name, error, KiB read, KiB written.
    [[ $(cut -d';' -f3,5,6,47 said) == $'ssd512;0;2048;2048\nssd4096;0;2048;2048' ]] ||
        fail "fio did not do all on the $node nodes: $(<said)"
}

if fio --name=probe --filename="$(char ssd512)" --rw=read --bs=4k --size=4k --ioengine=io_uring_cmd --cmd_type=nvme >probe 2>&1; then
    echo "passthrough: yes"
    verified char --ioengine=io_uring_cmd --cmd_type=nvme
else
    echo "passthrough: no, $(fio --version) on Linux $(uname -r) says: $(grep -v '^$' probe | head -1)"
fi
verified block --ioengine=io_uring --direct=1
