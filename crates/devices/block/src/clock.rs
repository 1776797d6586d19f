//! Time is a parameter: the simulator has its own.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment, nanoseconds since a begin that the clock alone knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Later than every other.
    pub const NEVER: Time = Time(u64::MAX);

    /// So much later, or never.
    #[must_use]
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// From an earlier moment to this one; zero if it is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Now. Never earlier than what it told before.
    fn now(&self) -> Time;

    /// The deadline of what begins now and may take so long: not before, and at most 2 % late. For the path of each request,
    /// where reading the exact time would cost as much as all the rest.
    #[inline]
    fn due(&self, timeout: Duration) -> Time {
        self.now().after(timeout)
    }

    /// How long it is to a deadline: never too short, and at most 2 % too long. Likewise.
    #[inline]
    fn left(&self, due: Time) -> Duration {
        due.since(self.now())
    }

    /// Whether time passes by itself. If not, it passes only in [`crate::Queue::wait`]: nobody shall wait by other means.
    fn passes(&self) -> bool {
        false
    }
}

/// The machine's own, since this was made.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    begin_ns: u64,
}

/// The coarse clock of the kernel lags by a tick: 10 ms on the slowest kernels (CONFIG_HZ=100).
const COARSE_LAG: Duration = Duration::from_millis(10);
/// From here on two ticks are 2 % or less.
const COARSE_FROM: Duration = Duration::from_secs(1);

impl Default for Monotonic {
    fn default() -> Self {
        Monotonic { begin_ns: read(ClockId::Monotonic) }
    }
}

impl Clock for Monotonic {
    fn passes(&self) -> bool {
        true
    }

    fn now(&self) -> Time {
        Time(read(ClockId::Monotonic) - self.begin_ns)
    }

    #[inline]
    fn due(&self, timeout: Duration) -> Time {
        if timeout < COARSE_FROM {
            return self.now().after(timeout);
        }
        self.lagging().after(timeout + COARSE_LAG)
    }

    #[inline]
    fn left(&self, due: Time) -> Duration {
        let most = due.since(self.lagging());
        if most < COARSE_FROM { due.since(self.now()) } else { most }
    }
}

impl Monotonic {
    /// By the coarse clock, which may be before our begin.
    #[inline]
    fn lagging(&self) -> Time {
        Time(read(ClockId::MonotonicCoarse).saturating_sub(self.begin_ns))
    }
}

/// Nanoseconds.
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
    fn due(&self, timeout: Duration) -> Time {
        (**self).due(timeout)
    }
    fn left(&self, due: Time) -> Duration {
        (**self).left(due)
    }
    fn passes(&self) -> bool {
        (**self).passes()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_deadline_is_never_early_and_hardly_late() {
        let clock = Monotonic::default();
        for timeout in [1, 999, 1000, 30_000].map(Duration::from_millis) {
            let earliest = clock.now().after(timeout);
            let due = clock.due(timeout);
            let latest = clock.now().after(timeout + timeout / 50);
            assert!(earliest <= due && due <= latest, "{timeout:?}: {earliest:?} {due:?} {latest:?}");
            let (before, left, after) = (clock.now(), clock.left(earliest), clock.now());
            let (least, most) = (earliest.since(after), earliest.since(before) + timeout / 50);
            assert!(least <= left && left <= most, "{timeout:?}: {least:?} {left:?} {most:?}");
        }
    }
}
