# Shared by the tests that run in the guest; sourced, never run. tests/vm/boot.sh says what they are given.
# shellcheck shell=bash
set -euo pipefail

fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "SKIP: $*"; exit 77; }

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "$program is not installed"
    done
}

# wait_until SECONDS COMMAND...: polls until COMMAND succeeds.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || fail "not within the time: $*"
        sleep 0.05
    done
}

# The numbers of drives change from boot to boot, their serials do not. All of these take the serial, and start no program: each
# costs some 50 ms in the guest.

# controller SERIAL: nvme0
controller() {
    local place serial
    for place in /sys/class/nvme/nvme*; do
        # Read without the blanks it is filled up with.
        if read -r serial <"$place/serial" && [[ $serial == "$1" ]]; then
            echo "${place##*/}"
            return
        fi
    done
    fail "no NVMe drive with the serial $1"
}

# namespace SERIAL [NSID]: nvme0n1
namespace() {
    local name place nsid
    name=$(controller "$1")
    for place in "/sys/class/nvme/$name/$name"n*; do
        if read -r nsid <"$place/nsid" && [[ $nsid == "${2:-1}" ]]; then
            echo "${place##*/}"
            return
        fi
    done
    fail "$1 has no namespace ${2:-1}"
}

# block SERIAL [NSID]: /dev/nvme0n1
block() { local name; name=$(namespace "$@"); echo "/dev/$name"; }

# char SERIAL [NSID]: /dev/ng0n1, which takes NVMe commands
char() { local name; name=$(namespace "$@"); echo "/dev/${name/#nvme/ng}"; }

# pci SERIAL: 0000:00:04.0
pci() { local name; name=$(controller "$1"); cat "/sys/class/nvme/$name/address"; }

# driver_of ADDRESS: the driver a PCI device is bound to, or none.
driver_of() { basename "$(realpath -e "/sys/bus/pci/devices/$1/driver" 2>/dev/null || echo none)"; }

# bind ADDRESS DRIVER: takes a PCI device from its driver and gives it to another.
bind() {
    local device=/sys/bus/pci/devices/$1
    modprobe "$2"
    echo "$2" >"$device/driver_override"
    if [[ -e $device/driver ]]; then
        echo "$1" >"$device/driver/unbind"
    fi
    echo "$1" >/sys/bus/pci/drivers_probe
    [[ $(driver_of "$1") == "$2" ]] || fail "$1 is bound to $(driver_of "$1"), not to $2"
}
