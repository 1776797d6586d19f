//! How full the SSD is, and when that is too full.
//!
//! The watcher refreshes the figures; writers through us add what they write in between, so that a fast
//! writer cannot outrun the watcher.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::config::{Config, Size};
use crate::report::TierName;
use crate::tier::{SpaceInfo, Tier};

/// The latest figures of both sides and the marks in bytes.
#[derive(Debug, Default)]
pub struct SpaceUsage {
    free: [AtomicU64; 2],
    used: [AtomicU64; 2],
    capacity: [AtomicU64; 2],
    reserved: [AtomicU64; 2],
    high: AtomicU64,
    low: AtomicU64,
    reserve: AtomicU64,
    max_file: AtomicU64,
    promised: AtomicU64,
    /// Set since the mount, in place of the configuration's.
    marks: Mutex<Option<Marks>>,
}

/// Marks and limits of the SSD.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Demotion starts above this use.
    pub high: Size,
    /// Demotion stops below this use.
    pub low: Size,
    /// Space never given to writers through the daemon.
    pub reserve: Size,
    /// Larger files are not promoted. None: half of the SSD.
    pub max_file: Option<Size>,
}

impl SpaceUsage {
    /// Reads the free space of both file systems.
    pub fn refresh(&self, tiers: &[Tier; 2], config: &Config) -> std::result::Result<(), (TierName, Errno)> {
        let mut outcome = Ok(());
        for tier in tiers {
            let SpaceInfo { capacity, used, free, reserved } = match self.measure(tier) {
                Ok(space) => space,
                Err(error) => {
                    outcome = Err((tier.name, error));
                    continue;
                }
            };
            let at = tier.name as usize;
            self.capacity[at].store(capacity, Ordering::Relaxed);
            self.used[at].store(used, Ordering::Relaxed);
            self.free[at].store(free, Ordering::Relaxed);
            self.reserved[at].store(reserved, Ordering::Relaxed);
        }
        let capacity = self.capacity[0].load(Ordering::Relaxed);
        let marks = self.marks(config);
        self.high.store(marks.high.of(capacity), Ordering::Relaxed);
        self.low.store(marks.low.of(capacity).min(marks.high.of(capacity)), Ordering::Relaxed);
        self.reserve.store(marks.reserve.of(capacity), Ordering::Relaxed);
        let max_file = marks.max_file.map_or(capacity / 2, |size| size.of(capacity));
        self.max_file.store(max_file, Ordering::Relaxed);
        outcome
    }

    /// What holds: what was set since the mount, or else what is configured.
    pub fn marks(&self, config: &Config) -> Marks {
        self.marks.lock().unwrap_or_else(|| Marks::of(config))
    }

    /// Holds from the next refresh on.
    pub fn set_marks(&self, marks: Marks) {
        *self.marks.lock() = Some(marks);
    }

    /// Asks a side, and the SSD again when it seems fuller than it may be: while ext4 allocates what it had delayed it counts
    /// those blocks twice for a moment, and a file would leave for it.
    fn measure(&self, tier: &Tier) -> std::result::Result<SpaceInfo, Errno> {
        let first = tier.space()?;
        let fine = tier.name == TierName::Hdd || (first.used <= self.high() && first.free >= self.reserve());
        if fine {
            return Ok(first);
        }
        let second = tier.space()?;
        Ok(if second.used < first.used { second } else { first })
    }

    /// Bytes written through us since the last refresh.
    pub fn wrote(&self, tier: TierName, bytes: u64) {
        let at = tier as usize;
        let _ = self.free[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(free.saturating_sub(bytes)));
        self.used[at].fetch_add(bytes, Ordering::Relaxed);
    }

    /// The figures of a side.
    pub fn of(&self, tier: TierName) -> SpaceInfo {
        let at = tier as usize;
        SpaceInfo {
            capacity: self.capacity[at].load(Ordering::Relaxed),
            used: self.used[at].load(Ordering::Relaxed),
            free: self.free[at].load(Ordering::Relaxed),
            reserved: self.reserved[at].load(Ordering::Relaxed),
        }
    }

    /// Whether a write on this side might take blocks that its file system keeps for root. Others may fill it between two looks at the
    /// figures, so the answer is yes long before.
    pub fn is_near_reserved(&self, tier: TierName) -> bool {
        const MARGIN_MIN: u64 = 256 << 20;
        let SpaceInfo { capacity, free, reserved, .. } = self.of(tier);
        reserved > 0 && free < MARGIN_MIN.max(capacity / 16)
    }

    /// The SSD's head-room is used up: nothing new goes there until files have left.
    pub fn tight(&self) -> bool {
        self.tight_without(0)
    }

    /// The same when these bytes have left.
    pub fn tight_without(&self, leaving: u64) -> bool {
        self.of(TierName::Ssd).free.saturating_add(leaving) < self.reserve()
    }

    /// Above the high mark: demotion begins.
    pub fn above_high(&self) -> bool {
        self.of(TierName::Ssd).used > self.high()
    }

    /// Above the low mark: demotion goes on.
    pub fn above_low(&self) -> bool {
        self.above_low_without(0)
    }

    /// The same when these bytes have left.
    pub fn above_low_without(&self, leaving: u64) -> bool {
        self.of(TierName::Ssd).used.saturating_sub(leaving) > self.low()
    }

    /// Bytes that fit below the high mark.
    pub fn room_below_high(&self) -> u64 {
        self.high().saturating_sub(self.of(TierName::Ssd).used)
    }

    /// Promises a bypassing writer `bytes` of the room below the high mark, if `need` are left of it by the promises before.
    pub fn promise(&self, bytes: u64, need: u64) -> bool {
        let room = self.room_below_high();
        let take = |promised: u64| (room.saturating_sub(promised) >= need).then_some(promised + bytes);
        self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Releases space that was reserved by a promise.
    pub fn unpromise(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether `bytes` more leave the reserve untouched.
    pub fn fits_ssd(&self, bytes: u64) -> bool {
        self.of(TierName::Ssd).free >= self.reserve().saturating_add(bytes)
    }

    /// Whether `bytes` fit on the HDD.
    pub fn fits_hdd(&self, bytes: u64) -> bool {
        self.of(TierName::Hdd).free > bytes
    }

    /// Returns the high mark as used bytes.
    pub fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }

    /// Returns the low mark as used bytes.
    pub fn low(&self) -> u64 {
        self.low.load(Ordering::Relaxed)
    }

    /// Bytes kept free for writers that bypass us.
    pub fn reserve(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Largest file that belongs on the SSD.
    pub fn max_file(&self) -> u64 {
        self.max_file.load(Ordering::Relaxed)
    }
}
