//! A queue around a queue: delays requests, and sends them in the order that [`Classes`] decides.
//!
//! The states of a request, and its transitions:
//!
//! ```text
//!   submit -------> Ready ------ dispatch ------> Sent ----- poll ------> reported
//!      |              ^                            |  ^
//!      | has to       | the earlier one            |  | dispatch
//!      v follow       | completed                  v  |
//!   Blocked ----------+                           Again (the inner queue was full)
//!   cancel: Blocked, Ready and Again are reported as Cancelled at once; for Sent the inner queue cancels.
//! ```
//!
//! Invariants, whatever the order does:
//! - If two requests have common blocks and one is a write, the later is sent after the earlier has completed. So the order
//!   may send the requests that it sees in any sequence. (The contract of [`Queue`] promises no order at all. A submitter on a
//!   plain queue often gets one, and a scheduler should not surprise it.)
//! - A flush is not a barrier, and needs none: it covers writes that *completed* before its submission. Writes that were
//!   reported here had completed in the inner queue before, and the flush is sent still later. Delaying requests can only make it
//!   cover more. Writes that a flush overtakes have not completed, so it need not cover them.
//! - The stage does not allocate after `new`.

mod queue;

use crate::buffer::Span;
use crate::clock::{Clock, Monotonic, Time};
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::units::Tag;

use super::classes::{Classes, Pick};
use super::overlap::Overlap;
use super::slots::{RequestState, Slots};

/// The most requests of a stage: in total, and in the inner queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// The most requests that were accepted and not reported: 1 to 4096.
    pub held: u32,
    /// The most requests in the inner queue: 1 to the depth of that queue.
    pub dispatched: u32,
}

/// A queue around a queue, which sends requests in the order that [`Classes`] decides.
#[derive(Debug)]
pub struct Stage<Q, C = Monotonic> {
    queue: Q,
    order: Classes,
    clock: C,
    slots: Slots,
    overlap: Overlap,
    /// A request that the inner queue had no room for; it is sent before all others.
    again: Option<u32>,
    ended: CompletionRing,
    /// The memory of a request while it is sent.
    spans: Vec<Span>,
    /// Slots to be hurried, while they are being collected.
    hurried: Vec<u32>,
    dispatched_max: u32,
    /// The number of requests that were accepted and not reported.
    in_flight: u32,
    /// The number of requests in the inner queue.
    sent: u32,
    /// The number of requests that the order knows.
    ready: u32,
    blocked: u32,
    /// The time, read once for each `ring`, `poll` or `wait` that has something to do, and at a submission after a pause.
    now: Time,
    /// No request is sent before this time, unless one completes.
    not_before: Time,
    /// Whether the time was read so recently that the next `ring` need not read it.
    time_is_fresh: bool,
    unrung: bool,
    gone: bool,
}

impl<Q: Queue, C: Clock> Stage<Q, C> {
    /// Wraps a queue. The order must have been made for `depths.held` requests. Depths out of range are clamped.
    pub fn new(queue: Q, order: Classes, depths: Depths, clock: C) -> Stage<Q, C> {
        let held = depths.held.clamp(1, 4096);
        let segments_max = queue.geometry().segments_max;
        Stage {
            slots: Slots::new(held, segments_max),
            overlap: Overlap::new(held),
            again: None,
            ended: CompletionRing::new(held),
            spans: Vec::with_capacity(usize::from(segments_max)),
            hurried: Vec::with_capacity(held as usize),
            dispatched_max: depths.dispatched.clamp(1, queue.depth().max(1)),
            in_flight: 0,
            sent: 0,
            ready: 0,
            blocked: 0,
            now: Time::default(),
            not_before: Time::NEVER,
            time_is_fresh: false,
            unrung: false,
            gone: false,
            queue,
            order,
            clock,
        }
    }

    /// Returns the inner queue, which this stage wraps.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Returns the order of this stage.
    pub fn order(&self) -> &Classes {
        &self.order
    }

    /// Returns the number of requests that wait in this stage.
    pub fn waiting(&self) -> u32 {
        self.ready + self.blocked + u32::from(self.again.is_some())
    }

    /// Completes a request with an error, without the device.
    fn refuse(&mut self, tag: Tag, error: Error) -> Submit {
        self.in_flight += 1;
        self.ended.push(Completion { tag, status: Err(error) });
        Submit::Queued
    }

    /// Makes a request wait for conflicting earlier requests, or passes it to the order.
    #[inline]
    fn queue_up(&mut self, slot: u32, request: &Request) {
        let blockers = self.overlap.conflicts(request).count();
        self.overlap.insert(slot, request);
        if blockers == 0 {
            self.slots[slot].state = RequestState::Ready;
            self.ready += 1;
            return self.order.insert(slot, request);
        }
        self.blocked += 1;
        self.slots[slot].state = RequestState::Blocked;
        self.slots[slot].blockers = u32::try_from(blockers).expect("no more than the depth");
        self.hurry(slot);
    }

    /// Hurries the requests that this one has to follow, directly or indirectly: they must not wait for the share of another class.
    fn hurry(&mut self, slot: u32) {
        let class = self.slots[slot].request.class;
        self.hurried.push(slot);
        while let Some(follower) = self.hurried.pop() {
            let (request, number) = (self.slots[follower].request, self.slots[follower].number);
            for blocker in self.overlap.conflicts(&request) {
                let held = &mut self.slots[blocker];
                if held.number >= number || held.hurried || held.request.class == class {
                    continue;
                }
                held.hurried = true;
                match held.state {
                    RequestState::Ready => self.order.hurry(blocker, &held.request),
                    RequestState::Blocked => self.hurried.push(blocker),
                    _ => {}
                }
            }
        }
    }

    fn anything_to_send(&self) -> bool {
        (self.ready > 0 || self.again.is_some()) && !self.gone
    }

    #[inline]
    fn look_at_clock(&mut self) {
        self.now = self.clock.now();
    }

    /// Sends requests until the inner queue has as many as it may.
    fn dispatch(&mut self) {
        self.not_before = Time::NEVER;
        if !self.anything_to_send() {
            return;
        }
        while self.sent < self.dispatched_max {
            let taken = match self.again.take() {
                Some(slot) => self.send(slot),
                None => self.pick_and_send(),
            };
            if !taken {
                break;
            }
        }
    }

    #[inline]
    fn pick_and_send(&mut self) -> bool {
        let slot = match self.order.pick(self.now) {
            Pick::Slot(slot) => slot,
            Pick::Nothing => return false,
            Pick::NotBefore(time) => {
                self.not_before = time;
                return false;
            }
        };
        self.ready -= 1;
        self.send(slot)
    }

    /// Sends a request. Returns false if the inner queue is full; the request then goes next.
    #[inline]
    fn send(&mut self, slot: u32) -> bool {
        self.spans.clear();
        self.slots.append_spans(slot, &mut self.spans);
        let held = &mut self.slots[slot];
        let below = Request { tag: device_tag(slot, held.generation), ..held.request };
        if self.queue.submit(&below, &self.spans) == Submit::Full {
            held.state = RequestState::Again;
            self.again = Some(slot);
            return false;
        }
        held.state = RequestState::Sent;
        self.sent += 1;
        self.unrung = true;
        true
    }

    /// Records a completion of the inner queue. Returns the completion to report, if the request is known.
    #[inline]
    fn end(&mut self, completion: Completion) -> Option<Completion> {
        let slot = (completion.tag.0 & 0xffff_ffff) as u32;
        let ours = slot < self.slots.len() && {
            let held = &self.slots[slot];
            held.state == RequestState::Sent && device_tag(slot, held.generation) == completion.tag
        };
        if !ours {
            return None;
        }
        self.sent -= 1;
        Some(self.finish(slot, completion.status))
    }

    /// Completes a request that was picked, and unblocks requests that follow it.
    #[inline]
    fn finish(&mut self, slot: u32, status: Status) -> Completion {
        let request = self.slots[slot].request;
        self.order.complete(&request, self.now);
        self.leave(slot, status)
    }

    #[inline]
    fn leave(&mut self, slot: u32, status: Status) -> Completion {
        let (request, number) = (self.slots[slot].request, self.slots[slot].number);
        self.overlap.remove(slot, &request);
        self.slots.give(slot);
        if self.blocked > 0 {
            self.unblock(&request, number);
        }
        Completion { tag: request.tag, status }
    }

    fn unblock(&mut self, ended: &Request, number: u64) {
        for follower in self.overlap.conflicts(ended) {
            let held = &mut self.slots[follower];
            if held.number < number {
                continue;
            }
            held.blockers -= 1;
            if held.blockers == 0 {
                held.state = RequestState::Ready;
                self.blocked -= 1;
                self.ready += 1;
                self.order.insert(follower, &held.request);
                if held.hurried {
                    self.order.hurry(follower, &held.request);
                }
            }
        }
    }

    fn dispatch_and_ring(&mut self) {
        self.dispatch();
        if std::mem::take(&mut self.unrung) {
            self.queue.ring();
        }
    }

    fn go_on(&mut self) {
        if !std::mem::take(&mut self.time_is_fresh) && self.anything_to_send() {
            self.look_at_clock();
        }
        self.dispatch_and_ring();
    }

    /// Reports requests that the device has not received and will not get, so that their memory can be reused.
    fn give_up_waiting(&mut self) {
        for slot in 0..self.slots.len() {
            let request = self.slots[slot].request;
            match self.slots[slot].state {
                RequestState::Free | RequestState::Sent => continue,
                RequestState::Ready => self.order.remove(slot, &request),
                RequestState::Again => self.order.complete(&request, self.now),
                RequestState::Blocked => {}
            }
            self.overlap.remove(slot, &request);
            self.slots.give(slot);
            self.ended.push(Completion { tag: request.tag, status: Err(Error::Gone) });
        }
        self.again = None;
        self.ready = 0;
        self.blocked = 0;
    }

    fn forget_all(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].state != RequestState::Free {
                self.slots.give(slot);
            }
        }
        self.again = None;
        self.order.clear();
        self.overlap.clear();
        self.ended.clear();
        self.in_flight = 0;
        self.sent = 0;
        self.ready = 0;
        self.blocked = 0;
        self.unrung = false;
    }
}

fn device_tag(slot: u32, generation: u32) -> Tag {
    Tag(u64::from(generation) << 32 | u64::from(slot))
}
