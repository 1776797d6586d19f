//! How many looks at a device there are for one at the clock.

use std::time::Duration;

use crate::clock::Clock;

/// Looks at the clock to learn what one costs.
const SAMPLES: usize = 8;
/// Looks at the device take so many times as long as those at the clock.
const SHARE: u32 = 4;
/// Most looks without the time: what ends between two looks at the clock is learned from less exactly.
const MOST: u128 = 64;

/// On hardware a look at the clock costs about as much as one at the device; in a virtual machine it may cost ten times that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pace {
    clock: Duration,
    looks: u32,
}

impl Pace {
    /// By what this clock costs.
    pub(super) fn of(clock: &impl Clock) -> Pace {
        let cost = |()| {
            let begin = clock.now();
            clock.now().since(begin)
        };
        Pace { clock: [(); SAMPLES].map(cost).into_iter().min().unwrap_or_default(), looks: 1 }
    }

    /// Looks at the device until the next at the clock.
    pub(super) fn looks(&self) -> u32 {
        self.looks
    }

    /// So many looks at the device and one at the clock took so long.
    pub(super) fn observe(&mut self, looks: u32, took: Duration) {
        let each = took.saturating_sub(self.clock) / looks.max(1);
        let wanted = (self.clock * SHARE).as_nanos() / each.as_nanos().max(1);
        self.looks = wanted.clamp(1, MOST) as u32;
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::clock::{Monotonic, Time};

    fn pace(clock_ns: u64) -> Pace {
        Pace { clock: Duration::from_nanos(clock_ns), looks: 1 }
    }

    #[test]
    fn the_dearer_the_clock_the_rarer_it_is_looked_at() {
        for (clock_ns, look_ns, looks) in [(25, 20, 5), (25, 1000, 1), (3000, 400, 30), (3000, 0, 64), (0, 20, 1)] {
            let mut pace = pace(clock_ns);
            pace.observe(10, Duration::from_nanos(clock_ns + 10 * look_ns));
            assert_eq!(pace.looks(), looks, "{clock_ns} ns a look at the clock, {look_ns} ns one at the device");
        }
    }

    #[test]
    fn a_thread_that_was_away_looks_at_the_clock_each_time_until_it_knows_better() {
        let mut pace = pace(25);
        pace.observe(4, Duration::from_millis(3));
        assert_eq!(pace.looks(), 1);
        pace.observe(1, Duration::from_nanos(45));
        assert_eq!(pace.looks(), 5);
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
