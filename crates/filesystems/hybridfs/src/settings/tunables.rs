//! The settings of a mounted pair that can be changed.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::config::{Config, Promotion};

/// What decides when files come up, and how fast they move.
#[derive(Debug)]
pub(crate) struct Tunables {
    pub(super) promotion: AtomicU8,
    pub(super) min_file_bytes: AtomicU64,
    pub(super) touch_window_s: AtomicU32,
}

impl Tunables {
    pub(crate) fn of(config: &Config) -> Tunables {
        Tunables {
            promotion: AtomicU8::new(config.promotion as u8),
            min_file_bytes: AtomicU64::new(config.min_file_bytes),
            touch_window_s: AtomicU32::new(config.promotion_window_secs),
        }
    }

    /// When a file on the HDD comes up.
    pub(crate) fn promotion(&self) -> Promotion {
        let now = self.promotion.load(Ordering::Relaxed);
        let all = [Promotion::SecondTouch, Promotion::OnOpen, Promotion::Never];
        all.into_iter().find(|promotion| *promotion as u8 == now).unwrap_or(Promotion::Never)
    }

    /// Smaller files do not move by themselves.
    pub(crate) fn min_file_bytes(&self) -> u64 {
        self.min_file_bytes.load(Ordering::Relaxed)
    }

    /// Two opens within it are a second touch.
    pub(crate) fn touch_window_s(&self) -> u32 {
        self.touch_window_s.load(Ordering::Relaxed)
    }
}
