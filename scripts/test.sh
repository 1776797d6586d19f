#!/bin/bash
# All tests, in phases; `make test` and `make test-full` (FULL=1) are this script.
#
# A phase that fails does not stop the next ones (only a failed build does), so that one run shows all.
# Prints how long each phase took; what was skipped, and why; the last line is the total of the
# system tests and those in a virtual machine, and of all that was skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export FULL=${FULL:-0}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
target=${CARGO_TARGET_DIR:-target}
failed=() times=()

phase() {
    local name=$1 begin=$SECONDS code=0
    shift
    echo "== $name: $*"
    "$@" </dev/null || code=$?
    times+=("$name $((SECONDS - begin)) s")
    if ((code != 0)); then
        failed+=("$name")
    fi
    return "$code"
}

finish() {
    local IFS=,
    echo "== times:${times[*]/#/ }, in all $SECONDS s"
    if ((${#failed[@]})); then
        echo "== FAILED:${failed[*]/#/ }"
    fi
}

results=$(mktemp -d)
declare -A beside=() begun=()
fuse_mode=$(stat -c %a /dev/fuse 2>/dev/null)
give_back() {
    # Only a run that breaks off leaves something behind: that is removed first.
    kill "${beside[@]}" 2>/dev/null
    wait
    rm -rf "$results"
    if [[ -n $fuse_mode ]]; then
        chmod "$fuse_mode" /dev/fuse 2>/dev/null
    fi
}
trap give_back EXIT
trap 'exit 130' INT TERM HUP
# Tests at the same time mount as ordinary users; each would take that away from the others when it ends.
if [[ $(id -u) == 0 && -n $fuse_mode ]]; then
    chmod 666 /dev/fuse
fi

# begin NAME COMMAND...: beside what follows, until this script ends. The command puts its total into RESULT_FILE when it ends.
begin() {
    local name=$1
    shift
    RESULT_FILE=$results/$name setpriv --pdeathsig TERM -- "$@" >"$results/$name.log" 2>&1 </dev/null &
    beside[$name]=$! begun[$name]=$EPOCHSECONDS
}

# ended NAME: waits for it, and shows what it printed.
ended() {
    local name=$1 code=0 end
    wait "${beside[$name]}" || code=$?
    unset "beside[$name]"
    end=$(stat -c %Y "$results/$name" 2>/dev/null || echo "$EPOCHSECONDS")
    echo "== $name, beside the others:"
    cat "$results/$name.log"
    times+=("$name beside $((end - begun[$name])) s")
    if ((code != 0)); then
        failed+=("$name")
    fi
}

# Cargo hides what passing tests print; it is kept, for what a machine cannot run says `SKIP: why` there.
edges() {
    if scripts/cargo test --workspace --exclude xtask --release --locked --no-fail-fast --test '*' \
        -- --show-output >"$results/edges" 2>&1; then
        grep '^test result' "$results/edges"
    else
        cat "$results/edges"
        return 1
    fi
}

# The tests of the crates once more, as an ordinary user: what an ordinary user may not do fails in other ways. The programs are those of
# `check` and `edges`. All of them take long, so that only the crates run that ask for users, permissions or limits; FULL=1 runs all.
ordinary_user() {
    local code=0 runner
    if [[ $(id -u) != 0 ]]; then
        echo "SKIP: needs root, to become another user: all other phases have run as an ordinary user" | tee "$results/user"
        return
    fi
    USER_SCRATCH=$(mktemp -d) USER_CRATES=
    export USER_SCRATCH USER_CRATES
    chmod 755 "$USER_SCRATCH"
    if [[ $FULL != 1 ]]; then
        USER_CRATES='shm fusedev hybridfs directoryfs cachedfs mount stack cli capi block'
    fi
    runner="target.'cfg(all())'.runner = ['$PWD/scripts/as-user']"
    {
        scripts/cargo test --workspace --no-default-features --lib --bins --no-fail-fast --config "$runner" -- --show-output || code=$?
        scripts/cargo test --workspace --exclude xtask --release --locked --no-fail-fast --test '*' --config "$runner" \
            -- --show-output || code=$?
    } >"$results/user" 2>&1
    rm -rf "$USER_SCRATCH"
    if ((code == 0)); then
        grep '^test result' "$results/user"
    else
        cat "$results/user"
    fi
    return "$code"
}

# What threads do to each other, in every order; and undefined behaviour, as far as it shows. Each is built in its own way.
loom() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$target/loom nice -n 5 scripts/cargo test --release --locked -p block --lib -- loom parking
}
miri() { nice -n 5 scripts/miri.sh | tee "$results/miri"; }

phase setup scripts/setup.sh "$([[ $FULL == 1 ]] && echo bench || echo test)" || { finish; exit 1; }
# Programs, libraries and the tests of each crate's edge at once: chosen apart, some crates would be built again with other features.
phase build scripts/cargo build --release --locked --workspace --exclude xtask --lib --bins --test '*' || { finish; exit 1; }
# The system tests often wait, for disks that are slow on purpose, and so do the guests: all else runs beside them. The tests of the crates'
# edges have the shortest limits of time, and do not run beside the system tests; of these, those of mounts run beside those with other
# people's programs, and of caches, images and devices.
HOTSHELF=$(realpath "$target")/release/hotshelf
export HOTSHELF
begin vm tests/vm/run.sh
begin check scripts/cargo xtask check --all
phase edges edges
begin mounts tests/system/run.sh '[0-46][0-9]-'
begin others tests/system/run.sh '[57-9][0-9]-'
ended check
phase user ordinary_user
phase loom loom
phase miri miri
for name in mounts others vm; do
    ended "$name"
done
finish
skips=$(cat "$results"/{edges,user,miri} 2>/dev/null | grep '^SKIP: ' | sed 's/^SKIP/skipped/')
if [[ -n $skips ]]; then
    sort <<<"$skips" | uniq -c | sed 's/^ *1 //; s/^ *\([0-9]*\) \(.*\)/\2 (\1 times)/'
else
    echo "nothing was skipped beside system tests"
fi
# A phase without a total broke off.
for name in mounts others vm; do
    cat "$results/$name" 2>/dev/null || echo "0 passed, 1 failed, 0 skipped"
done | awk -v skipped="$(grep -c . <<<"$skips")" \
    '{ passed += $1; failed += $3; skipped += $5 } END { print passed " passed, " failed " failed, " skipped " skipped" }'
((${#failed[@]} == 0))
