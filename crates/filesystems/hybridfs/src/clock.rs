//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970.
pub(crate) fn now_s() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}
