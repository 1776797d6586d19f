//! Sleeping until one of several descriptors is readable.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Descriptors in one call.
pub(super) const FDS_MAX: usize = 8;

/// Until one is readable, or for `at_most`. Returns early at will (a signal, for instance).
pub(crate) fn until_readable(fds: &[BorrowedFd<'_>], at_most: Duration) {
    assert!(!fds.is_empty() && fds.len() <= FDS_MAX);
    let mut set: [PollFd<'_>; FDS_MAX] = std::array::from_fn(|at| PollFd::from_borrowed_fd(fds[at.min(fds.len() - 1)], PollFlags::IN));
    // An error is another reason to look again.
    let _ = poll(&mut set[..fds.len()], Timespec::try_from(at_most).ok().as_ref());
}
