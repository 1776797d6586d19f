//! The queue around a queue: holds requests back, and hands them on in the order that an [`Order`] decides.
//!
//! The life of a request here, with what moves it:
//!
//! ```text
//!   submit ----------> Ready -------------- dispatch ----------------> Sent ----- poll ------> reported
//!      |                 ^                                              |
//!      | has to follow   | what it follows has ended                    | was merged, and failed;
//!      v                 |                                              v or the queue below was full
//!   Blocked -------------+                             Sent <------- Again
//!                                                         dispatch
//!   cancel: Blocked, Ready and Again are reported as Cancelled at once; for Sent the queue below is asked.
//! ```
//!
//! What stays true, whatever the order does:
//! - Of two requests with blocks in common of which one changes them, the later goes down when the earlier has ended. So what
//!   the order sees may be merged and sorted freely. (The contract of [`Queue`] promises no order at all; a submitter on a
//!   plain queue often gets one, and is not to be surprised by a scheduler.)
//! - A flush is no barrier here, and needs none: it covers what was *completed* before it was submitted. All that was
//!   completed here was completed below before, and the flush goes below later still; holding requests back can only make it
//!   cover more. Writes that wait while a flush overtakes them were not completed, so it does not have to cover them.
//! - One completion for each request, also of a merged one that failed: its parts are asked for once more, each alone, so
//!   that each has a status of its own: one bad block must not fail the neighbours, whose submitters know nothing of each
//!   other. Not when the device may still use their memory, or does not answer: see [`worth_splitting`].
//! - Nothing is allocated after `new`.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::buffer::{Arena, Span};
use crate::clock::{Clock, Monotonic, Time};
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request, Status, Urgency};
use crate::units::{Lba, Tag};

use super::overlap::Overlap;
use super::slots::{NONE, Slots, State};

/// What an order says when it is asked for the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// This one; the order does not have it any more.
    Slot(u32),
    /// There is none, or none before another one ends.
    Nothing,
    /// None before this moment, or before another one ends.
    NotBefore(Time),
}

/// Decides which of the requests that wait goes next. It knows them by slot, a number below the depth it was made for; none
/// of those it knows at one time stands in the way of another.
pub trait Order: Send {
    /// Whether it looks at the time; else it is told none, and the clock is not read.
    const TIMED: bool;

    /// Whether [`Order::hurry`] does something.
    const HURRIES: bool;

    /// This one waits.
    fn insert(&mut self, slot: u32, request: &Request, now: Time);

    /// This one does not wait any more: cancelled, or merged into another.
    fn remove(&mut self, slot: u32, request: &Request);

    /// Takes the next one out.
    fn pick(&mut self, now: Time) -> Pick;

    /// One that waits and continues this: same operation, adjacent blocks behind it. Stays in.
    fn after(&self, _: &Request) -> Option<u32> {
        None
    }

    /// The same, before it.
    fn before(&self, _: &Request) -> Option<u32> {
        None
    }

    /// This went down: what was picked, with all that was merged into it.
    fn sent(&mut self, _: &Request) {}

    /// What was picked or merged has ended, whether it went down or not.
    fn ended(&mut self, _: &Request, _: Time) {}

    /// Somebody of another class waits for this one, which waits.
    fn hurry(&mut self, _: u32, _: &Request) {}

    /// All are given up, those that were picked too.
    fn clear(&mut self);
}

/// How many requests a stage holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// Most requests taken and not reported: 1 to 4096.
    pub held: u32,
    /// Most of them with the queue below, merged ones counted once: 1 to what that has.
    pub dispatched: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Stage<Q, O, C = Monotonic> {
    queue: Q,
    order: O,
    clock: C,
    slots: Slots,
    overlap: Overlap,
    /// Parts that go down alone, before all others.
    again: VecDeque<u32>,
    ended: CompletionRing,
    /// Of a merged request, while it is handed down.
    joined: Vec<Span>,
    /// To be hurried, while that is found out.
    hurried: Vec<u32>,
    dispatched_max: u32,
    /// Taken and not reported.
    in_flight: u32,
    /// With the queue below.
    sent: u32,
    /// Known to the order.
    ready: u32,
    blocked: u32,
    /// Read once for each `ring`, `poll` or `wait` that has something to do, and at a submit after a pause.
    now: Time,
    /// Nothing goes down before this, unless something ends.
    not_before: Time,
    unrung: bool,
    gone: bool,
}

impl<Q: Queue, O: Order, C: Clock> Stage<Q, O, C> {
    /// Around a queue; the order was made for `depths.held` requests. Depths out of range are brought into it.
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
            unrung: false,
            gone: false,
            queue,
            order,
            clock,
        }
    }

    /// The queue below.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// The order.
    pub fn order(&self) -> &O {
        &self.order
    }

    /// Requests that wait here.
    pub fn waiting(&self) -> u32 {
        self.ready + self.blocked + self.waiting_again()
    }

    fn waiting_again(&self) -> u32 {
        u32::try_from(self.again.len()).expect("no more than the depth")
    }

    /// Ended without the device.
    fn refuse(&mut self, tag: Tag, error: Error) -> Submit {
        self.in_flight += 1;
        self.ended.push(Completion { tag, status: Err(error) });
        Submit::Queued
    }

    /// Makes it wait: for what it has to follow, or for its turn.
    #[inline]
    fn queue_up(&mut self, slot: u32, request: &Request) {
        let blockers = self.overlap.conflicts(request).count();
        self.overlap.insert(slot, request);
        if blockers == 0 {
            self.slots[slot].state = State::Ready;
            self.ready += 1;
            return self.order.insert(slot, request, self.now);
        }
        self.blocked += 1;
        self.slots[slot].state = State::Blocked;
        self.slots[slot].blockers = u32::try_from(blockers).expect("no more than the depth");
        if O::HURRIES {
            self.hurry(slot);
        }
    }

    /// What this has to follow must not wait for the share of another class, nor what that has to follow.
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
                    State::Ready => self.order.hurry(blocker, &held.request),
                    State::Blocked => self.hurried.push(blocker),
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

    /// Hands down as much as may be in flight there.
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

    /// Chains to it what goes with it in one request; returns the first part.
    fn merge(&mut self, slot: u32) -> u32 {
        let mut sum = Sum { request: self.slots[slot].request, segments: self.slots[slot].segments };
        let (mut first, mut last) = (slot, slot);
        while let Some(part) = self.order.before(&sum.request) {
            let Some(larger) = self.sum_of(part, first, &sum, part) else { break };
            sum = larger;
            self.slots[part].next = first;
            first = part;
            self.take_out(part);
        }
        while let Some(part) = self.order.after(&sum.request) {
            let Some(larger) = self.sum_of(last, part, &sum, part) else { break };
            sum = larger;
            self.slots[last].next = part;
            last = part;
            self.take_out(part);
        }
        first
    }

    fn take_out(&mut self, slot: u32) {
        let request = self.slots[slot].request;
        self.order.remove(slot, &request);
        self.ready -= 1;
    }

    /// What it becomes with this part, of which `before` and `after` then touch; none if the device does not take so much.
    fn sum_of(&self, before: u32, after: u32, sum: &Sum, part: u32) -> Option<Sum> {
        let added = &self.slots[part];
        let segments = sum.segments + added.segments - u32::from(self.slots.touch(before, after));
        let request = joined(&sum.request, &added.request)?;
        let geometry = self.queue.geometry();
        let bytes = u64::from(request.blocks) * u64::from(geometry.block_bytes);
        let fits = bytes <= u64::from(geometry.transfer_bytes_max) && segments <= u32::from(geometry.segments_max);
        (fits || !request.op.has_data()).then_some(Sum { request, segments })
    }

    /// Hands down the request whose first part this is. False: the queue below is full, and its parts wait again.
    #[inline]
    fn send(&mut self, leader: u32) -> bool {
        let mut whole = self.slots[leader].request;
        self.joined.clear();
        let mut part = leader;
        while part != NONE {
            self.slots.append_spans(part, &mut self.joined);
            let held = &mut self.slots[part];
            held.state = State::Sent;
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

    /// The parts of a request go down again, each alone: at once, or after those that do so already.
    fn wait_again(&mut self, leader: u32, at_once: bool) {
        let (mut part, mut place) = (leader, 0);
        while part != NONE {
            let held = &mut self.slots[part];
            held.state = State::Again;
            let next = std::mem::replace(&mut held.next, NONE);
            match at_once {
                true => self.again.insert(place, part),
                false => self.again.push_back(part),
            }
            place += 1;
            part = next;
        }
    }

    /// The device has ended one. Returns what is to be reported of it; more of that goes to `ended`.
    #[inline]
    fn end(&mut self, completion: Completion) -> Option<Completion> {
        let leader = (completion.tag.0 & 0xffff_ffff) as u32;
        let ours = leader < self.slots.len() && {
            let held = &self.slots[leader];
            held.state == State::Sent && held.leader == leader && device_tag(leader, held.generation) == completion.tag
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

    fn end_merged(&mut self, leader: u32, status: Status) {
        let split = status.is_err_and(worth_splitting) && !self.gone;
        // A second completion of the merged one would find a slot that is sent again under the same tag.
        self.slots[leader].generation = self.slots[leader].generation.wrapping_add(1);
        if split {
            return self.split(leader, status);
        }
        let mut part = leader;
        while part != NONE {
            let next = self.slots[part].next;
            let ended = self.finish(part, status);
            self.ended.push(ended);
            part = next;
        }
    }

    /// Each part goes down alone, but for those that nobody wants any more.
    fn split(&mut self, leader: u32, status: Status) {
        let mut part = leader;
        while part != NONE {
            let held = &mut self.slots[part];
            let next = std::mem::replace(&mut held.next, NONE);
            if held.cancelled && status == Err(Error::Cancelled) {
                let ended = self.finish(part, status);
                self.ended.push(ended);
            } else {
                self.wait_again(part, false);
            }
            part = next;
        }
    }

    /// One that was picked has ended: those that follow it may go.
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
                held.state = State::Ready;
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
        if self.anything_to_send() {
            self.look_at_clock();
        }
        self.dispatch_and_ring();
    }

    /// The device does not have what waits, and will not get it: it is reported, so that its memory can be used again.
    fn give_up_waiting(&mut self) {
        for slot in 0..self.slots.len() {
            let request = self.slots[slot].request;
            match self.slots[slot].state {
                State::Free | State::Sent => continue,
                State::Ready => self.order.remove(slot, &request),
                State::Again => self.order.ended(&request, self.now),
                State::Blocked => {}
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
            if self.slots[slot].state != State::Free {
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

/// A merged request while it grows.
struct Sum {
    request: Request,
    segments: u32,
}

/// Whether the parts of a merged request that failed so are asked for again. Not when the device may still read or write
/// their memory (Timeout, from a queue below that gives up), nor when it answers nothing (Gone) or was reset: then who is
/// above decides.
pub(super) fn worth_splitting(error: Error) -> bool {
    !matches!(error, Error::Timeout | Error::Gone | Error::Reset)
}

/// Two adjacent requests as one; none if it has too many blocks. As urgent as the more urgent, and of the class that comes
/// first.
fn joined(one: &Request, other: &Request) -> Option<Request> {
    let urgency = match (one.urgency, other.urgency) {
        (Urgency::Urgent, _) | (_, Urgency::Urgent) => Urgency::Urgent,
        (Urgency::Normal, _) | (_, Urgency::Normal) => Urgency::Normal,
        (Urgency::Batch, Urgency::Batch) => Urgency::Batch,
    };
    let blocks = one.blocks.checked_add(other.blocks)?;
    Some(Request { lba: one.lba.min(other.lba), blocks, urgency, class: one.class.min(other.class), ..*one })
}

fn device_tag(slot: u32, generation: u32) -> Tag {
    Tag(u64::from(generation) << 32 | u64::from(slot))
}

impl<Q: Queue, O: Order, C: Clock> Queue for Stage<Q, O, C> {
    fn geometry(&self) -> &Geometry {
        self.queue.geometry()
    }

    fn depth(&self) -> u32 {
        self.slots.len()
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)
    }

    /// Wrong requests end here: what waits can be merged without another look.
    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.slots.len() {
            return Submit::Full;
        }
        if self.gone {
            return self.refuse(request.tag, Error::Gone);
        }
        if let Err(wrong) = self.queue.geometry().check(request, data) {
            return self.refuse(request.tag, wrong);
        }
        let request = if request.op == Op::Flush { Request { lba: Lba(0), blocks: 0, ..*request } } else { *request };
        let Some(slot) = self.slots.take(&request, data) else { return Submit::Full };
        if self.in_flight == 0 {
            self.look_at_clock();
        }
        self.in_flight += 1;
        self.queue_up(slot, &request);
        Submit::Queued
    }

    fn ring(&mut self) {
        self.go_on();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let own = self.ended.take(completions);
        let below = self.queue.poll(&mut completions[own..]);
        if below > 0 || self.anything_to_send() {
            self.look_at_clock();
        }
        let mut reported = own;
        for at in own..own + below {
            if let Some(completion) = self.end(completions[at]) {
                completions[reported] = completion;
                reported += 1;
            }
        }
        reported += self.ended.take(&mut completions[reported..]);
        self.in_flight -= u32::try_from(reported).expect("no more than the depth");
        self.dispatch_and_ring();
        reported
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        self.go_on();
        if self.ended.len() > 0 {
            return;
        }
        let mut limit = at_most;
        if self.not_before != Time::NEVER {
            limit = limit.min(self.not_before.since(self.clock.now()));
        }
        self.queue.wait(limit);
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }

    /// Ready also when requests wait for their time and nothing is below whose end could signal.
    fn arm(&mut self) -> Armed {
        self.go_on();
        let silent = self.sent == 0 && self.waiting() > 0;
        if self.ended.len() > 0 || silent { Armed::Ready } else { self.queue.arm() }
    }

    /// One that was merged takes the others with it only for a while: they go down again.
    fn cancel(&mut self, tag: Tag) {
        let Some(slot) = self.slots.find(tag) else { return };
        let held = self.slots[slot];
        match held.state {
            State::Free => return,
            State::Sent => {
                self.slots[slot].cancelled = true;
                return self.queue.cancel(device_tag(held.leader, self.slots[held.leader].generation));
            }
            State::Blocked => self.blocked -= 1,
            State::Ready => self.take_out(slot),
            State::Again => {
                self.again.retain(|waiting| *waiting != slot);
                self.order.ended(&held.request, self.now);
            }
        }
        let ended = self.leave(slot, Err(Error::Cancelled));
        self.ended.push(ended);
    }

    /// When the queue below cannot be reset: what waits here is reported as [`Error::Gone`] (its memory is free, for the
    /// device never saw it), what is below is reported if it ends after all, and until a reset succeeds nothing goes down.
    fn reset(&mut self) -> Result<(), Error> {
        let reset = self.queue.reset();
        self.gone = reset.is_err();
        match reset {
            Ok(()) => self.forget_all(),
            Err(_) => self.give_up_waiting(),
        }
        reset
    }
}
