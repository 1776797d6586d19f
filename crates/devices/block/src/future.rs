//! Futures as in testFS (paper 002, section 4.1): one thread waits for many requests that worker threads execute.
//!
//! Each worker has an index, called `worker` in the code, and a pair of counters that only grow. The waiting thread alone knows the
//! number of expected requests; the worker counts the completed ones. Everything is done when the two are equal for each worker. One
//! future serves many requests on many queues, through any handles, repeatedly. Unlike the paper's futures it keeps every error with
//! the tag of its request, and it can wait without spinning.
//!
//! ```text
//! the waiting thread: expect(worker, n), distributes the work with promise(worker) ... wait, take_failures
//! an I/O thread, for each completion that it polls: promise.fulfil(tag, status)
//! or the waiting thread polls its own handles: wait_polling
//! ```

use std::time::Duration;

use crate::clock::{Clock, Monotonic};
use crate::error::Error;
use crate::request::Status;
use crate::sync::{Arc, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence, spin_hint};
use crate::units::Tag;

/// The number of errors that a future keeps until the caller takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// All of them: [`Future::expect`] reserves memory for each expected request.
    All,
    /// A fixed number for each worker, allocated when the future is made. Further errors are only counted.
    Bounded(usize),
}

/// How the caller waits: by spinning, sleeping, or first one and then the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Spins, as the paper does: the shortest latency, at the cost of a whole CPU.
    Spin,
    /// Spins for this duration, then sleeps.
    Adaptive(Duration),
    /// Sleeps until the last request completes.
    Park,
}

/// The worker, the tag and the error of a failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedRequest {
    /// The index of the worker that executed it.
    pub worker: usize,
    /// The tag with which the promise was fulfilled.
    pub tag: Tag,
    /// The error of the request.
    pub error: Error,
}

/// The requests that failed since the last [`Future::take_failures`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// The kept errors, by worker, in the order of completion.
    pub kept: Vec<FailedRequest>,
    /// The number of errors beyond the limit of [`Keep::Bounded`].
    pub lost: u64,
}

/// The waiting side: counts the expected requests.
pub struct Future {
    shared: Arc<Shared>,
    expected: Box<[u64]>,
    keep: Keep,
}

/// The worker's side: reports completed requests. Clones belong to the same worker.
#[derive(Clone)]
pub struct Promise {
    shared: Arc<Shared>,
    worker: usize,
}

struct Shared {
    workers: Box<[CompletionCounter]>,
    /// Whether the waiting thread sleeps, or is about to.
    parked: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// On a separate pair of cache lines, because CPUs prefetch pairs.
#[repr(align(128))]
struct CompletionCounter {
    done: AtomicU64,
    /// Accessed only when a request fails.
    failed: Mutex<Failed>,
}

struct Failed {
    kept: Vec<(Tag, Error)>,
    room: usize,
    lost: u64,
}

impl Future {
    /// Creates a future for this number of workers, which are numbered from 0.
    pub fn new(workers: usize, keep: Keep) -> Future {
        let room = match keep {
            Keep::All => 0,
            Keep::Bounded(room) => room,
        };
        let failed = || Failed { kept: Vec::with_capacity(room), room, lost: 0 };
        let workers: Box<[CompletionCounter]> =
            (0..workers).map(|_| CompletionCounter { done: AtomicU64::new(0), failed: Mutex::new(failed()) }).collect();
        let expected = vec![0; workers.len()].into();
        let shared = Shared { workers, parked: AtomicU32::new(0), sleep: Mutex::new(()), wake: Condvar::default() };
        Future { shared: Arc::new(shared), expected, keep }
    }

    /// Expects this many more requests of a worker. The caller does this before it distributes the work.
    pub fn expect(&mut self, worker: usize, requests: u64) {
        self.expected[worker] += requests;
        if self.keep == Keep::All {
            let pending = self.expected[worker] - self.shared.workers[worker].done.load(Ordering::Acquire);
            let mut failed = self.shared.workers[worker].failed.lock();
            failed.kept.reserve(usize::try_from(pending).expect("less than memory"));
            failed.room = failed.kept.capacity();
        }
    }

    /// Returns the promise of a worker, which reports completed requests with it.
    pub fn promise(&self, worker: usize) -> Promise {
        assert!(worker < self.expected.len(), "worker {worker} of {}", self.expected.len());
        Promise { shared: Arc::clone(&self.shared), worker }
    }

    /// Returns the number of expected requests that have not completed.
    pub fn pending(&self) -> u64 {
        let pairs = self.expected.iter().zip(&self.shared.workers);
        pairs.map(|(expected, worker)| expected.saturating_sub(worker.done.load(Ordering::Acquire))).sum()
    }

    /// Returns whether everything expected is done.
    pub fn is_done(&self) -> bool {
        let mut pairs = self.expected.iter().zip(&self.shared.workers);
        pairs.all(|(expected, worker)| worker.done.load(Ordering::Acquire) >= *expected)
    }

    /// Waits until everything expected is done, up to `at_most` ([`Duration::MAX`]: no limit). Returns whether it is done. If not,
    /// the caller can wait again.
    pub fn wait(&mut self, how: Waiting, at_most: Duration) -> bool {
        match how {
            Waiting::Spin => self.spin(at_most),
            Waiting::Park => self.park(at_most),
            Waiting::Adaptive(spin) => {
                let begin = Monotonic::default();
                self.spin(spin.min(at_most)) || self.park(left(at_most, &begin))
            }
        }
    }

    /// Calls `poll` until everything expected is done, or `poll` returns false. Returns whether everything is done. The calling
    /// thread reaps its own handles this way.
    pub fn wait_polling(&mut self, mut poll: impl FnMut() -> bool) -> bool {
        while !self.is_done() {
            if !poll() {
                return self.is_done();
            }
        }
        true
    }

    /// Returns the failed requests. After a wait that returned true these are all failures of the expected requests.
    pub fn take_failures(&mut self) -> Failures {
        let mut all = Failures::default();
        for (at, worker) in self.shared.workers.iter().enumerate() {
            let mut failed = worker.failed.lock();
            all.kept.extend(failed.kept.drain(..).map(|(tag, error)| FailedRequest { worker: at, tag, error }));
            all.lost += std::mem::take(&mut failed.lost);
        }
        all
    }

    fn spin(&self, at_most: Duration) -> bool {
        let begin = Monotonic::default();
        let mut turns: u32 = 0;
        while !self.is_done() {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(64) && left(at_most, &begin).is_zero() {
                return false;
            }
            spin_hint();
        }
        true
    }

    /// Publishes `parked`, then checks the counters; `fulfil` does the reverse. So at least one side sees the other's store.
    fn park(&self, at_most: Duration) -> bool {
        let begin = Monotonic::default();
        let shared = &*self.shared;
        let mut asleep = shared.sleep.lock();
        shared.parked.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut done = self.is_done();
        while !done {
            let left = left(at_most, &begin);
            if left.is_zero() {
                break;
            }
            shared.wake.wait(&mut asleep, left);
            done = self.is_done();
        }
        shared.parked.store(0, Ordering::Relaxed);
        done
    }
}

fn left(at_most: Duration, begin: &Monotonic) -> Duration {
    if at_most == Duration::MAX { at_most } else { at_most.saturating_sub(Duration::from_nanos(begin.now().0)) }
}

impl Promise {
    /// Reports that a request of this worker has completed.
    pub fn fulfil(&self, tag: Tag, status: Status) {
        let worker = &self.shared.workers[self.worker];
        if let Err(error) = status {
            worker.failed.lock().push(tag, error);
        }
        worker.done.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.shared.parked.load(Ordering::Relaxed) != 0 {
            // A waiting thread that found requests pending holds this lock until it sleeps, so it does not miss the notification.
            drop(self.shared.sleep.lock());
            self.shared.wake.notify_one();
        }
    }
}

impl Failed {
    fn push(&mut self, tag: Tag, error: Error) {
        if self.kept.len() < self.room {
            self.kept.push((tag, error));
        } else {
            self.lost += 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use super::*;
    use crate::driver::MemoryDevice;
    use crate::handle::Io;
    use crate::{Arena, Handle, Lba, Params};

    fn status(n: u64) -> Status {
        if n.is_multiple_of(3) { Err(Error::Other(u16::try_from(n).expect("small"))) } else { Ok(()) }
    }

    #[test]
    fn every_error_of_every_worker_is_kept_in_each_round() {
        let rounds = if cfg!(miri) { 2 } else { 50 };
        let mut future = Future::new(3, Keep::All);
        for (round, how) in (0..rounds).zip([Waiting::Spin, Waiting::Park, Waiting::Adaptive(Duration::from_micros(3))].into_iter().cycle())
        {
            std::thread::scope(|scope| {
                for worker in 0..3 {
                    future.expect(worker, 10);
                    let promise = future.promise(worker);
                    scope.spawn(move || (0..10).for_each(|n| promise.fulfil(Tag(n + round), status(n + round))));
                }
                assert!(future.wait(how, Duration::MAX));
            });
            let failures = future.take_failures();
            let expected = (0..3).flat_map(|worker| {
                (round..round + 10).filter_map(move |n| Some(FailedRequest { worker, tag: Tag(n), error: status(n).err()? }))
            });
            assert_eq!(failures, Failures { kept: expected.collect(), lost: 0 });
        }
    }

    #[test]
    fn what_is_not_kept_is_counted_and_time_runs_out() {
        let mut future = Future::new(1, Keep::Bounded(2));
        future.expect(0, 5);
        let promise = future.promise(0);
        for n in 0..4 {
            promise.fulfil(Tag(n), Err(Error::Media));
        }
        for how in [Waiting::Spin, Waiting::Park, Waiting::Adaptive(Duration::ZERO)] {
            assert!(!future.wait(how, Duration::from_millis(1)));
        }
        assert_eq!(future.pending(), 1);
        promise.fulfil(Tag(4), Ok(()));
        assert!(future.wait(Waiting::Park, Duration::ZERO));
        let failures = future.take_failures();
        assert_eq!((failures.kept.len(), failures.lost), (2, 2));
        assert_eq!(future.take_failures(), Failures::default());
    }

    #[test]
    fn one_future_over_several_handles_that_the_caller_polls() {
        let device = MemoryDevice::new(512, 64 << 10).expect("memory");
        let arena = Arena::private(64 << 10).expect("memory");
        let mut handles = [0, 1].map(|_| Handle::new(device.open_queue(8), Params::default()).expect("a handle"));
        let mut future = Future::new(1, Keep::All);
        let promise = future.promise(0);
        for (n, handle) in handles.iter_mut().enumerate() {
            handle.register(&arena).expect("registered");
            for lba in [0, 1000] {
                let io = Io::read(Lba(lba), arena.allocate(512).expect("room")).user(lba + n as u64);
                handle.submit(io).expect("room");
                future.expect(0, 1);
            }
        }
        let done = future.wait_polling(|| {
            for done in handles.iter_mut().filter_map(Handle::poll) {
                promise.fulfil(Tag(done.user), done.status);
            }
            true
        });
        assert!(done);
        let failed: Vec<_> = future.take_failures().kept.iter().map(|failed| (failed.tag, failed.error)).collect();
        assert_eq!(failed, [(Tag(1000), Error::OutOfRange), (Tag(1001), Error::OutOfRange)]);
    }
}

#[cfg(all(test, loom))]
mod loom_test {
    use super::*;

    fn all_orders(how: Waiting, workers: usize, requests: u64) {
        loom::model(move || {
            let mut future = Future::new(workers, Keep::All);
            let threads: Vec<_> = (0..workers)
                .map(|worker| {
                    future.expect(worker, requests);
                    let promise = future.promise(worker);
                    loom::thread::spawn(move || (0..requests).for_each(|n| promise.fulfil(Tag(n), Err(Error::Media))))
                })
                .collect();
            assert!(future.wait(how, Duration::MAX));
            let failures = future.take_failures();
            assert_eq!((failures.kept.len(), failures.lost), (workers * usize::try_from(requests).expect("few"), 0));
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    }

    #[test]
    fn loom_a_parked_future_is_always_woken_and_has_every_error() {
        all_orders(Waiting::Park, 1, 2);
        all_orders(Waiting::Park, 2, 1);
    }

    #[test]
    fn loom_a_spinning_future_sees_the_end_and_every_error() {
        all_orders(Waiting::Spin, 2, 1);
    }

    #[test]
    fn loom_two_threads_on_one_worker_and_two_rounds() {
        loom::model(|| {
            let mut future = Future::new(1, Keep::All);
            for _ in 0..2 {
                future.expect(0, 2);
                let promise = future.promise(0);
                let other = promise.clone();
                let thread = loom::thread::spawn(move || other.fulfil(Tag(1), Err(Error::Media)));
                promise.fulfil(Tag(0), Ok(()));
                assert!(future.wait(Waiting::Park, Duration::MAX));
                assert_eq!(future.take_failures().kept.len(), 1);
                thread.join().expect("no panic");
            }
        });
    }
}
