#!/bin/bash
# Gets a Debian kernel and makes the first file system of the guest from it, all below target/vm/.
#
#   [KERNEL=6.1|6.12] tests/vm/prepare.sh
#   KERNEL=6.8 KERNEL_PACKAGES="IMAGE.deb MODULES.deb" tests/vm/prepare.sh
#
# The second form takes another distribution's kernel from packages that are here: Debian's have no iommufd, Ubuntu's 6.8 has.
#
# Leaves in target/vm/kernel-$KERNEL/
#   linux            the kernel, unpacked where that can be done here: the guest would take 3 s for it
#   modules/         all its modules; the guest sees them as /lib/modules
#   initramfs.cpio   what the guest starts with: busybox, tests/vm/init, and the modules that reach the host's files
# Says nothing and takes no time when all is there; `make clean` removes it. Nothing is installed: scripts/setup.sh does that.
# Exit 77 after `SKIP: reason` when something needed cannot be had here; 1 when something that should work did not.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
KERNEL=${KERNEL:-6.1}
PATH="$PATH:/usr/sbin:/sbin"
place=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")/vm
kernel=$place/kernel-$KERNEL
wanted="Debian kernel $KERNEL (Debian 12 has 6.1 and 6.12)"
# With what each of them needs. The others are loaded from modules/ when the guest has it.
first_modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay)
# shellcheck source=tests/vm/packages.sh
source "$here/packages.sh"

# Those of the level vm in scripts/setup.sh.
need_programs() {
    local program
    for program in qemu-system-x86_64 cpio depmod modprobe; do
        command -v "$program" >/dev/null || skip "$program is not installed (scripts/setup.sh vm)"
    done
}

# The newest package of the wanted kernel, signed, neither for clouds (no 9p there) nor for real time.
kernel_package() {
    apt-cache pkgnames "linux-image-$KERNEL." 2>/dev/null |
        grep -E '^linux-image-[0-9.]+(-[0-9]+|\+deb[0-9]+(\.[0-9]+)?)-amd64$' | sort -V | tail -1 || true
}

# get_kernel: kernel, modules and busybox into $kernel, at once or not at all.
get_kernel() {
    local version package
    command -v apt-get >/dev/null || skip "no apt-get here to get Debian's kernel $KERNEL with"
    [[ $(dpkg --print-architecture) == amd64 ]] || skip "the guest is an amd64 one; this machine is $(dpkg --print-architecture)"
    unpack "$work/busybox" echo busybox-static
    if [[ -n ${KERNEL_PACKAGES:-} ]]; then
        for package in $KERNEL_PACKAGES; do
            dpkg -x "$package" "$work/linux" || fail "$package cannot be unpacked"
        done
    else
        unpack "$work/linux" kernel_package
    fi
    version=$(ls "$work/linux/lib/modules")
    [[ -f $work/linux/boot/vmlinuz-$version && -f $work/busybox/bin/busybox ]] || fail "the packages do not hold what they did"
    depmod -b "$work/linux" "$version"
    mkdir "$work/kernel"
    plain_kernel "$work/linux/boot/vmlinuz-$version" "$work/kernel/linux"
    mv "$work/linux/lib/modules" "$work/busybox/bin/busybox" "$work/kernel/"
    # Somebody may have been faster.
    mv -T "$work/kernel" "$kernel" 2>/dev/null || [[ -f $kernel/linux ]] || fail "cannot make $kernel"
}

# plain_kernel FROM TO: the program that is packed in a vmlinuz, which qemu can start at once; if it cannot be had, FROM itself.
plain_kernel() {
    local begin length tool
    # Linux's boot protocol: setup_sects, payload_offset, payload_length; four bytes at its end are the unpacked size.
    begin=$((($(number_at "$1" 0x1f1 1) + 1) * 512 + $(number_at "$1" 0x248 4)))
    length=$(($(number_at "$1" 0x24c 4) - 4))
    for tool in xz zstd gzip; do
        tail -c "+$((begin + 1))" "$1" | head -c "$length" | "$tool" -dc >"$2" 2>/dev/null || true
        if [[ $(head -c 4 "$2") == $'\x7fELF' ]]; then
            return
        fi
    done
    cp "$1" "$2"
}

# number_at FILE OFFSET BYTES
number_at() { od -A n -t "u$3" -j "$2" -N "$3" "$1"; }

make_initramfs() {
    local version tree=$work/tree line
    version=$(ls "$kernel/modules")
    mkdir -p "$tree"/{bin,proc,sys,dev,lower,upper,new,"lib/modules/$version"}
    cp "$kernel/busybox" "$tree/bin/"
    install -m755 "$here/init" "$tree/init"
    # Where modprobe looks for them.
    mkdir -p "$work/look/lib"
    ln -s "$kernel/modules" "$work/look/lib/modules"
    # Its lines are `insmod PATH` and `builtin NAME`.
    modprobe -d "$work/look" -S "$version" --show-depends -a "${first_modules[@]}" | sed -n 's/^insmod  *\([^ ]*\).*/\1/p' |
        awk '!seen[$0]++' | while IFS= read -r line; do
        add_module "$line" "$tree/lib/modules/$version"
    done
    cp "$kernel/modules/$version"/modules.{order,builtin,builtin.modinfo} "$tree/lib/modules/$version/"
    depmod -b "$tree" "$version"
    (cd "$tree" && find . | cpio --quiet -o -H newc) >"$work/initramfs.cpio"
    mv "$work/initramfs.cpio" "$kernel/initramfs.cpio"
}

# add_module PATH DIR: a copy that is not compressed.
add_module() {
    case $1 in
        *.xz) xz -dc "$1" >"$2/$(basename "$1" .xz)" ;;
        *.zst) zstd -qdc "$1" >"$2/$(basename "$1" .zst)" ;;
        *) cp "$1" "$2/" ;;
    esac
}

[[ $KERNEL =~ ^[0-9]+\.[0-9]+$ ]] || fail "KERNEL=$KERNEL: like 6.1 or 6.12"
need_programs
if [[ -f $kernel/initramfs.cpio && $kernel/initramfs.cpio -nt $here/init && $kernel/initramfs.cpio -nt $here/prepare.sh ]]; then
    exit 0
fi
make_work
if [[ ! -f $kernel/linux ]]; then
    get_kernel
fi
make_initramfs
say "ready: Linux $(ls "$kernel/modules") in $kernel"
