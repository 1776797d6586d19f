#!/bin/bash
# Queues are handed out by grants: what is refused, what a killed client leaves, what survives a killed broker.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"

queue() { "$HOTSHELF" queue "$@"; }
SOCKET=$SCRATCH/q/socket JOURNAL=$SCRATCH/state/grants DEVICE=$SCRATCH/image
at=(--socket "$SOCKET")
chmod 755 "$SCRATCH"
truncate -s 16M "$DEVICE"

# start_broker DEVICE...: returns when it serves.
start_broker() {
    mkfifo "$SCRATCH/ready"
    "$HOTSHELF" queue serve "${at[@]}" --journal "$JOURNAL" "$@" >"$SCRATCH/ready" 2>>"$SCRATCH/log" &
    broker=$!
    read -r said <"$SCRATCH/ready" || fail "the broker does not start: $(tail -n1 "$SCRATCH/log")"
    rm "$SCRATCH/ready"
    [[ $said == serving* ]] || fail "the broker says '$said'"
}

# hold NAME ARGUMENT...: a client that has queues open until `let_go NAME` or a kill; its pid is in held[NAME].
declare -A held input
hold() {
    local name=$1
    shift
    mkfifo "$SCRATCH/$name.in" "$SCRATCH/$name.out"
    "$@" <"$SCRATCH/$name.in" >"$SCRATCH/$name.out" 2>&1 &
    held[$name]=$!
    exec {fd}>"$SCRATCH/$name.in"
    input[$name]=$fd
    read -r said <"$SCRATCH/$name.out" || true
    rm "$SCRATCH/$name.in" "$SCRATCH/$name.out"
}
# let_go NAME: its standard input ends.
let_go() {
    local fd=${input[$1]}
    exec {fd}>&-
}
queues_open() { queue stat "${at[@]}" --json | grep -c '"queue"' || true; }
none_open() { [[ $(queues_open) == 0 ]]; }

me=$(id -un)
# Without a broker the journal is changed itself.
queue list --journal "$JOURNAL" | grep -q 'nobody may have queues' || fail "grants without any given"
[[ $(queue grant --journal "$JOURNAL" "$me" "$DEVICE" --queues 2 --depth 32 --first 1024 --blocks 2048) == "grant 1" ]] || fail "grant"
[[ $(stat -c %a "$JOURNAL") == 600 ]] || fail "others may read the grants"
refused 1 'no queue is open without a broker' queue stat "${at[@]}"
refused 1 'cannot be reached' queue try "${at[@]}" "$DEVICE"

start_broker "$DEVICE" memory:1MiB
refused 1 'in use by a broker' queue list --journal "$JOURNAL"
refused 1 'another broker listens there' queue serve "${at[@]}" --journal "$SCRATCH/other" --log-level error memory:1MiB
queue list "${at[@]}" | grep -q "^1 *$me *$(realpath "$DEVICE") *1024 *2048 *2 *32 *read, write" || fail "list: $(queue list "${at[@]}")"
queue try "${at[@]}" "$DEVICE" --depth 32 | grep -q '^1 queues of 2048 blocks of 512 bytes, for reading and writing' || fail "try"
none_open || fail "a queue is left"

# What is refused.
refused 1 '2 queues are open, the grant allows 2' queue try "${at[@]}" "$DEVICE" --queues 3
refused 1 'depth of 64 was asked for, the grant allows 32' queue try "${at[@]}" "$DEVICE" --depth 64
refused 1 'blocks 1023 to 1024 are outside the grant' queue try "${at[@]}" "$DEVICE" --first 1023 --blocks 2
refused 1 'outside the grant' queue try "${at[@]}" "$DEVICE" --first 3071 --blocks 2
refused 1 'outside the grant' queue try "${at[@]}" "$DEVICE" --first 18446744073709551615 --blocks 2
refused 1 'has no grant for memory:1MiB' queue try "${at[@]}" memory:1MiB
queue grant "${at[@]}" "$me" memory:1MiB --read-only >/dev/null
refused 1 'for reading only' queue try "${at[@]}" memory:1MiB
queue try "${at[@]}" memory:1MiB --read-only | grep -q 'for reading;' || fail "reading"
queue grant "${at[@]}" "$me" /dev/none >/dev/null
refused 1 'is not served by this broker' queue try "${at[@]}" /dev/none
refused 1 'no such user' queue grant "${at[@]}" no-such-user-here "$DEVICE"
refused 1 'no such grant' queue revoke "${at[@]}" 99
refused 2 'see .hotshelf queue' queue grant "${at[@]}" "$me" "$DEVICE" --depth 5000
refused 2 'see .hotshelf queue' queue grant "${at[@]}" "$me" "$DEVICE" --memory 5%
refused 2 'see .hotshelf queue' queue revoke "${at[@]}"

# Killed clients leave nothing; one that is stopped keeps what it has and stalls nobody.
for ((round = 0; round < (FULL == 1 ? 100 : 5); round++)); do
    hold one queue try "${at[@]}" "$DEVICE" --queues 2 --hold
    [[ $said == 2\ queues* && $(queues_open) == 2 ]] || fail "holding: $said"
    refused 1 '2 queues are open' queue try "${at[@]}" "$DEVICE"
    pid=$(queue stat "${at[@]}" --json | sed -n 's/^ *"pid": \([0-9]*\),$/\1/p' | head -n1)
    kill -STOP "$pid"
    queue try "${at[@]}" memory:1MiB --read-only >/dev/null || fail "a stopped client stalls others"
    kill -KILL "$pid"
    wait_until 10 none_open
    let_go one
    wait "${held[one]}" 2>/dev/null || true
done
queue try "${at[@]}" "$DEVICE" --queues 2 >/dev/null || fail "the quota did not come back"

# Revoked, while a queue is open.
hold two queue try "${at[@]}" "$DEVICE" --hold
queue revoke "${at[@]}" --user "$me" --device "$DEVICE" | grep -q "grant 1 of $me for .* is revoked, 1 queues were closed" || fail "revoke"
none_open || fail "a revoked queue is open"
refused 1 'has no grant' queue try "${at[@]}" "$DEVICE"
let_go two
wait "${held[two]}" || fail "a client whose grant was revoked does not end"
queue grant "${at[@]}" "$me" "$DEVICE" --queues 4 >/dev/null

# A killed broker: its clients do not hang, the grants are there again, its socket is no obstacle.
hold three queue try "${at[@]}" "$DEVICE" --hold
before=$(queue list "${at[@]}" --json)
kill -KILL "$broker"
wait "$broker" 2>/dev/null || true
let_go three
wait "${held[three]}" || fail "a client of a killed broker does not end"
start_broker "$DEVICE"
[[ $(queue list "${at[@]}" --json) == "$before" ]] || fail "the grants are not what they were"
queue try "${at[@]}" "$DEVICE" --queues 4 >/dev/null || fail "after a killed broker"

# Another user.
if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null && setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$SCRATCH"; then
    cp "$HOTSHELF" "$SCRATCH/hotshelf"
    chmod 755 "$SCRATCH/hotshelf"
    other() { setpriv --reuid 65534 --regid 65534 --clear-groups "$SCRATCH/hotshelf" queue "$@" "${at[@]}"; }
    refused 1 'user 65534 has no grant' other try "$DEVICE"
    refused 1 'only root and the broker' other grant 65534 "$DEVICE"
    refused 1 'only root and the broker' other revoke 1
    other list | grep -q 'nobody may' || fail "another user sees the grants"
    queue grant "${at[@]}" @65534 "$DEVICE" --first 0 --blocks 8 >/dev/null
    other try "$DEVICE" | grep -q '^1 queues of 8 blocks' || fail "a group's grant"
    refused 1 'outside the grant' other try "$DEVICE" --first 0 --blocks 9
    other list | grep -q ' @[a-z0-9]* ' || fail "another user does not see its own grant"
else
    echo "SKIP in part: another user cannot be tried here"
fi

# An idle broker sleeps: less than 0.5 % of a CPU in two seconds, with a queue open.
hold four queue try "${at[@]}" "$DEVICE" --hold
ticks() { awk '{ print $14 + $15 }' "/proc/$broker/stat"; }
before=$(ticks)
sleep 2
(($(ticks) - before <= 1)) || fail "an idle broker works: $(($(ticks) - before)) ticks"
let_go four
wait "${held[four]}" || fail "a client does not end"

# A signal ends it cleanly.
kill -TERM "$broker"
wait "$broker" || fail "SIGTERM: exit $?"
[[ ! -e $SOCKET ]] || fail "the socket is left"

# A damaged journal is not taken.
sed -i '2s/"queues":2/"queues":9/' "$JOURNAL"
refused 1 'damaged at byte 18 (a wrong checksum): what is before it is whole' queue list --journal "$JOURNAL"
refused 1 'damaged at byte 18' queue serve "${at[@]}" --journal "$JOURNAL" --log-level error memory:1MiB
truncate -s 18 "$JOURNAL"
queue list --journal "$JOURNAL" | grep -q 'nobody may' || fail "what it says to do does not help"
