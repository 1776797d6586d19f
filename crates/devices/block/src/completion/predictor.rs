//! Predicts the latency of each kind of request, from one bit per request.
//!
//! The estimate moves one step up when a request took longer, and two steps down when it took less: it settles where a third of the
//! requests are faster. It is no mean, so a slow request moves it by one step, however slow it was. While the bits agree the steps grow,
//! so that the estimate follows a change by a factor of twenty within 24 requests.
//!
//! The exact completion time is unknown; only the last poll before and the first poll after it are. If the estimate lies between the two,
//! nothing is learned. Otherwise a thread that wakes late would attribute its own lateness to the device, sleep longer, and wake even
//! later.

use std::time::Duration;

use crate::request::Op;

/// The initial step up is the estimate divided by this; a step down is twice as long.
const FINE: u64 = 128;
/// Bits that must agree before the steps grow.
const STEADY: u32 = 3;
/// The maximum step is the estimate divided by this.
const COARSE: u64 = 4;
/// After this many uninformative polls in a row the estimate is lowered: it may be far too long.
const BLIND: u32 = 4;
const SHORTEST_NS: u64 = 200;
const LONGEST_NS: u64 = 10_000_000_000;

/// The latency estimate of one kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Predictor {
    /// The estimate, or 0 if nothing is known.
    estimate_ns: u64,
    rising: bool,
    agreed: u32,
    blind: u32,
}

impl Predictor {
    /// Returns the estimate, or `None` before the first request.
    pub fn estimate(&self) -> Option<Duration> {
        (self.estimate_ns > 0).then(|| Duration::from_nanos(self.estimate_ns))
    }

    /// Records a request that took longer than `more_than` and at most `at_most`. Returns `false` if the estimate lies between the two.
    pub fn observe(&mut self, more_than: Duration, at_most: Duration) -> bool {
        let [more_than, at_most] = [more_than, at_most].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if self.estimate_ns == 0 {
            self.estimate_ns = at_most.clamp(SHORTEST_NS, LONGEST_NS);
        } else if more_than >= self.estimate_ns {
            self.step(true);
        } else if at_most < self.estimate_ns {
            self.step(false);
        } else {
            return false;
        }
        true
    }

    /// Records that requests completed without informing the estimate.
    pub fn blind(&mut self) {
        self.blind += 1;
        if self.blind == BLIND {
            self.step(false);
        }
    }

    fn step(&mut self, up: bool) {
        self.blind = 0;
        // After a long run the last step overshot: go back by shorter steps, but not the shortest.
        self.agreed = if up == self.rising { self.agreed + 1 } else { self.agreed.min(2 * STEADY + 3) / 2 };
        self.rising = up;
        let fine = self.estimate_ns / if up { FINE } else { FINE / 2 };
        let step = (fine.max(1) << self.agreed.saturating_sub(STEADY).min(8)).min(self.estimate_ns / COARSE);
        let moved = if up { self.estimate_ns + step } else { self.estimate_ns - step };
        self.estimate_ns = moved.clamp(SHORTEST_NS, LONGEST_NS);
    }
}

/// A kind of request: an operation and a size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind(pub u8);

/// The largest request of each size class but the last, in bytes.
const SIZES: [u64; 3] = [4 << 10, 32 << 10, LARGE_BYTES - 1];

/// From this size on a request needs throughput rather than latency (paper 001, section III.B: large sequential access "is sensitive to
/// bandwidth rather than latency").
const LARGE_BYTES: u64 = 128 << 10;

impl Kind {
    /// The number of kinds of request.
    pub(crate) const COUNT: usize = 5 * (SIZES.len() + 1);

    #[inline]
    pub(crate) fn of(op: Op, bytes: u64) -> Kind {
        let size = SIZES.iter().filter(|most| bytes > **most).count();
        let op = match op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 2,
            Op::Discard => 3,
            Op::WriteZeroes => 4,
        };
        Kind((op * (SIZES.len() + 1) + size) as u8)
    }

    pub(crate) fn is_large(self) -> bool {
        usize::from(self.0) % (SIZES.len() + 1) == SIZES.len()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn exactly(predictor: &mut Predictor, us: u64) {
        let took = Duration::from_micros(us);
        assert!(predictor.observe(took, took));
    }

    fn is_near(predictor: Predictor, us: u64) -> bool {
        predictor.estimate().is_some_and(|found| found.abs_diff(Duration::from_micros(us)) < Duration::from_micros(us) / 10)
    }

    #[test]
    fn it_follows_a_device_that_changes() {
        let mut predictor = Predictor::default();
        assert_eq!(predictor.estimate(), None);
        for (us, within) in [(400, 1), (20, 24), (400, 24), (8, 40), (20_000, 64), (80, 64)] {
            for _ in 0..within {
                exactly(&mut predictor, us);
            }
            assert!(is_near(predictor, us), "{predictor:?} after {us} us");
            for _ in 0..if cfg!(miri) { 30 } else { 1_000 } {
                exactly(&mut predictor, us);
                assert!(is_near(predictor, us), "{predictor:?} while {us} us");
            }
        }
    }

    #[test]
    fn one_slow_request_moves_it_by_one_step() {
        let mut predictor = Predictor::default();
        (0..50).for_each(|_| exactly(&mut predictor, 80));
        let before = predictor.estimate().expect("known");
        exactly(&mut predictor, 5_000_000);
        assert!(predictor.estimate().expect("known") <= before + before / 32);
    }

    #[test]
    fn a_sample_that_overslept_teaches_nothing() {
        let mut predictor = Predictor::default();
        (0..50).for_each(|_| exactly(&mut predictor, 80));
        let before = predictor.estimate();
        assert!(!predictor.observe(Duration::ZERO, Duration::from_micros(300)));
        (1..BLIND).for_each(|_| predictor.blind());
        assert_eq!(predictor.estimate(), before);
    }

    #[test]
    fn one_that_always_oversleeps_finds_out() {
        let mut predictor = Predictor::default();
        (0..50).for_each(|_| exactly(&mut predictor, 400));
        for _ in 0..200 {
            // The true latency is 20; each sleep ends a little after the estimate.
            let slept = predictor.estimate().expect("known") + Duration::from_micros(5);
            if !predictor.observe(Duration::ZERO, slept.max(Duration::from_micros(20))) {
                predictor.blind();
            }
        }
        assert!(predictor.estimate().expect("known") < Duration::from_micros(40), "{predictor:?}");
    }

    #[test]
    fn it_settles_at_the_third() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut predictor = Predictor::default();
        let (mut below, rounds) = (0.0, if cfg!(miri) { 1_000 } else { 20_000 });
        for _ in 0..rounds {
            let took = random.u64(60_000..100_000);
            let took = Duration::from_nanos(took);
            below += f64::from(u8::from(predictor.estimate().is_some_and(|estimate| took < estimate))) / f64::from(rounds);
            predictor.observe(took, took);
        }
        assert!((0.25..0.45).contains(&below), "{below} of the requests were faster");
    }

    #[test]
    fn kinds_differ_by_operation_and_size() {
        let sizes = [512, 4096, 8192, 32 << 10, 33 << 10, (128 << 10) - 1, 128 << 10, u64::MAX];
        assert_eq!(sizes.map(|bytes| Kind::of(Op::Read, bytes).0), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(sizes.map(|bytes| Kind::of(Op::Write, bytes).is_large()), [false, false, false, false, false, false, true, true]);
        assert_eq!(usize::from(Kind::of(Op::WriteZeroes, u64::MAX).0) + 1, Kind::COUNT);
    }
}
