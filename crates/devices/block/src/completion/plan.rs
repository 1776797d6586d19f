//! What to do until the next completion: from what is predicted, and what it costs on this machine.
//!
//! Of the three ways the one that takes least of the processor is chosen, as long as it is in time:
//!
//! | the next completion | and | so |
//! |---|---|---|
//! | is overdue by more than the patience | | block: who knows how long it takes |
//! | is of an urgent request | is due within `urgent_spin` | poll |
//! | is nearer than three wakings | | poll: a sleep would end too late. This is where deep and busy queues end up |
//! | is farther | a waking is a small part of the request's latency | block: interrupts are as fast, and cheapest |
//! | is farther | | sleep until a lead before it, then poll |
//!
//! For requests that are about throughput, not latency, "due" is later: that is the polling period of paper 001, section
//! III.B, by number and size of the requests.
//!
//! The costs are those of [`WakeupLatency`], measured once; what others do with the processors meanwhile has no part in this.

use std::time::Duration;

use super::calibrate::WakeupLatency;

/// Wakings that a sleep must be longer than.
const WAKINGS_TO_SLEEP: u32 = 3;

/// Blocking is as good as polling when a waking is less than the latency divided by this.
const SMALL_PART: u32 = 32;

/// What is expected of the requests in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    /// Until the next completion that is worth a look.
    pub remaining: Duration,
    /// Since it should have been there.
    pub overdue: Duration,
    /// The latency predicted for it; none if nothing is known.
    pub latency: Option<Duration>,
    /// Somebody stands and waits.
    pub urgent: bool,
    /// How late a look may be at no harm.
    pub slack: Duration,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Look without pause, for at most so long.
    Poll(Duration),
    /// Sleep for so long, then think again.
    Sleep(Duration),
    /// Wait for the driver.
    Block,
}

/// Where the ways part. From the floor of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// What is slept for must be farther than this.
    pub sleep_min: Duration,
    /// And itself not be shorter than this.
    pub sleep_least: Duration,
    /// Nor longer: then it is looked at again.
    pub sleep_most: Duration,
    /// A request that takes longer may as well be blocked for.
    pub block_from: Duration,
    /// Something urgent is polled for so long.
    pub urgent_spin: Duration,
    /// What is overdue, or of which nothing is known, is polled for at least so long, and for a quarter of its latency.
    pub patience: Duration,
}

impl Limits {
    /// Those of a machine.
    pub fn of(floor: WakeupLatency) -> Limits {
        let waking = floor.timer.max(floor.event);
        Limits {
            sleep_min: waking * WAKINGS_TO_SLEEP,
            sleep_least: waking,
            sleep_most: Duration::MAX,
            block_from: waking * SMALL_PART,
            urgent_spin: Duration::from_millis(1),
            patience: waking * 2,
        }
    }

    /// See the module. `lead` is how long before the predicted moment to be awake.
    pub fn plan(&self, outlook: Outlook, lead: Duration) -> Plan {
        let latency = outlook.latency.unwrap_or_default();
        let patience = self.patience.max(latency / 4);
        if outlook.overdue > patience {
            return Plan::Block;
        }
        let in_time = outlook.remaining + patience - outlook.overdue;
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
    /// Whether it was polled for only because the lead is long: the lead may be too long.
    pub fn is_led_to_poll(&self, plan: Plan, limits: &Limits) -> bool {
        matches!(plan, Plan::Poll(_)) && !self.urgent && self.remaining + self.slack > limits.sleep_min
    }
}

/// How long before the predicted moment to be awake: a step more after a sleep that ended too late, a quarter of it less after
/// one that did not, so that four of five end in time. Covers how late sleeps end, how much the device varies, and that of many
/// in flight the first is earlier than predicted for one. One of each kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead {
    lead: Duration,
    least: Duration,
    latest: Duration,
}

impl Lead {
    /// Begins with what was measured, as far as that is the timers' doing and not that of a machine busy at the moment.
    pub fn of(floor: WakeupLatency) -> Lead {
        let late = floor.timer_late.min(floor.timer * 2);
        Lead { lead: late, least: floor.timer / 2, latest: late * 2 }
    }

    /// To be awake so long before.
    pub fn get(&self) -> Duration {
        self.lead
    }

    /// There was no sleep because of it: a little less next time, or it would stay long for ever.
    pub fn shrink(&mut self) {
        self.lead = (self.lead - self.lead / 64).max(self.least);
    }

    /// A sleep for a request of this latency has ended, so much later than asked; whether something was there already. If it was
    /// late by more than this machine's timers are, then something else had the processor: that teaches nothing.
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
