//! Whether a wait looks for completions for a while before it sleeps (spin, then block).
//!
//! Between requests that are short, sleeping and being woken may cost more than the requests: one on another processor is not woken
//! without an interrupt, and neither is who carries out the requests there when it falls asleep for want of them. Where a wait looks
//! instead, both stay awake. But where the next completion is far away, or where who makes it needs this very processor, each look is
//! lost, and where many end together one sleep serves for all of them. Which it is, nothing tells beforehand. So stretches of requests
//! are measured in turn, with and without, and a longer stretch is made in the way that took less time and no more of the processor.
//!
//! (Karlin et al., "Empirical studies of competitive spinning for a shared-memory multiprocessor", SOSP 1991.)

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long a wait looks: as long as it may take to wake who makes the completion.
pub(super) const LOOK: Duration = Duration::from_micros(20);
const LOOK_NS: i64 = LOOK.as_nanos() as i64;
/// What a sleep costs at most. Who finds nothing within that has lost by looking.
const SLEEP_NS: i64 = 4_000;
/// What looking may lose before it is given up without a measurement.
const STAKE_NS: i64 = 8 * LOOK_NS;
/// Requests that are measured.
const SLEEPING: u64 = 512;
const LOOKING: u64 = 1024;
/// Requests until it is measured again: at first, and if it comes out the same again and again.
const KEPT: (u64, u64) = (1 << 13, 1 << 16);

/// See the module.
pub(super) struct Patience {
    /// What waits do at present.
    looks: bool,
    stretch: Stretch,
    /// Requests that have ended, and how many will have when the stretch is over.
    ended: u64,
    until: u64,
    begin: Sample,
    /// With waits that slept.
    sleeping: Cost,
    /// What came out last, and how long that is kept.
    kept: bool,
    keep: u64,
    account_ns: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stretch {
    Sleeping,
    Looking,
    Kept,
}

/// A moment of this thread.
#[derive(Clone, Copy, Default)]
struct Sample {
    wall_ns: u64,
    cpu_ns: u64,
    ended: u64,
}

/// Of one request.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall_ns: f64,
    cpu_ns: f64,
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

impl Patience {
    pub(super) const fn new() -> Patience {
        let none = Cost { wall_ns: 0.0, cpu_ns: 0.0 };
        let begin = Sample { wall_ns: 0, cpu_ns: 0, ended: 0 };
        let (stretch, looks, kept) = (Stretch::Kept, false, false);
        Patience { looks, stretch, ended: 0, until: 0, begin, sleeping: none, kept, keep: KEPT.0, account_ns: 0 }
    }

    /// So many requests have ended.
    #[inline(always)]
    pub(super) fn ended(&mut self, count: u32) {
        self.ended += u64::from(count);
    }

    /// Asked at each wait: whether it shall look.
    #[inline(always)]
    pub(super) fn looks(&mut self) -> bool {
        if self.ended >= self.until {
            self.turn();
        }
        self.looks
    }

    /// A wait has looked for so long, and found something or not.
    pub(super) fn looked(&mut self, took: Duration, found: bool) {
        let took_ns = i64::try_from(took.as_nanos()).unwrap_or(LOOK_NS);
        // Who was kept off the processor for longer slept in that time.
        self.account_ns += if found && took_ns < LOOK_NS { SLEEP_NS - took_ns } else { -LOOK_NS };
        self.account_ns = self.account_ns.min(STAKE_NS);
        if self.account_ns < 0 {
            self.keep(false);
        }
    }

    #[cold]
    fn turn(&mut self) {
        let now = Sample { wall_ns: read(ClockId::Monotonic), cpu_ns: read(ClockId::ThreadCPUTime), ended: self.ended };
        self.turn_at(now);
    }

    /// A stretch is over.
    fn turn_at(&mut self, now: Sample) {
        match self.stretch {
            Stretch::Kept => self.begin(Stretch::Sleeping, false, SLEEPING),
            Stretch::Sleeping => {
                self.sleeping = now.cost_since(self.begin);
                self.account_ns = STAKE_NS;
                self.begin(Stretch::Looking, true, LOOKING);
            }
            Stretch::Looking => {
                let looking = now.cost_since(self.begin);
                self.keep(looking.wall_ns < self.sleeping.wall_ns && looking.cpu_ns <= self.sleeping.cpu_ns);
            }
        }
        self.begin = now;
    }

    fn keep(&mut self, looks: bool) {
        self.keep = if looks == self.kept { (self.keep * 2).min(KEPT.1) } else { KEPT.0 };
        self.kept = looks;
        self.begin(Stretch::Kept, looks, self.keep);
    }

    fn begin(&mut self, stretch: Stretch, looks: bool, requests: u64) {
        (self.stretch, self.looks, self.until) = (stretch, looks, self.ended + requests);
    }
}

impl Sample {
    fn cost_since(self, begin: Sample) -> Cost {
        let ended = (self.ended - begin.ended).max(1) as f64;
        let of_one = |end: u64, begin: u64| end.saturating_sub(begin) as f64 / ended;
        Cost { wall_ns: of_one(self.wall_ns, begin.wall_ns), cpu_ns: of_one(self.cpu_ns, begin.cpu_ns) }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// A device whose requests cost a thread that sleeps, or looks, so much: nanoseconds of time and of the processor. Its completions
    /// are found after `found_after`.
    struct Thread {
        patience: Patience,
        now: Sample,
        sleeping: (u64, u64),
        looking: (u64, u64),
        found_after: Duration,
    }

    impl Thread {
        fn new(sleeping: (u64, u64), looking: (u64, u64), found_after: Duration) -> Thread {
            Thread { patience: Patience::new(), now: Sample::default(), sleeping, looking, found_after }
        }

        /// Waits for so many requests, one by one; how many waits looked.
        fn waits(&mut self, count: u32) -> u32 {
            let mut looked = 0;
            for _ in 0..count {
                if self.patience.ended >= self.patience.until {
                    self.patience.turn_at(Sample { ended: self.patience.ended, ..self.now });
                }
                let looks = self.patience.looks;
                if looks {
                    looked += 1;
                    self.patience.looked(self.found_after.min(LOOK), self.found_after < LOOK);
                }
                let (wall_ns, cpu_ns) = if looks { self.looking } else { self.sleeping };
                self.now.wall_ns += wall_ns;
                self.now.cpu_ns += cpu_ns;
                self.patience.ended(1);
            }
            looked
        }
    }

    const SOON: Duration = Duration::from_micros(2);

    #[test]
    fn what_is_faster_for_no_more_of_the_processor_is_kept() {
        let mut thread = Thread::new((7_000, 4_100), (3_300, 3_300), SOON);
        thread.waits(100_000);
        let looked = thread.waits(1_000_000);
        assert!(looked > 980_000, "{looked}");
    }

    #[test]
    fn neither_time_nor_processor_is_paid_with_the_other() {
        for looking in [(3_300, 4_200), (7_100, 3_300)] {
            let mut thread = Thread::new((7_000, 4_100), looking, SOON);
            thread.waits(100_000);
            let looked = thread.waits(1_000_000);
            assert!(looked < 20_000, "{looking:?}: {looked}");
        }
    }

    #[test]
    fn who_finds_nothing_gives_up_at_once() {
        for found_after in [LOOK, Duration::from_millis(10)] {
            let mut thread = Thread::new((7_000, 4_100), (3_300, 3_300), found_after);
            assert_eq!(thread.waits(8_000), 9);
            let looked = thread.waits(1_000_000);
            assert!(looked < 9 * 25, "{looked}");
        }
    }

    #[test]
    fn what_is_found_late_is_not_worth_it() {
        for micros in [8, 19] {
            let mut thread = Thread::new((7_000, 4_100), (3_300, 3_300), Duration::from_micros(micros));
            let looked = thread.waits(1_000_000);
            assert!(looked < 1_000, "{micros} us: {looked}");
        }
    }

    #[test]
    fn a_change_is_found_out() {
        let mut thread = Thread::new((7_000, 4_100), (3_300, 3_300), LOOK);
        thread.waits(1_000_000);
        thread.found_after = SOON;
        thread.waits(100_000);
        assert!(thread.waits(10_000) > 8_000);
        thread.looking = (8_000, 8_000);
        thread.waits(100_000);
        assert!(thread.waits(10_000) < 2_000);
    }

    #[test]
    fn the_clocks_are_read() {
        let mut patience = Patience::new();
        assert!(!patience.looks());
        assert!(patience.begin.wall_ns > 0);
        patience.ended(512);
        assert!(patience.looks());
    }
}
