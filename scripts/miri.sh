#!/bin/bash
# Runs the tests of what devices and other processes write to under Miri, which sees undefined behaviour. It needs a nightly
# toolchain with Miri; where that cannot be had this is skipped, saying so.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    if ! timeout 300 rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1; then
        echo "SKIP: no Miri: rustup toolchain install nightly --component miri,rust-src"
        exit 0
    fi
fi
# The seeds and counts of tests are smaller under Miri (cfg(miri)); the drivers of the kernel are left out, it has none.
export MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-permissive-provenance'
exec cargo +nightly miri test --locked -p shm -p block --lib --tests -- "$@"
