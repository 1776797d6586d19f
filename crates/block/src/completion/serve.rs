//! What the completion thread does, turn by turn.

use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::counters::Counters;
use super::mode::{Mode, State};
use super::parking::Parking;
use super::plan::{Lead, Limits, Outlook, Plan};
use super::reaper::{QueueId, Reap, ReaperOptions};
use super::sleeper::Sleeper;
use crate::clock::{Clock, Time};
use crate::queue::Armed;

/// Turns between two looks at the thread's processor clock, while it spins.
const SELDOM: u64 = 1024;

pub(super) struct Server<C, S> {
    pub queues: Vec<(QueueId, Arc<dyn Reap>)>,
    pub counters: Counters,
    /// To stop when nothing is in flight, and at this moment at the latest.
    pub stop_by: Option<Time>,
    mode: Mode,
    limits: Limits,
    lead: Lead,
    clock: C,
    sleeper: S,
    state: State,
}

impl<C: Clock, S: Sleeper> Server<C, S> {
    pub(super) fn new(options: ReaperOptions, clock: C, sleeper: S) -> Server<C, S> {
        Server {
            queues: Vec::new(),
            counters: Counters::default(),
            stop_by: None,
            mode: options.mode,
            limits: Limits::of(options.floor),
            lead: Lead::of(options.floor),
            clock,
            sleeper,
            state: State::Idle,
        }
    }

    /// One turn: looks at the queues, then at most one wait. `ordered`: there is something else to do, so do not wait.
    pub(super) fn serve(&mut self, parking: &Parking, bell: &impl Bell, ordered: &dyn Fn() -> bool) {
        let now = self.clock.now();
        // A look at a queue may cost a lock that submitters want: while spinning only at those that are due.
        let only_due = self.state == State::Poll && self.mode == Mode::Adaptive;
        let found = self.reap(if only_due { now } else { Time::NEVER });
        if self.counters.polls.is_multiple_of(SELDOM) {
            self.take_time();
        }
        if found > 0 {
            return;
        }
        let due = self.due();
        match self.plan(due, now) {
            Plan::Poll(_) => {
                self.enter(State::Poll);
                self.sleeper.relax();
            }
            Plan::Sleep(most) => {
                self.enter(State::Sleep);
                self.sleep(now, most, due.unwrap_or(now), parking, bell, ordered);
            }
            Plan::Block => self.block(due, parking, bell, ordered),
        }
    }

    /// Whether it shall stop, and everything has ended or it is time to stop anyway.
    pub(super) fn is_over(&self) -> bool {
        self.stop_by.is_some_and(|by| self.in_flight() == 0 || self.clock.now() >= by)
    }

    /// A last look; how many queues have requests in flight all the same.
    pub(super) fn leave(&mut self) -> usize {
        self.reap(Time::NEVER);
        self.in_flight()
    }

    /// Queues with requests in flight.
    fn in_flight(&self) -> usize {
        self.queues.iter().filter(|(_, queue)| queue.expected().is_some()).count()
    }

    fn due(&self) -> Option<Time> {
        self.queues.iter().filter_map(|(_, queue)| queue.expected()).min()
    }

    /// Takes what has ended of the queues that are due by then.
    fn reap(&mut self, due_by: Time) -> usize {
        let due = self.queues.iter().filter(|(_, queue)| queue.expected().is_some_and(|due| due <= due_by));
        let found = due.map(|(_, queue)| queue.reap()).sum::<usize>();
        self.counters.polls += 1;
        self.counters.empty_polls += u64::from(found == 0);
        self.counters.completions += found as u64;
        found
    }

    fn plan(&self, due: Option<Time>, now: Time) -> Plan {
        let Some(due) = due else { return Plan::Block };
        let remaining = due.since(now);
        match self.mode {
            Mode::Polling => Plan::Poll(Duration::MAX),
            Mode::Interrupt => Plan::Block,
            Mode::Adaptive => {
                let (overdue, slack) = (now.since(due), Duration::ZERO);
                let outlook = Outlook { remaining, overdue, latency: Some(remaining), urgent: false, slack };
                self.limits.plan(outlook, self.lead.get())
            }
        }
    }

    fn sleep(&mut self, now: Time, most: Duration, due: Time, parking: &Parking, bell: &impl Bell, ordered: &dyn Fn() -> bool) {
        parking.announce(due);
        if !ordered() && self.due().is_some_and(|found| found >= due) {
            bell.wait(Some(most), false);
            self.counters.sleeps += 1;
            parking.awake();
            let (woke, asked) = (self.clock.now(), now.after(most));
            let found = self.reap(Time::NEVER);
            if woke >= asked {
                self.lead.observe(found > 0, woke.since(asked), due.since(now));
                self.counters.oversleep_ns += if found > 0 { nanos(woke.since(due)) } else { 0 };
            }
        }
        parking.awake();
    }

    /// Until an event of a queue, something that is due earlier, or an order. Without anything in flight only until the latter two.
    fn block(&mut self, due: Option<Time>, parking: &Parking, bell: &impl Bell, ordered: &dyn Fn() -> bool) {
        self.enter(if due.is_some() { State::Block } else { State::Idle });
        self.take_time();
        let events = due.is_some() || self.mode == Mode::Interrupt;
        let mute = self.queues.iter().any(|(_, queue)| queue.event().is_none());
        // With events of all queues nobody need ring for a request. 1: only for orders.
        let until =
            if self.mode == Mode::Interrupt && !mute { Time(1) } else { due.filter(|due| *due > self.clock.now()).unwrap_or(Time::NEVER) };
        parking.announce(until);
        if !ordered() && !self.is_ready(due, until, events) {
            bell.wait(self.block_at_most(due, mute), events);
            self.counters.waits += 1;
            self.counters.interrupt_wakes += u64::from(due.is_some());
        }
        parking.awake();
    }

    /// A queue without events is looked at when it is due, and then now and then.
    fn block_at_most(&self, due: Option<Time>, mute: bool) -> Option<Duration> {
        let now = self.clock.now();
        let stop = self.stop_by.map(|by| by.since(now));
        let look = due.filter(|_| mute).map(|due| due.since(now).saturating_sub(self.lead.get()).max(self.limits.sleep_min));
        stop.into_iter().chain(look).min()
    }

    /// The last look before waiting: whether there is something to do after all.
    fn is_ready(&self, due: Option<Time>, until: Time, events: bool) -> bool {
        let armed = events && self.queues.iter().any(|(_, queue)| queue.event().is_some() && queue.arm() == Armed::Ready);
        armed || (until != Time(1) && self.due().is_some_and(|found| due.is_none_or(|due| found < due)))
    }

    fn enter(&mut self, state: State) {
        self.counters.mode_switches += u64::from(state != self.state && self.state != State::Idle && state != State::Idle);
        self.state = state;
    }

    fn take_time(&mut self) {
        self.counters.cpu_ns = nanos(self.sleeper.cpu());
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
