//! A queue that many handles share, and its handles. Both are safe to use from many threads.
//!
//! One lock guards the queue's engine. No thread waits while it holds the lock; if the queue has a doorbell, no thread rings with
//! it either. The thread that reaps the queue distributes all completions: each handle has a separate list. One of the waiting
//! threads leads: it sleeps until the device signals. The others follow: they sleep until their own request completes or until
//! they can lead.
//!
//! ```text
//!                no leader                           its own completed, or timeout
//!  waits -------------------> leads (asleep, no lock) ---------------------------------------> returns; wakes a follower
//!    | there is a leader          ^   | the device, or a signal of another reaping thread: reaps, distributes
//!    v                            |   v
//!  follows (asleep) --------------'   returns when its own completed
//!             woken: no leader
//! ```

mod shared_handle;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::engine::{Engine, Owner};
use super::io::{Full, Io, Ticket};
use super::params::{Defaults, Params};
use crate::buffer::Arena;
use crate::clock::{Clock, Monotonic, Time};
use crate::completion::Waker;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Doorbell, Queue};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Signal, look_again, yield_now};
use crate::tracked::Tracked;
pub use shared_handle::SharedHandle;

/// The shortest and longest nap of a leader on a queue without a descriptor. The nap doubles with each fruitless poll.
const NAP_MIN: Duration = Duration::from_micros(10);
const NAP_MAX: Duration = Duration::from_millis(1);
/// How often a waiting thread yields before it sleeps: another thread may be about to reap its completion, and sleeping and being
/// woken costs more.
const TURNS_TO_SLEEP: u32 = 6;
/// The number of fruitless polls before the first nap.
const POLLS_TO_NAP: u32 = 4;
/// How long a handle waits for one of several queues.
const SLICE: Duration = Duration::from_micros(200);

/// A queue that many handles share. It lives as long as the last of them; its drop then does the same as that of [`super::Handle`].
pub struct SharedQueue<Q: Queue = Box<dyn Queue>, C: Clock = Monotonic> {
    inner: Mutex<Inner<Q, C>>,
    geometry: Geometry,
    /// The device's event, on which the leader sleeps without the lock.
    event: Option<OwnedFd>,
    /// The device's doorbell, for ringing without the lock: that call may copy data from the page cache.
    doorbell: Option<std::sync::Arc<dyn Doorbell>>,
    /// Wakes the leader.
    signal: Arc<Signal>,
    /// When the completion thread should poll the queue: [`Time::NEVER`] with nothing in flight.
    due: std::sync::atomic::AtomicU64,
}

struct Inner<Q: Queue, C: Clock> {
    engine: Engine<Q, C>,
    seats: Vec<HandleEntry>,
    leader: Option<Owner>,
    followers: u32,
    /// Notifies the completion thread, if one serves the queue. No thread leads then.
    waker: Option<Waker>,
}

/// The queue's entry for a handle.
struct HandleEntry {
    defaults: Defaults,
    wake: Arc<Condvar>,
    followers: u32,
}

type Locked<'a, Q, C> = MutexGuard<'a, Inner<Q, C>>;

impl<Q: Queue> SharedQueue<Q> {
    /// Creates a shared queue with the monotonic clock.
    ///
    /// # Errors
    /// There are no more file descriptors.
    pub fn new(queue: Q, params: &Params) -> io::Result<Arc<SharedQueue<Q>>> {
        SharedQueue::over(Tracked::new(queue, params.timeouts()))
    }
}

impl<Q: Queue, C: Clock> SharedQueue<Q, C> {
    /// Creates a shared queue over a tracked queue, which has its own clock.
    ///
    /// # Errors
    /// There are no more file descriptors.
    pub fn over(queue: Tracked<Q, C>) -> io::Result<Arc<SharedQueue<Q, C>>> {
        let signal = Arc::new(Signal::new()?);
        SharedQueue::with_signal(queue, signal)
    }

    pub(super) fn with_signal(mut queue: Tracked<Q, C>, signal: Arc<Signal>) -> io::Result<Arc<SharedQueue<Q, C>>> {
        let geometry = queue.geometry().clone();
        let event = queue.event().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let doorbell = queue.doorbell();
        let inner = Inner { engine: Engine::new(queue), seats: Vec::new(), leader: None, followers: 0, waker: None };
        let due = std::sync::atomic::AtomicU64::new(Time::NEVER.0);
        Ok(Arc::new(SharedQueue { inner: Mutex::new(inner), geometry, event, doorbell, signal, due }))
    }

    /// Returns the geometry of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Registers an arena with the device.
    ///
    /// # Errors
    /// As [`Queue::register`].
    pub fn register(&self, arena: &Arena) -> Result<(), Error> {
        self.inner.lock().engine.register(arena)
    }

    /// Aborts everything in flight, of all handles. Each request is reported to its own handle.
    ///
    /// # Errors
    /// The queue cannot be reset: the device is gone, and its requests complete with that error.
    pub fn reset(&self) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        let reset = inner.engine.reset();
        self.tell(&mut inner);
        reset
    }

    /// Notifies the device of submitted requests, without the lock if the queue has a doorbell. Other threads can submit meanwhile;
    /// the
    /// next thread that rings sends all their requests. Returns whether the lock was released, so that earlier observations may be
    /// stale.
    fn ring_outside<'a>(&'a self, mut inner: Locked<'a, Q, C>) -> (Locked<'a, Q, C>, bool) {
        let Some(doorbell) = &self.doorbell else { return (inner, false) };
        if !inner.engine.pump_to_ring() {
            return (inner, false);
        }
        drop(inner);
        let rung = doorbell.ring();
        let mut inner = self.inner.lock();
        if !rung {
            inner.engine.queue().ring();
        }
        (inner, true)
    }

    /// Wakes waiting threads for which something changed.
    #[inline]
    fn tell(&self, inner: &mut Inner<Q, C>) {
        if inner.followers > 0 || inner.leader.is_some() {
            self.tell_each(inner);
        }
        if let Some(waker) = &inner.waker {
            self.tell_thread(&inner.engine, waker);
        }
    }

    /// The completion thread reads `due` without the lock; [`Waker::submitted`] contains the fence.
    fn tell_thread(&self, engine: &Engine<Q, C>, waker: &Waker) {
        let due = engine.expected();
        self.due.store(due.0, std::sync::atomic::Ordering::Release);
        if due != Time::NEVER {
            waker.submitted(due);
        }
    }

    fn tell_each(&self, inner: &mut Inner<Q, C>) {
        for (owner, seat) in inner.seats.iter().enumerate() {
            let owner = owner as Owner;
            let leads = inner.leader == Some(owner);
            if (leads || seat.followers > 0) && inner.engine.take_news(owner) {
                seat.wake.notify_all();
                if leads {
                    self.signal.set();
                }
            }
        }
    }

    /// Waits until `look` returns a result, or reports that there is nothing to wait for.
    fn wait<T>(
        &self,
        owner: Owner,
        polling: bool,
        at_most: Duration,
        mut look: impl FnMut(&mut Engine<Q, C>) -> Result<T, bool>,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let mut end = None;
        let mut round = 0;
        loop {
            let mut found = look(&mut inner.engine);
            if matches!(found, Err(true)) {
                let outside;
                (inner, outside) = self.ring_outside(inner);
                // Another thread may have reaped the completion while the lock was free.
                if inner.engine.reap_after(outside) || outside {
                    found = look(&mut inner.engine);
                }
            }
            self.tell(&mut inner);
            let left = if matches!(found, Err(true)) { inner.left(at_most, &mut end) } else { Duration::ZERO };
            if left.is_zero() {
                self.pass_on(&mut inner);
                return found.ok();
            }
            inner = self.sleep(inner, owner, polling, left, round);
            round = round.wrapping_add(1);
        }
    }

    /// Wakes a follower if no thread leads: one has to lead as long as any thread follows.
    fn pass_on(&self, inner: &mut Inner<Q, C>) {
        if inner.leader.is_none()
            && inner.followers > 0
            && let Some(seat) = inner.seats.iter().find(|seat| seat.followers > 0)
        {
            seat.wake.notify_one();
        }
    }

    fn sleep<'a>(&'a self, mut inner: Locked<'a, Q, C>, owner: Owner, polling: bool, left: Duration, round: u32) -> Locked<'a, Q, C> {
        if round < TURNS_TO_SLEEP && inner.seats.len() > 1 && cfg!(not(loom)) && inner.engine.queue().clock().passes() {
            drop(inner);
            yield_now();
            return self.inner.lock();
        }
        let limit = inner.engine.until_due(left);
        if inner.leader.is_some() || inner.waker.is_some() {
            let seat = &mut inner.seats[usize::from(owner)];
            seat.followers += 1;
            let wake = Arc::clone(&seat.wake);
            inner.followers += 1;
            wake.wait(&mut inner, limit);
            inner.seats[usize::from(owner)].followers -= 1;
            inner.followers -= 1;
            return inner;
        }
        let evented = self.has_event();
        if !evented && !inner.engine.queue().clock().passes() {
            inner.engine.pause(limit);
            return inner;
        }
        if evented && !polling && inner.engine.queue().arm() == Armed::Ready {
            return inner;
        }
        inner.leader = Some(owner);
        drop(inner);
        if polling {
            look_again(round);
        } else if evented {
            self.signal.wait(self.event.as_ref().map(AsFd::as_fd), limit);
        } else {
            self.nap(round, limit);
        }
        let mut inner = self.inner.lock();
        inner.leader = None;
        self.signal.clear();
        inner
    }

    #[cfg(not(loom))]
    fn has_event(&self) -> bool {
        self.event.is_some()
    }

    /// In loom tests the device sets the signal.
    #[cfg(loom)]
    fn has_event(&self) -> bool {
        true
    }

    fn nap(&self, round: u32, limit: Duration) {
        if round < POLLS_TO_NAP {
            return yield_now();
        }
        let nap = NAP_MIN * (1 << (round - POLLS_TO_NAP).min(8));
        self.signal.wait(None, nap.min(NAP_MAX).min(limit));
    }
}

impl<Q: Queue, C: Clock> Inner<Q, C> {
    /// Returns what is left of a duration that starts with the first call.
    fn left(&self, at_most: Duration, end: &mut Option<Time>) -> Duration {
        if at_most == Duration::MAX || at_most.is_zero() {
            return at_most;
        }
        let now = self.engine.now();
        end.get_or_insert(now.after(at_most)).since(now)
    }
}

/// The methods that [`super::Served`] needs.
#[cfg(not(loom))]
impl<Q: Queue, C: Clock> SharedQueue<Q, C> {
    /// Hands the queue to a completion thread. Returns false if one serves it already.
    pub(super) fn begin_service(&self, waker: Waker) -> bool {
        let mut inner = self.inner.lock();
        if inner.waker.is_some() {
            return false;
        }
        inner.waker = Some(waker);
        // Wakes the leader, which becomes a follower.
        self.signal.set();
        self.tell(&mut inner);
        true
    }

    /// Ends the service: waiting threads lead again.
    pub(super) fn end_service(&self) {
        let mut inner = self.inner.lock();
        inner.waker = None;
        self.pass_on(&mut inner);
    }

    /// Returns when the queue should be polled; `None` with nothing in flight.
    pub(super) fn expected(&self) -> Option<Time> {
        Some(Time(self.due.load(std::sync::atomic::Ordering::Acquire))).filter(|due| *due != Time::NEVER)
    }

    pub(super) fn device_event(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// Reaps the queue and distributes the completions. Returns whether a request may have completed.
    pub(super) fn reap(&self) -> bool {
        let (mut inner, rung) = self.ring_outside(self.inner.lock());
        let found = inner.engine.reap_after(rung);
        self.tell(&mut inner);
        found
    }

    pub(super) fn arm(&self) -> Armed {
        self.inner.lock().engine.queue().arm()
    }
}

impl<Q: Queue, C: Clock> Inner<Q, C> {
    #[inline]
    fn submit(&mut self, owner: Owner, io: Io, claimed: bool) -> Result<Ticket, Full> {
        let defaults = &self.seats[usize::from(owner)].defaults;
        self.engine.submit(owner, io, defaults, claimed)
    }
}
