//! The fork handlers: the locks of the u calls' tables are held during a fork, so that the child finds none locked by a thread that it
//! does not have.
#![expect(unsafe_code, reason = "pthread_atfork(3); locks that another function lets go")]

use crate::{cache, fork, hazard, ufiles, ulock};

/// Installs the fork handlers of the library.
pub fn watch() {
    extern "C" fn before() {
        ufiles::hold();
        ulock::hold();
        cache::hold();
    }
    extern "C" fn in_parent() {
        let_go(false);
    }
    extern "C" fn in_child() {
        fork::become_child();
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
        ufiles::let_go();
    }
}
