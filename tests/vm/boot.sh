#!/bin/bash
# Boots a guest, runs one script in it as root, and exits as the script did.
#
#   [KERNEL=6.1|6.12] tests/vm/boot.sh SCRIPT
#
# The guest runs in QEMU without hardware virtualization (it works everywhere, 10 to 30 times slower), with 2 CPUs and an IOMMU. It
# sees the host's files; it keeps its changes to them in memory and drops them. Among the first 30 lines of the script:
#   # drives: NAME=OPTION:VALUE,... ...   NVMe drives, found by their serial, which is NAME (see tests/vm/lib.sh). Options:
#       size:256M         of each namespace       lbas:512       its logical block size, or 4096
#       namespaces:1      how many                mdts:7         the largest transfer is 4 KiB << mdts; 0 is no limit
#       cache:on          volatile write cache    iops:N, bps:N  as a slow disk: requests (each up to 128 KiB), bytes a second
#       aio:threads       how the host reads and writes for it, or io_uring (a drive that answers sooner)
#       spare:N           more namespaces, which are not attached: Namespace Attachment does that
#   One such line, or several.
#   # memory: 2G                          of the guest
#   # module: nofscache                   of kernel/; built, and MODULE is where it is
#   # packages: nfs-kernel-server         unpacked below PACKAGES, not installed (tests/vm/unpack.sh)
#   # kernel: preempt=full                more arguments for the guest's kernel
#   # processors: in turn                 both CPUs by one thread of the host. For guests that change their kernel's code at run time
#                                         (ftrace): else a CPU of QEMU 7.2 may execute the old code forever
#   # TIMEOUT: 300                        seconds until it counts as hung, boot included; TIMEOUT_FULL when FULL=1
#
# The script is run by `bash -euo pipefail` in an empty directory, with ROOT, HOTSHELF, FULL and KERNEL as the host has them, and
#   SCRATCH   that directory, in memory
#   RESULTS   a directory; what is put there is in target/vm-tests/NAME/ on the host afterwards
# With IMAGES set, the drives' images are made in that directory, or used if they are there, and stay; a flush of the guest reaches them.
# What it prints is printed here as it comes. The guest's console is kept in target/vm-tests/NAME.console.
# Exit 124: not done in time; 125: the guest failed (panic, no status); 77 after `SKIP: reason`: no guest can run here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
PATH="$PATH:/usr/sbin:/sbin"
KERNEL=${KERNEL:-6.1} FULL=${FULL:-0}
target=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")
HOTSHELF=${HOTSHELF:-$target/release/hotshelf}
export ROOT HOTSHELF FULL KERNEL LC_ALL=C
script=$(realpath "${1:?usage: tests/vm/boot.sh SCRIPT}")
name=$(basename "$script" .sh)
kernel=$target/vm/kernel-$KERNEL
out=$target/vm-tests
console=$out/$name.console
work='' running=''

usage() { echo "$script: $*" >&2; exit 2; }
broken() { echo "the guest failed: $*; its console ends:"; tail -n 30 "$console" | tr -d '\r' | sed 's/^/    /'; exit 125; }

clean() {
    if [[ -n $running ]]; then
        kill -KILL "$running" 2>/dev/null || true
    fi
    if [[ -n $work ]]; then
        rm -rf -- "$work"
    fi
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

# head_of KEY: the value of the line `# KEY: value` in the script's head.
head_of() { sed -n "1,30s/^# $1: *//p" "$script" | head -1; }

time_limit() {
    local value
    value=$(head_of TIMEOUT)
    if [[ $FULL == 1 ]]; then
        value=$(head_of TIMEOUT_FULL | grep . || echo "$value")
    fi
    echo "${value:-300}"
}

drives=() devices=()
# add_drive NAME OPTIONS: the arguments that make it, into devices.
add_drive() {
    local drive=$1 option key value nsid node chain blocks image flush subsystem=''
    local size=256M lbas=512 namespaces=1 mdts=7 cache=on iops='' bps='' spare=0 aio=threads
    [[ $drive =~ ^[a-z][a-z0-9]{0,15}$ ]] || usage "drive name '$drive': a letter, then letters and digits, at most 16"
    for option in ${2//,/ }; do
        key=${option%%:*} value=${option#*:}
        case $option in
            size:[1-9]*[0-9KMG] | lbas:512 | lbas:4096 | namespaces:[1-9] | spare:[1-9] | mdts:[0-9] | cache:on | cache:off) ;;
            iops:[1-9]* | bps:[1-9]* | aio:threads | aio:io_uring) ;;
            *) usage "drive $drive: unknown option or value '$option' (tests/vm/boot.sh names them)" ;;
        esac
        printf -v "$key" %s "$value"
    done
    if ((spare > 0)); then
        # Only a subsystem knows of namespaces that no controller has.
        devices+=(-device "nvme-subsys,id=$drive-subsystem,nqn=$drive")
        subsystem=,subsys=$drive-subsystem
    fi
    devices+=(-device "nvme,id=$drive,serial=$drive,mdts=$mdts$subsystem")
    if [[ -n $iops$bps ]]; then
        iops=${iops:+,x-iops-total=$iops,x-iops-size=131072} bps=${bps:+,x-bps-total=$(numfmt --from=iec "$bps")}
        devices+=(-object "throttle-group,id=$drive-limit$iops$bps")
    fi
    for ((nsid = 1; nsid <= namespaces + spare; nsid++)); do
        node=$drive-$nsid
        image=${IMAGES:-$work}/$node.img
        truncate -s "$size" "$image"
        # Images that are thrown away: a flush of the guest need not reach the host's disk.
        flush=$([[ -n ${IMAGES:-} ]] && echo off || echo on)
        devices+=(-blockdev "driver=file,node-name=$node-file,filename=$image,aio=$aio,discard=unmap,cache.no-flush=$flush")
        chain=$node-file
        if [[ -n $iops$bps ]]; then
            devices+=(-blockdev "driver=throttle,node-name=$node-slow,throttle-group=$drive-limit,file=$chain")
            chain=$node-slow
        fi
        blocks=logical_block_size=$lbas,physical_block_size=$lbas,write-cache=$cache
        if ((nsid > namespaces)); then
            blocks+=,detached=on
        fi
        devices+=(-device "nvme-ns,bus=$drive,drive=$chain,nsid=$nsid,$blocks")
    done
    drives+=("$drive:$namespaces")
}

add_drives() {
    local word
    for word in $(sed -n '1,30s/^# drives: *//p' "$script"); do
        add_drive "${word%%=*}" "$(cut -s -d= -f2- <<<"$word")"
    done
}

# What tests/vm/guest.sh finds in the share.
write_job() {
    local SCRATCH=/run/scratch RESULTS=/run/share/results
    mkdir -p "$work/share/results"
    cp "$here/guest.sh" "$work/share/"
    {
        printf 'script=%q drives=%q\n' "$script" "${drives[*]}"
        printf 'export %s=%q\n' ROOT "$ROOT" HOTSHELF "$HOTSHELF" FULL "$FULL" KERNEL "$KERNEL" SCRATCH "$SCRATCH" RESULTS "$RESULTS" \
            MODULE "$module" PACKAGES "$target/vm/packages" \
            PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME "${HOME:-/}" LC_ALL C TERM dumb
    } >"$work/share/job"
}

# share TAG PATH [OPTION]: a directory of the host for the guest.
share() { devices+=(-virtfs "local,mount_tag=$1,path=$2,security_model=none,multidevs=remap${3:+,$3}"); }

run_guest() {
    local seconds=$1 memory arguments threads=multi
    memory=$(head_of memory)
    if [[ $(head_of processors) == "in turn" ]]; then
        threads=single
    fi
    arguments="console=ttyS0 quiet panic=-1 oops=panic mitigations=off no_timer_check nokaslr intel_iommu=on nvme_core.multipath=N"
    # Clearing each page when it is allocated, and once more when it is used, takes time that here counts thirtyfold.
    arguments+=" init_on_alloc=0"
    # -cpu: without features that are fast in a real CPU and slow here: string instructions for whole pages (erms), a switch around each
    # access to a program's memory (smap), a fifth level of page tables, protection keys.
    # What comes out of the port. Not at once our standard output: qemu opens what it is given, and that may be a file.
    exec 3> >(exec cat)
    copier=$!
    # Each process ends with the one that started it, so that no guest stays behind whatever is killed.
    setpriv --pdeathsig KILL -- timeout --kill-after=5 "$seconds" setpriv --pdeathsig KILL -- qemu-system-x86_64 \
        -machine q35 -accel tcg,thread=$threads -cpu max,-erms,-smap,-la57,-pku -smp 2 -m "${memory:-2G}" \
        -nodefaults -no-user-config -display none -no-reboot -name "hotshelf-$name" \
        -kernel "$kernel/linux" -initrd "$kernel/initramfs.cpio" \
        -append "$arguments $(head_of kernel)" \
        -chardev "file,id=console,path=$console" -serial chardev:console \
        -device virtio-serial-pci -chardev file,id=output,path=/dev/fd/3,append=on -device virtserialport,chardev=output,name=output \
        -device intel-iommu,intremap=on,aw-bits=48 \
        "${devices[@]}" </dev/null &
    running=$!
    wait "$running" && code=0 || code=$?
    running=
    exec 3>&-
    wait "$copier" || true
}

code=0
"$here/prepare.sh" || exit
module=$(head_of module)
if [[ -n $module ]]; then
    "$here/module.sh" || exit
    module=$kernel/$module/$module.ko
fi
packages=$(head_of packages)
if [[ -n $packages ]]; then
    # shellcheck disable=SC2086 # several
    "$here/unpack.sh" $packages || exit
fi
mkdir -p "$out"
: >"$console"
seconds=$(time_limit)
work=$(mktemp -d "$out/$name.XXXXXX")
add_drives
write_job
share host / readonly=on
share modules "$kernel/modules" readonly=on
share share "$work/share"
begin=$SECONDS
run_guest "$seconds"
rm -rf "${out:?}/$name"
mv "$work/share/results" "$out/$name"
rmdir --ignore-fail-on-non-empty "$out/$name"
if ((code != 0 && SECONDS - begin >= seconds)); then
    echo "not done after $seconds s; the guest's console ends:"
    tail -n 30 "$console" | tr -d '\r' | sed 's/^/    /'
    exit 124
fi
((code == 0)) || broken "qemu ended with $code"
! grep -qa 'Kernel panic' "$console" || broken "its kernel panicked"
status=$(cat "$work/share/status" 2>/dev/null) || broken "it ended without a status"
[[ $status =~ ^[0-9]+$ ]] || broken "its status is '$status'"
exit "$status"
