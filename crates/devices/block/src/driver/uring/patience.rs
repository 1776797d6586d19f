//! What a wait does until a request has ended, and then.
//!
//! *Sleeping*: the kernel wakes it at the first completion and tells of that one; what ended meanwhile it hears of at its next call.
//! *Gathering*: it asks for that at once. Who then has many in hand takes them all in one call and submits as many, which costs him and
//! the device's side less for each. But a device that works beside him stands still meanwhile, and has all or nothing to do.
//! *Looking*: it looks for completions for a while before it sleeps (spin, then block). Between requests that are short, sleeping and
//! being woken may cost more than the requests: one on another processor is not woken without an interrupt, and neither is who carries
//! out the requests there when it falls asleep for want of them. Where a wait looks instead, both stay awake. But where the next
//! completion is far away, or where who makes it needs this very processor, each look is lost.
//!
//! Which is best, nothing tells beforehand. So stretches of requests are measured in turn, one each way, and a longer stretch is
//! made in the way that took less time and no more of the processor.
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
/// Requests of a stretch that is measured.
const MEASURED: u64 = 1024;
/// What is not more time than this many times the other is no more: stretches are short.
const AS_LONG: f64 = 1.02;
/// Requests until it is measured again: at first, and if it comes out the same again and again.
const KEPT: (u64, u64) = (1 << 13, 1 << 16);

/// What a wait does; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Sleep,
    Gather,
    Look,
}

/// See the module.
pub(super) struct Patience {
    /// What waits do at present.
    way: Way,
    is_measured: bool,
    /// Requests that have ended, and how many will have when the stretch is over.
    ended: u64,
    until: u64,
    begin: Sample,
    /// What was best of what was measured, and its cost.
    best: (Way, Cost),
    /// What came out last, and how long that is kept.
    kept: Way,
    keep: u64,
    account_ns: i64,
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
        let (way, best, kept) = (Way::Sleep, (Way::Sleep, none), Way::Sleep);
        Patience { way, is_measured: false, ended: 0, until: 0, begin, best, kept, keep: KEPT.0, account_ns: 0 }
    }

    /// So many requests have ended.
    #[inline(always)]
    pub(super) fn ended(&mut self, count: u32) {
        self.ended += u64::from(count);
    }

    /// Asked at each wait.
    #[inline(always)]
    pub(super) fn way(&mut self) -> Way {
        if self.ended >= self.until {
            self.turn();
        }
        self.way
    }

    /// A wait has looked for so long, and found something or not.
    pub(super) fn looked(&mut self, took: Duration, found: bool) {
        let took_ns = i64::try_from(took.as_nanos()).unwrap_or(LOOK_NS);
        // Who was kept off the processor for longer slept in that time.
        self.account_ns += if found && took_ns < LOOK_NS { SLEEP_NS - took_ns } else { -LOOK_NS };
        self.account_ns = self.account_ns.min(STAKE_NS);
        if self.account_ns < 0 {
            self.keep(self.best.0);
        }
    }

    #[cold]
    fn turn(&mut self) {
        let now = Sample { wall_ns: read(ClockId::Monotonic), cpu_ns: read(ClockId::ThreadCPUTime), ended: self.ended };
        self.turn_at(now);
    }

    /// A stretch is over.
    fn turn_at(&mut self, now: Sample) {
        let cost = now.cost_since(self.begin);
        match (self.is_measured, self.way) {
            (false, _) => self.measure(Way::Sleep),
            (true, Way::Sleep) => {
                self.best = (Way::Sleep, cost);
                self.measure(Way::Gather);
            }
            (true, Way::Gather) => {
                if cost.is_less_work_than(self.best.1) {
                    self.best = (Way::Gather, cost);
                }
                self.account_ns = STAKE_NS;
                self.measure(Way::Look);
            }
            (true, Way::Look) => self.keep(if cost.is_faster_than(self.best.1) { Way::Look } else { self.best.0 }),
        }
        self.begin = now;
    }

    fn keep(&mut self, way: Way) {
        self.keep = if way == self.kept { (self.keep * 2).min(KEPT.1) } else { KEPT.0 };
        self.kept = way;
        (self.is_measured, self.way, self.until) = (false, way, self.ended + self.keep);
    }

    fn measure(&mut self, way: Way) {
        (self.is_measured, self.way, self.until) = (true, way, self.ended + MEASURED);
    }
}

impl Cost {
    fn is_faster_than(self, other: Cost) -> bool {
        self.wall_ns < other.wall_ns && self.cpu_ns <= other.cpu_ns
    }

    /// As fast, for less of the processor.
    fn is_less_work_than(self, other: Cost) -> bool {
        self.wall_ns <= other.wall_ns * AS_LONG && self.cpu_ns < other.cpu_ns
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

    /// Of time and of the processor, nanoseconds.
    type Cost = (u64, u64);

    /// A device whose requests cost a thread that sleeps, gathers, or looks, so much. Its completions are found after `found_after`.
    struct Thread {
        patience: Patience,
        now: Sample,
        sleeping: Cost,
        gathering: Cost,
        looking: Cost,
        found_after: Duration,
    }

    impl Thread {
        /// Gathering is no use to it.
        fn new(sleeping: Cost, looking: Cost, found_after: Duration) -> Thread {
            let gathering = (sleeping.0, sleeping.1 + 200);
            Thread { patience: Patience::new(), now: Sample::default(), sleeping, gathering, looking, found_after }
        }

        /// Waits for so many requests, one by one; how many waits gathered, and looked.
        fn waits_by_way(&mut self, count: u32) -> (u32, u32) {
            let (mut gathered, mut looked) = (0, 0);
            for _ in 0..count {
                if self.patience.ended >= self.patience.until {
                    self.patience.turn_at(Sample { ended: self.patience.ended, ..self.now });
                }
                let (wall_ns, cpu_ns) = match self.patience.way {
                    Way::Sleep => self.sleeping,
                    Way::Gather => {
                        gathered += 1;
                        self.gathering
                    }
                    Way::Look => {
                        looked += 1;
                        self.patience.looked(self.found_after.min(LOOK), self.found_after < LOOK);
                        self.looking
                    }
                };
                self.now.wall_ns += wall_ns;
                self.now.cpu_ns += cpu_ns;
                self.patience.ended(1);
            }
            (gathered, looked)
        }

        fn waits(&mut self, count: u32) -> u32 {
            self.waits_by_way(count).1
        }
    }

    const SOON: Duration = Duration::from_micros(2);

    #[test]
    fn what_is_faster_for_no_more_of_the_processor_is_kept() {
        let mut thread = Thread::new((7_000, 4_100), (3_300, 3_300), SOON);
        thread.waits(100_000);
        let looked = thread.waits(1_000_000);
        assert!(looked > 960_000, "{looked}");
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
    fn what_is_less_work_and_as_fast_is_kept_unless_a_third_way_is_faster() {
        let mut thread = Thread { gathering: (7_050, 3_000), ..Thread::new((7_000, 4_100), (6_900, 3_100), SOON) };
        thread.waits(100_000);
        let (gathered, looked) = thread.waits_by_way(1_000_000);
        assert!(gathered > 950_000 && looked < 20_000, "{gathered}, {looked}: looking costs more of the processor than gathering");
        thread.looking = (6_900, 2_900);
        thread.waits(100_000);
        assert!(thread.waits(1_000_000) > 950_000);
        // It costs time: who works beside us stands still.
        thread = Thread { gathering: (7_200, 3_000), ..Thread::new((7_000, 4_100), (8_000, 8_000), SOON) };
        thread.waits(100_000);
        let (gathered, looked) = thread.waits_by_way(1_000_000);
        assert!(gathered < 30_000 && looked < 30_000, "{gathered}, {looked}");
    }

    #[test]
    fn who_finds_nothing_gives_up_at_once() {
        for found_after in [LOOK, Duration::from_millis(10)] {
            let mut thread = Thread::new((7_000, 4_100), (3_300, 3_300), found_after);
            assert_eq!(thread.waits(4_000), 9);
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
    fn the_clocks_are_read_and_all_ways_tried() {
        let mut patience = Patience::new();
        for way in [Way::Sleep, Way::Gather, Way::Look] {
            assert_eq!(patience.way(), way);
            patience.ended(MEASURED as u32);
        }
        assert!(patience.begin.wall_ns > 0);
    }
}
