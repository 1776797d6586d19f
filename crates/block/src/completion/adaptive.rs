//! A queue whose `wait` waits in the mode chosen.
//!
//! Stands between a driver and [`crate::Tracked`]: it gives the device tags of its own, so whoever wants to know which request
//! of long ago has let go of its memory has to ask above it. In the modes `Polling` and `Interrupt` it reads no clock on the
//! path of a request; in `Adaptive` once for each batch submitted and once for each poll that found something.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::calibrate::Floor;
use super::counters::{Counters, Published};
use super::flight::{Due, Flight, Flown};
use super::mode::{Mode, State, cores};
use super::plan::{Lead, Limits, Outlook, Plan};
use super::predictor::Kind;
use super::sleeper::{Sleeper, System};
use crate::buffer::{Arena, Span};
use crate::clock::{Clock, Monotonic, Time};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request};
use crate::units::Tag;

/// Waits between two looks at the thread's processor clock, a system call; polls between two publishings.
const SELDOM: u64 = 64;

/// See the module.
pub struct Adaptive<Q, C = Monotonic, S = System> {
    queue: Q,
    clock: C,
    sleeper: S,
    mode: Mode,
    state: State,
    limits: Limits,
    waking: Duration,
    leads: [Lead; Kind::COUNT],
    flight: Flight,
    held: Held,
    /// When the requests being submitted began to be; none after the bell.
    batch_since: Option<Time>,
    /// The last look that left nothing behind.
    last_look: Time,
    /// The next completions found were announced by the driver: they came just now.
    woken: bool,
    counters: Counters,
    published: Arc<Published>,
    /// Processor clock of the thread that waited last.
    cpu: Option<(std::thread::ThreadId, Duration)>,
}

impl<Q: Queue> Adaptive<Q> {
    /// In the mode that is right for this machine, with its costs.
    pub fn new(queue: Q) -> Adaptive<Q> {
        Adaptive::with(queue, Mode::default_for(cores()), Floor::of_machine(), Monotonic::default(), System::default())
    }
}

impl<Q: Queue, C: Clock, S: Sleeper> Adaptive<Q, C, S> {
    /// With everything named.
    pub fn with(queue: Q, mode: Mode, floor: Floor, clock: C, sleeper: S) -> Adaptive<Q, C, S> {
        let depth = queue.depth();
        Adaptive {
            queue,
            clock,
            sleeper,
            mode,
            state: State::Idle,
            limits: Limits::of(floor),
            waking: floor.timer.max(floor.event),
            leads: [Lead::of(floor); Kind::COUNT],
            flight: Flight::new(depth),
            held: Held { entries: vec![Completion::EMPTY; depth as usize].into(), first: 0, end: 0 },
            batch_since: None,
            last_look: Time(0),
            woken: false,
            counters: Counters::default(),
            published: Arc::default(),
            cpu: None,
        }
    }

    /// Forces a mode from now on. What is in flight is not learned from.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What the last wait was at.
    pub fn state(&self) -> State {
        if self.in_flight() == 0 { State::Idle } else { self.state }
    }

    /// Until here.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// To read from other threads while this runs.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    /// How long a request like this takes; none when there was none in this mode.
    pub fn predicted(&self, op: Op, bytes: u64) -> Option<Duration> {
        self.flight.predictors[usize::from(Kind::of(op, bytes).0)].estimate()
    }

    /// When the next completion is worth a look: a moment in the past if it is there, or nothing is known; none when nothing is
    /// in flight.
    pub fn expected(&self) -> Option<Time> {
        if !self.held.is_empty() { Some(Time(0)) } else { self.flight.due().map(|due| due.at) }
    }

    /// The queue below.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Waits as predictions say, until there are completions, `until`, or the driver returns without one.
    fn wait_adaptively(&mut self, until: Time) {
        let mut slept = false;
        let mut now = self.clock.now();
        while !self.look(now) && now < until {
            let due = self.flight.due().expect("something is in flight");
            let plan = self.plan(now, due);
            self.enter(plan, slept);
            match plan {
                Plan::Poll(most) => {
                    let ended = self.spin(now.after(most).min(until));
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

    fn plan(&self, now: Time, due: Due) -> Plan {
        let outlook = Outlook {
            remaining: due.at.since(now),
            overdue: now.since(due.at),
            latency: due.latency,
            urgent: self.flight.has_urgent(),
            slack: due.slack,
        };
        self.limits.plan(outlook, self.leads[usize::from(due.kind.0)].get())
    }

    fn enter(&mut self, plan: Plan, slept: bool) {
        let state = match plan {
            Plan::Poll(_) if !slept => State::Poll,
            Plan::Poll(_) | Plan::Sleep(_) => State::Sleep,
            Plan::Block => State::Block,
        };
        self.counters.mode_switches += u64::from(state != self.state && self.state != State::Idle);
        self.state = state;
    }

    fn spin(&mut self, until: Time) -> Time {
        loop {
            let now = self.clock.now();
            if self.look(now) || now >= until {
                return now;
            }
            self.sleeper.relax();
        }
    }

    fn sleep(&mut self, now: Time, most: Duration, due: Due) -> Time {
        self.sleeper.sleep(most);
        let woke = self.clock.now();
        let found = self.look(woke);
        let late = woke.since(now.after(most));
        self.leads[usize::from(due.kind.0)].observe(found, late, due.latency.unwrap_or_default());
        if found {
            self.counters.oversleep_ns += nanos(woke.since(due.at));
        }
        woke
    }

    /// The driver arms, looks again and waits, in whichever order loses nothing.
    fn block(&mut self, at_most: Duration) {
        self.queue.wait(at_most);
        self.woken = true;
        let now = self.clock.now();
        self.counters.interrupt_wakes += u64::from(self.look(now));
        self.woken = false;
    }

    /// Whether there are completions; takes them from below if none are held.
    #[inline]
    fn look(&mut self, now: Time) -> bool {
        if self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            held.first = 0;
            held.end = self.take_below(&mut held.entries, Some(now));
            self.held = held;
        }
        !self.held.is_empty()
    }

    /// Polls the queue below. `now` is asked for when it is needed and not known.
    #[inline]
    fn take_below(&mut self, to: &mut [Completion], now: Option<Time>) -> usize {
        let found = self.queue.poll(to);
        self.counters.polls += 1;
        self.counters.empty_polls += u64::from(found == 0);
        self.counters.completions += found as u64;
        let learns = self.mode == Mode::Adaptive;
        let now = if learns && found > 0 { now.unwrap_or_else(|| self.clock.now()) } else { now.unwrap_or(self.last_look) };
        let mut kinds = Kinds::default();
        for completion in &mut to[..found] {
            let flown = self.flight.end(completion.tag).expect("the queue below reports what it was given, once");
            if learns && completion.status.is_ok() && flown.since != Time::NEVER {
                self.learn(flown, now, &mut kinds);
            }
            completion.tag = flown.tag;
        }
        if found < to.len() {
            self.last_look = now;
        }
        if kinds.blind & !kinds.learned != 0 {
            self.be_blind(kinds);
        }
        found
    }

    fn learn(&mut self, flown: Flown, now: Time, kinds: &mut Kinds) {
        let taken = now.since(flown.since);
        let prompt = taken.saturating_sub(self.waking);
        let (more_than, at_most) = if self.woken { (prompt, prompt) } else { (self.last_look.since(flown.since), taken) };
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

impl<Q: Queue, C: Clock, S: Sleeper> Queue for Adaptive<Q, C, S> {
    fn geometry(&self) -> &Geometry {
        self.queue.geometry()
    }

    fn depth(&self) -> u32 {
        self.queue.depth()
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        let Some(tag) = self.flight.next() else { return Submit::Full };
        if self.in_flight() >= self.queue.depth() || self.queue.submit(&Request { tag, ..*request }, data) == Submit::Full {
            return Submit::Full;
        }
        let since = match (self.mode, self.batch_since) {
            (Mode::Adaptive, Some(since)) => since,
            (Mode::Adaptive, None) => *self.batch_since.insert(self.clock.now()),
            _ => Time::NEVER,
        };
        let bytes = u64::from(request.blocks) * u64::from(self.queue.geometry().block_bytes);
        self.flight.take(Flown { tag: request.tag, since, kind: Kind::of(request.op, bytes), urgency: request.urgency });
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
        let found = if held < completions.len() { self.take_below(&mut completions[held..], None) } else { 0 };
        if self.counters.polls.is_multiple_of(SELDOM) {
            self.published.publish(&self.counters);
        }
        held + found
    }

    fn in_flight(&self) -> u32 {
        self.flight.len() + self.held.len() as u32
    }

    fn wait(&mut self, at_most: Duration) {
        self.ring();
        if !self.held.is_empty() {
            return;
        }
        match self.mode {
            Mode::Adaptive if self.flight.len() > 0 => self.wait_adaptively(self.clock.now().after(at_most)),
            Mode::Polling if self.flight.len() > 0 => {
                let until = self.clock.now().after(at_most);
                self.spin(until);
            }
            _ => {
                self.queue.wait(at_most);
                self.counters.interrupt_wakes += 1;
            }
        }
        self.account();
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }

    fn arm(&mut self) -> Armed {
        if self.held.is_empty() { self.queue.arm() } else { Armed::Ready }
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
}

/// Of which kinds of request a look has found completions: a bit for each.
#[derive(Clone, Copy, Default)]
struct Kinds {
    learned: u32,
    blind: u32,
}

/// Completions found while waiting, not yet polled from above.
#[derive(Default)]
struct Held {
    entries: Box<[Completion]>,
    first: usize,
    end: usize,
}

impl Held {
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
