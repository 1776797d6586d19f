//! The submission system call of a ring, for threads that do not hold the ring.
#![expect(unsafe_code, reason = "enters the kernel")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::queue::Doorbell;

/// Submits the pushed entries. The memory that an entry names stays in place until its completion was seen: the caller of `push` promised
/// that, and a queue frees its memory only when no pushed entry is left.
pub(super) struct RingDoorbell {
    ring: OwnedFd,
    entries: u32,
    /// The number of threads in the call.
    inside: AtomicU32,
}

impl RingDoorbell {
    /// Creates a doorbell for a ring with this number of entries.
    pub(super) fn new(ring: OwnedFd, entries: u32) -> RingDoorbell {
        RingDoorbell { ring, entries, inside: AtomicU32::new(0) }
    }

    /// Returns whether a thread is in the call and submits earlier entries; the kernel admits one thread at a time.
    pub(super) fn is_rung(&self) -> bool {
        self.inside.load(Ordering::SeqCst) > 0
    }
}

impl Doorbell for RingDoorbell {
    fn ring(&self) -> bool {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let none = std::ptr::null::<libc::sigset_t>();
        // SAFETY: it takes entries whose memory was promised when they were pushed, and waits for nothing.
        let taken = unsafe { libc::syscall(libc::SYS_io_uring_enter, self.ring.as_raw_fd(), self.entries, 0_u32, 0_u32, none, 0_usize) };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        taken >= 0
    }
}
