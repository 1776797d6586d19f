//! A child of fork(2) can keep using files of the cache: it attaches by itself. Devices, queues and asynchronous requests belong to the
//! parent only.
//!
//! The locks of the u calls' tables are held during the fork, so that the child finds none locked by a thread that it does not have.
#![expect(unsafe_code, reason = "pthread_atfork(3); locks that another function lets go")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{cache, hazard, ulock, uopen};

/// This is a forked child: its memory has our objects, but the threads and rings behind them are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The process (or forked child) has not used files yet.
static UNUSED: AtomicBool = AtomicBool::new(true);

/// Installs the fork handlers of the library.
pub fn watch() {
    extern "C" fn before() {
        uopen::hold();
        ulock::hold();
        cache::hold();
    }
    extern "C" fn in_parent() {
        let_go(false);
    }
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
        UNUSED.store(true, Ordering::Relaxed);
        hazard::forked();
        let_go(true);
    }
    // SAFETY: the functions take locks that this thread does not hold, and let them go again; the child's also empties a table, which
    // frees memory: C's library keeps its allocator usable there. Without memory for this, forks go unnoticed.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

fn let_go(is_child: bool) {
    // SAFETY: `before` took them, in this thread or the one that this is the child of.
    unsafe {
        cache::let_go();
        ulock::let_go(is_child);
        uopen::let_go();
    }
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
