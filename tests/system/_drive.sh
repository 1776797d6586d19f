# Shared by the tests of drives in another process; sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2034,SC2154
release=$(dirname "$HOTSHELF")
[[ -x $release/nvme-sim ]] || fail "no $release/nvme-sim: cargo build --release --package sim"
SOCKET=$SCRATCH/x.sock DRIVE=vfio-user:$SCRATCH/x.sock

# start_drive ARGUMENT...: returns when it listens.
start_drive() {
    mkfifo "$SCRATCH/ready"
    "$release/nvme-sim" --socket "$SOCKET" "$@" >"$SCRATCH/ready" 2>>"$SCRATCH/log" &
    drive=$!
    exec {words}<"$SCRATCH/ready"
    read -r said <&"$words" || fail "the drive does not start: $(tail -n1 "$SCRATCH/log")"
    rm "$SCRATCH/ready"
    [[ $said == *"at $DRIVE" ]] || fail "the drive says '$said'"
}

# end_drive: what it has to say is in $said; it counts what a host must not do.
end_drive() {
    kill -TERM "$drive"
    read -r said <&"$words" || fail "the drive ends without a word"
    wait "$drive" || fail "the drive ends with $?: $said"
    [[ $said == *" 0 violations" ]] || fail "$said"
    exec {words}<&-
}
