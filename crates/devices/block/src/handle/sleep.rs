//! Sleeping until one of several file descriptors is readable.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most descriptors of one call.
pub(super) const FDS_MAX: usize = 8;

/// Sleeps until a descriptor is readable, or for `at_most`. May return early, for instance after a signal.
pub(crate) fn until_readable(fds: &[BorrowedFd<'_>], at_most: Duration) {
    assert!(!fds.is_empty() && fds.len() <= FDS_MAX);
    if cfg!(miri) {
        // It knows no poll(2). How often threads come here depends on how fast they are.
        return std::thread::yield_now();
    }
    let mut set: [PollFd<'_>; FDS_MAX] = std::array::from_fn(|at| PollFd::from_borrowed_fd(fds[at.min(fds.len() - 1)], PollFlags::IN));
    // After an error the caller polls again, as after any other return.
    let _ = poll(&mut set[..fds.len()], Timespec::try_from(at_most).ok().as_ref());
}
