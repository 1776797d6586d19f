//! Exactly one completion for each request, whatever the device does.
//!
//! `Tracked` wraps a driver's queue. Its tags for the device contain slot and generation, so that a late completion never
//! completes a newer request. It refuses requests that do not fit the device, and ends requests that the device does not complete.
//!
//! The life of a slot:
//!
//! ```text
//!             submit                    completion
//!   Free ---------------> InFlight -----------------------------------> Free    reported with the device's status
//!                            | deadline: Tracked requests a cancel
//!                            v
//!                        Cancelling ------ completion ----------------> Free    reported; cancelled means Timeout
//!                            | grace period over
//!                            v
//!                        Abandoned         (reported as Timeout; the device may still use its memory)
//!                            |------------ completion, or reset ------> Free    named by `take_released`
//! ```
//!
//! `reset` moves InFlight and Cancelling to Free (reported as Reset, or Timeout). If the reset fails, the device is gone:
//! all requests, also future ones, are reported as Gone, and memory in flight stays with the device.

use std::collections::VecDeque;
use std::time::Duration;

use crate::buffer::Span;
use crate::clock::{Clock, Monotonic, Time};
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::queue::{Armed, Doorbell, Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::units::Tag;

/// The time limits for a device that does not respond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// The timeout of requests without their own deadline; `None`: no timeout.
    pub timeout: Option<Duration>,
    /// How long the device may take to cancel a request after its deadline, before it is reported as [`Error::Timeout`].
    pub cancel_grace: Duration,
    /// How long the device may hold memory of timed-out requests before the queue is reset; `None`: no reset for that reason.
    pub reset_after: Option<Duration>,
}

impl Default for Timeouts {
    /// The values of the kernel's NVMe driver: 30 seconds, then abort, then reset.
    fn default() -> Self {
        Timeouts { timeout: Some(Duration::from_secs(30)), cancel_grace: Duration::from_secs(1), reset_after: Some(Duration::from_secs(5)) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TrackedState {
    Free,
    InFlight,
    Cancelling,
    Abandoned,
}

#[derive(Clone, Copy, Debug)]
struct TrackedSlot {
    tag: Tag,
    /// When the request must be cancelled or abandoned.
    due: Time,
    generation: u32,
    state: TrackedState,
    /// Of an abandoned request: whether its timeout was reported. Its release is not named before that.
    reported: bool,
}

/// The number of polls between two readings of the clock while completions arrive. A poll that finds nothing always reads the clock.
const POLLS_PER_CHECK: u32 = 64;

/// A queue that reports exactly one completion for each request, whatever the device does.
pub struct Tracked<Q, C = Monotonic> {
    queue: Q,
    clock: C,
    timeouts: Timeouts,
    slots: Box<[TrackedSlot]>,
    free: Vec<u32>,
    /// Completions that this layer makes itself.
    own: CompletionRing,
    released: VecDeque<Tag>,
    /// The number of requests that were accepted and not reported.
    in_flight: u32,
    abandoned: u32,
    abandoned_since: Time,
    /// No slot is due before this time.
    next_due: Time,
    polls_to_check: u32,
    gone: bool,
    strays: u64,
}

impl<Q: Queue> Tracked<Q> {
    /// Wraps a queue, with the monotonic clock.
    pub fn new(queue: Q, timeouts: Timeouts) -> Tracked<Q> {
        Tracked::with_clock(queue, timeouts, Monotonic::default())
    }
}

impl<Q: Queue, C: Clock> Tracked<Q, C> {
    /// Wraps a queue, with another clock.
    pub fn with_clock(queue: Q, timeouts: Timeouts, clock: C) -> Tracked<Q, C> {
        let depth = queue.depth();
        let slot = TrackedSlot { tag: Tag(0), due: Time::NEVER, generation: 0, state: TrackedState::Free, reported: false };
        Tracked {
            queue,
            clock,
            timeouts,
            slots: vec![slot; depth as usize].into(),
            free: (0..depth).rev().collect(),
            own: CompletionRing::new(depth),
            released: VecDeque::with_capacity(depth as usize),
            in_flight: 0,
            abandoned: 0,
            abandoned_since: Time::NEVER,
            next_due: Time::NEVER,
            polls_to_check: POLLS_PER_CHECK,
            gone: false,
            strays: 0,
        }
    }

    /// Submits a request with its own deadline.
    #[inline]
    pub fn submit_by(&mut self, request: &Request, data: &[Span], deadline: Time) -> Submit {
        if self.in_flight >= self.queue.depth() {
            return Submit::Full;
        }
        let geometry = self.queue.geometry();
        // The short check accepts nearly all requests.
        let is_plain = matches!(data, [span] if geometry.takes_one(request, *span)) && !self.gone;
        if !is_plain && let Err(error) = if self.gone { Err(Error::Gone) } else { geometry.check(request, data) } {
            self.in_flight += 1;
            self.own.push(Completion { tag: request.tag, status: Err(error) });
            return Submit::Queued;
        }
        // Requests that the device still holds occupy slots after they were abandoned.
        let Some(&index) = self.free.last() else { return Submit::Full };
        let slot = &mut self.slots[index as usize];
        let below = Request { tag: device_tag(index, slot.generation), ..*request };
        if self.queue.submit(&below, data) == Submit::Full {
            return Submit::Full;
        }
        self.free.pop();
        slot.tag = request.tag;
        slot.due = deadline;
        slot.state = TrackedState::InFlight;
        self.next_due = self.next_due.min(deadline);
        self.in_flight += 1;
        Submit::Queued
    }

    /// Returns when [`Queue::poll`] has to be called even without a completion from the device. Callers that do not wait with
    /// [`Queue::wait`] need it.
    pub fn due(&self) -> Time {
        self.next_due.min(self.reset_due())
    }

    /// Returns the number of reported requests whose memory the device may still access.
    pub fn abandoned(&self) -> u32 {
        self.abandoned
    }

    /// Returns the number of completions for requests that do not exist or had completed: the device is faulty.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Returns whether the device is permanently gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns the clock of the queue.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns the wrapped queue, for example a driver's.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Limits a wait to the time of the next deadline.
    fn at_most(&self, at_most: Duration) -> Duration {
        match self.due() {
            Time::NEVER => at_most,
            due => at_most.min(self.clock.left(due)),
        }
    }

    /// Converts `below` device completions that follow `own` completions in the array. Moves those to be reported to the front and
    /// returns their number.
    #[inline]
    fn report(&mut self, own: usize, below: usize, completions: &mut [Completion]) -> usize {
        let mut reported = own;
        for at in own..own + below {
            if let Some(completion) = self.end(completions[at]) {
                completions[reported] = completion;
                reported += 1;
            }
        }
        for completion in &completions[..reported] {
            if completion.status.is_err() {
                self.reports(*completion);
            }
        }
        self.expire(below == 0);
        self.in_flight -= u32::try_from(reported).expect("no more than the depth");
        reported
    }

    /// Records a completion of the device. Returns the completion to report, or `None` if it must not be reported.
    #[inline]
    fn end(&mut self, completion: Completion) -> Option<Completion> {
        let (index, generation) = parts(completion.tag);
        let Some(slot) = self.slots.get_mut(index as usize) else {
            self.strays += 1;
            return None;
        };
        if slot.generation != generation || slot.state == TrackedState::Free {
            self.strays += 1;
            return None;
        }
        let TrackedSlot { tag, state, reported, .. } = *slot;
        self.release(index);
        match state {
            TrackedState::Abandoned => {
                self.abandoned -= 1;
                if reported {
                    self.released.push_back(tag);
                }
                None
            }
            TrackedState::Cancelling if completion.status == Err(Error::Cancelled) => Some(Completion { tag, status: Err(Error::Timeout) }),
            _ => Some(Completion { tag, status: completion.status }),
        }
    }

    /// Records that an error is being reported. From now on the memory may be named as released, or is already free.
    #[cold]
    fn reports(&mut self, completion: Completion) {
        if !matches!(completion.status, Err(Error::Timeout | Error::Gone)) {
            return;
        }
        let abandoned = |slot: &&mut TrackedSlot| slot.tag == completion.tag && slot.state == TrackedState::Abandoned;
        match self.slots.iter_mut().find(abandoned) {
            Some(slot) => slot.reported = true,
            None if completion.status == Err(Error::Timeout) => self.released.push_back(completion.tag),
            None => {}
        }
    }

    #[inline]
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = TrackedState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// Reads the clock if it is time for that, and handles expired deadlines.
    fn expire(&mut self, idle: bool) {
        if self.next_due == Time::NEVER && self.abandoned == 0 {
            return;
        }
        self.polls_to_check = if idle { 0 } else { self.polls_to_check.saturating_sub(1) };
        if self.polls_to_check > 0 {
            return;
        }
        self.polls_to_check = POLLS_PER_CHECK;
        let now = self.clock.now();
        if now >= self.next_due {
            self.expire_slots(now);
        }
        if now >= self.reset_due() {
            // The completions report the outcome.
            let _ = self.reset_all();
        }
    }

    /// Returns when the memory of abandoned requests justifies a reset.
    fn reset_due(&self) -> Time {
        match self.timeouts.reset_after {
            Some(timeouts) if self.abandoned > 0 && !self.gone => self.abandoned_since.after(timeouts),
            _ => Time::NEVER,
        }
    }

    fn expire_slots(&mut self, now: Time) {
        self.next_due = Time::NEVER;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !matches!(slot.state, TrackedState::InFlight | TrackedState::Cancelling) {
                continue;
            }
            if slot.due <= now {
                if slot.state == TrackedState::InFlight {
                    slot.state = TrackedState::Cancelling;
                    slot.due = now.after(self.timeouts.cancel_grace);
                    self.queue.cancel(device_tag(u32::try_from(index).expect("a slot"), slot.generation));
                } else {
                    self.abandon(index, now, Err(Error::Timeout));
                    continue;
                }
            }
            self.next_due = self.next_due.min(self.slots[index].due);
        }
    }

    /// Reports a request while the device still holds it.
    fn abandon(&mut self, index: usize, now: Time, status: Status) {
        let slot = &mut self.slots[index];
        slot.state = TrackedState::Abandoned;
        slot.reported = false;
        self.own.push(Completion { tag: slot.tag, status });
        if self.abandoned == 0 {
            self.abandoned_since = now;
        }
        self.abandoned += 1;
    }

    fn reset_all(&mut self) -> Result<(), Error> {
        self.take_ended();
        let reset = self.queue.reset();
        let now = self.clock.now();
        self.gone |= reset.is_err();
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            let status = Err(match (slot.state, reset) {
                (TrackedState::Free, _) => continue,
                (TrackedState::Cancelling, _) => Error::Timeout,
                (_, Ok(())) => Error::Reset,
                (_, Err(_)) => Error::Gone,
            });
            match (slot.state == TrackedState::Abandoned, reset) {
                (true, Err(_)) => {}
                (false, Err(_)) => self.abandon(index, now, status),
                (true, Ok(())) => {
                    self.abandoned -= 1;
                    if slot.reported {
                        self.released.push_back(slot.tag);
                    }
                    self.release(u32::try_from(index).expect("a slot"));
                }
                (false, Ok(())) => {
                    self.own.push(Completion { tag: slot.tag, status });
                    self.release(u32::try_from(index).expect("a slot"));
                }
            }
        }
        self.next_due = Time::NEVER;
        reset
    }

    /// Reports the requests that the device completed before the reset.
    fn take_ended(&mut self) {
        let mut ended = [Completion::EMPTY; 32];
        loop {
            let count = self.queue.poll(&mut ended);
            for completion in &ended[..count] {
                if let Some(completion) = self.end(*completion) {
                    self.own.push(completion);
                }
            }
            if count < ended.len() {
                return;
            }
        }
    }
}

fn device_tag(index: u32, generation: u32) -> Tag {
    Tag(u64::from(generation) << 32 | u64::from(index))
}

fn parts(tag: Tag) -> (u32, u32) {
    ((tag.0 & 0xffff_ffff) as u32, (tag.0 >> 32) as u32)
}

impl<Q: Queue, C: Clock> crate::wrapper::QueueWrapper for Tracked<Q, C> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        let deadline = match self.timeouts.timeout {
            Some(timeout) => self.clock.due(timeout),
            None => Time::NEVER,
        };
        self.submit_by(request, data, deadline)
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let own = self.own.take(completions);
        let below = self.queue.poll(&mut completions[own..]);
        self.report(own, below, completions)
    }

    #[inline]
    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        if self.own.len() > 0 {
            Queue::ring(self);
            return Queue::poll(self, completions);
        }
        let below = self.queue.wait_and_poll(self.at_most(at_most), completions);
        self.report(0, below, completions)
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        if self.own.len() > 0 {
            return Queue::ring(self);
        }
        self.queue.wait(self.at_most(at_most));
    }

    // This queue holds back no request, so nothing is rung past it.
    fn doorbell(&mut self) -> Option<std::sync::Arc<dyn Doorbell>> {
        self.queue.doorbell()
    }

    fn arm(&mut self) -> Armed {
        if self.own.len() > 0 { Armed::Ready } else { self.queue.arm() }
    }

    fn cancel(&mut self, tag: Tag) {
        let found = self.slots.iter().position(|slot| slot.tag == tag && slot.state == TrackedState::InFlight);
        if let Some(index) = found {
            let generation = self.slots[index].generation;
            self.queue.cancel(device_tag(u32::try_from(index).expect("a slot"), generation));
        }
    }

    /// Returns true until [`Queue::take_released`] names the request. That names every request that ended with [`Error::Timeout`]
    /// once,
    /// even if its memory was free immediately; requests with other errors only if they are held.
    fn owns_buffer(&self, tag: Tag) -> bool {
        let kept = |slot: &TrackedSlot| slot.tag == tag && slot.state == TrackedState::Abandoned;
        (self.abandoned > 0 && self.slots.iter().any(kept)) || self.released.contains(&tag)
    }

    fn take_released(&mut self) -> Option<Tag> {
        self.released.pop_front()
    }

    /// Reports everything in flight, unlike the `reset` of a driver.
    fn reset(&mut self) -> Result<(), Error> {
        self.reset_all()
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::buffer::Arena;
    use crate::geometry::Geometry;
    use crate::units::Lba;

    #[derive(Clone, Default)]
    struct Hand(Arc<AtomicU64>);

    impl Clock for Hand {
        fn now(&self) -> Time {
            Time(self.0.load(Ordering::Relaxed))
        }
    }

    /// A queue that completes what the test chooses, when the test chooses; waiting advances the clock.
    struct Puppet {
        geometry: Geometry,
        clock: Hand,
        taken: Vec<Tag>,
        ends: VecDeque<Completion>,
        resets: Result<(), Error>,
    }

    impl Queue for Puppet {
        fn geometry(&self) -> &Geometry {
            &self.geometry
        }
        fn depth(&self) -> u32 {
            4
        }
        fn register(&mut self, _: &Arena) -> Result<(), Error> {
            Ok(())
        }
        fn submit(&mut self, request: &Request, _: &[Span]) -> Submit {
            self.taken.push(request.tag);
            Submit::Queued
        }
        fn ring(&mut self) {}
        fn poll(&mut self, completions: &mut [Completion]) -> usize {
            let count = self.ends.len().min(completions.len());
            completions.iter_mut().zip(self.ends.drain(..count)).for_each(|(place, ended)| *place = ended);
            count
        }
        fn in_flight(&self) -> u32 {
            0
        }
        fn wait(&mut self, at_most: Duration) {
            let until = self.clock.now().after(at_most);
            if until != Time::NEVER {
                self.clock.0.store(until.0, Ordering::Relaxed);
            }
        }
        fn cancel(&mut self, _: Tag) {}
        fn reset(&mut self) -> Result<(), Error> {
            self.resets
        }

        fn owns_buffer(&self, _: Tag) -> bool {
            false
        }

        fn take_released(&mut self) -> Option<Tag> {
            None
        }
    }

    const MS: Duration = Duration::from_millis(1);

    fn tracked(reset_after: Option<Duration>) -> Tracked<Puppet, Hand> {
        let clock = Hand::default();
        let geometry = Geometry::plain(512, 100);
        let puppet = Puppet { geometry, clock: clock.clone(), taken: Vec::new(), ends: VecDeque::new(), resets: Ok(()) };
        Tracked::with_clock(puppet, Timeouts { timeout: Some(MS), cancel_grace: MS, reset_after }, clock)
    }

    impl Tracked<Puppet, Hand> {
        fn ask(&mut self, tag: u64) -> Tag {
            assert_eq!(self.submit(&Request::discard(Tag(tag), Lba(0), 1), &[]), Submit::Queued);
            *self.queue.taken.last().expect("just taken")
        }

        fn go_on(&mut self, by: Duration) {
            self.queue.wait(by);
        }

        fn answers(&mut self, tag: Tag, status: Status) {
            self.queue.ends.push_back(Completion { tag, status });
        }

        fn one(&mut self) -> Option<(u64, Status)> {
            let mut one = [Completion::EMPTY; 1];
            (self.poll(&mut one) == 1).then(|| (one[0].tag.0, one[0].status))
        }
    }

    const TIMEOUT: Status = Err(Error::Timeout);

    #[test]
    fn every_timeout_is_named_once_its_memory_is_free() {
        let mut queue = tracked(None);
        let [cancelled, hung] = [1, 2].map(|tag| queue.ask(tag));
        queue.go_on(MS);
        assert_eq!(queue.one(), None, "the device has to cancel them");
        queue.answers(cancelled, Err(Error::Cancelled));
        assert_eq!(queue.one(), Some((1, TIMEOUT)));
        assert_eq!(queue.take_released(), Some(Tag(1)), "the device gave it up at once");
        queue.go_on(MS);
        assert_eq!(queue.one(), None);
        assert_eq!((queue.one(), queue.take_released()), (Some((2, TIMEOUT)), None));
        assert!(queue.owns_buffer(Tag(2)) && !queue.owns_buffer(Tag(1)));
        queue.answers(hung, Ok(()));
        assert_eq!((queue.one(), queue.take_released()), (None, Some(Tag(2))));
        assert_eq!((queue.take_released(), queue.abandoned()), (None, 0));
        let late = queue.ask(3);
        queue.answers(late, TIMEOUT);
        assert_eq!((queue.one(), queue.take_released()), (Some((3, TIMEOUT)), Some(Tag(3))), "the driver's own timeout");
    }

    #[test]
    fn nothing_is_named_before_it_is_reported() {
        let mut queue = tracked(None);
        let hung = queue.ask(1);
        for _ in 0..2 {
            queue.go_on(MS);
            assert_eq!(queue.one(), None);
        }
        assert_eq!(queue.abandoned(), 1, "its timeout waits to be polled");
        queue.answers(hung, Ok(()));
        queue.reset().expect("the puppet obeys");
        assert_eq!(queue.take_released(), None);
        assert_eq!((queue.one(), queue.take_released(), queue.take_released()), (Some((1, TIMEOUT)), Some(Tag(1)), None));
    }

    #[test]
    fn of_a_device_that_is_gone_only_what_it_still_has_is_abandoned() {
        let mut queue = tracked(None);
        let hung = queue.ask(1);
        queue.queue.resets = Err(Error::Timeout);
        assert!(queue.reset().is_err() && queue.is_gone());
        queue.ask(2);
        let gone = Err(Error::Gone);
        assert_eq!((queue.one(), queue.one()), (Some((1, gone)), Some((2, gone))));
        assert!(queue.owns_buffer(Tag(1)) && !queue.owns_buffer(Tag(2)));
        queue.answers(hung, Ok(()));
        assert_eq!((queue.one(), queue.take_released(), queue.take_released()), (None, Some(Tag(1)), None));
    }

    #[test]
    fn waiting_for_memory_ends_when_the_reset_for_it_is_due() {
        let mut queue = tracked(Some(5 * MS));
        queue.ask(1);
        let mut reported = None;
        for _ in 0..10 {
            reported = reported.or(queue.one());
            queue.wait(Duration::MAX);
        }
        assert_eq!((reported, queue.take_released(), queue.abandoned()), (Some((1, TIMEOUT)), Some(Tag(1)), 0));
        assert_eq!(queue.clock.now(), Time(0).after(7 * MS), "a millisecond, another of grace, and five");
    }
}
