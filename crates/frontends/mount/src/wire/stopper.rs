//! What the threads that serve a mount have in common, and how they are stopped between two requests.

use std::time::Instant;

use super::pause::ReaderPause;
use crate::blocking_pool::BlockingPool;
use crate::reader_pool::ReaderPool;

/// Stops serving a mount between two requests.
pub struct MountStopper {
    /// Number of threads that read requests.
    pub(super) threads: usize,
    pub(super) pause: ReaderPause,
    pub(super) blocking_pool: BlockingPool,
    /// With a deadline, reads have threads of their own: what the SSD has does not wait for calls that are stuck.
    pub(super) read_pool: BlockingPool,
    pub(super) reader_pool: ReaderPool,
}

impl MountStopper {
    /// Creates the stopper of a mount with so many reading threads.
    pub(super) fn new(threads: usize) -> MountStopper {
        MountStopper {
            threads,
            pause: ReaderPause::default(),
            blocking_pool: BlockingPool::default(),
            read_pool: BlockingPool::default(),
            reader_pool: ReaderPool::new(threads),
        }
    }

    /// Lets the threads finish the requests that they have, and take no other. Returns whether all have done so by the deadline.
    pub fn pause(&self, deadline: Instant) -> bool {
        self.pause.pause(deadline, &|| self.reader_pool.wake_all())
    }

    /// Returns whether no request waits for a slow disk.
    pub fn is_idle(&self) -> bool {
        self.blocking_pool.is_idle() && self.read_pool.is_idle()
    }

    /// Lets the threads go on.
    pub fn resume(&self) {
        self.pause.resume();
    }

    /// Makes all threads end, so that serving ends.
    pub fn end(&self) {
        self.pause.end();
    }
}
