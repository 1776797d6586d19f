//! A thread that detects completions of many queues, the one due next first.
//!
//! The thread sleeps until shortly before the next completion is due, and then polls. It blocks on the queues' events if no completion
//! comes, and on its notifier if nothing is in flight. A submitter notifies it with [`Waker::submitted`]: two loads and a fence, unless
//! the thread has to be woken.
//!
//! ```text
//!   submitters --- requests ---> queues <--- reap, due next first --- this thread
//!        '---------- Waker::submitted, when it sleeps too long ----------^
//! ```

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::counters::{Counters, Published};
use super::notifier::{SystemBell, ThreadNotifier};
use super::parking::Parking;
use super::reap::{QueueId, Reap, ReaperOptions};
use super::serve::Server;
use super::sleeper::System;
use crate::clock::{Clock, Time};

/// The requests in flight when the thread stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Leftover {
    /// No request was in flight.
    Nothing,
    /// This number of queues had requests in flight: their owners have to poll them.
    Queues(usize),
}

/// The completion thread. It stops when dropped, without waiting for requests in flight.
pub struct Reaper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Notifies the thread of new requests. All clones notify the same thread.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

pub(super) struct Shared {
    /// Puts the thread to sleep without losing a request.
    pub parking: Parking,
    /// Wakes the thread for requests and orders.
    pub bell: SystemBell,
    /// The counters that the thread publishes.
    pub published: Published,
    /// Whether `orders` has changed since the thread last read it.
    pub ordered: AtomicBool,
    orders: Mutex<Orders>,
    obeyed: Condvar,
}

#[derive(Default)]
pub(super) struct Orders {
    /// The queues that the thread serves.
    pub queues: Vec<(QueueId, Arc<dyn Reap>)>,
    /// The time to stop at the latest; the thread stops earlier once nothing is in flight.
    pub stop_by: Option<Time>,
    given: u64,
    /// The number of orders that the thread has taken over.
    obeyed: u64,
    ended: bool,
    leftover: usize,
}

impl Waker {
    /// Notifies the thread of a request that is due at `due` and already visible in the `expected` of its queue.
    #[inline]
    pub fn submitted(&self, due: Time) {
        // The time 0 is reserved for orders.
        if self.0.parking.must_ring(due.max(Time(1))) {
            self.0.bell.ring();
        }
    }
}

impl Reaper {
    /// Starts the thread. Its queues must use the same clock.
    ///
    /// # Errors
    /// Fails if the thread or its descriptors cannot be created.
    pub fn start<C: Clock + 'static>(options: ReaperOptions, clock: C) -> io::Result<Reaper> {
        let shared = Arc::new(Shared {
            parking: Parking::default(),
            bell: SystemBell::new()?,
            published: Published::default(),
            ordered: AtomicBool::new(false),
            orders: Mutex::default(),
            obeyed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("hotshelf-reaper".into()).spawn(move || theirs.run(options, clock))?;
        Ok(Reaper { shared, thread: Some(thread) })
    }

    /// Returns a handle for the threads that submit requests.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// Adds a queue to those that the thread serves.
    ///
    /// # Errors
    /// Fails if the queue's event cannot be polled.
    pub fn add(&self, queue: Arc<dyn Reap>) -> io::Result<QueueId> {
        if let Some(event) = queue.event() {
            self.shared.bell.watch(event)?;
        }
        Ok(self.shared.order(|orders| {
            let id = QueueId(orders.given);
            orders.queues.push((id, queue));
            id
        }))
    }

    /// Removes a queue, and returns it once the thread no longer uses it. Completions up to then were reaped; the owner has to poll for
    /// requests still in flight.
    pub fn remove(&self, id: QueueId) -> Option<Arc<dyn Reap>> {
        let removed = self.shared.order(|orders| {
            let at = orders.queues.iter().position(|(other, _)| *other == id)?;
            Some(orders.queues.swap_remove(at).1)
        })?;
        if let Some(event) = removed.event() {
            self.shared.bell.forget(event);
        }
        removed.reap();
        Some(removed)
    }

    /// Returns the counters as the thread last published them.
    pub fn counters(&self) -> Counters {
        self.shared.published.read()
    }

    /// Ends the thread once nothing is in flight, at the time `by` at the latest.
    pub fn stop(mut self, by: Time) -> Leftover {
        if let Err(panic) = self.end(by) {
            std::panic::resume_unwind(panic);
        }
        match self.shared.orders.lock().leftover {
            0 => Leftover::Nothing,
            queues => Leftover::Queues(queues),
        }
    }

    fn end(&mut self, by: Time) -> std::thread::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.shared.order(|orders| orders.stop_by = Some(by));
        thread.join()
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // A panic of the thread was reported already.
        let _ = self.end(Time(0));
    }
}

impl Shared {
    /// Gives an order, and waits until the thread has taken it over.
    fn order<T>(&self, order: impl FnOnce(&mut Orders) -> T) -> T {
        let mut orders = self.orders.lock();
        let answer = order(&mut orders);
        orders.given += 1;
        let given = orders.given;
        self.ordered.store(true, Ordering::Relaxed);
        if self.parking.must_ring(Time(0)) {
            self.bell.ring();
        }
        while orders.obeyed < given && !orders.ended {
            self.obeyed.wait(&mut orders);
        }
        answer
    }

    fn run(&self, options: ReaperOptions, clock: impl Clock) {
        let _ended = Ended(self);
        // With the default timer slack, sleeps end later.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut server = Server::new(options, clock, System::default());
        loop {
            if self.ordered.swap(false, Ordering::Relaxed) {
                let mut orders = self.orders.lock();
                server.queues.clone_from(&orders.queues);
                server.stop_by = orders.stop_by;
                orders.obeyed = orders.given;
                drop(orders);
                self.obeyed.notify_all();
            }
            if server.is_over() {
                self.orders.lock().leftover = server.leave();
                self.published.publish(&server.counters);
                return;
            }
            server.serve(&self.parking, &self.bell, &|| self.ordered.load(Ordering::Relaxed));
            self.published.publish(&server.counters);
        }
    }
}

/// Releases the threads that wait for the completion thread, also after a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.orders.lock().ended = true;
        self.0.obeyed.notify_all();
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::atomic::{AtomicU64, AtomicUsize};

    use rustix::event::{EventfdFlags, eventfd};

    use super::super::adaptive::Adaptive;
    use super::super::calibrate::WakeupLatency;
    use super::super::mode::Mode;
    use super::*;
    use crate::clock::Monotonic;
    use crate::driver::{NullDevice, null::NullQueue};
    use crate::geometry::Geometry;
    use crate::queue::{Armed, Queue, Submit};
    use crate::request::{Completion, Request};
    use crate::units::Tag;

    const FAR: Time = Time::NEVER;

    /// A queue whose requests complete when the submitter says so, or never.
    struct Counted {
        submitted: AtomicU64,
        ended: AtomicU64,
        reaped: AtomicU64,
        polls: AtomicUsize,
        event: Option<OwnedFd>,
    }

    impl Counted {
        fn new(with_event: bool) -> Arc<Counted> {
            let event = with_event.then(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
            let [submitted, ended, reaped] = [0; 3].map(AtomicU64::new);
            Arc::new(Counted { submitted, ended, reaped, polls: AtomicUsize::new(0), event })
        }

        fn submit(&self, waker: &Waker) {
            self.submitted.fetch_add(1, Ordering::SeqCst);
            waker.submitted(Time(1));
        }

        fn end_one(&self) {
            self.ended.fetch_add(1, Ordering::SeqCst);
            if let Some(event) = &self.event {
                rustix::io::write(event, &1_u64.to_ne_bytes()).expect("signalled");
            }
        }

        fn is_all_reaped(&self, count: u64) -> bool {
            self.reaped.load(Ordering::SeqCst) == count
        }
    }

    impl Reap for Counted {
        fn reap(&self) -> usize {
            self.polls.fetch_add(1, Ordering::SeqCst);
            let ended = self.ended.load(Ordering::SeqCst);
            (ended - self.reaped.swap(ended, Ordering::SeqCst)) as usize
        }

        fn expected(&self) -> Option<Time> {
            (self.submitted.load(Ordering::SeqCst) > self.reaped.load(Ordering::SeqCst)).then_some(Time(1))
        }

        fn event(&self) -> Option<BorrowedFd<'_>> {
            self.event.as_ref().map(AsFd::as_fd)
        }

        fn arm(&self) -> Armed {
            if let Some(event) = &self.event {
                let _ = rustix::io::read(event, &mut [0_u8; 8]);
            }
            let waiting = self.ended.load(Ordering::SeqCst) == self.reaped.load(Ordering::SeqCst);
            if waiting { Armed::Waiting } else { Armed::Ready }
        }
    }

    fn reaper(mode: Mode) -> Reaper {
        let floor = WakeupLatency { timer: us(10), timer_late: us(14), event: us(3) };
        Reaper::start(ReaperOptions { mode, floor }, Monotonic::default()).expect("a thread")
    }

    fn us(us: u64) -> std::time::Duration {
        std::time::Duration::from_micros(us)
    }

    const MODES: [Mode; 3] = [Mode::Polling, Mode::Interrupt, Mode::Adaptive];

    #[test]
    fn everything_that_ends_is_reaped_in_every_mode() {
        const ROUNDS: u64 = if cfg!(miri) { 10 } else { 500 };
        for (mode, with_event) in MODES.into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
            let reaper = reaper(mode);
            let queues = [(); 3].map(|()| Counted::new(with_event));
            for queue in &queues {
                reaper.add(Arc::clone(queue) as Arc<dyn Reap>).expect("added");
            }
            std::thread::scope(|scope| {
                for queue in queues.iter().chain(&queues) {
                    let waker = reaper.waker();
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            queue.submit(&waker);
                            queue.end_one();
                            // Pauses let the thread park.
                            while round % 50 == 0 && queue.expected().is_some() {
                                std::thread::yield_now();
                            }
                        }
                    });
                }
            });
            assert_eq!(reaper.stop(FAR), Leftover::Nothing);
            assert!(queues.iter().all(|queue| queue.is_all_reaped(2 * ROUNDS)), "{mode:?}, events {with_event}");
        }
    }

    #[test]
    fn what_is_removed_is_not_touched_any_more_and_what_had_ended_is_reaped() {
        for mode in MODES {
            let reaper = reaper(mode);
            let (gone, stays) = (Counted::new(true), Counted::new(true));
            let id = reaper.add(Arc::clone(&gone) as Arc<dyn Reap>).expect("added");
            reaper.add(Arc::clone(&stays) as Arc<dyn Reap>).expect("added");
            gone.submit(&reaper.waker());
            gone.end_one();
            assert!(reaper.remove(id).is_some());
            assert!(gone.is_all_reaped(1));
            let polls = gone.polls.load(Ordering::SeqCst);
            assert_eq!(Arc::strong_count(&gone), 1);
            stays.submit(&reaper.waker());
            stays.end_one();
            assert!(reaper.remove(id).is_none());
            assert_eq!(reaper.stop(FAR), Leftover::Nothing);
            assert!(stays.is_all_reaped(1));
            assert_eq!(gone.polls.load(Ordering::SeqCst), polls);
        }
    }

    #[test]
    fn a_request_that_never_ends_does_not_keep_it_from_stopping() {
        for (mode, with_event) in MODES.into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
            let reaper = reaper(mode);
            let queue = Counted::new(with_event);
            reaper.add(Arc::clone(&queue) as Arc<dyn Reap>).expect("added");
            queue.submit(&reaper.waker());
            assert_eq!(reaper.stop(Time(20_000_000)), Leftover::Queues(1));
        }
    }

    /// A shared queue: `expected` is kept beside the lock.
    struct SharedQueue {
        queue: Mutex<Adaptive<NullQueue>>,
        due: AtomicU64,
        ended: Mutex<Vec<Tag>>,
        waker: Waker,
    }

    impl SharedQueue {
        fn submit(&self, tag: Tag) {
            let due = {
                let mut queue = self.queue.lock();
                while queue.submit(&Request::flush(tag), &[]) == Submit::Full {
                    parking_lot::MutexGuard::unlocked(&mut queue, std::thread::yield_now);
                }
                queue.ring();
                self.note_due(&queue)
            };
            self.waker.submitted(due.unwrap_or(FAR));
        }

        fn note_due(&self, queue: &Adaptive<NullQueue>) -> Option<Time> {
            let due = queue.expected();
            self.due.store(due.unwrap_or(FAR).0, Ordering::Release);
            due
        }
    }

    impl Reap for SharedQueue {
        fn reap(&self) -> usize {
            let mut queue = self.queue.lock();
            let mut ended = [Completion::EMPTY; 8];
            let count = queue.poll(&mut ended);
            self.note_due(&queue);
            drop(queue);
            self.ended.lock().extend(ended[..count].iter().map(|ended| ended.tag));
            count
        }

        fn expected(&self) -> Option<Time> {
            Some(Time(self.due.load(Ordering::Acquire))).filter(|due| *due != FAR)
        }

        fn event(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn arm(&self) -> Armed {
            Armed::Ready
        }
    }

    #[test]
    fn a_shared_queue_loses_nothing_and_reports_nothing_twice() {
        const EACH: u64 = if cfg!(miri) { 20 } else { 2_000 };
        let clock = Monotonic::default();
        let floor = WakeupLatency { timer: us(10), timer_late: us(14), event: us(3) };
        let reaper = Reaper::start(ReaperOptions { mode: Mode::Adaptive, floor }, clock).expect("a thread");
        let device = NullDevice::new(Geometry::plain(512, 8)).open_queue(16);
        let queue = Adaptive::with(device, Mode::Adaptive, floor, clock, System::default());
        let (queue, due) = (Mutex::new(queue), AtomicU64::new(FAR.0));
        let shared = Arc::new(SharedQueue { queue, due, ended: Mutex::default(), waker: reaper.waker() });
        reaper.add(Arc::clone(&shared) as Arc<dyn Reap>).expect("added");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || (0..EACH).for_each(|at| shared.submit(Tag(thread * EACH + at))));
            }
        });
        assert_eq!(reaper.stop(FAR), Leftover::Nothing);
        let mut ended = std::mem::take(&mut *shared.ended.lock());
        ended.sort_unstable();
        assert!(ended.into_iter().eq((0..4 * EACH).map(Tag)));
    }

    struct Panics;

    impl Reap for Panics {
        fn reap(&self) -> usize {
            panic!("as the test wants it")
        }
        fn expected(&self) -> Option<Time> {
            Some(Time(0))
        }
        fn event(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn arm(&self) -> Armed {
            Armed::Ready
        }
    }

    #[test]
    fn a_thread_that_panicked_lets_nobody_wait() {
        let reaper = reaper(Mode::Adaptive);
        reaper.add(Arc::new(Panics)).expect("added");
        reaper.add(Counted::new(true)).expect("added");
        drop(reaper);
    }
}
