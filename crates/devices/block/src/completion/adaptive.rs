//! A queue whose `wait` uses the chosen completion mode.
//!
//! It sits between a driver and [`crate::Tracked`]. It gives the device its own tags, so only the layer above can tell which request has
//! released its buffer. The modes `Polling` and `Interrupt` read no clock on the request path; `Adaptive` reads it once for each batch
//! submitted. Only `wait` trains the predictors: a caller that never waits needs no prediction.

use std::sync::Arc;
use std::time::Duration;

use super::calibrate::WakeupLatency;
use super::counters::{Counters, Published};
use super::flight::{Due, Flight, Flown};
use super::mode::{Mode, WaitState, cores};
use super::pace::Pace;
use super::plan::{Lead, Limits, Outlook, Plan};
use super::predictor::Kind;
use super::sleeper::{Sleeper, System};
use crate::buffer::Span;
use crate::clock::{Clock, Monotonic, Time};
use crate::error::Error;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request};
use crate::units::Tag;

/// Waits between two reads of the thread's CPU clock (a system call), and polls between two publications of the counters.
const SELDOM: u64 = 64;

/// A queue around a driver's queue, whose `wait` polls, sleeps or blocks as the [`Mode`] says.
pub struct Adaptive<Q, C = Monotonic, S = System> {
    queue: Q,
    clock: C,
    sleeper: S,
    mode: Mode,
    state: WaitState,
    limits: Limits,
    waking: Duration,
    leads: [Lead; Kind::COUNT],
    flight: Flight,
    held: FoundCompletions,
    /// The time when submission of the current batch started; `None` after `ring`.
    batch_since: Option<Time>,
    pace: Pace,
    /// A time just before the last poll that took all available completions.
    last_poll: Time,
    /// The time when the last completions were found, if it was measured.
    found: Time,
    /// Whether the driver just woke this thread, so that completions found next arrived just now.
    woken: bool,
    counters: Counters,
    published: Arc<Published>,
    /// The thread that waited last, and its CPU clock.
    cpu: Option<(std::thread::ThreadId, Duration)>,
}

impl<Q: Queue> Adaptive<Q> {
    /// Creates the queue with the default mode and the measured wakeup latency of this machine.
    pub fn new(queue: Q) -> Adaptive<Q> {
        Adaptive::with(queue, Mode::default_for(cores()), WakeupLatency::of_machine(), Monotonic::default(), System::default())
    }
}

impl<Q: Queue, C: Clock, S: Sleeper> Adaptive<Q, C, S> {
    /// Creates the queue with the given mode, wakeup latency, clock and sleeper.
    pub fn with(queue: Q, mode: Mode, floor: WakeupLatency, clock: C, sleeper: S) -> Adaptive<Q, C, S> {
        let depth = queue.depth();
        Adaptive {
            queue,
            pace: Pace::of(&clock),
            clock,
            sleeper,
            mode,
            state: WaitState::Idle,
            limits: Limits::of(floor),
            waking: floor.timer.max(floor.event),
            leads: [Lead::of(floor); Kind::COUNT],
            flight: Flight::new(depth),
            held: FoundCompletions { entries: vec![Completion::EMPTY; depth as usize].into(), first: 0, end: 0 },
            batch_since: None,
            last_poll: Time(0),
            found: Time(0),
            woken: false,
            counters: Counters::default(),
            published: Arc::default(),
            cpu: None,
        }
    }

    /// Sets the mode of waits and requests from now on. The predictors learn nothing from requests in flight.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Limits each sleep to `at_least` and `at_most`; the lower limit is never less than the machine's wakeup latency.
    pub fn set_sleeps(&mut self, at_least: Duration, at_most: Duration) {
        self.limits.sleep_least = self.waking.max(at_least);
        self.limits.sleep_most = at_most.max(self.limits.sleep_least);
    }

    /// Returns the completion mode in use.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the state of the last wait, or `Idle` if nothing is in flight.
    pub fn state(&self) -> WaitState {
        if self.in_flight() == 0 { WaitState::Idle } else { self.state }
    }

    /// Returns the counters since the queue was created.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the published counters, which other threads can read.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    /// Returns the predicted latency of such a request, or `None` if none has completed in the mode `Adaptive`.
    pub fn predicted(&self, op: Op, bytes: u64) -> Option<Duration> {
        self.flight.predictors[usize::from(Kind::of(op, bytes).0)].estimate()
    }

    /// Returns the driver's queue that this queue wraps.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Waits as predicted until there are completions, until `until`, or until the driver returns without one.
    fn wait_adaptively(&mut self, mut now: Time, until: Time) {
        let mut slept = false;
        while !self.look(When::At(now)) && now < until {
            let Some(due) = self.flight.due() else {
                // All requests in flight were submitted in another mode.
                self.block(until.since(now));
                break;
            };
            let plan = self.plan(now, due, slept);
            self.enter(plan, slept);
            match plan {
                Plan::Poll(most) => {
                    let ended = self.spin(now, now.after(most).min(until));
                    self.counters.undersleep_ns += if slept { nanos(ended.since(now)) } else { 0 };
                    now = ended;
                }
                Plan::Sleep(most) => {
                    slept = true;
                    now = self.sleep(now, most.min(until.since(now)), due);
                }
                Plan::Block => {
                    self.block(until.since(now));
                    break;
                }
            }
        }
        self.counters.sleeps += u64::from(slept);
    }

    fn plan(&mut self, now: Time, due: Due, slept: bool) -> Plan {
        let outlook = Outlook {
            remaining: due.at.since(now),
            overdue: now.since(due.at),
            latency: due.latency,
            urgent: self.flight.has_urgent(),
            slack: due.slack,
        };
        let lead = &mut self.leads[usize::from(due.kind.0)];
        let plan = self.limits.plan(outlook, lead.get());
        if !slept && outlook.is_led_to_poll(plan, &self.limits) {
            lead.shrink();
        }
        plan
    }

    fn enter(&mut self, plan: Plan, slept: bool) {
        let state = match plan {
            Plan::Poll(_) if !slept => WaitState::Poll,
            Plan::Poll(_) | Plan::Sleep(_) => WaitState::Sleep,
            Plan::Block => WaitState::Block,
        };
        self.counters.mode_switches += u64::from(state != self.state && self.state != WaitState::Idle);
        self.state = state;
    }

    /// Polls from `begin`, a time just past, until there are completions or until `until`; returns the time at the end. The clock is read
    /// once for several polls of the device, and once after a successful poll.
    fn spin(&mut self, begin: Time, until: Time) -> Time {
        let mut now = begin;
        while now < until {
            let polls = self.pace.polls();
            for _ in 0..polls {
                self.sleeper.relax();
                if self.look(When::Found) {
                    return self.found;
                }
            }
            let before = std::mem::replace(&mut now, self.clock.now());
            self.pace.observe(polls, now.since(before));
            if self.look(When::At(now)) {
                return now;
            }
        }
        now
    }

    fn sleep(&mut self, now: Time, most: Duration, due: Due) -> Time {
        self.sleeper.sleep(most);
        let woke = self.clock.now();
        let found = self.look(When::At(woke));
        let late = woke.since(now.after(most));
        self.leads[usize::from(due.kind.0)].observe(found, late, due.latency.unwrap_or_default());
        if found {
            self.counters.oversleep_ns += nanos(woke.since(due.at));
        }
        woke
    }

    /// The driver arms, polls again and waits, in an order that loses no wakeup.
    fn block(&mut self, at_most: Duration) {
        self.queue.wait(at_most);
        self.woken = true;
        let now = self.clock.now();
        self.counters.interrupt_wakes += u64::from(self.look(When::At(now)));
        self.woken = false;
    }

    /// Returns whether there are completions; polls the driver's queue if none are held.
    #[inline]
    fn look(&mut self, when: When) -> bool {
        if self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            held.first = 0;
            held.end = self.take_below(&mut held.entries, when);
            self.held = held;
        }
        !self.held.is_empty()
    }

    /// Polls the driver's queue. Trains the predictors unless `when` is `Never`.
    #[inline]
    fn take_below(&mut self, to: &mut [Completion], when: When) -> usize {
        let found = self.queue.poll(to);
        let now = match when {
            When::At(now) => Some(now),
            When::Found => (found > 0).then(|| self.clock.now()),
            When::Never => None,
        };
        self.counters.polls += 1;
        self.counters.empty_polls += u64::from(found == 0);
        self.counters.completions += found as u64;
        let mut kinds = Kinds::default();
        for completion in &mut to[..found] {
            let flown = self.flight.end(completion.tag).expect("the queue below reports what it was given, once");
            if let Some(now) = now
                && completion.status.is_ok()
                && flown.since != Time::NEVER
            {
                self.learn(flown, now, &mut kinds);
            }
            completion.tag = flown.tag;
        }
        self.found = now.unwrap_or(self.found);
        // A time after the poll does not bound which requests had completed before it.
        if let (When::At(now), true) = (when, found < to.len()) {
            self.last_poll = now;
        }
        if kinds.blind & !kinds.learned != 0 {
            self.be_blind(kinds);
        }
        found
    }

    fn learn(&mut self, flown: Flown, now: Time, kinds: &mut Kinds) {
        let taken = now.since(flown.since);
        let prompt = taken.saturating_sub(self.waking);
        let (more_than, at_most) = if self.woken { (prompt, prompt) } else { (self.last_poll.since(flown.since), taken) };
        let learned = self.flight.predictors[usize::from(flown.kind.0)].observe(more_than, at_most);
        let kinds = if learned { &mut kinds.learned } else { &mut kinds.blind };
        *kinds |= 1 << flown.kind.0;
    }

    fn be_blind(&mut self, kinds: Kinds) {
        for (kind, predictor) in self.flight.predictors.iter_mut().enumerate() {
            if kinds.blind & !kinds.learned & 1 << kind != 0 {
                predictor.blind();
            }
        }
    }

    fn account(&mut self) {
        self.counters.waits += 1;
        if self.counters.waits % SELDOM == 1 {
            let (thread, cpu) = (std::thread::current().id(), self.sleeper.cpu());
            if let Some((_, before)) = self.cpu.filter(|(before, _)| *before == thread) {
                self.counters.cpu_ns += nanos(cpu.saturating_sub(before));
            }
            self.cpu = Some((thread, cpu));
        }
        self.published.publish(&self.counters);
    }
}

impl<Q: Queue, C: Clock, S: Sleeper> crate::wrapper::QueueWrapper for Adaptive<Q, C, S> {
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
        let Some(tag) = self.flight.next() else { return Submit::Full };
        if Queue::in_flight(self) >= self.queue.depth() || self.queue.submit(&Request { tag, ..*request }, data) == Submit::Full {
            return Submit::Full;
        }
        let mut flown = Flown { tag: request.tag, since: Time::NEVER, kind: Kind(0), urgency: request.urgency };
        if self.mode == Mode::Adaptive {
            let bytes = u64::from(request.blocks) * u64::from(self.queue.geometry().block_bytes);
            flown.kind = Kind::of(request.op, bytes);
            flown.since = *self.batch_since.get_or_insert_with(|| self.clock.now());
        }
        self.flight.take(flown);
        Submit::Queued
    }

    #[inline]
    fn ring(&mut self) {
        self.batch_since = None;
        self.queue.ring();
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.batch_since = None;
        let held = self.held.take(completions);
        let found = if held < completions.len() { self.take_below(&mut completions[held..], When::Never) } else { 0 };
        if self.counters.polls.is_multiple_of(SELDOM) || (found > 0 && self.flight.len() == 0) {
            self.published.publish(&self.counters);
        }
        held + found
    }

    fn in_flight(&self) -> u32 {
        self.flight.len() + self.held.len() as u32
    }

    fn wait(&mut self, at_most: Duration) {
        Queue::ring(self);
        if !self.held.is_empty() {
            return;
        }
        match self.mode {
            Mode::Adaptive | Mode::Polling if self.flight.len() > 0 => {
                let now = self.clock.now();
                if self.mode == Mode::Adaptive {
                    self.wait_adaptively(now, now.after(at_most));
                } else if !self.look(When::At(now)) {
                    self.spin(now, now.after(at_most));
                }
            }
            _ => {
                self.queue.wait(at_most);
                self.counters.interrupt_wakes += 1;
            }
        }
        self.account();
    }

    fn arm(&mut self) -> Armed {
        if self.held.is_empty() { self.queue.arm() } else { Armed::Ready }
    }

    /// Returns when the next poll is worthwhile: a time in the past if completions are held or nothing is predicted; `None` if nothing is
    /// in flight.
    fn expected(&self) -> Option<Time> {
        if !self.held.is_empty() {
            return Some(Time(0));
        }
        (self.flight.len() > 0).then(|| self.flight.due().map_or(Time(0), |due| due.at))
    }

    fn cancel(&mut self, tag: Tag) {
        if let Some(below) = self.flight.below(tag) {
            self.queue.cancel(below);
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.queue.reset()?;
        self.flight.clear();
        self.held.clear();
        Ok(())
    }

    // A driver never abandons a request: only `Tracked` does, which wraps this queue.
    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

/// The time of a poll of the driver's queue.
#[derive(Clone, Copy)]
enum When {
    /// The poll happens just after this time.
    At(Time),
    /// The clock is read just after a poll that finds completions.
    Found,
    /// No time is needed.
    Never,
}

/// The kinds of request for which a poll found completions: a bit for each kind.
#[derive(Clone, Copy, Default)]
struct Kinds {
    learned: u32,
    blind: u32,
}

/// Completions found while waiting, and not yet polled by the caller.
#[derive(Default)]
struct FoundCompletions {
    entries: Box<[Completion]>,
    first: usize,
    end: usize,
}

impl FoundCompletions {
    fn is_empty(&self) -> bool {
        self.first == self.end
    }

    fn len(&self) -> usize {
        self.end - self.first
    }

    fn take(&mut self, to: &mut [Completion]) -> usize {
        let count = self.len().min(to.len());
        to[..count].copy_from_slice(&self.entries[self.first..self.first + count]);
        self.first += count;
        count
    }

    fn clear(&mut self) {
        self.first = self.end;
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::super::simulated::{Device, FLOOR, Machine, Naps};
    use super::*;
    use crate::request::Urgency;
    use crate::units::Lba;

    type Simulated = Adaptive<Device, Machine, Naps>;

    const HOUR: Duration = Duration::from_secs(3600);

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn queue(mode: Mode, depth: u32, device_us: u64) -> (Simulated, Machine) {
        let machine = Machine::default();
        let device = Device::new(&machine, depth, device_us);
        (Adaptive::with(device, mode, FLOOR, machine.clone(), Naps::new(&machine)), machine)
    }

    /// Completes one request and returns its latency.
    fn one(queue: &mut Simulated, machine: &Machine, request: Request) -> Duration {
        let begin = machine.now();
        assert_eq!(queue.submit(&request, &[]), Submit::Queued);
        let mut ended = [Completion::EMPTY; 4];
        loop {
            queue.wait(HOUR);
            match queue.poll(&mut ended) {
                0 => continue,
                count => {
                    assert_eq!(ended[..count], [Completion { tag: request.tag, status: Ok(()) }]);
                    return machine.now().since(begin);
                }
            }
        }
    }

    fn small(tag: u64) -> Request {
        Request::read(Tag(tag), Lba(0), 1)
    }

    fn many(queue: &mut Simulated, machine: &Machine, requests: u64) {
        for tag in 0..requests {
            one(queue, machine, small(tag));
        }
    }

    /// The cost of a mode on a device: mean latency, and the number of waits out of 100 that slept or blocked.
    fn costs(mode: Mode, device_us: u64, jitter: f64) -> (Duration, u64, u64) {
        let (mut queue, machine) = queue(mode, 1, device_us);
        queue.below().jitter = jitter;
        many(&mut queue, &machine, 200);
        let before = queue.counters();
        let took: Duration = (0..1_000).map(|tag| one(&mut queue, &machine, small(tag))).sum();
        let after = queue.counters();
        let of_100 = |count: u64| (count + 5) / 10;
        (took / 1_000, of_100(after.sleeps - before.sleeps), of_100(after.interrupt_wakes - before.interrupt_wakes))
    }

    #[test]
    fn each_latency_is_waited_for_in_its_way() {
        for (device_us, slept, blocked) in [(8, 0, 0), (20, 0, 0), (80, 100, 0), (300, 100, 0), (400, 0, 100), (8_000, 0, 100)] {
            let (mean, sleeps, blocks) = costs(Mode::Adaptive, device_us, 0.0);
            assert_eq!((sleeps, blocks), (slept, blocked), "at {device_us} us");
            assert!(mean < us(device_us) * 11 / 10, "{mean:?} at {device_us} us");
        }
        assert!(costs(Mode::Adaptive, 80, 0.2).0 < us(88), "with jitter");
        assert_eq!(costs(Mode::Polling, 400, 0.0).1, 0);
        assert_eq!(costs(Mode::Interrupt, 8, 0.0).2, 100);
    }

    #[test]
    fn a_device_that_changes_is_followed() {
        let (mut queue, machine) = queue(Mode::Adaptive, 1, 400);
        for device_us in [400, 20, 200, 20, 400, 8, 20_000, 80] {
            queue.below().small = us(device_us);
            many(&mut queue, &machine, 64);
            let found = queue.predicted(Op::Read, 4096).expect("known");
            assert!(found.abs_diff(us(device_us)) < us(device_us) / 10 + us(8), "{found:?} for {device_us} us");
        }
    }

    #[test]
    fn sizes_and_operations_have_their_own_predictions() {
        let (mut queue, machine) = queue(Mode::Adaptive, 2, 80);
        queue.below().large = us(240);
        for tag in 0..400 {
            let (before, blocks) = (queue.counters().sleeps, if tag % 2 == 0 { 1 } else { 8 });
            one(&mut queue, &machine, Request { blocks, ..small(tag) });
            assert!(tag < 100 || queue.counters().sleeps == before + 1, "request {tag} was not slept for");
        }
        let predicted = [4096, 32_768].map(|bytes| queue.predicted(Op::Read, bytes).expect("known"));
        assert!(predicted[0].abs_diff(us(80)) < us(4) && predicted[1].abs_diff(us(240)) < us(12), "{predicted:?}");
        assert_eq!([queue.predicted(Op::Write, 4096), queue.predicted(Op::Read, 64 << 10)], [None, None]);
    }

    #[test]
    fn it_does_not_sleep_for_what_is_shorter_than_the_floor() {
        let (mut queue, machine) = queue(Mode::Adaptive, 1, 400);
        let slept = Arc::clone(&queue.sleeper.slept);
        for (device_us, sleeps) in [(25, false), (80, true), (20, false), (5, false)] {
            queue.below().small = us(device_us);
            many(&mut queue, &machine, 100);
            let before = slept.load(std::sync::atomic::Ordering::Relaxed);
            many(&mut queue, &machine, 100);
            assert_eq!(slept.load(std::sync::atomic::Ordering::Relaxed) > before, sleeps, "at {device_us} us");
        }
    }

    #[test]
    fn urgent_requests_are_polled_for_and_batches_waited_out() {
        let (mut queue, machine) = queue(Mode::Adaptive, 32, 100);
        many(&mut queue, &machine, 100);
        let before = queue.counters();
        for tag in 0..100 {
            one(&mut queue, &machine, Request { urgency: Urgency::Urgent, ..small(tag) });
        }
        assert_eq!(queue.counters().sleeps, before.sleeps);
        for tag in 0..8 {
            assert_eq!(queue.submit(&Request { urgency: Urgency::Batch, ..small(tag) }, &[]), Submit::Queued);
            queue.ring();
            machine.pass(us(5));
        }
        queue.wait(HOUR);
        let mut ended = [Completion::EMPTY; 8];
        assert!(queue.poll(&mut ended) >= 6, "the sleep went on until the last was due");
    }

    #[test]
    fn a_request_that_takes_much_longer_than_others_is_blocked_for() {
        let (mut queue, machine) = queue(Mode::Adaptive, 1, 20);
        many(&mut queue, &machine, 100);
        queue.below().small = us(50_000);
        let before = queue.counters();
        one(&mut queue, &machine, small(1));
        let after = queue.counters();
        assert_eq!(after.interrupt_wakes, before.interrupt_wakes + 1);
        assert!(after.polls - before.polls < 2_000, "{} looks", after.polls - before.polls);
    }

    #[test]
    fn what_is_cancelled_or_reset_teaches_nothing() {
        let (mut queue, _) = queue(Mode::Adaptive, 4, 100);
        for tag in 0..3 {
            assert_eq!(queue.submit(&small(tag), &[]), Submit::Queued);
        }
        queue.ring();
        queue.cancel(Tag(1));
        let mut ended = [Completion::EMPTY; 4];
        assert_eq!((queue.poll(&mut ended), ended[0].tag), (1, Tag(1)));
        assert_eq!(queue.reset(), Ok(()));
        assert_eq!((queue.in_flight(), queue.expected(), queue.state()), (0, None, WaitState::Idle));
        (0..4).for_each(|tag| assert_eq!(queue.submit(&small(tag), &[]), Submit::Queued));
        assert_eq!(queue.submit(&small(4), &[]), Submit::Full);
    }

    #[test]
    fn after_many_jittery_requests_in_flight_one_alone_is_slept_for_again() {
        let (mut queue, machine) = queue(Mode::Adaptive, 16, 80);
        queue.below().jitter = 0.3;
        let mut ended = [Completion::EMPTY; 16];
        (0..16).for_each(|tag| assert_eq!(queue.submit(&small(tag), &[]), Submit::Queued));
        for _ in 0..2_000 {
            queue.wait(HOUR);
            let count = queue.poll(&mut ended);
            ended[..count].iter().for_each(|ended| assert_eq!(queue.submit(&small(ended.tag.0), &[]), Submit::Queued));
        }
        while queue.in_flight() > 0 {
            queue.wait(HOUR);
            queue.poll(&mut ended);
        }
        many(&mut queue, &machine, 200);
        let before = queue.counters();
        many(&mut queue, &machine, 100);
        assert!(queue.counters().sleeps - before.sleeps > 70, "{} of 100", queue.counters().sleeps - before.sleeps);
        assert_eq!(queue.published().read().completions, queue.counters().completions, "published when nothing is in flight");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Submit { blocks: u32, write: bool, urgency: u8 },
        Ring,
        Poll(usize),
        Wait(u64),
        Cancel(u8),
        Latency(u64, u64),
        Mode(u8),
        Reset,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1_u32..64, any::<bool>(), 0_u8..3).prop_map(|(blocks, write, urgency)| Step::Submit { blocks, write, urgency }),
            2 => Just(Step::Ring),
            4 => (0_usize..6).prop_map(Step::Poll),
            4 => (0_u64..2_000).prop_map(Step::Wait),
            1 => any::<u8>().prop_map(Step::Cancel),
            1 => (1_u64..1_000, 1_u64..1_000).prop_map(|(small, large)| Step::Latency(small, large)),
            1 => (0_u8..3).prop_map(Step::Mode),
            1 => prop_oneof![9 => Just(Step::Ring), 1 => Just(Step::Reset)],
        ]
    }

    /// The oracle beside the queue is the set of tags in flight.
    fn run(mode: u8, depth: u32, steps: Vec<Step>) {
        const MODES: [Mode; 3] = [Mode::Polling, Mode::Interrupt, Mode::Adaptive];
        let (mut queue, _) = queue(MODES[usize::from(mode)], depth, 80);
        queue.below().jitter = 0.3;
        let mut flying = std::collections::BTreeSet::new();
        let mut next = 0;
        let mut ended = [Completion::EMPTY; 6];
        let mut take = |queue: &mut Simulated, flying: &mut std::collections::BTreeSet<u64>, most: usize| {
            let count = queue.poll(&mut ended[..most]);
            ended[..count].iter().for_each(|ended| assert!(flying.remove(&ended.tag.0), "{ended:?} was not in flight"));
            count
        };
        for step in steps {
            match step {
                Step::Submit { blocks, write, urgency } => {
                    let urgency = [Urgency::Urgent, Urgency::Normal, Urgency::Batch][usize::from(urgency)];
                    let op = if write { Op::Write } else { Op::Read };
                    let queued = queue.submit(&Request { op, blocks, urgency, ..small(next) }, &[]) == Submit::Queued;
                    assert_eq!(queued, flying.len() < depth as usize);
                    assert!(!queued || flying.insert(next));
                    next += 1;
                }
                Step::Ring => queue.ring(),
                Step::Poll(most) => drop(take(&mut queue, &mut flying, most)),
                Step::Wait(at_most) => queue.wait(us(at_most)),
                Step::Cancel(which) => queue.cancel(Tag(flying.iter().nth(usize::from(which)).copied().unwrap_or(1_000_000))),
                Step::Latency(small, large) => (queue.below().small, queue.below().large) = (us(small), us(large)),
                Step::Mode(mode) => queue.set_mode(MODES[usize::from(mode)]),
                Step::Reset => {
                    assert_eq!(queue.reset(), Ok(()));
                    flying.clear();
                }
            }
            assert_eq!(queue.in_flight() as usize, flying.len());
            assert_eq!(queue.expected().is_some(), !flying.is_empty());
        }
        for _ in 0..10_000 {
            queue.wait(HOUR);
            take(&mut queue, &mut flying, 6);
            if flying.is_empty() {
                return;
            }
        }
        panic!("{flying:?} never ended");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_request_ends_once_in_every_mode(mode in 0_u8..3, depth in 1_u32..9, steps in proptest::collection::vec(step(), 0..200)) {
            run(mode, depth, steps);
        }
    }
}
