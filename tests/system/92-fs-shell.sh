#!/bin/bash
# TIMEOUT: 180
# The shell of a file system in an image, driven by scripts: what it does, what it says when it cannot, and how it ends.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need sqlite3 script

image=$SCRATCH/image
shell() { "$HOTSHELF" fs shell "$@"; }
clean() { "$HOTSHELF" fs check "$image" >"$SCRATCH/check" || fail "$1: $(cat "$SCRATCH/check")"; }

# A scripted session with real files: a tree goes in, is changed, and comes out again.
cp -a /usr/include/linux "$SCRATCH/tree" && rm -f "$SCRATCH"/tree/*.bin
cat >"$SCRATCH/commands" <<END
# made, filled, looked at
mkfs --size 96MiB
mkdir -p work/'a dir'
import $SCRATCH/tree work
cp -r work/tree 'work/a dir/copy'; mv work/tree work/moved
write notes 'one line' # and no more
append notes '; another'
cd work
pwd; cat ../notes
begin; write ../both/a 1
write both-a 1; write both-b 2
commit
export moved $SCRATCH/out1; export 'a dir/copy' $SCRATCH/out2
checkfs
END
shell "$image" <"$SCRATCH/commands" >"$SCRATCH/said" 2>"$SCRATCH/wrong" && fail "a failed command does not show in the exit code"
grep -q '^hotshelf: line 10: write: /both: No such file' "$SCRATCH/wrong" || fail "$(cat "$SCRATCH/wrong")"
[[ $(wc -l <"$SCRATCH/wrong") == 1 ]] || fail "not one line: $(cat "$SCRATCH/wrong")"
grep -q '^/work$' "$SCRATCH/said" && grep -q 'one line; another2 files' "$SCRATCH/said" &&
    grep -q 'clean$' "$SCRATCH/said" || fail "$(cat "$SCRATCH/said")"
diff -r --no-dereference "$SCRATCH/tree" "$SCRATCH/out1" || fail "import and export"
diff -r --no-dereference "$SCRATCH/tree" "$SCRATCH/out2" || fail "cp -r"
clean "after a session"

# Wrong commands: one line each, with its number; -e ends at the first; -c takes them as a word; quit ends.
printf 'nonsense\nls > x\ncat\npwd\n' | shell "$image" >"$SCRATCH/said" 2>"$SCRATCH/wrong" && fail "wrong commands"
[[ $(cat "$SCRATCH/said") == / && $(grep -c '^hotshelf: line [123]: ' "$SCRATCH/wrong") == 3 ]] || fail "$(cat "$SCRATCH/wrong")"
printf 'cat nothing\npwd\n' | shell -e "$image" >"$SCRATCH/said" 2>&1 && fail "-e"
[[ $(wc -l <"$SCRATCH/said") == 1 ]] || fail "-e goes on: $(cat "$SCRATCH/said")"
[[ $(shell "$image" -c 'cd work; pwd; quit; pwd') == /work ]] || fail "-c"
refused 1 'has no end' shell "$image" -c "cat 'open"
refused 1 'not committed' shell "$image" -c 'begin; write lost x'
refused 2 'unexpected' shell "$image" extra
[[ $(shell "$image" -c 'ls') != *lost* ]] || fail "what was not committed is there"
[[ $(shell "$image" -c 'help' | wc -l) -gt 30 && $(shell "$image" -c 'help import') == *Usage:* ]] || fail "help"
shell "$image" </dev/null || fail "an empty script"
shell "$image" <&- || fail "no standard input"
shell "$image" -c 'catr work' | head -c 100 >/dev/null || fail "a reader that has read enough"
clean "after it"

# Lines are done as they come.
mkfifo "$SCRATCH/pipe"
"$HOTSHELF" fs shell "$image" <"$SCRATCH/pipe" >"$SCRATCH/live" &
pid=$!
exec 8>"$SCRATCH/pipe"
echo pwd >&8
wait_until 20 test -s "$SCRATCH/live"

# In use: refused while another has it, but one may look.
refused 1 "in use" shell "$image" -c ls
refused 1 'in use' "$HOTSHELF" fs check "$image"
kill -INT "$pid"
code=0; wait "$pid" || code=$?
exec 8>&-
[[ $code == 1 ]] || fail "a signal while it waits for a line: exit $code"
"$HOTSHELF" fs df "$image" --json | grep -q '"clean": true' || fail "a signal while it waits leaves an image that is not unmounted cleanly"

# Read-only: by wish, and by the machine.
refused 1 'opened with --read-only' shell --read-only "$image" -c 'touch f'
cp --sparse=always "$image" "$SCRATCH/before"
shell --read-only "$image" -c 'lsr; cat notes; stat notes' >/dev/null || fail "looking"
cmp -s "$image" "$SCRATCH/before" || fail "looking has changed the image"
if [[ $(id -u) == 0 ]] && loop=$(losetup --find --show --read-only "$image" 2>/dev/null); then
    refused 1 "$loop" shell "$loop" -c 'touch f'
    shell --read-only "$loop" -c 'cat notes' >/dev/null || fail "a device that cannot be written"
    losetup -d "$loop"
fi

# No image, another one's data, cut off, not there.
head -c 8M /dev/urandom >"$SCRATCH/data"
refused 1 'see .help mkfs' shell "$SCRATCH/data" -c ls
refused 1 'is kept' shell "$SCRATCH/data" -c mkfs
shell "$SCRATCH/data" -c 'mkfs --force; write f x; cat f' >"$SCRATCH/said" || fail "mkfs --force: $(cat "$SCRATCH/said")"
refused 1 'see .help mkfs' shell "$SCRATCH/nowhere" -c ls
refused 1 'how large' shell "$SCRATCH/nowhere" -c mkfs
[[ ! -e $SCRATCH/nowhere ]] || fail "a refused mkfs leaves a file"
cp --sparse=always "$image" "$SCRATCH/cut" && truncate -s 32M "$SCRATCH/cut"
refused 1 'cut off' shell "$SCRATCH/cut" -c ls
refused 1 "$SCRATCH" shell "$SCRATCH" -c ls

# Full: said, nothing of the file is left, and removing makes room.
head -c 100M /dev/urandom >"$SCRATCH/large"
refused 1 'No space left' shell "$image" -c "import $SCRATCH/large"
[[ $(shell "$image" -c 'ls') == $'notes\nwork/' ]] || fail "a part of a file is left: $(shell "$image" -c 'ls')"
head -c 30M "$SCRATCH/large" >"$SCRATCH/fits"
shell "$image" -c "import $SCRATCH/fits; export fits $SCRATCH/back; rm fits" >/dev/null || fail "there is no room after a refusal"
cmp "$SCRATCH/fits" "$SCRATCH/back" || fail "what came back"
clean "after it was full"

# Ctrl-C during an import: it ends, the image is clean, and what is there is whole.
mkdir "$SCRATCH/many" && head -c 256K "$SCRATCH/large" >"$SCRATCH/one"
for n in {1..40}; do ln "$SCRATCH/one" "$SCRATCH/many/$n"; done
mkfifo "$SCRATCH/many/9-and-wait"
shell "$image" -c "import $SCRATCH/many" >"$SCRATCH/said" 2>&1 && fail "a pipe was imported"
grep -q 'neither a file' "$SCRATCH/said" || fail "$(cat "$SCRATCH/said")"
rm "$SCRATCH/many/9-and-wait"
shell "$image" -c "rm -r many"
"$HOTSHELF" fs shell "$image" < <(yes "import $SCRATCH/many; import $SCRATCH/many twice; rm -r many twice") >"$SCRATCH/ended" 2>&1 &
pid=$!
wait_until 20 test -s "$SCRATCH/ended"
kill -INT "$pid"
code=0; wait "$pid" || code=$?
[[ $code == 1 ]] && grep -q interrupted "$SCRATCH/ended" || fail "exit $code after SIGINT: $(cat "$SCRATCH/ended")"
"$HOTSHELF" fs df "$image" --json | grep -q '"clean": true' || fail "SIGINT leaves an image that is not unmounted cleanly"
clean "after SIGINT"
rm -rf "$SCRATCH/out3"
shell "$image" -c "export / $SCRATCH/out3" >/dev/null || fail "export of everything"
for file in "$SCRATCH"/out3/{many,twice,third}/*; do
    [[ ! -e $file ]] || cmp -s "$file" "$SCRATCH/one" || fail "$file is not whole"
done

# At a terminal: a prompt, completion, history.
printf 'cat no\tstat work/mo\t\nhistory\nquit\n' >"$SCRATCH/keys"
script -qec "$HOTSHELF fs shell --history $SCRATCH/history $image" /dev/null <"$SCRATCH/keys" >"$SCRATCH/said" 2>&1 ||
    fail "$(cat "$SCRATCH/said")"
grep -q '/ % \|/% ' "$SCRATCH/said" && grep -q 'stat work/moved/' "$SCRATCH/history" || fail "at a terminal: $(cat -v "$SCRATCH/said")"

# The experiments: the paper's columns, and curves.
shell memory:192MiB -c "mkfs; bench e2e_write 20 3 4; bench raw_seq_read 2 20
run-experiments --small --trials 1 $SCRATCH/results" >"$SCRATCH/said" ||
    fail "$(cat "$SCRATCH/said")"
columns=trials,sync_min_us,sync_max_us,sync_avg_us,async_min_us,async_max_us,async_avg_us
for name in raw_seq_read raw_seq_write e2e_write_num_blocks; do
    [[ $(head -1 "$SCRATCH/results/$name.csv") == "num_blocks,$columns" ]] || fail "$name.csv"
done
for name in e2e_write_num_files_100bl e2e_write_num_files_10bl; do
    [[ $(head -1 "$SCRATCH/results/$name.csv") == "num_files,$columns" && $(tail -1 "$SCRATCH/results/$name.csv") == 50,1,* ]] ||
        fail "$name.csv"
done
[[ $(find "$SCRATCH/results" -name '*.svg' -size +1k | wc -l) == 5 ]] || fail "curves"
