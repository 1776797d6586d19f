#!/bin/bash
# Several paths in one command: each is done, one that fails is said and stops no other; --dry-run changes nothing; -q is silent, -v says
# more; shells complete values.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
needs_fuse
mkdir -p "$SSD" "$HDD"
mount_pair
trap unmount_pair EXIT
mkdir "$MNT/a" "$MNT/b"
for n in 1 2 3; do echo "$n" >"$MNT/a/$n"; done
echo b >"$MNT/b/file"

# shown EXPRESSION COMMAND...: of the JSON that the command prints.
shown() { "$HOTSHELF" "${@:2}" --json | python3 -c "import json, sys; s = json.load(sys.stdin); print($1)"; }
"$HOTSHELF" pin "$MNT/a" "$MNT/b" >said || fail "pin: $(cat said)"
[[ $(shown 'len(s["pinned"])' status "$MNT") == 2 ]] || fail "not both are pinned"
"$HOTSHELF" unpin "$MNT/a" "$MNT/nothing" "$MNT/b" >said 2>&1 && fail "unpin of nothing"
grep -q nothing said || fail "does not say what failed: $(cat said)"
[[ $(shown 's["pinned"]' status "$MNT") == '[]' ]] || fail "not both are unpinned"
[[ $(shown '[one["path"] for one in s]' why "$MNT/a/1" "$MNT/b/file") == "['a/1', 'b/file']" ]] ||
    fail "why of two: $("$HOTSHELF" why --json "$MNT/a/1" "$MNT/b/file")"
[[ $("$HOTSHELF" why --json "$MNT/a/1" | head -c1) == '{' ]] || fail "why of one is a list"

"$HOTSHELF" migrate --dry-run --to hdd "$MNT/a" "$MNT/b" >said || fail "migrate --dry-run: $(cat said)"
[[ $(grep -c 'would move to the hdd' said) == 2 ]] && grep -q '3 files of 6 B' said || fail "migrate --dry-run: $(cat said)"
"$HOTSHELF" -v migrate --dry-run --to hdd "$MNT/a" | grep -q "$MNT/a/2" || fail "-v does not name the files"
on "$MNT/a/1" ssd || fail "--dry-run moved a file"
[[ -z $("$HOTSHELF" -q migrate --to hdd "$MNT/a" "$MNT/b" 2>&1) ]] || fail "-q is not quiet"
for file in a/1 a/2 a/3 b/file; do
    on "$MNT/$file" hdd || fail "$file did not move"
done
"$HOTSHELF" migrate --dry-run --to hdd "$MNT/a" | grep -q '^.*: 0 files' || fail "what has moved would move again"
[[ -n $("$HOTSHELF" status -q "$MNT") ]] || fail "-q leaves out what was asked for"
refused 2 'cannot be used with' "$HOTSHELF" -q -v status

"$HOTSHELF" generate completions completions
for word in s3-fifo second-touch write-through debug promotion=never min-file-size= retire; do
    for file in completions/*; do
        grep -q -- "$word" "$file" || fail "$file does not complete $word"
    done
done

# What would be set or repaired is only said.
"$HOTSHELF" set --dry-run "$MNT" promotion=never move-rate=1MiB >said || fail "set --dry-run: $(cat said)"
grep -q 'could be set: move-rate=1MiB promotion=never' said || fail "set --dry-run says: $(cat said)"
[[ $(field promotion) == second-touch ]] || fail "set --dry-run has set it"
"$HOTSHELF" set "$MNT" promotion=never move-rate=1MiB touch-window=60 >/dev/null || fail "set"
[[ $(field promotion) == never && $(field move_rate_bytes) == 1048576 && $(field touch_window_s) == 60 ]] || fail "not set"
refused 1 'cannot be set on a running mount' "$HOTSHELF" set "$MNT" allow-other=1
trap - EXIT
unmount_pair
echo cut off >"$HDD/.hotshelf/tmp/left"
"$HOTSHELF" check "$SSD" "$HDD" --repair --dry-run >said && fail "check --dry-run finds nothing"
grep -q temporary said && [[ -e $HDD/.hotshelf/tmp/left ]] || fail "check --dry-run: $(cat said)"
refused 2 'required' "$HOTSHELF" check "$SSD" "$HDD" --dry-run
"$HOTSHELF" check "$SSD" "$HDD" --repair >said || fail "check --repair: $(cat said)"
[[ ! -e $HDD/.hotshelf/tmp/left ]] || fail "check --repair left it"
