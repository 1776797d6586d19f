#!/bin/bash
# Pairs that released versions left are opened: a clean one, and four that a crash cut off in a move or a rename. Names, contents, inode
# numbers, pins and history are those that the release itself showed at its next mount, and what was under way is finished.
#
# tests/golden/RELEASE/pair-CASE.img.gz: an ext4 with both directories, so that inode numbers, birth times and marks are the release's.
# pair-CASE.txt.gz: what the release shows of it. With MAKE_GOLDEN=RELEASE the program in $HOTSHELF, built from that release, writes both.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
root_only
need getfattr gzip mkfs.ext4 setfattr sha256sum

golden=$ROOT/tests/golden
cases=(clean demotion promotion replacement directory)
disk=$SCRATCH/disk
SSD=$disk/ssd HDD=$disk/hdd
mkdir -p "$disk" "$MNT"

attach() { mount -o loop "$SCRATCH/pair.img" "$disk" || skip "loop devices cannot be mounted here"; }
detach() { umount "$disk"; }
mount_quiet() { mount_pair --promotion never "$@"; }
scanned() { [[ $(field scan_done) == true ]]; }
sides() { printf '%s ' $([[ ! -e $SSD/$1 ]] || echo ssd) $([[ ! -e $HDD/$1 ]] || echo hdd); }

# has_old_mark PATH: its inode number is in a mark of version 0.1, which anybody could write, so that later versions ignore it.
has_old_mark() {
    local side
    for side in "$SSD" "$HDD"; do
        [[ $(getfattr -h --only-values -n user.hotshelf.ino "$side/$1" 2>/dev/null | head -c 4) != hsi1 ]] || return 0
    done
    return 1
}

# listing CASE: every file of the mount with its attributes and what is remembered of it, then the contents, which it takes opens to
# read. Recovery changes the times of directories; history goes by inode numbers.
listing() {
    local path field format fields
    wait_until 20 scanned
    "$HOTSHELF" status --json "$MNT" | tr -d ' \n' | grep -o '"pinned":\[[^]]*\]'
    while read -r path; do
        format='%A %u:%g %s %h' fields=(tier pinned)
        [[ $1 != clean && -d $MNT/$path ]] || format+=' %Y'
        if has_old_mark "$path"; then
            format+=' with a mark of 0.1'
        else
            format+=' %i' fields+=(opens last_open_s at_s to)
        fi
        echo "$path $(stat -c "$format" "$MNT/$path")"
        [[ ! -L $MNT/$path ]] || echo "    -> $(readlink "$MNT/$path")"
        for field in "${fields[@]}"; do
            "$HOTSHELF" why --json "$MNT/$path" | sed -n "s/^ *\"$field\": \(.*[^,]\),*\$/    $field \1/p"
        done
    done < <(cd "$MNT" && find . | sort)
    (cd "$MNT" && find . -type f | sort | xargs sha256sum)
    (cd "$MNT" && getfattr -d -m '^user\.' notes 2>/dev/null) | grep -v '^#' || true
}

# is_cut_off CASE: the sides hold what the crash left, not what was before or comes after.
is_cut_off() {
    case $1 in
        clean) [[ ! -s $SSD/.hotshelf/intent && $(sides photos/ski) == 'ssd ' ]] ;;
        demotion) [[ $(sides photos/ski) == 'ssd hdd ' ]] ;;
        promotion) [[ $(sides old/letters) == 'ssd hdd ' ]] ;;
        replacement) [[ -s $SSD/.hotshelf/intent && $(sides report) == 'ssd hdd ' && ! -e $SSD/report.new ]] ;;
        directory) [[ -s $SSD/.hotshelf/intent && $(sides music)$(sides songs) == 'hdd ssd ' ]] ;;
    esac
}

make_base() {
    truncate -s 2M "$SCRATCH/pair.img"
    mkfs.ext4 -q -b 1024 -I 256 -N 128 -O ^has_journal,^resize_inode "$SCRATCH/pair.img"
    attach
    rmdir "$disk/lost+found"
    mount_quiet
    mkdir "$MNT"/{photos,old,music,empty}
    local name
    for name in photos/ski photos/lake old/letters music/first music/second notes report report.new many; do
        seq 1 $((40 + ${#name} * 10)) | sed "s|^|$name |" >"$MNT/$name"
        touch -d "2020-01-02 03:04:${#name} UTC" "$MNT/$name"
    done
    ln -s photos/ski "$MNT/link"
    ln "$MNT/many" "$MNT/same"
    mkfifo "$MNT/pipe"
    chmod 640 "$MNT/notes" && chown 1000:100 "$MNT/notes"
    setfattr -n user.color -v blue "$MNT/notes"
    for name in old/letters music/second report photos/lake; do
        "$HOTSHELF" migrate "$MNT/$name" --to hdd >/dev/null
    done
    "$HOTSHELF" migrate "$MNT/photos/lake" --to ssd >/dev/null
    "$HOTSHELF" pin "$MNT/photos/lake" >/dev/null
    "$HOTSHELF" pin "$MNT/notes" >/dev/null
    for name in photos/ski photos/ski photos/ski notes music/first; do
        cat "$MNT/$name" >/dev/null
    done
    wait_until 20 scanned
    unmount_pair
}

interrupted() {
    case $1 in
        demotion) "$HOTSHELF" migrate "$MNT/photos/ski" --to hdd ;;
        promotion) "$HOTSHELF" migrate "$MNT/old/letters" --to ssd ;;
        replacement) mv "$MNT/report.new" "$MNT/report" ;;
        directory) mv "$MNT/music" "$MNT/songs" ;;
    esac
}

# make CASE: tries every point at which the program can be made to die until the sides are as the case wants them.
make() {
    local n
    for n in $(seq 1 60); do
        cp "$SCRATCH/base.img" "$SCRATCH/pair.img"
        attach
        if [[ $1 != clean ]]; then
            if HOTSHELF_CRASH_AT=$n mount_quiet >/dev/null 2>&1; then
                interrupted "$1" >/dev/null 2>&1 || true
            fi
            drop_dead_mount
        fi
        if is_cut_off "$1"; then
            rm -f "$SSD/.hotshelf/log"
            detach
            gzip -9nc "$SCRATCH/pair.img" >"$golden/$MAKE_GOLDEN/pair-$1.img.gz"
            attach
            mount_quiet
            listing "$1" | gzip -9nc >"$golden/$MAKE_GOLDEN/pair-$1.txt.gz"
            unmount_pair
            detach
            return
        fi
        detach
    done
    fail "$1: no point of a crash leaves it"
}

if [[ -n ${MAKE_GOLDEN:-} ]]; then
    mkdir -p "$golden/$MAKE_GOLDEN"
    make_base
    detach
    cp "$SCRATCH/pair.img" "$SCRATCH/base.img"
    for what in "${cases[@]}"; do
        make "$what"
    done
fi

for release in "$golden"/*; do
    for what in "${cases[@]}"; do
        gunzip -c "$release/pair-$what.img.gz" >"$SCRATCH/pair.img"
        gunzip -c "$release/pair-$what.txt.gz" >"$SCRATCH/expected"
        attach
        is_cut_off "$what" || fail "$release, $what: the image is not cut off where it should be"
        mount_quiet
        listing "$what" >"$SCRATCH/found"
        diff "$SCRATCH/expected" "$SCRATCH/found" || fail "$release, $what: not as the release left it"
        case $what in
            replacement) [[ $(head -n 1 "$MNT/report") == 'report.new 1' && ! -e $MNT/report.new && $(sides report) == 'ssd ' ]] ;;
            directory) [[ -e $MNT/songs/first && -e $MNT/songs/second && ! -e $MNT/music ]] ;;
            demotion) [[ $(sides photos/ski) == 'ssd ' ]] ;;
            promotion) [[ $(sides old/letters) == 'ssd ' ]] ;;
        esac || fail "$release, $what: what was under way is not finished: $(ls -lR "$SSD" "$HDD")"
        ! "$HOTSHELF" status "$MNT" | grep -E 'warning|both sides' || fail "$release, $what: warnings"

        # It is an ordinary pair afterwards.
        number=$(stat -c %i "$MNT/photos/ski")
        "$HOTSHELF" migrate "$MNT/photos/ski" --to hdd >/dev/null
        mv "$MNT/photos" "$MNT/pictures"
        echo more >"$MNT/new"
        unmount_pair
        clean_check >/dev/null
        mount_quiet
        [[ $(stat -c %i "$MNT/pictures/ski") == "$number" && $(cat "$MNT/new") == more ]] || fail "$release, $what: the second mount"
        unmount_pair
        detach
    done
done
