//! A handle that owns its queues and therefore needs no lock.

use std::time::Duration;

use super::engine::{Engine, Owner, refused};
use super::io::{At, Data, Done, Full, Io, Released, Ticket};
use super::job;
use super::params::{Completion, Defaults, Key, ParamError, Params};
use super::select::{Features, Selector};
use super::sleep;
use crate::buffer::{Arena, Buf};
use crate::clock::{Clock, Monotonic};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue};
use crate::request::{Class, Op};
use crate::sync::look_again;
use crate::tracked::Tracked;

/// The only owner of a dedicated queue.
const ME: Owner = 0;
/// The most queues of one handle: tickets have 8 bits for the queue.
pub(super) const QUEUES_MAX: usize = 256;
/// The number of consecutive fruitless waits after which the thread yields its CPU. It matters for queues whose wait returns at
/// once.
const WAITS_TO_YIELD: u32 = 16;
/// How long the handle waits for one of several queues when it cannot wait for all of them together.
const SLICE: Duration = Duration::from_micros(50);

/// A handle with dedicated queues (as in NVMeDirect). One thread at a time uses it; it can move freely between threads.
///
/// When a handle is dropped with requests in flight, it waits a second for them and then resets the queues. Memory that the
/// device still holds after that is never reused. Completions that were not collected are lost: call `drain` and `poll` first.
pub struct Handle<Q: Queue = Box<dyn Queue>, C: Clock = Monotonic> {
    engines: Vec<Engine<Q, C>>,
    selector: Selector,
    turn: usize,
    params: Params,
    defaults: Defaults,
}

impl<Q: Queue> Handle<Q> {
    /// Creates a handle over one queue, with the monotonic clock.
    ///
    /// # Errors
    /// The handle would need more requests than it can have.
    pub fn new(queue: Q, params: Params) -> Result<Handle<Q>, Error> {
        let timeouts = params.timeouts();
        Handle::over(vec![Tracked::new(queue, timeouts)], Selector::default(), params)
    }
}

impl<Q: Queue, C: Clock> Handle<Q, C> {
    /// Creates a handle over several queues of one device.
    ///
    /// # Errors
    /// There are no queues, or more queues or requests than a handle can have.
    pub fn over(queues: Vec<Tracked<Q, C>>, selector: Selector, params: Params) -> Result<Handle<Q, C>, Error> {
        if queues.is_empty() || queues.len() > QUEUES_MAX {
            return Err(Error::NoResources);
        }
        let mut engines: Vec<_> = queues.into_iter().map(Engine::new).collect();
        for (number, engine) in engines.iter_mut().enumerate() {
            let limit = if params.requests_max == 0 { engine.queue().depth() } else { params.requests_max };
            engine.attach(limit, number as u8)?;
        }
        let defaults = params.defaults();
        Ok(Handle { engines, selector, turn: 0, params, defaults })
    }

    /// Registers an arena with the device.
    ///
    /// # Errors
    /// As [`Queue::register`].
    pub fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.engines.iter_mut().try_for_each(|engine| engine.register(arena))
    }

    /// Returns the geometry of the device.
    pub fn geometry(&mut self) -> &Geometry {
        self.engines[0].queue().geometry()
    }

    /// Returns the parameters of this handle.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the value of one parameter.
    pub fn get(&self, key: Key) -> u64 {
        self.params.get(key)
    }

    /// Sets a parameter for requests that are submitted from now on.
    ///
    /// # Errors
    /// The value is invalid, or the key is fixed once the queue is open.
    pub fn set(&mut self, key: Key, value: u64) -> Result<(), ParamError> {
        self.params.set_open(key, value)?;
        self.defaults = self.params.defaults();
        Ok(())
    }

    /// Accepts a request. The next `ring`, `poll` or `wait` submits it to the device. The completion reports an invalid request.
    ///
    /// # Errors
    /// The handle is full: `requests_max` requests have not been collected yet.
    #[inline(always)]
    pub fn submit(&mut self, io: Io) -> Result<Ticket, Full> {
        self.submit_as(io, false)
    }

    #[inline(always)]
    fn submit_as(&mut self, io: Io, claimed: bool) -> Result<Ticket, Full> {
        let at = if self.engines.len() == 1 { 0 } else { self.choose(io.op, io.at, io.class) };
        self.engines[at].submit(ME, io, &self.defaults, claimed)
    }

    fn choose(&mut self, op: Op, at: At, class: Option<Class>) -> usize {
        let request = Features { op, lba: at.lba(self.geometry()), class: class.unwrap_or(self.defaults.class) };
        self.turn = self.turn.wrapping_add(1);
        self.selector.choose(&request, self.turn, self.engines.len())
    }

    /// Submits a read that fills the buffer.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn submit_read(&mut self, at: impl Into<At>, data: impl Into<Data>) -> Result<Ticket, Full> {
        self.submit(Io::read(at, data))
    }

    /// Submits a write of the whole buffer.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn submit_write(&mut self, at: impl Into<At>, data: impl Into<Data>) -> Result<Ticket, Full> {
        self.submit(Io::write(at, data))
    }

    /// Notifies the devices of all submitted requests.
    #[inline]
    pub fn ring(&mut self) {
        for engine in &mut self.engines {
            engine.ring();
        }
    }

    /// Returns the next completed request, if there is one. Rings the doorbell first if necessary.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Done> {
        if let [engine] = self.engines.as_mut_slice() {
            return engine.next(ME);
        }
        self.engines.iter_mut().find_map(|engine| engine.next(ME))
    }

    /// Returns the next completed request; waits for one up to `at_most` ([`Duration::MAX`]: no limit). Returns `None` also if
    /// nothing
    /// is in flight.
    pub fn wait(&mut self, at_most: Duration) -> Option<Done> {
        self.wait_until(at_most, |handle| handle.poll().ok_or(handle.in_flight() > 0)).ok()
    }

    /// Waits for one request and returns it; other completions stay to be collected. Returns `None` after `at_most`, or if there is
    /// no such ticket.
    pub fn wait_for(&mut self, ticket: Ticket, at_most: Duration) -> Option<Done> {
        let (at, index) = self.find(ticket)?;
        self.engines[at].claim(index);
        let found = self.wait_until(at_most, |handle| handle.take_claimed(at, index).ok_or(true));
        if found.is_err() {
            self.engines[at].unclaim(index);
        }
        found.ok()
    }

    fn take_claimed(&mut self, at: usize, index: u32) -> Option<Done> {
        let engine = &mut self.engines[at];
        if let Some(done) = engine.take_claimed(index) {
            return Some(done);
        }
        if !engine.reap() {
            return None;
        }
        engine.take_claimed(index)
    }

    /// Waits until `look` returns a result, or reports that there is nothing to wait for.
    #[inline]
    fn wait_until<T>(&mut self, at_most: Duration, mut look: impl FnMut(&mut Self) -> Result<T, bool>) -> Result<T, bool> {
        let first = look(self);
        if first.is_ok() || matches!(first, Err(false)) || at_most.is_zero() {
            return first;
        }
        let end = self.engines[0].now().after(at_most);
        let mut fruitless: u32 = 0;
        loop {
            let left = if at_most == Duration::MAX { at_most } else { end.since(self.engines[0].now()) };
            if left.is_zero() {
                return Err(true);
            }
            self.pause(left, &mut fruitless);
            let found = look(self);
            if found.is_ok() || matches!(found, Err(false)) {
                return found;
            }
        }
    }

    /// Waits until a queue may have something to report.
    fn pause(&mut self, at_most: Duration, fruitless: &mut u32) {
        if self.engines.iter_mut().fold(false, |ended, engine| engine.ring() | ended) {
            return;
        }
        *fruitless = fruitless.wrapping_add(1);
        if self.params.completion == Completion::Polling {
            return look_again(*fruitless);
        }
        if fruitless.is_multiple_of(WAITS_TO_YIELD) {
            std::thread::yield_now();
        }
        let busy = self.engines.iter().filter(|engine| engine.busy(ME) > 0).count();
        if busy > 1 {
            return self.pause_many(at_most, busy);
        }
        if let Some(engine) = self.engines.iter_mut().find(|engine| engine.busy(ME) > 0) {
            engine.pause(at_most);
        }
    }

    /// Waits for all queues together if each has a descriptor, otherwise for one after the other, a slice of time each.
    fn pause_many(&mut self, at_most: Duration, busy: usize) {
        let mut limit = at_most;
        let mut together = busy <= sleep::FDS_MAX;
        for engine in self.engines.iter_mut().filter(|engine| engine.busy(ME) > 0) {
            limit = engine.until_due(limit);
            together &= engine.queue().event().is_some();
        }
        if !together {
            for engine in self.engines.iter_mut().filter(|engine| engine.busy(ME) > 0) {
                engine.pause(limit.min(SLICE));
            }
            return;
        }
        for engine in self.engines.iter_mut().filter(|engine| engine.busy(ME) > 0) {
            if engine.queue().arm() == Armed::Ready {
                return;
            }
        }
        let mut fds = [None; sleep::FDS_MAX];
        let events = self.engines.iter().filter(|engine| engine.busy(ME) > 0).filter_map(Engine::event);
        for (place, fd) in fds.iter_mut().zip(events) {
            *place = Some(fd);
        }
        let first = fds[0].expect("more than one is busy");
        sleep::until_readable(&fds.map(|fd| fd.unwrap_or(first))[..busy], limit);
    }

    fn find(&self, ticket: Ticket) -> Option<(usize, u32)> {
        let (at, _) = job::place(ticket);
        let index = self.engines.get(at)?.find(ME, ticket)?;
        Some((at, index))
    }

    /// Requests that the device cancel a request. The request still completes, as cancelled or with its own status. Returns false
    /// if there is no such ticket.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some((at, index)) = self.find(ticket) else { return false };
        self.engines[at].cancel(index);
        true
    }

    /// Waits until nothing is in flight, up to `at_most`. The completions stay to be collected.
    ///
    /// # Errors
    /// [`Error::Timeout`]: requests are still in flight.
    pub fn drain(&mut self, at_most: Duration) -> Result<(), Error> {
        let drained = self.wait_until(at_most, |handle| {
            for engine in &mut handle.engines {
                engine.reap();
            }
            if handle.in_flight() == 0 { Ok(()) } else { Err(true) }
        });
        drained.map_err(|_| Error::Timeout)
    }

    /// Aborts everything in flight. Each request completes as reset; it may or may not have been executed.
    ///
    /// # Errors
    /// A queue cannot be reset: its device is gone, and its requests complete with that error.
    pub fn reset(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for engine in &mut self.engines {
            first = first.and(engine.reset());
        }
        first
    }

    /// Returns memory ([`Data::Span`], [`Data::Spans`]) of a request that was reported as held, once the device has released it.
    /// Buffers return to their arena by themselves.
    pub fn take_released(&mut self) -> Option<Released> {
        self.engines.iter_mut().find_map(|engine| {
            engine.reap();
            engine.take_released(ME)
        })
    }

    /// Returns the number of requests that were submitted and have not completed.
    pub fn in_flight(&self) -> u32 {
        self.engines.iter().map(|engine| engine.busy(ME)).sum()
    }

    /// Executes one request and returns its result.
    pub fn run(&mut self, io: Io) -> Done {
        match self.submit_as(io, true) {
            Ok(ticket) => {
                let (at, index) = self.find(ticket).expect("just submitted");
                self.wait_until(Duration::MAX, |handle| handle.take_claimed(at, index).ok_or(true)).expect("each request ends")
            }
            // Only a running synchronous call occupies the slot that is reserved for synchronous calls.
            Err(Full(io)) => refused(io, Error::NoResources),
        }
    }

    /// Executes the request, or only submits it, depending on the parameter `synchronous`.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn issue(&mut self, io: Io) -> Result<Issued, Full> {
        if self.params.synchronous { Ok(Issued::Done(self.run(io))) } else { self.submit(io).map(Issued::Submitted) }
    }

    /// Reads as many bytes as the buffer holds.
    pub fn read(&mut self, at: impl Into<At>, buf: Buf) -> Done {
        self.run(Io::read(at, buf))
    }

    /// Writes the whole buffer to the device.
    pub fn write(&mut self, at: impl Into<At>, buf: Buf) -> Done {
        self.run(Io::write(at, buf))
    }

    /// Makes completed writes survive a power loss.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.run(Io::flush()).status
    }

    /// Discards blocks: their content is no longer needed. `length` has the unit of `at`: blocks or bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn discard(&mut self, at: impl Into<At>, length: u64) -> Result<(), Error> {
        self.run(Io::discard(at, length)).status
    }

    /// Fills blocks with zeroes. `length` has the unit of `at`: blocks or bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn write_zeroes(&mut self, at: impl Into<At>, length: u64) -> Result<(), Error> {
        self.run(Io::write_zeroes(at, length)).status
    }
}

/// The outcome of an issued request: completed or only submitted.
#[derive(Debug)]
pub enum Issued {
    /// The request has completed.
    Done(Done),
    /// The request is in flight; collect it later.
    Submitted(Ticket),
}
