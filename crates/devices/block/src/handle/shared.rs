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

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::dedicated::{Issued, QUEUES_MAX};
use super::engine::{Engine, Owner, refused};
use super::io::{At, Data, Done, Full, Io, Released, Ticket};
use super::job;
use super::params::{Completion, Defaults, Key, ParamError, Params};
use super::select::{Features, Selector};
use crate::buffer::{Arena, Buf};
use crate::clock::{Clock, Monotonic, Time};
use crate::completion::Waker;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Doorbell, Queue};
use crate::request::{Class, Op};
use crate::sync::{Arc, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, Signal, look_again, yield_now};
use crate::tracked::Tracked;

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

/// A handle on shared queues. Many threads can make any of its calls at once; each completion goes to one of them.
///
/// When it is dropped, requests in flight stay with the queue, which releases their buffers when they complete.
pub struct SharedHandle<Q: Queue = Box<dyn Queue>, C: Clock = Monotonic> {
    bindings: Vec<Binding<Q, C>>,
    selector: Selector,
    turn: AtomicU32,
    params: Mutex<Params>,
    polling: AtomicU32,
}

struct Binding<Q: Queue, C: Clock> {
    queue: Arc<SharedQueue<Q, C>>,
    owner: Owner,
}

impl<Q: Queue, C: Clock> SharedHandle<Q, C> {
    /// Creates a handle on one queue.
    ///
    /// # Errors
    /// The queue cannot have that many requests.
    pub fn new(queue: &Arc<SharedQueue<Q, C>>, params: Params) -> Result<SharedHandle<Q, C>, Error> {
        SharedHandle::over(&[Arc::clone(queue)], Selector::default(), params)
    }

    /// Creates a handle on several queues of one device.
    ///
    /// # Errors
    /// There are no queues, or more queues or requests than possible.
    pub fn over(queues: &[Arc<SharedQueue<Q, C>>], selector: Selector, params: Params) -> Result<SharedHandle<Q, C>, Error> {
        if queues.is_empty() || queues.len() > QUEUES_MAX {
            return Err(Error::NoResources);
        }
        let polling = AtomicU32::new(u32::from(params.completion == Completion::Polling));
        let mut handle =
            SharedHandle { bindings: Vec::new(), selector, turn: AtomicU32::new(0), params: Mutex::new(params.clone()), polling };
        for queue in queues {
            let mut inner = queue.inner.lock();
            let limit = if params.requests_max == 0 { inner.engine.queue().depth() } else { params.requests_max };
            let owner = inner.engine.attach(limit, handle.bindings.len() as u8)?;
            let seat = HandleEntry { defaults: params.defaults(), wake: Arc::new(Condvar::default()), followers: 0 };
            match inner.seats.get_mut(usize::from(owner)) {
                Some(place) => *place = seat,
                None => inner.seats.push(seat),
            }
            drop(inner);
            handle.bindings.push(Binding { queue: Arc::clone(queue), owner });
        }
        Ok(handle)
    }

    /// Returns the geometry of the device.
    pub fn geometry(&self) -> &Geometry {
        self.bindings[0].queue.geometry()
    }

    /// Registers an arena with the device.
    ///
    /// # Errors
    /// As [`Queue::register`].
    pub fn register(&self, arena: &Arena) -> Result<(), Error> {
        self.bindings.iter().try_for_each(|binding| binding.queue.register(arena))
    }

    /// Returns the parameters of this handle.
    pub fn params(&self) -> Params {
        self.params.lock().clone()
    }

    /// Returns the value of one parameter.
    pub fn get(&self, key: Key) -> u64 {
        self.params.lock().get(key)
    }

    /// Sets a parameter for requests that are submitted from now on.
    ///
    /// # Errors
    /// The value is invalid, or the key is fixed once the queue is open.
    pub fn set(&self, key: Key, value: u64) -> Result<(), ParamError> {
        let mut params = self.params.lock();
        params.set_open(key, value)?;
        self.polling.store(u32::from(params.completion == Completion::Polling), Ordering::Relaxed);
        for binding in &self.bindings {
            binding.queue.inner.lock().seats[usize::from(binding.owner)].defaults = params.defaults();
        }
        Ok(())
    }

    fn polling(&self) -> bool {
        self.polling.load(Ordering::Relaxed) != 0
    }

    /// Accepts a request. The next `ring`, `poll` or `wait` of any of the queue's handles submits it to the device. The completion
    /// reports an invalid request.
    ///
    /// # Errors
    /// The handle is full: `requests_max` requests have not been collected yet.
    pub fn submit(&self, io: Io) -> Result<Ticket, Full> {
        let at = self.choose(io.op, io.at, io.class);
        let binding = &self.bindings[at];
        let mut inner = binding.queue.inner.lock();
        let ticket = inner.submit(binding.owner, io, false)?;
        binding.queue.tell(&mut inner);
        Ok(ticket)
    }

    /// Accepts requests in order until the handle is full, with one lock, and appends their tickets to `tickets`.
    pub fn submit_batch(&self, ios: &mut std::collections::VecDeque<Io>, tickets: &mut Vec<Ticket>) {
        while let Some(first) = ios.front() {
            let at = self.choose(first.op, first.at, first.class);
            let binding = &self.bindings[at];
            let mut inner = binding.queue.inner.lock();
            while let Some(io) = ios.pop_front() {
                match inner.submit(binding.owner, io, false) {
                    Ok(ticket) => tickets.push(ticket),
                    Err(Full(io)) => return ios.push_front(io),
                }
                if self.bindings.len() > 1 {
                    break;
                }
            }
            binding.queue.tell(&mut inner);
        }
    }

    fn choose(&self, op: Op, at: At, class: Option<Class>) -> usize {
        if self.bindings.len() == 1 {
            return 0;
        }
        let class = class.unwrap_or_else(|| self.params.lock().class);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        self.selector.choose(&Features { op, lba: at.lba(self.geometry()), class }, turn, self.bindings.len())
    }

    /// Submits a read that fills the buffer.
    ///
    /// # Errors
    /// As [`SharedHandle::submit`].
    pub fn submit_read(&self, at: impl Into<At>, data: impl Into<Data>) -> Result<Ticket, Full> {
        self.submit(Io::read(at, data))
    }

    /// Submits a write of the whole buffer.
    ///
    /// # Errors
    /// As [`SharedHandle::submit`].
    pub fn submit_write(&self, at: impl Into<At>, data: impl Into<Data>) -> Result<Ticket, Full> {
        self.submit(Io::write(at, data))
    }

    /// Notifies the devices of all submitted requests, including those of other handles.
    pub fn ring(&self) {
        for binding in &self.bindings {
            let (mut inner, rung) = binding.queue.ring_outside(binding.queue.inner.lock());
            if !rung {
                inner.engine.ring();
            }
            binding.queue.tell(&mut inner);
        }
    }

    /// Returns the next completed request, if there is one. Rings the doorbell first if necessary.
    pub fn poll(&self) -> Option<Done> {
        self.bindings.iter().find_map(|binding| {
            let mut inner = binding.queue.inner.lock();
            let mut done = inner.engine.take(binding.owner);
            if done.is_none() {
                let rung;
                (inner, rung) = binding.queue.ring_outside(inner);
                done = inner.engine.next_after(binding.owner, rung);
            }
            binding.queue.tell(&mut inner);
            done
        })
    }

    /// Appends completed requests to `done`, up to its capacity, with one lock for each queue. Rings the doorbell first if
    /// necessary.
    pub fn poll_batch(&self, done: &mut Vec<Done>) {
        for binding in &self.bindings {
            let (mut inner, rung) = binding.queue.ring_outside(binding.queue.inner.lock());
            while done.len() < done.capacity() {
                let Some(next) = inner.engine.next_after(binding.owner, rung) else { break };
                done.push(next);
            }
            binding.queue.tell(&mut inner);
        }
    }

    /// Returns the next completed request; waits for one up to `at_most` ([`Duration::MAX`]: no limit). Returns `None` also if
    /// nothing
    /// is in flight.
    pub fn wait(&self, at_most: Duration) -> Option<Done> {
        if let [binding] = self.bindings.as_slice() {
            return self.wait_at(binding, at_most);
        }
        let mut left = at_most;
        loop {
            for binding in &self.bindings {
                if let Some(done) = self.wait_at(binding, left.min(SLICE)) {
                    return Some(done);
                }
            }
            left = if left == Duration::MAX { left } else { left.saturating_sub(SLICE) };
            if left.is_zero() || self.in_flight() == 0 {
                return self.poll();
            }
        }
    }

    fn wait_at(&self, binding: &Binding<Q, C>, at_most: Duration) -> Option<Done> {
        let owner = binding.owner;
        binding.queue.wait(owner, self.polling(), at_most, |engine| engine.take(owner).ok_or_else(|| engine.busy(owner) > 0))
    }

    /// Waits for one request and returns it; other completions stay to be collected. Returns `None` after `at_most`, if there is no
    /// such
    /// ticket, or if another thread waits for it.
    pub fn wait_for(&self, ticket: Ticket, at_most: Duration) -> Option<Done> {
        let binding = self.binding(ticket)?;
        let index = {
            let mut inner = binding.queue.inner.lock();
            let index = inner.engine.find(binding.owner, ticket)?;
            if !inner.engine.claim(index) {
                return None;
            }
            index
        };
        let found = binding.queue.wait(binding.owner, self.polling(), at_most, |engine| engine.take_claimed(index).ok_or(true));
        if found.is_none() {
            let mut inner = binding.queue.inner.lock();
            inner.engine.unclaim(index);
            binding.queue.tell(&mut inner);
        }
        found
    }

    fn binding(&self, ticket: Ticket) -> Option<&Binding<Q, C>> {
        self.bindings.get(job::place(ticket).0)
    }

    /// Requests that the device cancel a request. The request still completes, as cancelled or with its own status. Returns false
    /// if there is no such ticket.
    pub fn cancel(&self, ticket: Ticket) -> bool {
        let Some(binding) = self.binding(ticket) else { return false };
        let mut inner = binding.queue.inner.lock();
        let Some(index) = inner.engine.find(binding.owner, ticket) else { return false };
        inner.engine.cancel(index);
        binding.queue.tell(&mut inner);
        true
    }

    /// Waits until nothing of this handle is in flight, up to `at_most` for each queue. The completions stay to be collected.
    ///
    /// # Errors
    /// [`Error::Timeout`]: requests are still in flight.
    pub fn drain(&self, at_most: Duration) -> Result<(), Error> {
        for binding in &self.bindings {
            let owner = binding.owner;
            let look = |engine: &mut Engine<Q, C>| if engine.busy(owner) == 0 { Ok(()) } else { Err(true) };
            binding.queue.wait(owner, self.polling(), at_most, look).ok_or(Error::Timeout)?;
        }
        Ok(())
    }

    /// Returns memory that the device has released, as [`super::Handle::take_released`] does.
    pub fn take_released(&self) -> Option<Released> {
        self.bindings.iter().find_map(|binding| {
            let mut inner = binding.queue.inner.lock();
            inner.engine.reap();
            binding.queue.tell(&mut inner);
            inner.engine.take_released(binding.owner)
        })
    }

    /// Returns the number of this handle's requests that were submitted and have not completed.
    pub fn in_flight(&self) -> u32 {
        self.bindings.iter().map(|binding| binding.queue.inner.lock().engine.busy(binding.owner)).sum()
    }

    /// Executes one request and returns its result.
    pub fn run(&self, io: Io) -> Done {
        let at = self.choose(io.op, io.at, io.class);
        let binding = &self.bindings[at];
        let owner = binding.owner;
        let submitted = {
            let mut inner = binding.queue.inner.lock();
            let submitted = inner.submit(owner, io, true);
            binding.queue.tell(&mut inner);
            submitted
        };
        let index = match submitted.or_else(|Full(io)| self.submit_later(binding, io)) {
            Ok(ticket) => job::place(ticket).1,
            Err(done) => return *done,
        };
        let look = |engine: &mut Engine<Q, C>| engine.take_claimed(index).ok_or(true);
        binding.queue.wait(owner, self.polling(), Duration::MAX, look).expect("each request ends")
    }

    /// Submits a synchronous request once a slot is free: other threads also make synchronous calls.
    fn submit_later(&self, binding: &Binding<Q, C>, io: Io) -> Result<Ticket, Box<Done>> {
        let (owner, defaults) = (binding.owner, self.params.lock().defaults());
        let mut io = Some(io);
        let look = |engine: &mut Engine<Q, C>| match engine.submit(owner, io.take().expect("not taken yet"), &defaults, true) {
            Ok(ticket) => Ok(ticket),
            Err(Full(back)) => {
                io = Some(back);
                Err(engine.may_come_free(owner))
            }
        };
        let submitted = binding.queue.wait(owner, self.polling(), Duration::MAX, look);
        submitted.ok_or_else(|| Box::new(refused(io.expect("not taken"), Error::NoResources)))
    }

    /// Executes the request, or only submits it, depending on the parameter `synchronous`.
    ///
    /// # Errors
    /// As [`SharedHandle::submit`].
    pub fn issue(&self, io: Io) -> Result<Issued, Full> {
        let synchronous = self.params.lock().synchronous;
        if synchronous { Ok(Issued::Done(self.run(io))) } else { self.submit(io).map(Issued::Submitted) }
    }

    /// Reads as many bytes as the buffer holds.
    pub fn read(&self, at: impl Into<At>, buf: Buf) -> Done {
        self.run(Io::read(at, buf))
    }

    /// Writes the whole buffer to the device.
    pub fn write(&self, at: impl Into<At>, buf: Buf) -> Done {
        self.run(Io::write(at, buf))
    }

    /// Makes completed writes survive a power loss.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn flush(&self) -> Result<(), Error> {
        self.run(Io::flush()).status
    }

    /// Discards blocks: their content is no longer needed. `length` has the unit of `at`: blocks or bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn discard(&self, at: impl Into<At>, length: u64) -> Result<(), Error> {
        self.run(Io::discard(at, length)).status
    }

    /// Fills blocks with zeroes. `length` has the unit of `at`: blocks or bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn write_zeroes(&self, at: impl Into<At>, length: u64) -> Result<(), Error> {
        self.run(Io::write_zeroes(at, length)).status
    }
}

impl<Q: Queue, C: Clock> Inner<Q, C> {
    #[inline]
    fn submit(&mut self, owner: Owner, io: Io, claimed: bool) -> Result<Ticket, Full> {
        let defaults = &self.seats[usize::from(owner)].defaults;
        self.engine.submit(owner, io, defaults, claimed)
    }
}

impl<Q: Queue, C: Clock> Drop for SharedHandle<Q, C> {
    fn drop(&mut self) {
        for binding in &self.bindings {
            let mut inner = binding.queue.inner.lock();
            inner.engine.detach(binding.owner);
            binding.queue.tell(&mut inner);
        }
    }
}
