//! Clocks. Time is a parameter, because the simulator has its own.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time, in nanoseconds since the clock's own origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// A time later than every other.
    pub const NEVER: Time = Time(u64::MAX);

    /// Returns the time `duration` later, or [`Time::NEVER`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the duration since an earlier time; zero if that time is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of time: real or virtual.
pub trait Clock: Send + Sync {
    /// Returns the current time, which never decreases.
    fn now(&self) -> Time;

    /// Returns the deadline of an operation that starts now, at most 2 % of `timeout` late and never early. Made for the path of
    /// each
    /// request, where reading the exact time would cost as much as everything else.
    #[inline]
    fn due(&self, timeout: Duration) -> Time {
        self.now().after(timeout)
    }

    /// Returns the time until a deadline: never too short, and at most 2 % too long. Cheap like [`Clock::due`].
    #[inline]
    fn left(&self, due: Time) -> Duration {
        due.since(self.now())
    }

    /// Returns whether time advances by itself. If not, it advances only in [`crate::Queue::wait`], and threads must not wait by
    /// other
    /// means.
    fn passes(&self) -> bool {
        false
    }
}

/// The monotonic clock of the machine, counted from the creation of this value.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    begin_ns: u64,
}

/// The kernel's coarse clock lags by one tick: 10 ms on the slowest kernels (CONFIG_HZ=100).
const COARSE_LAG: Duration = Duration::from_millis(10);
/// From this timeout on, two ticks are 2 % or less.
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
    /// Reads the coarse clock, which may be earlier than our origin.
    #[inline]
    fn lagging(&self) -> Time {
        Time(read(ClockId::MonotonicCoarse).saturating_sub(self.begin_ns))
    }
}

/// Returns nanoseconds.
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
