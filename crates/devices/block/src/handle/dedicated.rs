//! A handle that owns its queues: no lock anywhere.

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
/// Queues of one handle: 8 bits in tickets.
pub(super) const QUEUES_MAX: usize = 256;
/// Fruitless waits in a row, after which the processor is given away: over a queue that never waits.
const WAITS_TO_YIELD: u32 = 16;
/// How long one of several queues is waited for that cannot be waited for together.
const SLICE: Duration = Duration::from_micros(50);

/// A handle of one thread over queues of its own (NVMeDirect: a dedicated queue). Used by one thread at a time, and moved
/// freely between them.
///
/// Dropped with requests in flight it waits a second for them, then resets the queues. Memory that the device keeps even
/// then is never used again. Completions not collected are lost: `drain` and `poll` before, if they matter.
pub struct Handle<Q: Queue = Box<dyn Queue>, C: Clock = Monotonic> {
    engines: Vec<Engine<Q, C>>,
    selector: Selector,
    turn: usize,
    params: Params,
    defaults: Defaults,
}

impl<Q: Queue> Handle<Q> {
    /// Over one queue, by the machine's clock.
    ///
    /// # Errors
    /// More requests than a handle can have.
    pub fn new(queue: Q, params: Params) -> Result<Handle<Q>, Error> {
        let patience = params.patience();
        Handle::over(vec![Tracked::new(queue, patience)], Selector::default(), params)
    }
}

impl<Q: Queue, C: Clock> Handle<Q, C> {
    /// Over several queues of one device.
    ///
    /// # Errors
    /// More queues or requests than a handle can have, or none.
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

    /// Makes an arena known to the device.
    ///
    /// # Errors
    /// As [`Queue::register`].
    pub fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.engines.iter_mut().try_for_each(|engine| engine.register(arena))
    }

    /// What the device looks like.
    pub fn geometry(&mut self) -> &Geometry {
        self.engines[0].queue().geometry()
    }

    /// All parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// One parameter.
    pub fn get(&self, key: Key) -> u64 {
        self.params.get(key)
    }

    /// Sets a parameter, for requests submitted from now on.
    ///
    /// # Errors
    /// A wrong value, or the key is fixed once the queue is open.
    pub fn set(&mut self, key: Key, value: u64) -> Result<(), ParamError> {
        self.params.set_open(key, value)?;
        self.defaults = self.params.defaults();
        Ok(())
    }

    /// Takes a request. The device hears of it at the next `ring`, `poll` or `wait`. What is wrong with it is said by its
    /// completion.
    ///
    /// # Errors
    /// No place: as many as `requests_max` were not collected yet.
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

    /// Submits a read of as much as the buffer holds.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn submit_read(&mut self, at: impl Into<At>, data: impl Into<Data>) -> Result<Ticket, Full> {
        self.submit(Io::read(at, data))
    }

    /// Submits a write.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn submit_write(&mut self, at: impl Into<At>, data: impl Into<Data>) -> Result<Ticket, Full> {
        self.submit(Io::write(at, data))
    }

    /// Tells the devices of all that was submitted.
    #[inline]
    pub fn ring(&mut self) {
        for engine in &mut self.engines {
            engine.ring();
        }
    }

    /// The next request that has ended, if there is one. Rings.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Done> {
        if let [engine] = self.engines.as_mut_slice() {
            return engine.next(ME);
        }
        self.engines.iter_mut().find_map(|engine| engine.next(ME))
    }

    /// The next request that has ended, waiting for one at most so long ([`Duration::MAX`]: for ever). None also when there is
    /// nothing in flight.
    pub fn wait(&mut self, at_most: Duration) -> Option<Done> {
        self.wait_until(at_most, |handle| handle.poll().ok_or(handle.in_flight() > 0)).ok()
    }

    /// This request, once it has ended; others stay to be collected. None: not in time, or there is no such ticket.
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

    /// Waits until `look` finds something, or says that there is nothing to wait for.
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

    /// Until a queue may have something to report.
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

    /// Together if each has a descriptor, else in slices in turn.
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

    /// Asks for a request to be given up. It ends all the same: as cancelled, or as it ended. False: there is no such ticket.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some((at, index)) = self.find(ticket) else { return false };
        self.engines[at].cancel(index);
        true
    }

    /// Waits until nothing is in flight, at most so long; the completions are there to be collected.
    ///
    /// # Errors
    /// [`Error::Timeout`]: there is still something in flight.
    pub fn drain(&mut self, at_most: Duration) -> Result<(), Error> {
        let drained = self.wait_until(at_most, |handle| {
            for engine in &mut handle.engines {
                engine.reap();
            }
            if handle.in_flight() == 0 { Ok(()) } else { Err(true) }
        });
        drained.map_err(|_| Error::Timeout)
    }

    /// Gives everything in flight up. Each is reported, as reset; whether it was done is not known.
    ///
    /// # Errors
    /// A queue cannot be reset: its device is gone, and requests are reported so.
    pub fn reset(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for engine in &mut self.engines {
            first = first.and(engine.reset());
        }
        first
    }

    /// Memory of pieces ([`Data::Span`], [`Data::Spans`]) whose request was reported as held, once the device leaves it alone.
    /// Buffers go back to their arena by themselves.
    pub fn take_released(&mut self) -> Option<Released> {
        self.engines.iter_mut().find_map(|engine| {
            engine.reap();
            engine.take_released(ME)
        })
    }

    /// Requests submitted and not ended.
    pub fn in_flight(&self) -> u32 {
        self.engines.iter().map(|engine| engine.busy(ME)).sum()
    }

    /// Runs one request to its end.
    pub fn run(&mut self, io: Io) -> Done {
        match self.submit_as(io, true) {
            Ok(ticket) => {
                let (at, index) = self.find(ticket).expect("just submitted");
                self.wait_until(Duration::MAX, |handle| handle.take_claimed(at, index).ok_or(true)).expect("each request ends")
            }
            // The place for synchronous calls is only taken while one runs.
            Err(Full(io)) => refused(io, Error::NoResources),
        }
    }

    /// As the parameter `synchronous` says: to the end, or only submitted.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn issue(&mut self, io: Io) -> Result<Issued, Full> {
        if self.params.synchronous { Ok(Issued::Done(self.run(io))) } else { self.submit(io).map(Issued::Submitted) }
    }

    /// Reads as much as the buffer holds.
    pub fn read(&mut self, at: impl Into<At>, buf: Buf) -> Done {
        self.run(Io::read(at, buf))
    }

    /// Writes the buffer.
    pub fn write(&mut self, at: impl Into<At>, buf: Buf) -> Done {
        self.run(Io::write(at, buf))
    }

    /// Makes what was completed survive a loss of power.
    ///
    /// # Errors
    /// As the device says.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.run(Io::flush()).status
    }

    /// Gives blocks back. `length` is in blocks if `at` is, else in bytes.
    ///
    /// # Errors
    /// As the device says.
    pub fn discard(&mut self, at: impl Into<At>, length: u64) -> Result<(), Error> {
        self.run(Io::discard(at, length)).status
    }

    /// Makes blocks zero. `length` is in blocks if `at` is, else in bytes.
    ///
    /// # Errors
    /// As the device says.
    pub fn write_zeroes(&mut self, at: impl Into<At>, length: u64) -> Result<(), Error> {
        self.run(Io::write_zeroes(at, length)).status
    }
}

/// What became of an issued request.
#[derive(Debug)]
pub enum Issued {
    /// It has ended.
    Done(Done),
    /// It goes on; collect it later.
    Submitted(Ticket),
}
