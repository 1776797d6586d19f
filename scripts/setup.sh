#!/bin/bash
# Installs what building, trying and testing hotshelf needs on Debian or Ubuntu.
#
#   scripts/setup.sh demo   what the build and `make demo` need
#   scripts/setup.sh vm     all of that, and what `make test-vm` boots its guests with
#   scripts/setup.sh test   all of that, and what the tests compare with
#
# Says each thing it does, does nothing where all is there, and never starts a service. Exits 1 when the
# build cannot work; packages that only tests need are listed, with the tests that will be skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}/bin"
level=${1:-test}

say() { echo "setup: $*"; }

# level | package | a command of it, or - | what is missing without it
needs() {
    cat <<'LIST'
demo|gcc|cc|!the build (linker)
demo|libc6-dev|-|!the build (C library)
demo|make|make|!the build
demo|pkg-config|pkg-config|!the build
demo|git|git|!the build's own checks
demo|fuse3|fusermount3|!mounting, for ordinary users
demo|util-linux|setpriv|the demo, and all system tests
demo|mount|losetup|the demo, and tests on loop devices
demo|e2fsprogs|mkfs.ext4|the demo, and tests on loop devices
demo|procps|pgrep|the demo, and all system tests
demo|attr|setfattr|the demo, and tests of extended attributes
demo|sqlite3|sqlite3|the demo, and the sqlite3 tests
demo|rsync|rsync|the demo, and the rsync tests
demo|bc|bc|the demo, and tests that compare speeds
vm|qemu-system-x86|qemu-system-x86_64|tests in a virtual machine
vm|cpio|cpio|tests in a virtual machine
vm|kmod|depmod|tests in a virtual machine
vm|gcc-12|gcc-12|the tests of the kernel module
vm|xfsprogs|mkfs.xfs|the tests of the kernel module, and tests on XFS
vm|btrfs-progs|mkfs.btrfs|the tests of the kernel module
vm|fio|fio|tests of speed, of latency during moves, and of NVMe commands
test|strace|strace|tests of set-id programs, and of commands that are stopped
test|libcap2-bin|setcap|the test of set-id programs
test|jq|jq|the test of the documents
test|binutils|objcopy|the test of `make install`, which leaves debug symbols out
test|sshfs|sshfs|tests of slow sides that are network file systems
test|openssh-server|sshd|the server of those tests
test|bindfs|bindfs|tests of slow sides that can do little
test|dosfstools|mkfs.vfat|tests of FAT as the slow side
test|exfatprogs|mkfs.exfat|tests of exFAT as the slow side
test|exfat-fuse|mount.exfat-fuse|the same where the kernel has neither
test|acl|setfacl|tests of access control lists
test|quota|setquota|the test of quotas
test|nfs-ganesha|ganesha.nfsd|the test of an NFS export
test|nfs-ganesha-vfs|-|the test of an NFS export
test|libnfs-utils|nfs-ls|the test of an NFS export
test|nfs-common|mount.nfs|the test of NFS as the slow side
test|rpcbind|rpcbind|the test of NFS as the slow side
test|postmark|postmark|the PostMark test
test|mergerfs|mergerfs|the comparison with mergerfs
test|mariadb-server|mariadbd|the MariaDB test
test|postgresql|postgres|the test of databases in a cached mount
test|libsqlite3-dev|-|the bench of SQLite on an image
test|tcl|tclsh|the test of SQLite through the cache
test|python3|python3|the test of the Python package
test|zsh|zsh|the test of its completion
test|fish|fish|the test of its completion
test|chromium-headless-shell|chromium-headless-shell|the look at the benches' report (Debian; elsewhere any Chromium does)
LIST
}

present() {
    local package=$1 command=$2
    if [[ $command != - ]] && command -v "$command" >/dev/null; then
        return 0
    fi
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]]
}

# Whether the rows of a level are requested: a level includes those before it.
asked() { [[ $1 == demo || $1 == "$level" || $level == test ]]; }

missing() {
    local row package command why
    while IFS='|' read -r row package command why; do
        if asked "$row" && ! present "$package" "$command"; then
            echo "$package"
        fi
    done < <(needs)
}

# Runs as root; fails when there is no way to.
as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
        sudo "$@"
    else
        say "not root, and sudo would ask for a password: cannot run $1"
        return 1
    fi
}

# Packages with a service start it when they are installed, unless this file says no. One that was there is put back.
rc=/usr/sbin/policy-rc.d
forbid_services() {
    if [[ -e $rc.before-hotshelf ]]; then
        as_root mv "$rc.before-hotshelf" "$rc"
    fi
    if [[ -x $rc ]] && ! "$rc" mariadb start >/dev/null 2>&1 && [[ $("$rc" mariadb start >/dev/null 2>&1; echo $?) == 101 ]]; then
        return
    fi
    say "preventing services from being started ($rc), for the time of the installation"
    trap allow_services EXIT
    services_forbidden=1
    if [[ -e $rc ]]; then
        as_root mv "$rc" "$rc.before-hotshelf"
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$rc" >/dev/null
    as_root chmod 755 "$rc"
}

allow_services() {
    if [[ -z ${services_forbidden:-} ]]; then
        return
    fi
    services_forbidden=
    as_root rm -f "$rc"
    if [[ -e $rc.before-hotshelf ]]; then
        as_root mv "$rc.before-hotshelf" "$rc"
    fi
    say "services may be started again"
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 \
        -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" </dev/null
}

install_packages() {
    local wanted=("$@") package answer
    if ! command -v apt-get >/dev/null; then
        say "no apt-get here: install by hand ${wanted[*]}"
        return
    fi
    if ! as_root true; then
        return
    fi
    say "refreshing the package lists"
    # apt-get only warns when it could not fetch a list.
    if ! answer=$(apt update 2>&1) || grep -q '^[WE]: ' <<<"$answer"; then
        say "apt-get cannot reach its archive; trying with what is on this machine"
    fi
    if [[ " ${wanted[*]} " =~ ' '(mariadb-server|postgresql|nfs-ganesha|nfs-common|rpcbind|openssh-server|quota)' ' ]]; then
        forbid_services
    fi
    say "installing ${wanted[*]}"
    if ! apt install -y --no-install-recommends "${wanted[@]}" >/dev/null; then
        say "not all at once; one by one"
        for package in "${wanted[@]}"; do
            apt install -y --no-install-recommends "$package" >/dev/null || say "$package: not available"
        done
    fi
    allow_services
    if [[ " ${wanted[*]} " == *" mariadb-server "* ]] && present mariadb-server mariadbd && [[ -d /run/systemd/system ]]; then
        say "mariadb is here for tests only: not starting it at boot"
        as_root systemctl --quiet disable mariadb.service || true
    fi
    if [[ " ${wanted[*]} " == *" postgresql "* && -d /run/systemd/system ]]; then
        say "postgresql is here for tests only: not starting it at boot"
        as_root systemctl --quiet disable postgresql.service || true
    fi
}

# Tells what is still missing; fails when the build needs it.
report_missing() {
    local row package command why failed=0
    while IFS='|' read -r row package command why; do
        if ! asked "$row" || present "$package" "$command"; then
            continue
        fi
        if [[ $why == !* ]]; then
            say "MISSING $package: ${why#!} cannot work"
            failed=1
        else
            say "missing $package: ${why} will be reported as skipped"
        fi
    done < <(needs)
    return "$failed"
}

pinned=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)

install_rustup() {
    if [[ -n $(apt-cache search --names-only '^rustup$' 2>/dev/null) ]] && as_root true; then
        say "installing rustup from the distribution"
        apt install -y --no-install-recommends rustup >/dev/null && return
    fi
    if ! command -v curl >/dev/null; then
        say "installing curl"
        apt install -y --no-install-recommends curl ca-certificates >/dev/null || return 1
    fi
    say "installing rustup for this user with its own installer (below ${CARGO_HOME:-~/.cargo})"
    curl --proto '=https' --tlsv1.2 -sSf --max-time 300 https://sh.rustup.rs |
        sh -s -- -y -q --no-modify-path --profile minimal --default-toolchain none
}

# At least as new as the pinned one.
new_enough() {
    [[ $(printf '%s\n%s\n' "$pinned" "$1" | sort -V | head -1) == "$pinned" ]]
}

install_rust() {
    local version name component
    if ! command -v rustup >/dev/null && command -v cargo >/dev/null; then
        version=$(cargo --version | cut -d' ' -f2)
        if new_enough "$version"; then
            [[ $version == "$pinned" ]] || say "using cargo $version; $pinned is what we test with"
            return
        fi
        say "cargo $version is older than $pinned"
    fi
    command -v rustup >/dev/null || install_rustup || { say "MISSING rustup: see https://rustup.rs"; return 1; }
    hash -r
    name=$(scripts/cargo --toolchain)
    if [[ -z $name ]]; then
        say "installing Rust $pinned"
        rustup toolchain install "$pinned" --profile minimal -c rustfmt -c clippy </dev/null || { say "MISSING Rust $pinned"; return 1; }
        name=$(scripts/cargo --toolchain)
        [[ -n $name ]] || { say "MISSING Rust $pinned: rustup installed it, but does not list it"; return 1; }
    elif [[ $name != "$pinned"* && -z ${RUSTUP_TOOLCHAIN:-} ]]; then
        say "Rust $pinned is installed as $name: make uses that (by hand: export RUSTUP_TOOLCHAIN=$name)"
    fi
    for component in fmt clippy; do
        if ! scripts/cargo "$component" --version >/dev/null 2>&1; then
            say "adding $component to Rust $pinned"
            rustup component add --toolchain "$name" "${component/#fmt/rustfmt}" </dev/null ||
                say "missing $component: \`make check\` cannot work"
        fi
    done
}

# The public POSIX suites are of crates.io and are built here, which takes minutes: for the long tests alone.
install_suites() {
    local suite
    if [[ $level != test || ${FULL:-0} != 1 ]]; then
        return
    fi
    for suite in pjdfstest@0.2.2 fsx@0.3.2; do
        if ! command -v "${suite%@*}" >/dev/null; then
            say "building $suite"
            scripts/cargo install --quiet --locked "$suite" </dev/null || say "missing $suite: the POSIX suites will be reported as skipped"
        fi
    done
}

case $level in
    demo | vm | test) ;;
    *)
        echo "usage: scripts/setup.sh demo|vm|test" >&2
        exit 2
        ;;
esac

mapfile -t wanted < <(missing)
if ((${#wanted[@]})); then
    install_packages "${wanted[@]}"
fi
failed=0
report_missing || failed=1
install_rust || failed=1
install_suites
if [[ ! -e /dev/fuse ]]; then
    say "loading the fuse module"
    as_root modprobe fuse 2>/dev/null || say "no /dev/fuse on this machine: nothing can be mounted; tests that mount will be skipped"
fi
if ((failed)); then
    say "not ready: see above"
    exit 1
fi
say "ready ($level)"
