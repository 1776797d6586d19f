//! A virtual clock that the test advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Time};

/// Clones share the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    pub(super) fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).expect("centuries"), Ordering::Relaxed);
    }

    pub(super) fn advance_to(&self, time: Time) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}
