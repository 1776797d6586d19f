//! The rate limits of a grant: a rate and a small burst, for bytes and for requests (generic cell rate algorithm).

use std::time::Duration;

use super::grant::GrantSpec;
use crate::clock::Time;

/// The time by which a grant may run ahead of its rate.
const BURST: Duration = Duration::from_millis(20);

/// The limits of one grant, for all of its queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes: Meter,
    requests: Meter,
}

impl Pace {
    pub(super) fn new(terms: &GrantSpec) -> Pace {
        Pace { bytes: Meter::new(terms.bytes_per_s), requests: Meter::new(terms.requests_per_s) }
    }

    /// Returns whether the limits can be dropped, because new ones would allow the same.
    pub(super) fn is_paid(&self, now: Time) -> bool {
        self.bytes.paid.max(self.requests.paid) <= now
    }

    /// Counts a request if the rate allows it now.
    ///
    /// # Errors
    /// Returns the time at which to try again.
    #[inline]
    pub(super) fn take(&mut self, now: Time, bytes: u64) -> Result<(), Time> {
        let due = self.bytes.due().max(self.requests.due());
        if now < due {
            return Err(due);
        }
        self.bytes.count(now, bytes);
        self.requests.count(now, 1);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Meter {
    per_s: Option<u64>,
    /// The time at which all counted requests are covered by the rate.
    paid: Time,
}

impl Meter {
    fn new(per_s: Option<u64>) -> Meter {
        Meter { per_s: per_s.map(|rate| rate.max(1)), paid: Time(0) }
    }

    #[inline]
    fn due(&self) -> Time {
        Time(self.paid.0.saturating_sub(BURST.as_nanos() as u64))
    }

    #[inline]
    fn count(&mut self, now: Time, amount: u64) {
        let Some(rate) = self.per_s else { return };
        let cost_ns = u128::from(amount) * 1_000_000_000 / u128::from(rate);
        self.paid = Time(self.paid.max(now).0.saturating_add(u64::try_from(cost_ns).unwrap_or(u64::MAX)));
    }
}

#[cfg(test)]
mod test {
    use super::super::grant::test::terms;
    use super::*;

    #[test]
    fn over_a_second_the_rate_is_kept_and_nothing_starves() {
        let mut pace = Pace::new(&GrantSpec { bytes_per_s: Some(1 << 20), requests_per_s: Some(1000), ..terms(1, "d") });
        for (bytes, wanted) in [(512_u64, 1000_u64), (65_536, 16)] {
            let begin = Time(10_u64.pow(10) * bytes);
            let (mut now, mut count) = (begin, 0);
            while now.since(begin) < Duration::from_secs(1) {
                match pace.take(now, bytes) {
                    Ok(()) => count += 1,
                    Err(due) => {
                        assert!(due > now);
                        now = due;
                    }
                }
            }
            assert!((wanted..=wanted + wanted / 10 + 2).contains(&count), "{count} of {bytes} bytes");
        }
    }

    #[test]
    fn without_limits_everything_goes() {
        let mut pace = Pace::new(&terms(1, "d"));
        assert!((0..1000).all(|_| pace.take(Time(0), u64::MAX).is_ok()));
    }
}
