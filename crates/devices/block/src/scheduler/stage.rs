//! A queue around a queue: delays requests, and sends them in the order that an [`Order`] decides.
//!
//! The states of a request, and its transitions:
//!
//! ```text
//!   submit ----------> Ready -------------- dispatch ----------------> Sent ----- poll ------> reported
//!      |                 ^                                              |
//!      | has to follow   | the earlier one completed                    | was merged, and failed;
//!      v                 |                                              v or the inner queue was full
//!   Blocked -------------+                             Sent <------- Again
//!                                                         dispatch
//!   cancel: Blocked, Ready and Again are reported as Cancelled at once; for Sent the inner queue cancels.
//! ```
//!
//! Invariants, whatever the order does:
//! - If two requests have common blocks and one is a write, the later is sent after the earlier has completed. So the requests that
//!   the order sees may be merged and sorted freely. (The contract of [`Queue`] promises no order at all. A submitter on a
//!   plain queue often gets one, and a scheduler should not surprise it.)
//! - A flush is not a barrier, and needs none: it covers writes that *completed* before its submission. Writes that were
//!   reported here had completed in the inner queue before, and the flush is sent still later. Delaying requests can only make it
//!   cover more. Writes that a flush overtakes have not completed, so it need not cover them.
//! - Each request has one completion, also if a merged request failed: its parts are then sent again, each alone, so
//!   that each gets an individual status. One bad block must not fail adjacent requests, whose submitters do not know each
//!   other. Parts are not sent again if the device may still use their memory, or does not respond: see `merge.rs`.
//! - The stage does not allocate after `new`.

mod merge;
mod queue;

use std::collections::VecDeque;

use crate::buffer::Span;
use crate::clock::{Clock, Monotonic, Time};
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::units::Tag;

use super::order::{Order, Pick};
use super::overlap::Overlap;
use super::slots::{NONE, RequestState, Slots};
use merge::joined;
#[cfg(test)]
pub(super) use merge::worth_splitting;

/// The most requests of a stage: in total, and in the inner queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// The most requests that were accepted and not reported: 1 to 4096.
    pub held: u32,
    /// The most requests in the inner queue, counting a merged request once: 1 to the depth of that queue.
    pub dispatched: u32,
}

/// A queue around a queue, which sends requests in the order that `O` decides.
#[derive(Debug)]
pub struct Stage<Q, O, C = Monotonic> {
    queue: Q,
    order: O,
    clock: C,
    slots: Slots,
    overlap: Overlap,
    /// Parts that are sent alone, before all other requests.
    again: VecDeque<u32>,
    ended: CompletionRing,
    /// The memory of a merged request while it is sent.
    joined: Vec<Span>,
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

impl<Q: Queue, O: Order, C: Clock> Stage<Q, O, C> {
    /// Wraps a queue. The order must have been made for `depths.held` requests. Depths out of range are clamped.
    pub fn new(queue: Q, order: O, depths: Depths, clock: C) -> Stage<Q, O, C> {
        let held = depths.held.clamp(1, 4096);
        let segments_max = queue.geometry().segments_max;
        Stage {
            slots: Slots::new(held, segments_max),
            overlap: Overlap::new(held),
            again: VecDeque::with_capacity(held as usize),
            ended: CompletionRing::new(held),
            joined: Vec::with_capacity(usize::from(segments_max)),
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
    pub fn order(&self) -> &O {
        &self.order
    }

    /// Returns the number of requests that wait in this stage.
    pub fn waiting(&self) -> u32 {
        self.ready + self.blocked + self.waiting_again()
    }

    fn waiting_again(&self) -> u32 {
        u32::try_from(self.again.len()).expect("no more than the depth")
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
            return self.order.insert(slot, request, self.now);
        }
        self.blocked += 1;
        self.slots[slot].state = RequestState::Blocked;
        self.slots[slot].blockers = u32::try_from(blockers).expect("no more than the depth");
        if O::HURRIES {
            self.hurry(slot);
        }
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
        (self.ready > 0 || !self.again.is_empty()) && !self.gone
    }

    #[inline]
    fn look_at_clock(&mut self) {
        if O::TIMED {
            self.now = self.clock.now();
        }
    }

    /// Sends requests until the inner queue has as many as it may.
    fn dispatch(&mut self) {
        self.not_before = Time::NEVER;
        if !self.anything_to_send() {
            return;
        }
        while self.sent < self.dispatched_max {
            let taken = match self.again.pop_front() {
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
        let leader = self.merge(slot);
        self.send(leader)
    }

    /// Sends the request whose first part is `leader`. Returns false if the inner queue is full; its parts then wait again.
    #[inline]
    fn send(&mut self, leader: u32) -> bool {
        let mut whole = self.slots[leader].request;
        self.joined.clear();
        let mut part = leader;
        while part != NONE {
            self.slots.append_spans(part, &mut self.joined);
            let held = &mut self.slots[part];
            held.state = RequestState::Sent;
            held.leader = leader;
            if part != leader {
                whole = joined(&whole, &held.request).expect("it was merged");
            }
            part = held.next;
        }
        let below = Request { tag: device_tag(leader, self.slots[leader].generation), ..whole };
        if self.queue.submit(&below, &self.joined) == Submit::Full {
            self.wait_again(leader, true);
            return false;
        }
        self.order.sent(&whole);
        self.sent += 1;
        self.unrung = true;
        true
    }

    /// Queues the parts of a request to be sent again, each alone: first, or after the parts that already wait for that.
    fn wait_again(&mut self, leader: u32, at_once: bool) {
        let (mut part, mut place) = (leader, 0);
        while part != NONE {
            let held = &mut self.slots[part];
            held.state = RequestState::Again;
            let next = std::mem::replace(&mut held.next, NONE);
            match at_once {
                true => self.again.insert(place, part),
                false => self.again.push_back(part),
            }
            place += 1;
            part = next;
        }
    }

    /// Records a completion of the inner queue. Returns the completion to report; those of merged requests go to `ended`.
    #[inline]
    fn end(&mut self, completion: Completion) -> Option<Completion> {
        let leader = (completion.tag.0 & 0xffff_ffff) as u32;
        let ours = leader < self.slots.len() && {
            let held = &self.slots[leader];
            held.state == RequestState::Sent && held.leader == leader && device_tag(leader, held.generation) == completion.tag
        };
        if !ours {
            return None;
        }
        self.sent -= 1;
        if self.slots[leader].next == NONE {
            return Some(self.finish(leader, completion.status));
        }
        self.end_merged(leader, completion.status);
        None
    }

    /// Completes a request that was picked, and unblocks requests that follow it.
    #[inline]
    fn finish(&mut self, slot: u32, status: Status) -> Completion {
        let request = self.slots[slot].request;
        self.order.ended(&request, self.now);
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
                self.order.insert(follower, &held.request, self.now);
                if O::HURRIES && held.hurried {
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
                RequestState::Again => self.order.ended(&request, self.now),
                RequestState::Blocked => {}
            }
            self.overlap.remove(slot, &request);
            self.slots.give(slot);
            self.ended.push(Completion { tag: request.tag, status: Err(Error::Gone) });
        }
        self.again.clear();
        self.ready = 0;
        self.blocked = 0;
    }

    fn forget_all(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].state != RequestState::Free {
                self.slots.give(slot);
            }
        }
        self.again.clear();
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
