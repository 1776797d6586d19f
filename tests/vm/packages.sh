# Gets Debian packages and unpacks them below target/; nothing is installed. Sourced, with $place set, by prepare.sh and module.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154
work=

say() { echo "vm: $*"; }
skip() { echo "SKIP: $*"; exit 77; }
fail() { echo "vm: $*" >&2; exit 1; }

remove_work() {
    if [[ -n $work ]]; then
        rm -rf -- "$work"
    fi
}
trap remove_work EXIT
trap 'exit 130' INT TERM HUP

# make_work: a directory that goes with this script.
make_work() {
    mkdir -p "$place"
    work=$(mktemp -d "$place/work.XXXXXX")
    chmod 755 "$work"
}

apt() {
    apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o APT::Sandbox::User= "$@" \
        </dev/null >"$work/apt.log" 2>&1
}

# What apt-get complained of, on one line.
complaint() { sed -n 's/^[EW]: *//p' "$work/apt.log" | tail -1; }

# unpack DIR COMMAND...: what is in the package whose name the command prints. $wanted is what to call it when there is none.
unpack() {
    local dir=$1 package
    shift
    package=$("$@")
    if [[ -n $package ]]; then
        say "getting $package"
    fi
    if [[ -z $package ]] || ! (cd "$work" && apt download "$package"); then
        # A list that is older than the archive names packages that are gone.
        say "refreshing the package lists"
        apt update || true
        package=$("$@")
        [[ -n $package ]] || skip "apt-get knows no $wanted"
        (cd "$work" && apt download "$package") || skip "cannot get $package: $(complaint)"
    fi
    dpkg -x "$work/${package}"_*.deb "$dir"
}
