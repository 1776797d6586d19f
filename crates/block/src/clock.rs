//! Time is a parameter: the simulator has its own.

use std::time::{Duration, Instant};

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
}

/// The machine's own, since this was made.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Monotonic(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}
