#!/bin/bash
# The daemon is killed after each step of a demotion, a promotion and the renames that concern both sides, one after the other:
# the sides hold what the tables of docs/durability.md say, and the next mount makes one whole file of it.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse

mkdir -p "$SSD" "$HDD" "$MNT"
head -c 300000 /dev/urandom >"$SCRATCH/old"
head -c 200000 /dev/urandom >"$SCRATCH/new"

# The name of the point where it died, from its log.
died_at() { sed -n 's/.*crash asked for.*point="\{0,1\}\([a-z ]*\)"\{0,1\}.*/\1/p' "$SCRATCH/log"; }
# sides PATH: which sides hold the path.
sides() {
    local found=
    [[ ! -e $SSD/$1 ]] || found+=" ssd"
    [[ ! -e $HDD/$1 ]] || found+=" hdd"
    echo "${found# }"
}
temporaries() { find "$SSD/.hotshelf/tmp" "$HDD/.hotshelf/tmp" -mindepth 1 | wc -l; }

# killed_at N COMMAND: a mount that dies at its Nth point; COMMAND runs on it. 1: it did not die.
killed_at() {
    local n=$1
    shift
    : >"$SCRATCH/log"
    if HOTSHELF_CRASH_AT=$n mount_pair --promotion never --log-file "$SCRATCH/log" >/dev/null 2>&1; then
        "$@" >/dev/null 2>&1 || true
    fi
    if [[ -z $(died_at) ]]; then
        unmount_pair
        return 1
    fi
    drop_dead_mount
}

# The tables: what a crash right after the point leaves.
declare -A demotion=(['move temporary made']='ssd 1' ['move copied']='ssd 1' ['move journaled']='ssd 1' ['demotion placed']='ssd hdd 0'
    ['demotion unlinked']='hdd 0' ['move ended']='hdd 0')
declare -A promotion=(['move temporary made']='hdd 1' ['move copied']='hdd 1' ['move journaled']='hdd 1' ['promotion placed']='ssd hdd 0'
    ['promotion synced']='ssd hdd 0' ['promotion unlinked']='ssd 0' ['move ended']='ssd 0')
for to in hdd ssd; do
    declare -n table=$([[ $to == hdd ]] && echo demotion || echo promotion)
    from=$([[ $to == hdd ]] && echo ssd || echo hdd)
    seen=
    for n in $(seq 1 40); do
        mount_pair --promotion never
        [[ -e $MNT/dir/file ]] || { mkdir "$MNT/dir" && cp "$SCRATCH/old" "$MNT/dir/file"; }
        "$HOTSHELF" migrate "$MNT/dir/file" --to "$from" >/dev/null
        number=$(stat -c %i "$MNT/dir/file")
        unmount_pair
        killed_at "$n" "$HOTSHELF" migrate "$MNT/dir/file" --to "$to" || break
        point=$(died_at)
        if [[ -n ${table[$point]:-} ]]; then
            left="$(sides dir/file) $(temporaries)"
            [[ $left == "${table[$point]}" ]] || fail "to the $to, killed at '$point': left '$left', not '${table[$point]}'"
            seen+="$point;"
        fi
        mount_pair --promotion never
        cmp "$SCRATCH/old" "$MNT/dir/file" || fail "to the $to, killed at '$point': the content"
        [[ $(stat -c %i "$MNT/dir/file") == "$number" ]] || fail "to the $to, killed at '$point': another inode number"
        "$HOTSHELF" status "$MNT" | grep -E 'warning|both sides' && fail "to the $to, killed at '$point': warnings"
        unmount_pair
        [[ $(sides dir/file) == ssd || $(sides dir/file) == hdd ]] || fail "to the $to, killed at '$point': $(sides dir/file)"
        clean_check >/dev/null
    done
    [[ $(tr ';' '\n' <<<"$seen" | grep -c .) == "${#table[@]}" ]] || fail "to the $to: not every step was met: $seen"
done

# Renames: a file onto one of the other side, both ways; a directory with content on both sides; an exchange.
exchange() { python3 -c 'import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2) != 0)' "$MNT/a" "$MNT/b"; }
replace() { mv "$MNT/a" "$MNT/b"; }
whole_dir() { mv "$MNT/d" "$MNT/e"; }
command -v python3 >/dev/null || exchange() { return 1; }
# is FILE CONTENT: of the mount.
is() { cmp -s "$MNT/$1" "$SCRATCH/$2"; }
before_or_after() {
    case $1 in
        replace) { is a new && is b old; } || { [[ ! -e $MNT/a ]] && is b new; } ;;
        exchange) { is a new && is b old; } || { is a old && is b new; } ;;
        whole_dir) { is d/s new && is d/h old && [[ ! -e $MNT/e ]]; } || { is e/s new && is e/h old && [[ ! -e $MNT/d ]]; } ;;
    esac
}
for case in replace,ssd,hdd replace,hdd,ssd exchange,ssd,hdd exchange,hdd,ssd whole_dir,ssd,hdd; do
    IFS=, read -r what new_on old_on <<<"$case"
    seen=
    for n in $(seq 1 40); do
        mount_pair --promotion never
        rm -rf "$MNT"/{a,b,d,e}
        mkdir "$MNT/d"
        for copy in a,new,$new_on b,old,$old_on d/s,new,ssd d/h,old,hdd; do
            IFS=, read -r name content side <<<"$copy"
            cp "$SCRATCH/$content" "$MNT/$name"
            [[ $side == ssd ]] || "$HOTSHELF" migrate "$MNT/$name" --to hdd >/dev/null
        done
        unmount_pair
        killed_at "$n" "$what" || break
        seen+="$(died_at);"
        mount_pair --promotion never
        before_or_after "$what" || fail "$case, killed at '$(died_at)': neither before nor after: $(ls -lR "$SSD" "$HDD")"
        "$HOTSHELF" status "$MNT" | grep -E 'warning|both sides' && fail "$case, killed at '$(died_at)': warnings"
        unmount_pair
        clean_check >/dev/null
    done
    [[ $seen == *'rename step;'*'rename steps done;'* ]] || fail "$case: not every step was met: $seen"
done
