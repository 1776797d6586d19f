//! The number of device polls for each read of the clock.

use std::time::Duration;

use crate::clock::Clock;

/// Clock reads that measure the cost of one.
const SAMPLES: usize = 8;
/// Device polls take this many times as long as clock reads.
const SHARE: u32 = 4;
/// The most polls between clock reads: a completion in between is timed less exactly.
const MOST: u128 = 64;

/// The ratio of polls to clock reads. On hardware both cost about the same; in a virtual machine a clock read may cost ten times as much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pace {
    clock: Duration,
    polls: u32,
}

impl Pace {
    /// Measures the cost of this clock.
    pub(super) fn of(clock: &impl Clock) -> Pace {
        let cost = |()| {
            let begin = clock.now();
            clock.now().since(begin)
        };
        Pace { clock: [(); SAMPLES].map(cost).into_iter().min().unwrap_or_default(), polls: 1 }
    }

    /// Returns the number of device polls until the next clock read.
    pub(super) fn polls(&self) -> u32 {
        self.polls
    }

    /// Records the time that `polls` device polls and one clock read took.
    pub(super) fn observe(&mut self, polls: u32, took: Duration) {
        let each = took.saturating_sub(self.clock) / polls.max(1);
        let wanted = (self.clock * SHARE).as_nanos() / each.as_nanos().max(1);
        self.polls = wanted.clamp(1, MOST) as u32;
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::clock::{Monotonic, Time};

    fn pace(clock_ns: u64) -> Pace {
        Pace { clock: Duration::from_nanos(clock_ns), polls: 1 }
    }

    #[test]
    fn the_dearer_the_clock_the_rarer_it_is_looked_at() {
        for (clock_ns, poll_ns, polls) in [(25, 20, 5), (25, 1000, 1), (3000, 400, 30), (3000, 0, 64), (0, 20, 1)] {
            let mut pace = pace(clock_ns);
            pace.observe(10, Duration::from_nanos(clock_ns + 10 * poll_ns));
            assert_eq!(pace.polls(), polls, "{clock_ns} ns a look at the clock, {poll_ns} ns one at the device");
        }
    }

    #[test]
    fn a_thread_that_was_away_looks_at_the_clock_each_time_until_it_knows_better() {
        let mut pace = pace(25);
        pace.observe(4, Duration::from_millis(3));
        assert_eq!(pace.polls(), 1);
        pace.observe(1, Duration::from_nanos(45));
        assert_eq!(pace.polls(), 5);
    }

    #[test]
    fn a_clock_that_stands_still_costs_nothing() {
        struct Still;
        impl Clock for Still {
            fn now(&self) -> Time {
                Time(7)
            }
        }
        assert_eq!(Pace::of(&Still), pace(0));
        assert!(Pace::of(&Monotonic::default()).clock < Duration::from_millis(1));
    }
}
