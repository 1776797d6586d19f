//! Times of files.

/// A moment: seconds since 1970 and nanoseconds within the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since the beginning of 1970, UTC.
    pub sec: i64,
    /// The nanoseconds of the second, below 1,000,000,000.
    pub nsec: u32,
}

/// What can be stored, as ext4: seconds beyond are brought to the nearest.
const SEC_MIN: i64 = -(1 << 31);
const SEC_MAX: i64 = (1 << 34) - (1 << 31) - 1;

impl Timestamp {
    /// The nearest that can be stored.
    pub fn clamped(self) -> Timestamp {
        if self.sec <= SEC_MIN || self.sec >= SEC_MAX {
            return Timestamp { sec: self.sec.clamp(SEC_MIN, SEC_MAX), nsec: 0 };
        }
        self
    }

    /// Returns the time of the system's clock.
    pub fn now() -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) }
    }
}

/// What to make of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// Leave it.
    Omit,
    /// The time of the call.
    Now,
    /// This one.
    At(Timestamp),
}
