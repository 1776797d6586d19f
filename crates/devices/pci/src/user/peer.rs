//! The process at the other end, and whether it has ended.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::link::{Link, timespec};

/// How long a process that has closed its sockets may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// The process that listened on the socket (SO_PEERCRED).
pub(super) struct Peer {
    /// None: it is in another pid namespace, or ended already: nothing is known of it, ever.
    process: Option<OwnedFd>,
    /// Its end was waited for; it is not again.
    waited: AtomicBool,
}

impl Peer {
    /// Finds the process that listens on the socket.
    pub fn of(link: &Link) -> Peer {
        let listener = rustix::net::sockopt::socket_peercred(link).ok();
        let process = listener.and_then(|listener| pidfd_open(listener.pid, PidfdFlags::empty()).ok());
        Peer { process, waited: AtomicBool::new(false) }
    }

    /// Whether it is certain that it reaches no memory: nobody holds its end of the connection, and the process itself has ended, with
    /// all its mappings. A process ends some time after its sockets are closed: that is waited for, once.
    pub fn has_ended(&self, link: &Link) -> bool {
        let Some(process) = self.process.as_ref().filter(|_| link.is_closed()) else { return false };
        let most = if self.waited.swap(true, Ordering::AcqRel) { Duration::ZERO } else { ENDING };
        let until = Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timespec(left))) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(_) if left.is_zero() => return false,
                Err(_) => {}
            }
        }
    }
}
