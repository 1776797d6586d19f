#!/bin/bash
# Files that another program changed, moved or removed while the cache held newer pages of them: `hotshelf cache status` names them, and
# `export`, `discard` and `force` decide. (The same from C and Python: crates/frontends/capi/tests/stranded.c, python/tests/test_files.py.)
# TIMEOUT: 60
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
export XDG_CONFIG_HOME=$SCRATCH/conf HOTSHELF_LIBRARY
HOTSHELF_LIBRARY=$(dirname "$HOTSHELF")/libhotshelf.so
[[ -f $HOTSHELF_LIBRARY ]] || fail "libhotshelf is not built: make build"
export PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
unset HOTSHELF_CONFIG
cache() { "$HOTSHELF" cache "$@"; }
# stranded: "PATH WHY" of each file that waits for a decision.
stranded() { cache status "$name" --json | python3 -c 'import json, sys
for one in json.load(sys.stdin)["stranded"]: print(one["path"], one["why"])'; }
# is FILE BYTE FROM TO LENGTH: this byte in this range of a file that is so long.
is() {
    python3 -c 'import sys
data, (byte, at, end, length) = open(sys.argv[1], "rb").read(), map(int, sys.argv[2:])
sys.exit(len(data) != length or data[at:end] != bytes([byte]) * (end - at))' "$@" || fail "$1: not $2 from $3 to $4 of $5 bytes"
}

# What a program does: the second page is newer in the cache. `changed`: then another program writes the file; `killed`: it ends at once.
cat >work.py <<'PYTHON'
import os, signal, sys
import hotshelf
how, path, length = sys.argv[1], sys.argv[2], 20000
with open(path, "wb") as file:
    file.write(b"\1" * length)
file = hotshelf.File(path, "r+")
file.pwrite(b"\2" * 4096, 4096)
if how == "killed":
    file.fsync()
    file.pwrite(b"\4" * 4096, 8192)
    os.kill(os.getpid(), signal.SIGKILL)
with open(path, "r+b") as theirs:
    theirs.write(b"\3" * (length + 5000))
try:
    file.fsync()
    sys.exit("no conflict")
except OSError as error:
    print(error, flush=True)
os._exit(0)
PYTHON
work() { HOTSHELF_CONFIG=$XDG_CONFIG_HOME/hotshelf/caches/$name.toml python3 work.py "$@"; }

for ssd in with without; do
    name=conflicts-$ssd-$$
    mkdir "runtime-$ssd" "data-$ssd" "data-$ssd/sub"
    if [[ $ssd == with ]]; then
        cache create "$SCRATCH/image" --size 16MiB --name "$name" --memory 4MiB --dirty-age 1h \
            --runtime-dir "$SCRATCH/runtime-$ssd" >/dev/null
    else
        cache create "$name" --memory 4MiB --dirty-age 1h --runtime-dir "$SCRATCH/runtime-$ssd" >/dev/null
    fi
    file=$SCRATCH/data-$ssd/file moved=$SCRATCH/data-$ssd/sub/moved
    of=(--cache "$name")
    rm -f copy

    # ---- changed by another program
    work changed "$file" | grep -q "$file.*hotshelf cache export FILE TO" || fail "ufsync does not say what to do"
    [[ $(stranded) == "$file conflict" ]] || fail "status --json names: $(stranded)"
    cache status "$name" >out
    for words in "stranded  $file: changed by another program" "hotshelf cache export $file TO" "hotshelf cache discard $file" \
        "hotshelf cache force $file"; do
        grep -q "$words" out || fail "status does not say '$words': $(cat out)"
    done
    fails_with "$file" cache flush "$name"
    cache export "$file" copy "${of[@]}" >out || fail "export: $(cat out)"
    is copy 2 4096 8192 20000
    is "$file" 3 0 25000 25000
    refused 1 'File exists' cache export "$file" copy "${of[@]}"
    refused 1 "these are: $file" cache discard "$SCRATCH/work.py" "${of[@]}"
    cache discard "$file" "${of[@]}" | grep -q 'is given up' || fail "discard"
    [[ -z $(stranded) ]] || fail "discarded, and stranded: $(stranded)"
    cache flush "$name" >/dev/null || fail "flush after discard"
    is "$file" 3 0 25000 25000
    refused 1 'there is nothing to decide' cache discard "$file" "${of[@]}"

    work changed "$file" >/dev/null
    [[ $(cache force "$file" "${of[@]}" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["done"])') == forced ]] ||
        fail "force"
    is "$file" 2 4096 8192 20000
    is "$file" 3 0 4096 20000
    cache flush "$name" >/dev/null || fail "flush after force"

    # ---- moved while nobody had it open, and nobody was there to see it
    work killed "$file" 2>/dev/null && fail "it was not killed"
    mv "$file" "$moved"
    fails_with "$file: another program moved or removed it" cache flush "$name"
    [[ $(stranded) == "$file missing" ]] || fail "status --json names: $(stranded)"
    cache status "$name" | grep -q "stranded  $file: moved or removed by another program" || fail "status does not say that it is missing"
    refused 1 'No such file' cache force "$file" "${of[@]}"
    rm copy
    cache export "$file" copy "${of[@]}" | grep -q 'were not in the cache and are holes' || fail "export of a missing file"
    is copy 4 8192 12288 20000
    mv "$moved" "$file"
    cache flush "$name" >/dev/null || fail "flush of a file that is back"
    is "$file" 4 8192 12288 20000
    is "$file" 2 4096 8192 20000
    [[ -z $(stranded) ]] || fail "it is back, and stranded: $(stranded)"

    # ---- removed
    work killed "$file" 2>/dev/null && fail "it was not killed"
    rm "$file"
    fails_with "$file: another program moved or removed it" cache flush "$name"
    cache discard "$file" "${of[@]}" >/dev/null || fail "discard of a missing file"
    cache flush "$name" >/dev/null || fail "flush after that"
    [[ -z $(stranded) ]] || fail "given up, and stranded: $(stranded)"
    cache destroy "$name" >/dev/null || fail "destroy"
done
