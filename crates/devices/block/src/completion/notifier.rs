//! Wakes the completion thread: by an eventfd, and by the descriptors of the queues.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Wakes one thread. If it is signalled before the wait, the wait returns at once.
pub(super) trait ThreadNotifier: Send + Sync {
    /// Wakes the thread that waits, or makes its next wait return at once.
    fn ring(&self);

    /// Waits for a signal, for at most `at_most`; with `events` also for the queues' descriptors. May return early.
    fn wait(&self, at_most: Option<Duration>, events: bool);
}

/// The notifier of the operating system: an eventfd and an epoll instance.
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

    /// Adds a queue's descriptor to the wait.
    pub(super) fn watch(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        match epoll::add(&self.all, event, EventData::new_u64(0), EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a queue's descriptor from the wait.
    pub(super) fn forget(&self, event: BorrowedFd<'_>) {
        // The descriptor must be there; if not, it was removed already.
        let _ = epoll::delete(&self.all, event);
    }

    fn quiet(&self) {
        // A nonblocking read: it does not matter whether there was a signal.
        let _ = rustix::io::read(&self.own, &mut [0_u8; 8]);
    }
}

impl ThreadNotifier for SystemBell {
    fn ring(&self) {
        // A full counter means that a signal is pending.
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
