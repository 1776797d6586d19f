#!/bin/bash
# A client of the broker cannot fill its log or forge lines in it; omitted lines are counted.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
"$HOTSHELF" queue serve memory:8MiB --socket "$SCRATCH/q.sock" --journal "$SCRATCH/grants" >serving 2>log &
broker=$!
trap 'kill "$broker" 2>/dev/null; wait "$broker" 2>/dev/null || true' EXIT
wait_until 20 grep -q serving serving

python3 - "$SCRATCH/q.sock" <<'PYTHON'
import json, socket, sys
talk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
talk.connect(sys.argv[1])
answers = talk.makefile("rb")
hostile = "x\n2026-11-27 INFO grant by root\x1b[2J\u009b31m"
for count in range(3000):
    # Both in the words of the client and in its requests.
    ask = {hostile: count} if count % 2 else {"ask": "open", "version": 1, "wish": {"device": hostile, "range": None, "read_only": False}}
    talk.sendall(json.dumps(ask).encode() + b"\n")
    answer = answers.readline()
    assert b"refused" in answer, answer
PYTHON
lines=$(wc -l <log)
((lines < 200)) || fail "3,000 refused requests made $lines lines"
grep -q refused log || fail "no refusal is in the log: $(cat log)"
LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f-\xff]' log && fail "control characters are in the log"
grep -q '^2026-11-27 INFO grant' log && fail "a client wrote a line of its own"
exit 0
