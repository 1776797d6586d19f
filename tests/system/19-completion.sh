#!/bin/bash
# Shells complete names of mounts and caches. Names may have any characters: none is expanded or run, and what is no single line is not
# offered. --dry-run of `cache resize` and `cache destroy` changes nothing.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
needs_fuse
cd "$SCRATCH"
export XDG_CONFIG_HOME=$SCRATCH/conf
unset HOTSHELF_CONFIG
mkdir -p bin conf/hotshelf/caches
ln -s "$HOTSHELF" bin/hotshelf
PATH=$SCRATCH/bin:$PATH

name=complete-$$
image=$SCRATCH/image
runtime=/dev/shm/hotshelf-$name
mkdir "$runtime"

# A mount point whose name would run a command if a shell expanded it, and one whose name is two lines.
hostile=$SCRATCH/'m $(touch ran) `touch ran` "q'\'' ;touch ran'
lines=$SCRATCH/$'two\nlines'
mkdir -p ssd1 hdd1 "$hostile" ssd2 hdd2 "$lines"
trap 'rm -rf "$runtime"; for point in "$hostile" "$lines"; do "$HOTSHELF" unmount "$point"; done' EXIT
"$HOTSHELF" mount --ssd ssd1 --hdd hdd1 "$hostile"
"$HOTSHELF" mount --ssd ssd2 --hdd hdd2 "$lines"
# A cache, and settings files that are none by their names.
"$HOTSHELF" cache create "$image" --size 16MiB --name "$name" --memory 16MiB --runtime-dir "$runtime" >/dev/null
for other in 'a b' '$(touch ran)' .hidden $'two\nlines'; do
    echo 'name = "other"' >"conf/hotshelf/caches/$other.toml"
done

[[ $(hotshelf complete caches) == "$name" ]] || fail "names of caches: $(hotshelf complete caches)"
hotshelf complete mounts >names
grep -qxF -- "$hostile" names || fail "names of mounts: $(cat names)"
! grep -q '^lines' names || fail "a name of two lines is offered"
[[ $(hotshelf complete all | grep -cxF -e "$name" -e "$hostile") == 2 ]] || fail "all names"

"$HOTSHELF" generate completions completions
# bash_completes WORD...: what bash offers for the last word, one a line.
bash_completes() {
    bash --norc -c '
        source completions/hotshelf.bash
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
        _hotshelf_or_names hotshelf "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        ((${#COMPREPLY[@]} == 0)) || printf "%s\n" "${COMPREPLY[@]}"
    ' bash "$@" </dev/null
}
# bash_offers WORD COMMAND...: the word is among them.
bash_offers() {
    bash_completes "${@:2}" >offered
    grep -qx -- "$1" offered
}
printf -v quoted %q "$hostile"
for command in unmount umount status set retire; do
    [[ $(bash_completes hotshelf "$command" "$SCRATCH/m") == "$quoted" ]] ||
        fail "bash, $command: $(bash_completes hotshelf "$command" "$SCRATCH/m")"
done
[[ $(bash_completes hotshelf unmount --timeout 5 "$SCRATCH/m") == "$quoted" ]] || fail "bash, behind an option with a value"
[[ $(eval "printf %s $(bash_completes hotshelf unmount "$SCRATCH/m")") == "$hostile" ]] || fail "bash does not quote the name"
for words in 'cache status' 'cache mode' 'cache -q destroy' 'status' 'check' 'cache export --cache'; do
    # shellcheck disable=SC2086 # several words
    [[ $(bash_completes hotshelf $words comp) == "$name" ]] || fail "bash, $words: $(bash_completes hotshelf $words comp)"
done
bash_offers write-back hotshelf cache mode "$name" write- || fail "bash, the argument after a name"
[[ -z $(bash_completes hotshelf mount "$SCRATCH/m") ]] || fail "bash offers mounts to mount on"
[[ -z $(bash_completes hotshelf cache create comp) ]] || fail "bash offers caches to make"
bash_offers --interval hotshelf cache top --in || fail "bash, options"
bash_offers unmount hotshelf un || fail "bash, commands"

if command -v zsh >/dev/null; then
    zsh -n completions/_hotshelf || fail "zsh cannot read its script"
    zsh -f -c '
        compdef() { : }
        compadd() { print -rl -- "${names[@]}" }
        _files() { : }
        source completions/_hotshelf
        _hotshelf_names -X ours mounts
    ' >offered || fail "zsh"
    grep -qxF -- "$hostile" offered || fail "zsh offers: $(cat offered)"
else
    echo "NOTE: zsh is not installed: its completion was not run"
fi
for what in ":mountpoint -- .*:_hotshelf_names mounts'" ":_hotshelf_names all'" ":_hotshelf_names caches'"; do
    grep -q -- "$what" completions/_hotshelf || fail "zsh has no $what"
done
! grep -q '_hosts\|_users\|_email' completions/_hotshelf || fail "zsh completes something else"

if command -v fish >/dev/null; then
    export HOME=$SCRATCH
    fish_completes() { fish --no-config -c "source completions/hotshelf.fish; complete -C '$1'"; }
    fish_completes "hotshelf unmount $SCRATCH/m" >offered
    grep -qF -- 'touch ran' offered || fail "fish, unmount: $(cat offered)"
    fish_completes 'hotshelf cache status comp' >offered
    grep -qx -- "$name.*" offered || fail "fish, cache status: $(cat offered)"
    fish_completes 'hotshelf cache export --cache comp' >offered
    grep -q -- "$name" offered || fail "fish, --cache: $(cat offered)"
else
    echo "NOTE: fish is not installed: its completion was not run"
fi
[[ ! -e ran && ! -e bin/ran ]] || fail "a shell ran what is in a name"

# --dry-run says what would be done, or what prevents it, and changes nothing.
settings=conf/hotshelf/caches/$name.toml
was=$(sha256sum "$image" "$settings")
same_as_before() { [[ $(sha256sum "$image" "$settings") == "$was" ]] || fail "--dry-run changed something"; }
cache() { "$HOTSHELF" cache "$@"; }
cache resize "$name" --size 32MiB --memory 32MiB --dry-run >said || fail "resize --dry-run: $(cat said)"
grep -q 'would have 32.00 MiB (it has 16.00 MiB' said && grep -q 'would have memory 32MiB' said || fail "resize --dry-run: $(cat said)"
same_as_before
[[ $(cache resize "$name" --size 32MiB --dry-run --json) == *'"dry_run": true'* ]] || fail "resize --dry-run --json"
refused 1 'is' cache resize "$name" --size 1KiB --dry-run
cache destroy "$name" --dry-run >said || fail "destroy --dry-run: $(cat said)"
grep -q "$image would be removed, and its settings, .*$name.toml" said || fail "destroy --dry-run: $(cat said)"
same_as_before
cache attach "$name"
refused 1 'is in use by process' cache destroy "$name" --dry-run
refused 1 'is in use by process' cache resize "$name" --size 32MiB --dry-run
cache detach "$name" >/dev/null
echo no cache >mine
refused 1 'no cache' cache destroy "$SCRATCH/mine" --discard --dry-run
cache destroy "$name" >/dev/null && [[ ! -e $image && ! -e $settings ]] || fail "destroy"
