# What a slow side of any kind must do; sourced after lib.sh by the tests of such sides, here and in tests/vm, never run.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # the test sets side and again

# An SSD of SSD_MIB, which both_ways fills with FILES files and a large one. The guest of tests/vm is slow and has fewer of each.
SSD_MIB=${SSD_MIB:-128} FILES=${FILES:-20}
source_bytes=$((SSD_MIB * 131072)) one_bytes=$((SSD_MIB * 23437)) file_bytes=$((SSD_MIB * 312500 / FILES))
options=(--high 60% --low 50% --reserve "$((SSD_MIB / 32))MiB" --promotion never)
head -c "$source_bytes" /dev/urandom >"$SCRATCH/source"
# piece N SIZE: bytes that differ with N.
piece() { tail -c "+$(($1 * 4099 % (source_bytes / 2) + 1))" "$SCRATCH/source" | head -c "$2" || true; }
same() { piece "$2" "$3" | cmp -s - "$1" || fail "$1 differs on $side: $4"; }
# is_only_on SIDE FILE: whether the file is there and not on the other side. Starts no program.
is_only_on() {
    case $1 in
        ssd) [[ -e $SSD/$2 && ! -e $HDD/$2 ]] ;;
        hdd) [[ -e $HDD/$2 && ! -e $SSD/$2 ]] ;;
    esac
}
at_least() { (($(field "$1") >= $2)); }
has() { "$HOTSHELF" status --json "$MNT" | grep -q -- "$1"; }

# lacks WORDS...: status and doctor say each of it, of the slow side of what is mounted.
lacks() {
    local words
    "$HOTSHELF" status "$MNT" >"$SCRATCH/status"
    "$HOTSHELF" doctor --ssd "$SSD" --hdd "$HDD" >"$SCRATCH/doctor" || true
    for words in "$@"; do
        grep -q -- "$words" "$SCRATCH/status" || fail "$side: status does not say '$words': $(cat "$SCRATCH/status")"
        grep -q -- "hdd: limit.*$words" "$SCRATCH/doctor" || fail "$side: doctor does not say '$words': $(cat "$SCRATCH/doctor")"
    done
}

# both_ways: moves, metadata, a full SSD, kill -9 and check; $SSD and $HDD are mounted.
both_ways() {
    mount_pair "${options[@]}"
    has '"probed": true' || fail "$side was not probed"
    # Up and down, contents and times.
    mkdir -p "$MNT/a/b"
    piece 1 "$one_bytes" >"$MNT/a/b/one"
    touch -d '2001-02-03 04:05:06' "$MNT/a/b/one"
    : >"$MNT/a/empty"
    truncate -s 2M "$MNT/a/sparse"
    for to in hdd ssd hdd; do
        "$HOTSHELF" migrate --to "$to" "$MNT/a" || fail "$side: to the $to"
        for file in a/b/one a/empty a/sparse; do
            is_only_on "$to" "$file" || fail "$side: $file is not on the $to"
        done
        same "$MNT/a/b/one" 1 "$one_bytes" "moved to the $to"
        [[ $(stat -c %Y "$MNT/a/b/one") == $(date -d '2001-02-03 04:05:06' +%s) ]] || fail "$side: the time of a moved file"
        [[ $(stat -c %s "$MNT/a/sparse") == 2097152 && ! -s $MNT/a/empty ]] || fail "$side: sizes"
    done
    # A file that somebody makes there is not replaced.
    piece 2 100000 >"$MNT/a/mine"
    echo theirs >"$HDD/a/mine"
    fails_with 'has its name on the other side' "$HOTSHELF" migrate --to hdd "$MNT/a/mine"
    [[ $(cat "$HDD/a/mine") == theirs ]] || fail "$side: a file was replaced"
    same "$MNT/a/mine" 2 100000 "another file of its name"
    rm "$HDD/a/mine"
    no_temporaries || fail "$side: temporaries"
    # Open while it moves, and written meanwhile.
    exec 7>>"$MNT/a/log"
    for n in $(seq 1 40); do
        echo "line $n" >&7
        if ((n == 20)); then
            "$HOTSHELF" migrate --to hdd "$MNT/a/log" || fail "$side: an open file"
        fi
    done
    exec 7>&-
    [[ $(wc -l <"$MNT/a/log") == 40 && $(tail -1 "$MNT/a/log") == 'line 40' ]] || fail "$side: lines were lost by a move"
    # The SSD is full and the slow side has room: writers go on, one large file too.
    for n in $(seq 1 "$FILES"); do
        piece "$n" "$file_bytes" >"$MNT/a/f$n" || fail "$side: file $n"
    done
    for n in $(seq 1 6); do
        cat "$SCRATCH/source"
    done >"$MNT/a/large" || fail "$side: a large file"
    wait_until 20 at_least demotions $((FILES / 4))
    [[ $(field moves_failed) == 0 ]] || fail "$side: moves failed: $("$HOTSHELF" status "$MNT")"
    # Killed while files move.
    "$HOTSHELF" migrate --to hdd "$MNT/a" >/dev/null 2>&1 &
    local migrate=$!
    wait_until 20 bash -c "[[ -n \$(find '$HDD/.hotshelf/tmp' -type f) ]] || ! kill -0 $migrate 2>/dev/null"
    kill -KILL "$(daemon_pid)"
    wait "$migrate" || true
    fusermount3 -uz "$MNT"
    # A server that was restarted numbers its files anew.
    "$again"
    mount_pair "${options[@]}"
    [[ $(field conflicts) != *a/* ]] || fail "$side: conflicts after kill -9"
    for n in $(seq 1 "$FILES"); do
        same "$MNT/a/f$n" "$n" "$file_bytes" "after kill -9"
    done
    for n in $(seq 1 6); do
        cat "$SCRATCH/source"
    done | cmp - "$MNT/a/large" || fail "$side: the large file after kill -9"
    same "$MNT/a/b/one" 1 "$one_bytes" "after kill -9"
    unmount_pair
    clean_check
}

# retired: everything goes to the slow side, of whatever kind; $SSD and $HDD are not mounted. A file that another program has there stays.
retired() {
    mkdir -p "$SSD/retired/empty"
    piece 3 60000 >"$SSD/retired/file"
    ln -s file "$SSD/retired/link"
    ln -s nowhere "$SSD/retired/taken"
    echo theirs >"$HDD/theirs"
    mkdir -p "$HDD/retired"
    cp "$HDD/theirs" "$HDD/retired/taken"
    rm "$HDD/theirs"
    fails_with 'retired/taken: ' "$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" ssd
    [[ $(cat "$HDD/retired/taken") == theirs && $(readlink "$SSD/retired/taken") == nowhere ]] || fail "$side: one of two was replaced"
    rm "$HDD/retired/taken"
    "$HOTSHELF" retire --ssd "$SSD" --hdd "$HDD" ssd >/dev/null || fail "$side: retire"
    same "$HDD/retired/file" 3 60000 "retired"
    [[ $(readlink "$HDD/retired/link") == file && $(readlink "$HDD/retired/taken") == nowhere ]] || fail "$side: retired links"
    [[ -d $HDD/retired/empty ]] || fail "$side: a retired directory"
    [[ -z $(find "$SSD" -path "$SSD/.hotshelf" -prune -o ! -type d -print) ]] || fail "$side: something was left"
    no_temporaries || fail "$side: temporaries of retire"
}

ssd_of() {
    fs_of_size "$1" "${SSD_MIB}M" -m 0
    SSD=$SCRATCH/$1/pool
    mkdir "$SSD"
}

