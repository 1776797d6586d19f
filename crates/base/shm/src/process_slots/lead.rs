//! Who leads: one process at a time, by one more byte of the lock file.

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use super::ProcessSlots;
use super::local::{LEADING, NOT_LEADING, TRYING};
use crate::bytes;
use crate::notifier::Notifier;

/// The leader's byte of the lock file.
const LEADER: u32 = 64;
/// How long a candidate sleeps before it tries again, where the kernel cannot wake it.
const RETRY: Duration = Duration::from_millis(10);

impl ProcessSlots {
    /// Waits until we lead; there is one leader at a time. The kernel wakes us the moment the leader ends. Not to be called off: see
    /// [`ProcessSlots::lead_unless`].
    ///
    /// # Errors
    /// The kernel refuses to lock.
    pub fn lead(&self) -> io::Result<()> {
        loop {
            let since = self.notifier().look();
            if self.local.leading().compare_exchange(NOT_LEADING, TRYING, AcqRel, Relaxed).is_ok() {
                let locked = self.locks.as_ref().map_or(Ok(()), |fd| bytes::lock(fd, LEADER));
                self.won(locked.is_ok());
                match locked.map_err(|error| (error.raw_os_error(), error)) {
                    Ok(()) => return Ok(()),
                    Err((Some(libc::EINTR), _)) => continue,
                    // We lead elsewhere, and who leads here waits there: the kernel takes that for a deadlock, and it is none.
                    Err((Some(libc::EDEADLK), _)) => {}
                    Err((_, error)) => return Err(error),
                }
            }
            self.notifier().wait(since, RETRY);
        }
    }

    /// Waits until we lead (true), or `stop` says so (false); after it is set, [`ProcessSlots::nudge`] makes us look at once. Finds
    /// out that the leader died within 10 ms.
    /// Calls `beside` at least every 10 ms.
    pub fn lead_unless(&self, stop: &AtomicBool, beside: impl Fn()) -> bool {
        loop {
            let since = self.notifier().look();
            if stop.load(Acquire) {
                return false;
            }
            if self.try_lead() {
                return true;
            }
            self.answer_owner_queries();
            beside();
            self.notifier().wait(since, RETRY);
        }
    }

    /// Wakes the callers of [`ProcessSlots::lead_unless`], to check again.
    pub fn nudge(&self) {
        self.notifier().notify();
    }

    /// Leads if nobody does. False too if we do already: one thread of a process leads.
    pub fn try_lead(&self) -> bool {
        if self.local.leading().compare_exchange(NOT_LEADING, TRYING, AcqRel, Relaxed).is_err() {
            return false;
        }
        let locked = self.locks.as_ref().is_none_or(|fd| bytes::try_lock(fd, LEADER).unwrap_or(false));
        self.won(locked);
        locked
    }

    /// Reports whether this process is the leader.
    pub fn is_leading(&self) -> bool {
        self.local.leading().load(Acquire) == LEADING
    }

    /// Whether we lead still, for the leader to ask before what two must not do; false when its lock was dropped by somebody who closed
    /// the lock file in this process, and another led since. A call of the kernel.
    pub fn still_leading(&self) -> bool {
        if !self.is_leading() {
            return false;
        }
        let locked = self.locks.as_ref().is_none_or(|fd| bytes::try_lock(fd, LEADER).unwrap_or(false));
        let still = locked && self.term().load(Acquire) == self.local.term().load(Relaxed);
        if !still {
            self.resign();
        }
        still
    }

    /// Who leads; 0: a process of another pid namespace.
    pub fn leader(&self) -> Option<u32> {
        if self.is_leading() {
            return Some(std::process::id());
        }
        self.locks.as_ref().and_then(|fd| bytes::holder(fd, LEADER).ok().flatten())
    }

    /// Stops leading; whoever waits for it leads. Nothing of the leader's may be under way.
    pub fn resign(&self) {
        if self.is_leading() {
            if let Some(fd) = &self.locks {
                bytes::unlock(fd, LEADER);
            }
            self.local.leading().store(NOT_LEADING, Release);
            self.notifier().notify();
        }
    }

    /// The end of trying. A new leader has a new term: whoever led before sees it.
    fn won(&self, leading: bool) {
        if leading {
            self.local.term().store(self.term().fetch_add(1, AcqRel).wrapping_add(1), Relaxed);
        }
        self.local.leading().store(if leading { LEADING } else { NOT_LEADING }, Release);
        if leading {
            self.send_heartbeat();
        }
    }

    fn notifier(&self) -> Notifier<'_> {
        Notifier::new(&self.region, self.at)
    }

    fn term(&self) -> &AtomicU32 {
        self.region.u32(self.at + 4)
    }
}
