#!/bin/bash
# The u calls as C programs meet them: files through a cache that several programs share, with and without an SSD; killed, forked,
# without a configuration; and a hit makes no system call.
# TIMEOUT: 200
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need cc pkg-config strace
release=$(dirname "$HOTSHELF")
[[ -f $release/libhotshelf.so ]] || fail "libhotshelf is not built: make build"
mkdir lib
ln -s "$release/libhotshelf.so" lib/libhotshelf.so
ln -s "$release/libhotshelf.so" lib/libhotshelf.so.0
flags=(-Wall -Wextra -Wpedantic -Werror -O2 -I"$ROOT/include" -Llib -lhotshelf "-Wl,-rpath,$SCRATCH/lib" -pthread)
cc -std=c99 -D_DEFAULT_SOURCE -o files "$ROOT/crates/frontends/capi/tests/files.c" "${flags[@]}"
cc -std=c99 -o driver "$ROOT/crates/frontends/capi/tests/driver.c" "${flags[@]}"

# config NAME LINES...: of a cache of our own.
config() {
    local name=$1
    shift
    printf '%s\n' '[cache]' "name = \"$name\"" 'memory = "16MiB"' "runtime_dir = \"$SCRATCH\"" "$@" >"$name.toml"
}

config plain
mkdir conf
./files conf | grep -q 'all is well' || fail "files"

# start NAME: a driver as $NAME_in, $NAME_out, $NAME_PID; say NAME COMMAND: its answer.
start() {
    local name=$1
    mkfifo "$name.in" "$name.out"
    ./driver <"$name.in" >"$name.out" &
    printf -v "${name}_pid" '%s' $!
    local -n to=${name}_to from=${name}_from
    exec {to}>"$name.in" {from}<"$name.out"
    rm "$name.in" "$name.out"
}
say() {
    local -n to=${1}_to from=${1}_from
    local answer
    echo "$2" >&"$to"
    read -r -t 20 answer <&"$from" || fail "$1 does not answer: $2"
    echo "$answer"
}
expect() {
    local got
    got=$(say "$1" "$2")
    [[ $got == "$3" ]] || fail "$1: $2: $got, not $3"
}
leave() {
    local -n to=${1}_to from=${1}_from pid=${1}_pid
    exec {to}>&- {from}<&-
    wait "$pid"
}

# start makes one_pid and the like.
# shellcheck disable=SC2154
# Two programs, one file: each sees what the other wrote, at once; one is killed, and nothing is lost.
together() {
    local config=$1
    export HOTSHELF_CONFIG=$SCRATCH/$config.toml
    rm -f shared
    start one
    start two
    expect one "open shared" ok
    expect two "open shared" ok
    expect one "write 0 hello" ok
    expect two "read 0 10" hello
    expect two "size" 5
    expect two "append , world" ok
    expect one "read 0 20" "hello, world"
    expect one "pin 7 5" world
    expect one "write 7 there" ok
    expect two "pin 7 5" there
    expect two "cut 5" ok
    expect one "read 0 20" hello
    expect one "write 8190 across" ok
    expect two "read 8188 20" ..across
    expect two "sync" ok
    # (With an SSD it is safe there, and below later.)
    [[ $config == ssd ]] || cmp -s -n 5 shared <(echo hello) || fail "$config: the kernel does not see what was flushed"
    expect one "write 100 killed" ok
    kill -9 "$one_pid"
    wait "$one_pid" 2>/dev/null || true
    expect two "read 100 6" killed
    expect two "write 200 alive" ok
    expect two "sync" ok
    leave two || fail "$config: the second program"
    [[ $(dd if=shared bs=1 skip=100 count=6 status=none) == killed ]] || fail "$config: what a killed program wrote is lost"
    [[ $(dd if=shared bs=1 skip=200 count=5 status=none) == alive ]] || fail "$config: what was synced is lost"
    # Killed alone: what is in the cache is found by the next.
    start one
    expect one "open shared" ok
    expect one "write 300 dirty" ok
    kill -9 "$one_pid"
    wait "$one_pid" 2>/dev/null || true
    start two
    expect two "open shared" ok
    expect two "read 300 5" dirty
    leave two || fail "$config: after a kill"
    [[ $(dd if=shared bs=1 skip=300 count=5 status=none) == dirty ]] || fail "$config: what the last one out had to write is not below"
}
together plain
config through 'mode = "write-through"'
together through
config ssd "ssd = \"$SCRATCH/cache.ssd\"" 'ssd_size = "64MiB"'
together ssd

# What is in memory is read without the kernel.
export HOTSHELF_CONFIG=$SCRATCH/plain.toml
head -c 1M /dev/urandom >hot
printf 'open hot\nread 0 4096\nhits 0 4096 5000\nclose\n' | strace -f -o calls -e trace=pread64,read,preadv,futex ./driver >out
calls=$(grep -c 'pread' calls || true)
((calls < 300)) || fail "5000 hits made $calls calls: $(tail -n 3 calls)"

# Without a configuration: a cache of the user's own, gone with its last program.
if [[ $(id -u) == 0 ]]; then
    user=(setpriv --reuid 64321 --regid 64321 --clear-groups)
    place=/dev/shm/hotshelf-64321
    mkdir mine && chown 64321 mine
    printf 'open mine/file\nwrite 0 text\nread 0 4\n' | env -u HOTSHELF_CONFIG "${user[@]}" ./driver >out
    [[ $(cat out) == $'ok\nok\ntext' ]] || fail "without a configuration: $(cat out)"
    [[ $(cat mine/file) == text ]] || fail "the last one out has not written what was dirty"
    [[ ! -e $place/default.segment ]] || fail "$place is left: $(ls "$place")"
    rm -rf "$place"
fi

if command -v valgrind >/dev/null; then
    # What threads had is lost in the children of a fork: leaks are looked for where there are none.
    rm -rf conf && mkdir conf
    valgrind --fair-sched=yes --quiet --error-exitcode=9 --leak-check=no ./files conf >out 2>&1 || fail "valgrind: $(tail -n 30 out)"
    printf 'open leaks\nwrite 0 text\nread 0 4\npin 0 4\nsync\nclose\nopen leaks\nread 0 4\n' |
        valgrind --fair-sched=yes --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
            ./driver >out 2>&1 || fail "valgrind: $(tail -n 30 out)"
fi
