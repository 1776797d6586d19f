//! A handle on one or more shared queues.

use std::time::Duration;

use super::{HandleEntry, SLICE, SharedQueue};
use crate::buffer::{Arena, Buf};
use crate::clock::{Clock, Monotonic};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::handle::dedicated::{Issued, QUEUES_MAX};
use crate::handle::engine::{Engine, Owner, refused};
use crate::handle::io::{At, Data, Done, Full, Io, Released, Ticket};
use crate::handle::job;
use crate::handle::params::{Completion, Key, ParamError, Params};
use crate::handle::select::{Features, Selector};
use crate::queue::Queue;
use crate::request::{Class, Op};
use crate::sync::{Arc, AtomicU32, Condvar, Mutex, Ordering};

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

    /// Returns memory that the device has released, as [`super::super::Handle::take_released`] does.
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

impl<Q: Queue, C: Clock> Drop for SharedHandle<Q, C> {
    fn drop(&mut self) {
        for binding in &self.bindings {
            let mut inner = binding.queue.inner.lock();
            inner.engine.detach(binding.owner);
            binding.queue.tell(&mut inner);
        }
    }
}
