//! What wakes the completion thread: a descriptor of its own, and those of the queues.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Wakes one thread. Rung before it is waited for, the wait returns at once.
pub(super) trait ThreadNotifier: Send + Sync {
    /// Wakes whoever waits, or the next to do so.
    fn ring(&self);

    /// Waits to be rung, for `at_most`; with `events` also for the descriptors of queues. May return early.
    fn wait(&self, at_most: Option<Duration>, events: bool);
}

/// Of the kernel.
pub(super) struct SystemBell {
    own: OwnedFd,
    all: OwnedFd,
}

const OWN: u64 = u64::MAX;

impl SystemBell {
    pub(super) fn new() -> io::Result<SystemBell> {
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let all = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&all, &own, EventData::new_u64(OWN), EventFlags::IN)?;
        Ok(SystemBell { own, all })
    }

    /// A queue's descriptor counts from now on.
    pub(super) fn watch(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        match epoll::add(&self.all, event, EventData::new_u64(0), EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Not any more.
    pub(super) fn forget(&self, event: BorrowedFd<'_>) {
        // It cannot but be there; if not, it is forgotten already.
        let _ = epoll::delete(&self.all, event);
    }

    fn quiet(&self) {
        // Nonblocking: whether it was rung does not matter.
        let _ = rustix::io::read(&self.own, &mut [0_u8; 8]);
    }
}

impl ThreadNotifier for SystemBell {
    fn ring(&self) {
        // Full means rung.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    fn wait(&self, at_most: Option<Duration>, events: bool) {
        let timeout = at_most.and_then(|at_most| Timespec::try_from(at_most).ok());
        let rung = if events {
            let mut found = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
            match epoll::wait(&self.all, &mut found[..], timeout.as_ref()) {
                Ok(count) => found[..count].iter().any(|event| event.data.u64() == OWN),
                Err(_) => false,
            }
        } else {
            let mut own = [PollFd::from_borrowed_fd(self.own.as_fd(), PollFlags::IN)];
            poll(&mut own, timeout.as_ref()).is_ok_and(|count| count > 0)
        };
        if rung {
            self.quiet();
        }
    }
}
