#!/bin/bash
# Advice never destroys: whatever path is given to a command by mistake, the message says what is there, and names nothing that would
# overwrite it; settings are never overwritten either, and sizes that cannot be meant are refused with what was.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need mkfs.ext4 mkswap python3
export XDG_CONFIG_HOME=$SCRATCH/config HOME=$SCRATCH/home
mkdir home

truncate -s 8M ext4 swap luks table blank cache-to-be
mkfs.ext4 -q -F ext4
chmod 600 swap
mkswap swap >/dev/null 2>&1
printf 'LUKS\xba\xbe' | dd of=luks conv=notrunc status=none
printf '\x55\xaa' | dd of=table bs=1 seek=510 conv=notrunc status=none
cp /etc/passwd passwd
head -c 8M /dev/urandom >unknown
"$HOTSHELF" cache create "$SCRATCH/cache" --size 4MiB >/dev/null
declare -A is=([ext4]='ext4 file system' [swap]='swap space' [luks]='encrypted volume' [table]='partition table' [passwd]='does not know'
    [unknown]='does not know' [cache]='hotshelf cache')

# spared FILE COMMAND...: fails, destroys nothing, and gives no advice that would.
spared() {
    local file=$1 before said
    shift
    before=$(sha256sum "$file")
    said=$("$@" 2>&1 </dev/null) && fail "did not fail: $*: $said"
    [[ $(sha256sum "$file") == "$before" ]] || fail "$file was changed by $*"
    grep -Eq 'mkfs [^-]|--force|truncate|destroy|discard|wipefs|dd if|\brm\b|overwrite' <<<"$said" &&
        fail "the advice of $* destroys: $said"
    [[ $(wc -l <<<"$said") == 1 ]] || fail "not one line: $*: $said"
}
mkdir mnt there
for file in "${!is[@]}"; do
    for command in "check FILE" "df FILE" "dump FILE /x" "mount FILE $SCRATCH/mnt" "resize FILE" "import FILE /etc/hostname /" \
        "export FILE / $SCRATCH/there"; do
        read -ra words <<<"${command/FILE/$SCRATCH/$file}"
        spared "$file" "$HOTSHELF" fs "${words[@]}"
        said=$("$HOTSHELF" fs "${words[@]}" 2>&1 </dev/null) || true
        grep -q -- "${is[$file]}" <<<"$said" || fail "fs $command does not say that it is ${is[$file]}: $said"
    done
    spared "$file" "$HOTSHELF" fs shell "$SCRATCH/$file" -c 'ls /'
    [[ $file == cache ]] && continue
    for command in "check FILE" "cache check FILE" "cache status FILE" "cache flush FILE" "cache resize FILE --size 4MiB"; do
        read -ra words <<<"${command/FILE/$SCRATCH/$file}"
        spared "$file" "$HOTSHELF" "${words[@]}"
    done
done
said=$("$HOTSHELF" fs check blank 2>&1) && fail "a blank file passes"
grep -q 'blank at both ends' <<<"$said" || fail "does not say that it is blank: $said"
# Even the commands that make something keep what is there, and say so.
for command in "fs mkfs $SCRATCH/ext4" "cache create $SCRATCH/ext4"; do
    read -ra words <<<"$command"
    said=$("$HOTSHELF" "${words[@]}" 2>&1) && fail "$command overwrites"
    grep -q 'ext4 file system, which is kept' <<<"$said" || fail "$command does not say that it is kept: $said"
done

# The settings of a cache stay, also those of one in memory alone, and those that cannot be read.
"$HOTSHELF" cache create small --memory 4MiB >/dev/null
settings=$XDG_CONFIG_HOME/hotshelf/caches/small.toml
echo 'read_ahead = "64KiB"' >>"$settings"
before=$(cat "$settings")
refused 1 'is called small already and is kept' "$HOTSHELF" cache create small --memory 8MiB
echo '[cahce]' >>"$settings"
refused 1 'is called small already and is kept' "$HOTSHELF" cache create small --memory 8MiB
printf '%s\n' "$before" >"$settings"
"$HOTSHELF" cache status small >status || fail "status: $(cat status)"
grep -iq ssd status && fail "a cache in memory alone has an SSD: $(cat status)"
"$HOTSHELF" cache create small --memory 8MiB --force >/dev/null || fail "--force"

# Unknown tables and keys, in every file; both spellings of known ones.
for wrong in '[cahce]\nmemory = "4MiB"' 'memory = "4MiB"\n[cache]' '[cache]\nmemroy = "4MiB"' '[cache]\n[extra]\na = 1'; do
    printf "$wrong\n" >wrong.toml
    refused 1 'known\|unknown' "$HOTSHELF" cache status --config wrong.toml
done
printf '[cache]\nname = "dashed"\nmemory = "4MiB"\ndirty-age = "1s"\nruntime-dir = "%s"\n' "$SCRATCH" >right.toml
"$HOTSHELF" cache status --config right.toml >/dev/null || fail "keys with dashes"
mkdir ssd hdd
printf 'ssd = "%s/ssd"\nhdd = "%s/hdd"\nmin_file_size = "4KiB"\ntouch-window = 9\n' "$SCRATCH" "$SCRATCH" >mount.toml
"$HOTSHELF" mount --config mount.toml mnt --dry-run || fail "keys with underscores"

# Sizes and logs that cannot be meant, at the front.
mount_with() { "$HOTSHELF" mount --ssd ssd --hdd hdd mnt "$@"; }
refused 2 'did you mean 95%' mount_with --high 95
refused 2 'did you mean 95%' mount_with -o high=95
refused 2 'did you mean 3%' mount_with --reserve 3
refused 2 'is more than the file system' mount_with --reserve 50TiB
refused 2 'is more than the file system' mount_with --high 900TiB --low 1GiB
refused 2 'is above --high' mount_with --low 99% --high 50%
refused 2 'no log level' mount_with --log-level loud
refused 1 'the log cannot be written' mount_with --log-file "$SCRATCH/missing/log"
refused 1 'the log cannot be written' "$HOTSHELF" fs mount ext4 mnt --log-file "$SCRATCH/missing/log"
refused 1 'the log cannot be written' "$HOTSHELF" cache attach small --log-file "$SCRATCH/missing/log"
refused 2 'no log level' "$HOTSHELF" cache attach small --log-level loud
refused 2 'no log level' "$HOTSHELF" queue serve memory:1MiB --log-level loud
refused 2 'more than this machine has' "$HOTSHELF" cache create huge --memory 50TiB
refused 2 'did you mean 25%' "$HOTSHELF" cache create huge --memory 25
[[ ! -e ssd/.hotshelf ]] || fail "a refused mount left something"

# The counts are what they say.
for n in $(seq 7); do echo "$n" >"ssd/file$n"; done
mkdir -p ssd/dir/below hdd/dir/below
echo x >hdd/dir/below/x
mkdir -p {ssd,hdd}/.hotshelf/tmp
"$HOTSHELF" check ssd hdd >said || true
grep -q '^8 files in 3 directories' said || fail "8 files in 3 directories are counted as: $(tail -n1 said)"

# A file system belongs to its maker.
"$HOTSHELF" fs mkfs own --size 8MiB >/dev/null
"$HOTSHELF" fs export own / exported >/dev/null
"$HOTSHELF" fs shell own -c 'stat /' >said || fail "stat"
grep -Eq "(uid|owner|user)[^0-9]*$(id -u)\b|$(id -u)[:/ ]$(id -g)" said || fail "the top directory is not its maker's: $(cat said)"
if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null; then
    mkdir theirs
    chown 65534:65534 theirs
    cp "$HOTSHELF" hotshelf
    if setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$SCRATCH/hotshelf"; then
        setpriv --reuid 65534 --regid 65534 --clear-groups "$SCRATCH/hotshelf" fs mkfs theirs/image --size 8MiB >/dev/null
        "$HOTSHELF" fs export theirs/image /. theirs/out >/dev/null || fail "export"
        [[ $(stat -c %u theirs/out) == 65534 ]] || fail "an ordinary user's file system has root's top directory"
    fi
fi

# A flush says how many pages were dirty.
library=$(dirname "$HOTSHELF")/libhotshelf.so
if [[ -f $library ]]; then
    printf '%s\n' '[cache]' 'name = "flushed"' 'memory = "32MiB"' 'dirty_age = "1h"' "runtime_dir = \"$SCRATCH\"" >flushed.toml
    "$HOTSHELF" cache attach --config flushed.toml >/dev/null
    trap '"$HOTSHELF" cache detach --config flushed.toml >/dev/null' EXIT
    HOTSHELF_LIBRARY=$library HOTSHELF_CONFIG=$SCRATCH/flushed.toml PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1 python3 -c '
import hotshelf
with hotshelf.open("pages", "wb") as file:
    file.write(b"x" * 4096 * 1000)' || fail "writing through the cache"
    # Some are written by themselves, as a writer leaves; the others stay for an hour.
    dirty() { "$HOTSHELF" cache status --config flushed.toml --json | sed -n 's/^ *"dirty_bytes": \([0-9]*\),$/\1/p' | head -n1; }
    before=
    settled() { [[ $before == "$(dirty)" ]] || { before=$(dirty); return 1; }; }
    wait_until 20 settled
    ((before >= 4096 * 100)) || fail "only $before bytes are dirty"
    said=$("$HOTSHELF" cache flush --config flushed.toml)
    grep -q " $((before / 4096)) pages" <<<"$said" || fail "$((before / 4096)) dirty pages are counted as others: $said"
    "$HOTSHELF" cache flush --config flushed.toml | grep -q ' 0 pages' || fail "clean pages are counted as dirty"
fi
