//! The times of writes that are not in the backing file yet.

use std::sync::atomic::Ordering;

use super::open::Open;
use super::record::Record;

/// No coarse clock of the kernel ticks less often, in nanoseconds (`CONFIG_HZ` of 100).
const TICK_NS: u64 = 10_000_000;

impl Open {
    /// Records the time of a write. A plain store: an atomic read-modify-write would wait until the copy has left the store buffer. Both
    /// clocks tick together, so each write reads only one.
    #[inline(always)]
    pub(super) fn note_time(&self, record: Record<'_>, now_ns: u64) {
        // A time that was noted exactly may be ahead of this clock.
        if record.written().load(Ordering::Relaxed).wrapping_sub(now_ns) > TICK_NS {
            record.written().store(now_ns, Ordering::Relaxed);
            record.used().store(self.engine.world.now_ms(), Ordering::Relaxed);
        }
    }

    /// Moves the time of the last write forward to `now_ns`, which a finer clock than the engine's gave, if it is not later than `seen_ns`:
    /// so a program that has seen that time sees that the file changed since.
    pub fn note_exact_time(&self, seen_ns: u64, now_ns: u64) {
        let written = self.record().written();
        let last = written.load(Ordering::Relaxed);
        if last != 0 && last <= seen_ns && last < now_ns {
            // Otherwise another writer has just noted another time.
            let _ = written.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Records the time of a truncation or hole in a file with unwritten times: the leader gives them to the backing file. Returns the
    /// times before and now.
    pub(super) fn note_change(&self, record: Record<'_>) -> [u64; 2] {
        let last = record.written().load(Ordering::Relaxed);
        if last == 0 {
            return [0; 2];
        }
        // Later than the time that programs may have seen, also within a tick of the clock.
        let now = self.engine.world.realtime_ns().max(last.saturating_add(1));
        record.written().store(now, Ordering::Relaxed);
        record.used().store(self.engine.world.now_ms(), Ordering::Relaxed);
        [last, now]
    }
}
