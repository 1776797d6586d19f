//! A queue whose requests take the time that a model computes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use block::{Armed, Completion, Error, Queue, Request, Span, Submit, Tag, Time};

use super::fixed::Reservations;
use super::{DeviceModel, ReservationModel};
use crate::device::clock::{DeviceClock, Real, Virtual, VirtualClock};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    /// In the model: blocks and memory are untouched.
    Waiting,
    /// Due, but the inner queue was full.
    Due,
    /// In the inner queue.
    Forwarded,
}

#[derive(Clone, Copy, Debug)]
struct RequestSlot {
    request: Request,
    spans: u16,
    generation: u32,
    state: SlotState,
}

/// A queue with modelled completion times. The inner queue does the work, at once or in additional time. While it has requests, `arm`
/// returns `Ready`: its event is not used.
///
/// States of a slot: Free, `submit`, Waiting, the model's completion, (Due,) Forwarded, completion, Free. `cancel` returns a Waiting slot
/// to Free: the request is reported as cancelled and had no effect.
#[derive(Debug)]
pub struct TimedQueue<Q, M, T> {
    queue: Q,
    model: M,
    timing: T,
    slots: Box<[RequestSlot]>,
    /// Spans of each slot's request, `segments` for each.
    spans: Box<[Span]>,
    segments: usize,
    free: Vec<u32>,
    due: VecDeque<u32>,
    /// Requests completed here: cancelled or invalid ones.
    local: VecDeque<Completion>,
    below: u32,
    /// A caller waits for the event.
    armed: bool,
}

impl<Q: Queue, R: ReservationModel> TimedQueue<Q, Reservations<R>, Virtual> {
    /// Creates a queue in virtual time.
    pub fn simulated(queue: Q, device: R, clock: &VirtualClock) -> Self {
        let depth = queue.depth();
        TimedQueue::new(queue, Reservations::new(device, depth), Virtual::new(clock))
    }
}

impl<Q: Queue, R: ReservationModel> TimedQueue<Q, Reservations<R>, Real> {
    /// Creates a queue in real time.
    ///
    /// # Errors
    /// No timer descriptor is available.
    pub fn real(queue: Q, device: R) -> io::Result<Self> {
        let depth = queue.depth();
        Ok(TimedQueue::new(queue, Reservations::new(device, depth), Real::new()?))
    }
}

impl<Q: Queue, M: DeviceModel, T: DeviceClock> TimedQueue<Q, M, T> {
    /// Wraps a queue, with the same depth.
    pub fn new(queue: Q, model: M, timing: T) -> TimedQueue<Q, M, T> {
        let depth = queue.depth();
        let segments = usize::from(queue.geometry().segments_max);
        let slot = RequestSlot { request: Request::flush(Tag(0)), spans: 0, generation: 0, state: SlotState::Free };
        let nothing = Span { arena: block::buffer::ArenaId(0), bytes: 0, at: 0 };
        TimedQueue {
            queue,
            model,
            timing,
            slots: vec![slot; depth as usize].into(),
            spans: vec![nothing; depth as usize * segments].into(),
            segments,
            free: (0..depth).rev().collect(),
            due: VecDeque::with_capacity(depth as usize),
            local: VecDeque::with_capacity(depth as usize),
            below: 0,
            armed: false,
        }
    }

    /// Returns the clock of the queue.
    pub fn timing(&self) -> &T {
        &self.timing
    }

    /// Returns the model that computes completion times.
    pub fn model(&mut self) -> &mut M {
        &mut self.model
    }

    /// Returns the inner queue, mutably.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn token(&self, index: u32) -> u64 {
        u64::from(self.slots[index as usize].generation) << 32 | u64::from(index)
    }

    /// Returns the slot of a token if the request is still in it.
    fn index(&self, token: u64) -> Option<u32> {
        let index = (token & 0xffff_ffff) as u32;
        let slot = self.slots.get(index as usize)?;
        (slot.state != SlotState::Free && u64::from(slot.generation) == token >> 32).then_some(index)
    }

    fn release(&mut self, index: u32) -> Tag {
        let slot = &mut self.slots[index as usize];
        slot.state = SlotState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        slot.request.tag
    }

    /// Returns when the queue has something to do.
    #[inline]
    fn next(&self) -> Time {
        if self.below > 0 || !self.local.is_empty() || !self.due.is_empty() { Time(0) } else { self.model.next() }
    }

    /// Forwards due requests, at most `room`, to the inner queue.
    #[inline]
    fn forward(&mut self, now: Time, room: usize) {
        while self.due.len() + (self.below as usize) < room
            && let Some(token) = self.model.pop_completed(now)
        {
            if let Some(index) = self.index(token) {
                self.slots[index as usize].state = SlotState::Due;
                self.due.push_back(index);
            }
        }
        let mut rings = false;
        while let Some(&index) = self.due.front() {
            let slot = self.slots[index as usize];
            let first = index as usize * self.segments;
            let below = Request { tag: Tag(self.token(index)), ..slot.request };
            if self.queue.submit(&below, &self.spans[first..first + usize::from(slot.spans)]) == Submit::Full {
                break;
            }
            self.slots[index as usize].state = SlotState::Forwarded;
            self.due.pop_front();
            self.below += 1;
            rings = true;
        }
        if rings {
            self.queue.ring();
        }
    }
}

impl<Q: Queue, M: DeviceModel, T: DeviceClock> block::QueueWrapper for TimedQueue<Q, M, T> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if Queue::in_flight(self) >= Queue::depth(self) {
            return Submit::Full;
        }
        if let Err(error) = self.queue.geometry().check(request, data) {
            self.local.push_back(Completion { tag: request.tag, status: Err(error) });
            return Submit::Queued;
        }
        let index = self.free.pop().expect("fewer in flight than slots");
        let slot = &mut self.slots[index as usize];
        slot.request = *request;
        slot.state = SlotState::Waiting;
        slot.spans = data.len() as u16;
        let first = index as usize * self.segments;
        self.spans[first..first + data.len()].copy_from_slice(data);
        let token = self.token(index);
        self.model.begin(self.timing.now(), token, request);
        self.timing.set_due(self.model.next());
        Submit::Queued
    }

    #[inline]
    fn ring(&mut self) {
        if self.armed {
            self.timing.arm(self.next());
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < completions.len()
            && let Some(completion) = self.local.pop_front()
        {
            completions[count] = completion;
            count += 1;
        }
        if self.model.next() != Time::NEVER || !self.due.is_empty() {
            self.forward(self.timing.now(), completions.len() - count);
        }
        if self.below == 0 {
            return count;
        }
        let ended = self.queue.poll(&mut completions[count..]);
        let mut reported = count;
        for at in count..count + ended {
            if let Some(index) = self.index(completions[at].tag.0) {
                self.below -= 1;
                completions[reported] = Completion { tag: self.release(index), status: completions[at].status };
                reported += 1;
            }
        }
        self.timing.set_due(self.model.next());
        reported
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len() + self.local.len()) as u32
    }

    fn wait(&mut self, at_most: Duration) {
        Queue::ring(self);
        let now = self.timing.now();
        let next = self.next();
        if next <= now {
            if self.below > 0 {
                self.queue.wait(at_most);
            }
            return;
        }
        self.timing.sleep_until(next.min(now.after(at_most)));
        if self.armed {
            self.timing.arm(self.next());
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.timing.event()
    }

    fn arm(&mut self) -> Armed {
        let next = self.next();
        if next <= self.timing.now() {
            self.armed = false;
            return Armed::Ready;
        }
        self.armed = true;
        self.timing.arm(next);
        Armed::Waiting
    }

    fn cancel(&mut self, tag: Tag) {
        let Some(index) = self.slots.iter().position(|slot| slot.request.tag == tag && slot.state != SlotState::Free) else { return };
        let index = index as u32;
        let token = self.token(index);
        match self.slots[index as usize].state {
            SlotState::Forwarded => self.queue.cancel(Tag(token)),
            SlotState::Waiting if self.model.cancel(self.timing.now(), token) => {
                let tag = self.release(index);
                self.local.push_back(Completion { tag, status: Err(Error::Cancelled) });
            }
            _ => {}
        }
        Queue::ring(self);
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.queue.reset()?;
        self.model.reset(self.timing.now());
        self.timing.set_due(Time::NEVER);
        self.local.clear();
        self.due.clear();
        self.below = 0;
        for index in 0..Queue::depth(self) {
            if self.slots[index as usize].state != SlotState::Free {
                self.release(index);
            }
        }
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }

    fn expected(&self) -> Option<block::Time> {
        None
    }
}
