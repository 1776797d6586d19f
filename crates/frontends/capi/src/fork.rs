//! A child of fork(2) goes on with files of the cache: it takes part in it by itself. Devices, queues and asynchronous requests are
//! the parent's alone.
//!
//! Around the fork the locks of the u calls' tables are held, so that none is found taken by a thread that the child does not have.
#![expect(unsafe_code, reason = "pthread_atfork(3); locks that another function lets go")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{cache, hazard, ulock, uopen};

/// This is the child of a fork: its memory has our objects, but the threads and rings behind them are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// It has used no files itself yet: a process, or the child of a fork.
static UNUSED: AtomicBool = AtomicBool::new(true);

/// Watches for forks from now on.
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

/// Whether this is the child of a fork.
#[inline]
pub fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Whether this process has used no files yet.
#[inline]
pub fn uses_no_files() -> bool {
    UNUSED.load(Ordering::Relaxed)
}

/// A call on files, the first in this process.
#[cold]
#[inline(never)]
pub fn use_files() {
    UNUSED.store(false, Ordering::Relaxed);
    hazard::enable_fast_path();
}

/// Whether this process has files to close at its end.
pub fn has_files() -> bool {
    !is_child() || !uses_no_files()
}
