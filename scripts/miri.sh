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
# Seeds and counts are smaller under Miri (cfg(miri)).
export PROPTEST_CASES=4
export MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-permissive-provenance'
# Left out: drivers of the kernel, and calls of it that Miri has not (processes, locks of files, timers' slack, epoll by levels); and
# simulations that count what happens in many thousand looks or requests: they have neither unsafe code nor memory that others change,
# and the tests that go through the same code with a few are here.
left_out=(--skip driver::uring --skip driver::file --skip driver::claim --skip driver::plain --skip driver::passthrough)
left_out+=(--skip completion::calibrate --skip completion::reaper --skip handle::served)
left_out+=(--skip completion::adaptive --skip completion::serve --skip four_of_five_sleeps)
left_out+=(--skip classes_that_wait --skip limits_are_kept --skip a_busy_foreground)
left_out+=(--skip test::shares --skip test::mix --skip a_flood_is_cut --skip no_window_has_more_than_a_burst)
cargo +nightly miri test --locked -p shm -p block --lib -- "${left_out[@]}"
cargo +nightly miri test --locked -p block --test handle
# The driver of NVMe controllers: its rings, which a device changes meanwhile, and what it makes of a device's words.
cargo +nightly miri test --locked -p nvme --lib
