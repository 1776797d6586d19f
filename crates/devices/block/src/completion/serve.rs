//! One turn of the completion thread.

use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::mode::{Mode, WaitState};
use super::notifier::ThreadNotifier;
use super::parking::Parking;
use super::plan::{Lead, Limits, Outlook, Plan};
use super::reap::{QueueId, Reap, ReaperOptions};
use super::sleeper::Sleeper;
use crate::clock::{Clock, Time};
use crate::queue::Armed;

/// Turns between two reads of the thread's CPU clock, while it polls.
const SELDOM: u64 = 1024;

pub(super) struct Server<C, S> {
    /// The queues that the thread serves.
    pub queues: Vec<(QueueId, Arc<dyn Reap>)>,
    /// The counters since the thread started.
    pub counters: Counters,
    /// The time to stop at the latest; the thread stops earlier once nothing is in flight.
    pub stop_by: Option<Time>,
    mode: Mode,
    limits: Limits,
    lead: Lead,
    clock: C,
    sleeper: S,
    state: WaitState,
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
            state: WaitState::Idle,
        }
    }

    /// Runs one turn: polls the queues, then waits at most once. It does not wait if `ordered` returns true.
    pub(super) fn serve(&mut self, parking: &Parking, bell: &impl ThreadNotifier, ordered: &dyn Fn() -> bool) {
        let now = self.clock.now();
        // Polling a queue may take a lock that submitters want: while spinning, poll only the queues that are due.
        let only_due = self.state == WaitState::Poll && self.mode == Mode::Adaptive;
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
                self.enter(WaitState::Poll);
                self.sleeper.relax();
            }
            Plan::Sleep(most) => {
                self.enter(WaitState::Sleep);
                self.sleep(now, most, due.unwrap_or(now), parking, bell, ordered);
            }
            Plan::Block => self.block(due, parking, bell, ordered),
        }
    }

    /// Returns whether the thread must stop now: a stop is ordered, and nothing is in flight or its time has come.
    pub(super) fn is_over(&self) -> bool {
        self.stop_by.is_some_and(|by| self.in_flight() == 0 || self.clock.now() >= by)
    }

    /// Reaps a last time; returns how many queues still have requests in flight.
    pub(super) fn leave(&mut self) -> usize {
        self.reap(Time::NEVER);
        self.in_flight()
    }

    /// Returns the number of queues with requests in flight.
    fn in_flight(&self) -> usize {
        self.queues.iter().filter(|(_, queue)| queue.expected().is_some()).count()
    }

    fn due(&self) -> Option<Time> {
        self.queues.iter().filter_map(|(_, queue)| queue.expected()).min()
    }

    /// Takes the completions of queues that are due by `due_by`.
    fn reap(&mut self, due_by: Time) -> usize {
        let due = self.queues.iter().filter(|(_, queue)| queue.expected().is_some_and(|due| due <= due_by));
        let found = due.map(|(_, queue)| queue.reap()).sum::<usize>();
        self.counters.polls += 1;
        self.counters.empty_polls += u64::from(found == 0);
        self.counters.completions += found as u64;
        found
    }

    fn plan(&mut self, due: Option<Time>, now: Time) -> Plan {
        let Some(due) = due else { return Plan::Block };
        let remaining = due.since(now);
        match self.mode {
            Mode::Polling => Plan::Poll(Duration::MAX),
            Mode::Interrupt => Plan::Block,
            Mode::Adaptive => {
                let (overdue, slack) = (now.since(due), Duration::ZERO);
                let outlook = Outlook { remaining, overdue, latency: Some(remaining), urgent: false, slack };
                let plan = self.limits.plan(outlook, self.lead.get());
                if self.state != WaitState::Sleep && outlook.is_led_to_poll(plan, &self.limits) {
                    self.lead.shrink();
                }
                plan
            }
        }
    }

    fn sleep(&mut self, now: Time, most: Duration, due: Time, parking: &Parking, bell: &impl ThreadNotifier, ordered: &dyn Fn() -> bool) {
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

    /// Blocks until an event of a queue, an earlier request or an order. If nothing is in flight, only the latter two end it.
    fn block(&mut self, due: Option<Time>, parking: &Parking, bell: &impl ThreadNotifier, ordered: &dyn Fn() -> bool) {
        self.enter(if due.is_some() { WaitState::Block } else { WaitState::Idle });
        self.take_time();
        let events = due.is_some() || self.mode == Mode::Interrupt;
        let mute = self.queues.iter().any(|(_, queue)| queue.event().is_none());
        // If all queues have events, submitters need not signal. A time of 1 admits only orders.
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

    /// Returns how long to block at most. A queue without events is polled when it is due, and then periodically.
    fn block_at_most(&self, due: Option<Time>, mute: bool) -> Option<Duration> {
        let now = self.clock.now();
        let stop = self.stop_by.map(|by| by.since(now));
        let look = due.filter(|_| mute).map(|due| due.since(now).saturating_sub(self.lead.get()).max(self.limits.sleep_min));
        stop.into_iter().chain(look).min()
    }

    /// Checks a last time before the wait whether there is something to do.
    fn is_ready(&self, due: Option<Time>, until: Time, events: bool) -> bool {
        let armed = events && self.queues.iter().any(|(_, queue)| queue.event().is_some() && queue.arm() == Armed::Ready);
        armed || (until != Time(1) && self.due().is_some_and(|found| due.is_none_or(|due| found < due)))
    }

    fn enter(&mut self, state: WaitState) {
        self.counters.mode_switches += u64::from(state != self.state && self.state != WaitState::Idle && state != WaitState::Idle);
        self.state = state;
    }

    fn take_time(&mut self) {
        self.counters.cpu_ns = nanos(self.sleeper.cpu());
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod test {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Mutex;

    use rustix::event::{EventfdFlags, eventfd};

    use super::super::simulated::{FLOOR, Machine, Naps};
    use super::*;

    /// A queue whose requests complete exactly when they are expected.
    struct Scripted {
        machine: Machine,
        due: Mutex<Vec<Time>>,
        reaped: Mutex<Vec<Time>>,
        /// Never polled: the simulated notifier takes its part.
        event: OwnedFd,
        /// A request submitted between the last check and the wait.
        at_arming: Mutex<Vec<Time>>,
    }

    impl Scripted {
        fn new(machine: &Machine, due_us: &[u64]) -> Arc<Scripted> {
            let event = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
            let due = due_us.iter().map(|us| Time(us * 1_000)).collect();
            let [reaped, at_arming] = [(); 2].map(|()| Mutex::default());
            Arc::new(Scripted { machine: machine.clone(), due: Mutex::new(due), reaped, event, at_arming })
        }

        fn next(&self) -> Option<Time> {
            self.due.lock().expect("whole").iter().min().copied()
        }
    }

    impl Reap for Scripted {
        fn reap(&self) -> usize {
            let now = self.machine.now();
            let ended: Vec<Time> = self.due.lock().expect("whole").extract_if(.., |due| *due <= now).collect();
            self.reaped.lock().expect("whole").extend(ended.iter().map(|_| now));
            ended.len()
        }

        fn expected(&self) -> Option<Time> {
            self.next()
        }

        fn event(&self) -> Option<BorrowedFd<'_>> {
            Some(self.event.as_fd())
        }

        fn arm(&self) -> Armed {
            self.due.lock().expect("whole").append(&mut self.at_arming.lock().expect("whole"));
            let now = self.machine.now();
            if self.next().is_some_and(|due| due <= now) { Armed::Ready } else { Armed::Waiting }
        }
    }

    /// Waits until the next completion of the queue if events count, 10 microseconds late, and records each wait.
    struct Simulated<'a> {
        queues: &'a [Arc<Scripted>],
        waits: Mutex<Vec<Wait>>,
    }

    impl ThreadNotifier for Simulated<'_> {
        fn ring(&self) {}

        fn wait(&self, at_most: Option<Duration>, events: bool) {
            self.waits.lock().expect("whole").push((at_most, events));
            let machine = &self.queues[0].machine;
            let next = self.queues.iter().filter_map(|queue| queue.next()).min().filter(|_| events);
            let event = next.map(|due| due.since(machine.now()));
            let waited = at_most.into_iter().chain(event).min().expect("something ends the wait");
            machine.pass(waited + Duration::from_micros(10));
        }
    }

    /// The time limit of the wait, and whether events counted.
    type Wait = (Option<Duration>, bool);

    fn serve(mode: Mode, queues: &[Arc<Scripted>], turns: usize) -> (Server<Machine, Naps>, Vec<Wait>) {
        let machine = &queues[0].machine;
        let mut server = Server::new(ReaperOptions { mode, floor: FLOOR }, machine.clone(), Naps::new(machine));
        server.queues = queues.iter().map(|queue| (QueueId::default(), Arc::clone(queue) as Arc<dyn Reap>)).collect();
        let bell = Simulated { queues, waits: Mutex::default() };
        let parking = Parking::default();
        for _ in 0..turns {
            if server.in_flight() == 0 {
                break;
            }
            server.serve(&parking, &bell, &|| false);
        }
        assert_eq!(server.in_flight(), 0, "something was never reaped");
        (server, bell.waits.into_inner().expect("whole"))
    }

    #[test]
    fn the_one_due_next_is_served_first_and_in_time() {
        let machine = Machine::default();
        let queues = [&[250_u64, 1_000][..], &[100, 108, 1_900], &[104]].map(|due| Scripted::new(&machine, due));
        let (server, waits) = serve(Mode::Adaptive, &queues, 100_000);
        assert_eq!(server.counters.completions, 6);
        assert!(waits.iter().any(|(at_most, events)| at_most.is_some() && !events), "it slept: {waits:?}");
        assert!(waits.iter().any(|(_, events)| *events), "it blocked for what is far: {waits:?}");
        let late = |queue: usize, at: usize, us: u64| queues[queue].reaped.lock().expect("whole")[at].since(Time(us * 1_000));
        for (queue, at, us) in [(1, 0, 100), (2, 0, 104), (1, 1, 108), (0, 0, 250), (0, 1, 1_000), (1, 2, 1_900)] {
            assert!(late(queue, at, us) < Duration::from_micros(15), "{:?} after {us} us", late(queue, at, us));
        }
    }

    #[test]
    fn what_ends_between_the_look_and_the_wait_is_seen() {
        for mode in [Mode::Adaptive, Mode::Interrupt] {
            let machine = Machine::default();
            let queues = [Scripted::new(&machine, &[5_000])];
            queues[0].at_arming.lock().expect("whole").push(Time(1));
            let (server, _) = serve(mode, &queues, 1_000);
            let first = queues[0].reaped.lock().expect("whole")[0];
            assert!(first < Time(10_000), "{mode:?}: seen at {first:?}");
            assert_eq!(server.counters.completions, 2);
        }
    }

    #[test]
    fn polling_never_waits_and_interrupts_never_poll() {
        for (mode, waits_at_least, polls_at_most) in [(Mode::Polling, 0, u64::MAX), (Mode::Interrupt, 3, 8)] {
            let machine = Machine::default();
            let (server, waits) = serve(mode, &[Scripted::new(&machine, &[50, 200, 400])], 100_000);
            assert!(waits.len() >= waits_at_least && (waits.is_empty() || mode == Mode::Interrupt), "{mode:?}: {waits:?}");
            assert!(server.counters.polls <= polls_at_most, "{mode:?}: {:?}", server.counters);
        }
    }
}
