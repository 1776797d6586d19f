//! Several processes make every u call, one call at a time, while a program without the cache changes, renames, removes and reads the
//! same files; the kernel does the same on shadow files, and each answer is compared.
//!
//! Each worker is this program again (`worker.rs`). It makes its calls from a seed, in batches, and compares them itself. Between two
//! batches the parent (`parent.rs`) is the other program. A run has one mode, SSD, memory and seed; runs go on in several threads.
//!
//! - `LOCKSTEP_CALLS`: how many calls in all; by default 1,000,000.
//! - `LOCKSTEP_FIRST`: the first seed. `LOCKSTEP_SEED`: one run alone, as a failure names it.
//! - `LOCKSTEP_TRACE`: a failure prints the last calls of all processes.
#![expect(unsafe_code, reason = "calls the library as C does, and the kernel beside it")]

mod abi;
mod calls;
mod parent;
mod setup;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Calls of a batch.
pub const BATCH: u64 = 100;
/// Batches of a run.
pub const RUN: u64 = 100;
/// Processes of a run.
pub const WORKERS: usize = 3;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs that found a fault once: a file past the cache was read through it in read-only mode (812, 2127, 6628); a file in a directory that
/// a process moved was not found by the next leader (21060); closing a directory stream kept record locks (21717); a removed file that only
/// a killed process had open was missed (28131); a removed file stayed in the status as missing (51423).
const FOUND: [u64; 7] = [812, 2127, 6628, 21060, 21717, 28131, 51423];

/// Not a test by itself: a process of a run.
#[test]
fn worker() {
    worker::main();
}

#[test]
fn every_call_is_as_the_kernels_beside_another_program() {
    if let Some(seed) = number("LOCKSTEP_SEED") {
        return parent::run(seed, RUN);
    }
    let (first, calls) = (number("LOCKSTEP_FIRST").unwrap_or(0), number("LOCKSTEP_CALLS").unwrap_or(1_000_000));
    let last = first + calls.div_ceil(BATCH * RUN);
    let (next, begun, has_failed) = (AtomicU64::new(first), std::time::Instant::now(), AtomicBool::new(false));
    let work = || {
        while !has_failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last {
                return;
            }
            let done = std::panic::catch_unwind(|| parent::run(seed, RUN));
            if let Err(payload) = done {
                has_failed.store(true, Ordering::Relaxed);
                std::panic::resume_unwind(payload);
            }
            if (seed + 1 - first).is_multiple_of(100) {
                println!("{} calls in {} s", (seed + 1 - first) * BATCH * RUN, begun.elapsed().as_secs());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..number("LOCKSTEP_THREADS").unwrap_or(2) {
            scope.spawn(work);
        }
    });
}

#[test]
fn runs_that_found_faults_find_none() {
    if number("LOCKSTEP_SEED").or(number("LOCKSTEP_FIRST")).is_none() {
        FOUND.iter().for_each(|seed| parent::run(*seed, RUN));
    }
}
