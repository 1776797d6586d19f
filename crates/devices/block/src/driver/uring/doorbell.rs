//! The system call of a ring by itself, for who does not have the ring at the moment.
#![expect(unsafe_code, reason = "enters the kernel")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::queue::Doorbell;

/// Takes what was pushed. What it names stays in place until its completion was seen: who pushed it promised that, and a queue
/// lets go of its memory only when nothing pushed is left.
pub(super) struct RingDoorbell {
    ring: OwnedFd,
    entries: u32,
    /// Threads in the call.
    inside: AtomicU32,
}

impl RingDoorbell {
    /// Of a ring with so many entries.
    pub(super) fn new(ring: OwnedFd, entries: u32) -> RingDoorbell {
        RingDoorbell { ring, entries, inside: AtomicU32::new(0) }
    }

    /// Somebody is in the call, and takes what was pushed before; the kernel lets one in at a time.
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
