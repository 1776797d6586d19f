//! How many of the serving threads wait for requests.
//!
//! The kernel gives the next request to the thread that has waited longest. With many waiting, each request of a lonely
//! client wakes another one, on any CPU, with a cold cache: a stat(2) took twice as long with
//! eight threads as with two. So a thread that is done rests when enough others wait, and is called as soon as none does:
//!
//! ```text
//!   waiting --request--> busy --done--> waiting, or resting when READY others wait
//!      ^                  |
//!      +---- resting <----+ the last one that waited: calls a resting one
//! ```

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Threads that wait while others rest. One alone would have to call another at each request.
const READY: usize = 2;
/// Requests in a row that found others waiting, before threads begin to rest.
const CALM_MAX: u32 = 64;
/// Nobody tells a resting thread that the mount has ended.
const REST: Duration = Duration::from_millis(100);

/// The threads of a mount.
#[derive(Debug)]
pub struct ReaderPool {
    /// Waiting for a request, or about to.
    ready: AtomicUsize,
    resting: AtomicUsize,
    /// Requests since the last one that found nobody else waiting.
    calm: AtomicU32,
    /// How many are called.
    called: Mutex<usize>,
    bell: Condvar,
    rest: Duration,
}

/// Marks a thread as busy, from a request's arrival to its reply.
#[derive(Debug)]
pub struct BusyReader<'a>(&'a ReaderPool);

impl ReaderPool {
    /// Creates a pool of `threads` threads, all of which are about to wait.
    pub fn new(threads: usize) -> ReaderPool {
        ReaderPool {
            ready: AtomicUsize::new(threads),
            resting: AtomicUsize::new(0),
            calm: AtomicU32::new(0),
            called: Mutex::new(0),
            bell: Condvar::new(),
            rest: REST,
        }
    }

    /// Records that a thread took a request. It is done with it when the returned value is dropped.
    pub fn take(&self) -> BusyReader<'_> {
        if self.ready.fetch_sub(1, SeqCst) == 1 {
            self.calm.store(0, SeqCst);
            if self.resting.load(SeqCst) > 0 {
                *self.called.lock() += 1;
                self.bell.notify_one();
            }
        }
        BusyReader(self)
    }

    /// Adds a thread that is about to wait.
    pub fn join(&self) {
        self.ready.fetch_add(1, SeqCst);
    }

    /// Removes a thread that will not wait again.
    pub fn leave(&self) {
        self.ready.fetch_sub(1, SeqCst);
    }

    /// Calls all threads that rest, as if each were needed.
    pub fn wake_all(&self) {
        *self.called.lock() += self.resting.load(SeqCst);
        self.bell.notify_all();
    }

    fn done(&self) {
        if self.ready.load(SeqCst) >= READY && self.calm.fetch_add(1, SeqCst) >= CALM_MAX {
            self.rest();
        }
        self.ready.fetch_add(1, SeqCst);
    }

    fn rest(&self) {
        let mut called = self.called.lock();
        self.resting.fetch_add(1, SeqCst);
        // The last thread that took a request before this saw no resting thread.
        if *called == 0 && self.ready.load(SeqCst) >= READY {
            self.bell.wait_for(&mut called, self.rest);
        }
        *called = called.saturating_sub(1);
        self.resting.fetch_sub(1, SeqCst);
    }
}

impl Drop for BusyReader<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_rests_while_others_wait_and_is_called_by_the_last() {
        let reader_pool = ReaderPool { rest: Duration::from_secs(3600), ..ReaderPool::new(READY + 1) };
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| (0..=CALM_MAX).for_each(|_| drop(reader_pool.take())));
            while reader_pool.resting.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let busy: Vec<BusyReader<'_>> = (0..READY).map(|_| reader_pool.take()).collect();
            resting.join().expect("called");
            assert_eq!((reader_pool.ready.load(SeqCst), reader_pool.resting.load(SeqCst)), (1, 0));
            drop(busy);
        });
        assert_eq!((reader_pool.ready.load(SeqCst), *reader_pool.called.lock()), (READY + 1, 0));
    }

    #[test]
    fn few_threads_never_rest() {
        let reader_pool = ReaderPool { rest: Duration::from_secs(3600), ..ReaderPool::new(READY) };
        (0..CALM_MAX * 3).for_each(|_| drop(reader_pool.take()));
        assert_eq!(reader_pool.ready.load(SeqCst), READY);
    }
}
