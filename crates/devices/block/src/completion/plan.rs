//! The decision how to wait for the next completion, from its prediction and the machine's wakeup latency.
//!
//! Of three methods, the one with the least CPU time that is still in time is chosen:
//!
//! | the next completion | and | so |
//! |---|---|---|
//! | is overdue by more than the tolerance | | block: its remaining time is unknown |
//! | is of an urgent request | is due within `urgent_spin` | poll |
//! | is nearer than three wakeups | | poll: a sleep would end too late. Deep and busy queues end up here |
//! | is farther | a wakeup is a small part of the request's latency | block: interrupts are as fast, and cheapest |
//! | is farther | | sleep until a lead before it, then poll |
//!
//! For requests that need throughput rather than latency, "due" is later: the polling period of paper 001, section III.B, by number and
//! size of the requests.
//!
//! The costs are those of [`WakeupLatency`], measured once; the current load of the CPUs is not considered.

use std::time::Duration;

use super::calibrate::WakeupLatency;

/// A sleep must be longer than this many wakeups.
const WAKINGS_TO_SLEEP: u32 = 3;

/// Blocking is as good as polling when a wakeup takes less than the latency divided by this.
const SMALL_PART: u32 = 32;

/// The prediction for the requests in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    /// The time until the next completion that is worth a poll.
    pub remaining: Duration,
    /// The time since that completion was due.
    pub overdue: Duration,
    /// The predicted latency of the request; `None` if unknown.
    pub latency: Option<Duration>,
    /// Whether a caller waits for the request synchronously.
    pub urgent: bool,
    /// The time by which a poll may be late without harm.
    pub slack: Duration,
}

/// The next step of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Poll without pause, for at most this duration.
    Poll(Duration),
    /// Sleep for this duration, then plan again.
    Sleep(Duration),
    /// Block until the driver wakes the thread.
    Block,
}

/// The thresholds between the methods, derived from a machine's wakeup latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Sleep only if the completion is farther away than this.
    pub sleep_min: Duration,
    /// The minimum duration of a sleep.
    pub sleep_least: Duration,
    /// The maximum duration of a sleep, after which the thread polls again.
    pub sleep_most: Duration,
    /// The latency from which blocking is as good as polling.
    pub block_from: Duration,
    /// The maximum time to poll for an urgent request.
    pub urgent_spin: Duration,
    /// The time to poll for an overdue or unknown request, or a quarter of its latency if that is longer.
    pub tolerance: Duration,
}

impl Limits {
    /// Returns the thresholds for a machine with this wakeup latency.
    pub fn of(floor: WakeupLatency) -> Limits {
        let waking = floor.timer.max(floor.event);
        Limits {
            sleep_min: waking * WAKINGS_TO_SLEEP,
            sleep_least: waking,
            sleep_most: Duration::MAX,
            block_from: waking * SMALL_PART,
            urgent_spin: Duration::from_millis(1),
            tolerance: waking * 2,
        }
    }

    /// Returns the next step of a wait. `lead` is how long before the predicted completion the thread must be awake.
    pub fn plan(&self, outlook: Outlook, lead: Duration) -> Plan {
        let latency = outlook.latency.unwrap_or_default();
        let tolerance = self.tolerance.max(latency / 4);
        if outlook.overdue > tolerance {
            return Plan::Block;
        }
        let in_time = outlook.remaining + tolerance - outlook.overdue;
        if outlook.urgent && outlook.remaining <= self.urgent_spin {
            return Plan::Poll(in_time);
        }
        let remaining = outlook.remaining + outlook.slack;
        if remaining <= self.sleep_min {
            return Plan::Poll(in_time);
        }
        if latency >= self.block_from {
            return Plan::Block;
        }
        match remaining.checked_sub(lead) {
            Some(sleep) if sleep >= self.sleep_least => Plan::Sleep(sleep.min(self.sleep_most)),
            _ => Plan::Poll(in_time),
        }
    }
}

impl Outlook {
    /// Returns whether `plan` polls only because of the lead, which may then be too long.
    pub fn is_led_to_poll(&self, plan: Plan, limits: &Limits) -> bool {
        matches!(plan, Plan::Poll(_)) && !self.urgent && self.remaining + self.slack > limits.sleep_min
    }
}

/// How long before the predicted completion a thread must be awake. A sleep that ends too late adds four steps, any other subtracts one,
/// so that four of five end in time. It covers the lateness of timers and the variance of the device. It also covers that the first of
/// many requests in flight completes earlier than predicted for one. Each kind of request has its own lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead {
    lead: Duration,
    least: Duration,
    latest: Duration,
}

impl Lead {
    /// Creates a lead from the measured lateness, limited so that a momentarily busy machine does not count.
    pub fn of(floor: WakeupLatency) -> Lead {
        let late = floor.timer_late.min(floor.timer * 2);
        Lead { lead: late, least: floor.timer / 2, latest: late * 2 }
    }

    /// Returns how long before the prediction to be awake.
    pub fn get(&self) -> Duration {
        self.lead
    }

    /// Shortens the lead slightly after it prevented a sleep; otherwise it would stay long for ever.
    pub fn shrink(&mut self) {
        self.lead = (self.lead - self.lead / 64).max(self.least);
    }

    /// Adapts the lead after a sleep for a request of this latency. `too_late`: the completion was there already; `late`: how long after
    /// the requested time the sleep ended. A lateness beyond this machine's timers shows that another thread had the CPU; it is ignored.
    pub fn observe(&mut self, too_late: bool, late: Duration, latency: Duration) {
        if late > self.latest {
            return;
        }
        let step = self.lead / 64;
        let lead = if too_late { self.lead + step * 4 } else { self.lead - step };
        self.lead = lead.clamp(self.least, self.latest.max(latency));
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    const FLOOR: WakeupLatency = WakeupLatency { timer: us(10), timer_late: us(14), event: us(3) };

    fn plan(remaining: u64, latency: u64, change: impl FnOnce(&mut Outlook)) -> Plan {
        let mut outlook = Outlook { remaining: us(remaining), overdue: us(0), latency: Some(us(latency)), urgent: false, slack: us(0) };
        change(&mut outlook);
        Limits::of(FLOOR).plan(outlook, us(14))
    }

    #[test]
    fn each_latency_has_its_way() {
        assert_eq!(plan(8, 8, |_| ()), Plan::Poll(us(28)));
        assert_eq!(plan(20, 20, |_| ()), Plan::Poll(us(40)));
        assert_eq!(plan(80, 80, |_| ()), Plan::Sleep(us(66)));
        assert_eq!(plan(400, 400, |_| ()), Plan::Block);
        assert_eq!(plan(300, 300, |_| ()), Plan::Sleep(us(286)));
        assert_eq!(plan(12, 400, |_| ()), Plan::Poll(us(112)), "a busy queue: the next is near");
        assert_eq!(plan(0, 0, |outlook| outlook.latency = None), Plan::Poll(us(20)), "the first of its kind");
        assert_eq!(plan(0, 80, |outlook| outlook.overdue = us(19)), Plan::Poll(us(1)));
        assert_eq!(plan(0, 80, |outlook| outlook.overdue = us(21)), Plan::Block);
        assert_eq!(plan(400, 400, |outlook| outlook.urgent = true), Plan::Poll(us(500)));
        assert_eq!(plan(8_000, 8_000, |outlook| outlook.urgent = true), Plan::Block, "urgent, but a disk");
        assert_eq!(plan(20, 20, |outlook| outlook.slack = us(40)), Plan::Sleep(us(46)), "only throughput matters");
    }

    proptest! {
        #[test]
        fn never_sleeps_below_the_floor(remaining in 0_u64..1000, latency in 0_u64..1000, overdue in 0_u64..1000,
                                        slack in 0_u64..100, urgent: bool, lead in 0_u64..200) {
            let outlook = Outlook { remaining: us(remaining), overdue: us(overdue), latency: Some(us(latency)), urgent, slack: us(slack) };
            if let Plan::Sleep(sleep) = Limits::of(FLOOR).plan(outlook, us(lead)) {
                prop_assert!(us(remaining + slack) > FLOOR.timer * 3 && sleep >= FLOOR.timer);
                prop_assert!(sleep + us(lead) <= us(remaining + slack));
            }
        }
    }

    #[test]
    fn four_of_five_sleeps_end_in_time() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut lead = Lead::of(FLOOR);
        let mut in_time = 0;
        for _ in 0..10_000 {
            let late = Duration::from_nanos(random.u64(10_000..20_000));
            in_time += u32::from(late <= lead.get());
            lead.observe(late > lead.get(), late, us(80));
        }
        assert!((7_500..8_500).contains(&in_time), "{in_time} of 10000");
    }

    #[test]
    fn the_lead_does_not_learn_from_a_busy_machine_and_not_beyond_the_latency() {
        let mut lead = Lead::of(FLOOR);
        (0..1_000).for_each(|_| lead.observe(true, us(5_000), us(80)));
        assert_eq!(lead, Lead::of(FLOOR));
        (0..1_000).for_each(|_| lead.observe(true, us(10), us(80)));
        assert_eq!(lead.get(), us(80));
        (0..1_000).for_each(|_| lead.observe(false, us(10), us(80)));
        assert_eq!(lead.get(), us(5));
    }
}
