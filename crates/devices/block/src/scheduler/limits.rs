//! Rate limits: an amount per second, and a limit for bursts.

use std::num::NonZeroU64;

use crate::clock::Time;

/// A rate limit for bytes or for requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// The amount per second, in the long run. Up to 10^10 the rounding to nanoseconds costs less than a percent for bytes of whole
    /// blocks; it never allows more than this.
    pub per_second: NonZeroU64,
    /// The amount that may be used at once after a pause. A larger single request proceeds when the bucket is full.
    pub burst: NonZeroU64,
}

impl Rate {
    /// Returns a limit with a burst of a tenth of a second; `None` for a rate of zero.
    pub fn per_second(rate: u64) -> Option<Rate> {
        Some(Rate { per_second: NonZeroU64::new(rate)?, burst: NonZeroU64::new(rate.div_ceil(10))? })
    }
}

/// A token bucket without tokens (GCRA, ITU-T I.371): it stores the time at which it will be full, and each use moves that time. In
/// any period of length t it allows at most `burst + per_second * t`, plus the excess of a single request larger than a burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    rate: Rate,
    burst_ns: u64,
    full_at: u64,
}

impl Bucket {
    /// Returns a full bucket.
    pub(super) fn new(rate: Rate) -> Bucket {
        let mut bucket = Bucket { rate, burst_ns: 0, full_at: 0 };
        // Rounded down, because costs are rounded up.
        let burst_ns = u128::from(rate.burst.get()) * 1_000_000_000 / u128::from(rate.per_second.get());
        bucket.burst_ns = u64::try_from(burst_ns).unwrap_or(u64::MAX);
        bucket
    }

    /// Returns the time from which `amount` may be used.
    #[inline]
    pub(super) fn ready_at(&self, amount: u64) -> Time {
        let needed = self.time_of(amount).min(self.burst_ns);
        Time(self.full_at.saturating_sub(self.burst_ns - needed))
    }

    /// Uses `amount`, even if the bucket does not contain it: then the next use has to wait longer.
    #[inline]
    pub(super) fn take(&mut self, amount: u64, now: Time) {
        self.full_at = self.full_at.max(now.0).saturating_add(self.time_of(amount));
    }

    #[inline]
    fn time_of(&self, amount: u64) -> u64 {
        match amount.checked_mul(1_000_000_000) {
            Some(scaled) => scaled.div_ceil(self.rate.per_second.get()),
            None => u64::MAX,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Compares with the definition: any period allows at most a burst and what the rate gives in that time.
    #[test]
    fn no_window_has_more_than_a_burst_and_its_time() {
        let mut random = fastrand::Rng::with_seed(23);
        for _ in 0..if cfg!(miri) { 3 } else { 100 } {
            let nonzero = |number| NonZeroU64::new(number).expect("not zero");
            let rate = Rate { per_second: nonzero(random.u64(1..1_000_000_000)), burst: nonzero(random.u64(4096..1 << 20)) };
            let mut bucket = Bucket::new(rate);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for _ in 0..100 {
                let amount = random.u64(1..=4096);
                now = now.max(bucket.ready_at(amount).0) + if random.u8(..10) == 0 { random.u64(..100_000_000) } else { 0 };
                bucket.take(amount, Time(now));
                taken.push((now, amount));
            }
            for from in 0..taken.len() {
                let mut sum = 0;
                for (at, amount) in &taken[from..] {
                    sum += u128::from(*amount);
                    let window = u128::from(at - taken[from].0);
                    let allowed = u128::from(rate.burst.get()) + u128::from(rate.per_second.get()) * window / 1_000_000_000;
                    assert!(sum <= allowed + 1, "{sum} in {window} ns of {rate:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_larger_than_a_burst_goes_when_the_bucket_is_full() {
        let rate = Rate::per_second(10_000).expect("not zero");
        assert_eq!(rate.burst.get(), 1000);
        let mut bucket = Bucket::new(rate);
        assert_eq!(bucket.ready_at(5000), Time(0));
        bucket.take(5000, Time(0));
        assert_eq!(bucket.ready_at(5000), Time(500_000_000));
        assert_eq!(bucket.ready_at(1), Time(400_100_000));
        assert_eq!(Rate::per_second(0), None);
    }
}
