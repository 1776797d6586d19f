//! A child of fork(2) can keep using files of the cache: it attaches by itself. Devices, queues and asynchronous requests belong to the
//! parent only.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::hazard;

/// This is a forked child: its memory has our objects, but the threads and rings behind them are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The process (or forked child) has not used files yet.
static UNUSED: AtomicBool = AtomicBool::new(true);

/// Notes that this process is now a forked child, which has not used files yet.
pub fn become_child() {
    FORKED.store(true, Ordering::Relaxed);
    UNUSED.store(true, Ordering::Relaxed);
}

/// Returns whether this is a forked child.
#[inline]
pub fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Returns whether this process has not used files yet.
#[inline]
pub fn uses_no_files() -> bool {
    UNUSED.load(Ordering::Relaxed)
}

/// Handles the first call on files in this process.
#[cold]
#[inline(never)]
pub fn use_files() {
    UNUSED.store(false, Ordering::Relaxed);
    hazard::enable_fast_path();
}

/// Returns whether this process has files to close at exit.
pub fn has_files() -> bool {
    !is_child() || !uses_no_files()
}
