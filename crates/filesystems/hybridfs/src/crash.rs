//! Places where a test may end the process.
//!
//! `HOTSHELF_CRASH_AT=N` in the environment makes the Nth point reached end the process at once, as
//! `kill -9` would. Without it a point is one load and one branch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

static LEFT: OnceLock<Option<AtomicI64>> = OnceLock::new();

/// A step after which the disk differs from the steps before and after.
pub fn point(name: &'static str) {
    let left = LEFT.get_or_init(|| {
        let wanted: i64 = shm::environment::var("HOTSHELF_CRASH_AT")?.parse().ok()?;
        Some(AtomicI64::new(wanted))
    });
    if let Some(left) = left
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        tracing::error!(point = name, "crash asked for by HOTSHELF_CRASH_AT");
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        std::process::abort();
    }
}
