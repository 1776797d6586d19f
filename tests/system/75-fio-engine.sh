#!/bin/bash
# fio's engine: what it writes it reads back, at depth 1 and beyond, copied and lent, from one process and several; the kernel finds
# the same bytes below; and what is wrong is said.
# TIMEOUT: 240
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need fio cc
code=0
"$ROOT/fio/build.sh" >built 2>&1 || code=$?
((code != 77)) || skip "$(sed -n 's/^SKIP: //p' built)"
((code == 0)) || fail "fio/build.sh: $(cat built)"
engine=$(sed -n 's/^fio.build.sh: \(.*\), for fio .*/\1/p' built)

printf '[cache]\nname = "%s"\nmemory = "8MiB"\nssd = "%s/ssd.cache"\nssd_size = "128MiB"\n' "$(basename "$SCRATCH")" "$SCRATCH" >conf.toml
ours=(--ioengine="external:$engine" --config="$SCRATCH/conf.toml")

# job NAME FIO-ARGUMENT...: must end well; what it did is in NAME.json.
job() {
    local name=$1
    shift
    fio --name="$name" --bs=4k --size=24M --randseed=11 --output="$name.json" --output-format=json "$@" >"$name.out" 2>&1 ||
        fail "$name: $(cat "$name.out") $(tail -n 20 "$name.json")"
    ! grep -q '"error" : [1-9]' "$name.json" || fail "$name has errors: $(grep '"error"' "$name.json")"
}
verify=(--verify=crc32c --verify_fatal=1)

# More than there is memory for, so that pages go out and come back; and the kernel's own reads afterwards.
for depth in 1 16; do
    file=$SCRATCH/data$depth
    job "write$depth" "${ours[@]}" --filename="$file" --rw=randwrite --iodepth=$depth --end_fsync=1 --do_verify=1 "${verify[@]}"
    job "again$depth" "${ours[@]}" --filename="$file" --rw=randwrite --iodepth=$depth --verify_only=1 "${verify[@]}"
    job "lent$depth" "${ours[@]}" --filename="$file" --rw=randwrite --iodepth=$depth --verify_only=1 --zero_copy=1 "${verify[@]}"
    job "below$depth" --ioengine=psync --filename="$file" --rw=randwrite --verify_only=1 "${verify[@]}"
done

# Writes with a sync behind every eighth, of odd sizes; processes and threads that share the cache.
job synced "${ours[@]}" --filename="$SCRATCH/synced" --rw=randrw --bsrange=512-64k --bs_unaligned=1 --size=4M --fsync=8 --iodepth=4 \
    --do_verify=1 "${verify[@]}"
job processes "${ours[@]}" --directory="$SCRATCH" --rw=randwrite --size=4M --numjobs=3 --do_verify=1 "${verify[@]}"
job threads "${ours[@]}" --directory="$SCRATCH" --rw=randwrite --size=4M --numjobs=3 --thread --iodepth=4 --do_verify=1 "${verify[@]}"

# A trim is a hole.
fio --name=hole "${ours[@]}" --filename="$SCRATCH/data1" --rw=trim --bs=64k --size=1M --output=hole.out || fail "trim: $(cat hole.out)"
cmp -n 1048576 "$SCRATCH/data1" /dev/zero || fail "what was trimmed is not zero below"

# Errors are reported.
printf "[cache]\nnonsense = 1\n" >wrong.toml
fails_with nonsense fio --name=x "${ours[0]}" --config="$SCRATCH/wrong.toml" --filename="$SCRATCH/data1" --size=1M --rw=read
