//! A queue as the completion thread sees it, and the options of the thread.

use std::os::fd::BorrowedFd;

use super::calibrate::WakeupLatency;
use super::mode::{Mode, cores};
use crate::clock::Time;
use crate::queue::Armed;

/// A queue that several threads may use, and whose completions the thread detects.
///
/// A submitter makes the request visible in `expected`, rings the queue's doorbell, and then calls
/// [`Waker::submitted`](super::Waker::submitted).
pub trait Reap: Send + Sync {
    /// Takes completions, delivers them, and returns their number. Other threads may call it at the same time as the completion thread.
    fn reap(&self) -> usize;

    /// Returns when the next poll is worthwhile, by the clock of [`Reaper::start`](super::Reaper::start): a time in the past if
    /// unknown, `None` only if nothing is in flight. Should not wait for a lock.
    fn expected(&self) -> Option<Time>;

    /// Returns the same as [`crate::Queue::event`]: always the same descriptor, open as long as the queue lives.
    fn event(&self) -> Option<BorrowedFd<'_>>;

    /// Arms the event as [`crate::Queue::arm`] does.
    fn arm(&self) -> Armed;
}

/// The ID of a queue that the thread serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QueueId(pub(super) u64);

/// The options of a completion thread.
#[derive(Clone, Copy, Debug)]
pub struct ReaperOptions {
    /// The completion mode while requests are in flight.
    pub mode: Mode,
    /// The wakeup latency of this machine.
    pub floor: WakeupLatency,
}

impl Default for ReaperOptions {
    /// Returns the defaults for this machine.
    fn default() -> Self {
        ReaperOptions { mode: Mode::default_for(cores()), floor: WakeupLatency::of_machine() }
    }
}
