//! A queue with what is in flight on it: which request carries which frames, and who waits for it.
//!
//! The life of a slot: Free, then in flight, then Free; or, if the device did not answer and may still use the memory, Kept
//! until the queue names it as released.

use block::{Completion, Error, Op, Queue, Request, Span, Submit, Tag};
use pagecache::FrameId;

/// Who waits for a request: a place in [`Tickets`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(pub(crate) u32);

/// What is in flight, or was.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) op: Op,
    pub(crate) fua: bool,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) frames: Vec<FrameId>,
    generation: u32,
}

#[derive(Debug)]
pub(crate) struct Lane<Q> {
    pub(crate) queue: Q,
    pub(crate) slots: Box<[Slot]>,
    free: Vec<u32>,
    rung: bool,
}

impl<Q: Queue> Lane<Q> {
    /// `run_max`: most frames of a request.
    pub(crate) fn new(queue: Q, run_max: usize) -> Lane<Q> {
        let depth = queue.depth();
        let slot = || Slot { op: Op::Flush, fua: false, ticket: None, frames: Vec::with_capacity(run_max), generation: 0 };
        Lane { queue, slots: (0..depth).map(|_| slot()).collect(), free: (0..depth).rev().collect(), rung: true }
    }

    /// Requests that could be submitted now.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Submits; whether there was room. The device hears of it with `ring`.
    pub(crate) fn submit(&mut self, request: &Request, frames: &[FrameId], data: &[Span], ticket: Option<Ticket>) -> bool {
        let Some(&number) = self.free.last() else { return false };
        let slot = &mut self.slots[number as usize];
        let tag = Tag(u64::from(slot.generation) << 32 | u64::from(number));
        if self.queue.submit(&Request { tag, ..*request }, data) == Submit::Full {
            return false;
        }
        self.free.pop();
        (slot.op, slot.fua, slot.ticket) = (request.op, request.fua, ticket);
        slot.frames.clear();
        slot.frames.extend_from_slice(frames);
        self.rung = false;
        true
    }

    /// One doorbell for all that was submitted.
    pub(crate) fn ring(&mut self) {
        if !std::mem::replace(&mut self.rung, true) {
            self.queue.ring();
        }
    }

    /// What has ended. Each has to be given to `free` or left Kept.
    pub(crate) fn poll(&mut self, ended: &mut [Completion]) -> usize {
        if self.queue.in_flight() == 0 { 0 } else { self.queue.poll(ended) }
    }

    /// The slot of a tag that came back.
    pub(crate) fn slot(&self, tag: Tag) -> u32 {
        let number = (tag.0 & 0xffff_ffff) as u32;
        assert_eq!(u64::from(self.slots[number as usize].generation), tag.0 >> 32, "a completion of nothing in flight");
        number
    }

    pub(crate) fn free(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.frames.clear();
        self.free.push(number);
    }
}

/// Those who wait for requests of theirs.
#[derive(Debug)]
pub(crate) struct Tickets {
    entries: Box<[Waiter]>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Waiter {
    outstanding: u32,
    error: Option<Error>,
    /// Pinned, so that they are there when the waiter comes for them.
    frames: Vec<FrameId>,
}

impl Tickets {
    /// For `waiters`, each for up to `frames`.
    pub(crate) fn new(waiters: u32, frames: usize) -> Tickets {
        let entries = (0..waiters).map(|_| Waiter { frames: Vec::with_capacity(frames), ..Waiter::default() }).collect();
        Tickets { entries, free: (0..waiters).rev().collect() }
    }

    pub(crate) fn take(&mut self) -> Option<Ticket> {
        self.free.pop().map(Ticket)
    }

    /// Tickets in use.
    pub(crate) fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    fn get(&mut self, ticket: Ticket) -> &mut Waiter {
        &mut self.entries[ticket.0 as usize]
    }

    pub(crate) fn submitted(&mut self, ticket: Ticket) {
        self.get(ticket).outstanding += 1;
    }

    pub(crate) fn ended(&mut self, ticket: Ticket, status: Result<(), Error>) {
        let waiter = self.get(ticket);
        waiter.outstanding -= 1;
        waiter.error = waiter.error.or(status.err());
    }

    pub(crate) fn keep(&mut self, ticket: Ticket, frame: FrameId) {
        self.get(ticket).frames.push(frame);
    }

    /// Whether all has ended, and the first error; none: not yet.
    pub(crate) fn outcome(&mut self, ticket: Ticket) -> Option<Result<(), Error>> {
        let waiter = self.get(ticket);
        (waiter.outstanding == 0).then_some(waiter.error.map_or(Ok(()), Err))
    }

    /// Whether it waits for nothing and keeps nothing.
    pub(crate) fn is_idle(&self, ticket: Ticket) -> bool {
        let waiter = &self.entries[ticket.0 as usize];
        waiter.outstanding == 0 && waiter.frames.is_empty()
    }

    /// Whether it keeps a frame.
    pub(crate) fn keeps(&self, ticket: Ticket, frame: FrameId) -> bool {
        self.entries[ticket.0 as usize].frames.contains(&frame)
    }

    /// A frame it kept; when there is none any more the ticket can be given back.
    pub(crate) fn next_kept(&mut self, ticket: Ticket) -> Option<FrameId> {
        self.get(ticket).frames.pop()
    }

    pub(crate) fn give_back(&mut self, ticket: Ticket) {
        let waiter = self.get(ticket);
        assert!(waiter.outstanding == 0 && waiter.frames.is_empty(), "a ticket that is still needed");
        waiter.error = None;
        self.free.push(ticket.0);
    }
}
