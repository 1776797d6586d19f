//! Reading around: while the SSD has room, a page that a slow disk must seek for brings its neighbours, which fill the SSD.
//!
//! A disk needs 8 ms to seek and less than one to read 128 KiB. So an empty SSD is filled with a thirtieth of the seeks, and pages next to
//! those requested are there when they are requested. Reading around must not evict anything. So it is done only while the SSD's log has
//! room for first touches. It uses frames that are free again when the SSD has the page.
//!
//! Latency measurements show whether the disk is of that kind: some reads of requested pages alone, then some with their neighbours. If
//! the latter take hardly longer, it goes on. They take longer with a file in the kernel's page cache, a backing SSD, or a slow link to a
//! remote server.

use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use ssdcache::{AdmissionRule, PAGE_BYTES};

use super::layout::Word;
use super::open::Open;

/// Timed reads of each kind. Earlier reads of the kind still compete with those of the other kind.
const TIMED: u32 = 24;
const PASSED_OVER: u32 = 8;
/// Reads around until single reads are timed again.
const KEPT: u32 = 1024;
/// Single reads until the next trial, if the last one showed no gain: the first value, doubled each time up to the second. A trial has few
/// reads.
const REFUSED: (u32, u32) = (128, 1024);
/// The maximum cost of reading around, as a fraction of a single read: 3/2.
const WORTH: (u32, u32) = (3, 2);
/// One piece takes at most this share of the frames.
const FRAMES_SHARE: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TrialPhase {
    /// Single reads, until the next trial.
    Refused,
    /// Single reads, timed.
    Alone,
    /// Reads around, timed.
    Tried,
    /// Reads around, until single reads are timed again.
    Kept,
}

#[derive(Debug)]
struct TrialState {
    phase: TrialPhase,
    /// Reads of the phase's kind so far.
    reads: u32,
    sum: Duration,
    /// The mean latency of single reads.
    alone: Duration,
    /// The number of reads that the next refusal lasts.
    refused: u32,
}

/// The knowledge of this process about its backing disks.
#[derive(Debug)]
pub(crate) struct ReadAround {
    state: Mutex<TrialState>,
    /// The latency from which on a disk is slow; faster disks get no reads around. Zero: all do, and nothing is measured.
    slow: Duration,
}

impl ReadAround {
    pub(crate) fn new(slow: Duration) -> ReadAround {
        let state = TrialState { phase: TrialPhase::Alone, reads: 0, sum: Duration::ZERO, alone: Duration::ZERO, refused: REFUSED.0 };
        ReadAround { state: Mutex::new(state), slow }
    }

    /// Returns whether the next read should bring the pages around it.
    fn is_next(&self) -> bool {
        self.slow.is_zero() || matches!(self.state.lock().phase, TrialPhase::Tried | TrialPhase::Kept)
    }

    /// Returns whether reads of backing files are slow, as far as that is known.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.is_zero() || self.state.lock().alone >= self.slow
    }

    /// Records the latency of a read of a few pages.
    pub(super) fn took(&self, was_around: bool, time: Duration) {
        if self.slow.is_zero() {
            return;
        }
        let mut state = self.state.lock();
        if was_around != matches!(state.phase, TrialPhase::Tried | TrialPhase::Kept) {
            // The read started in the phase before.
            return;
        }
        state.reads += 1;
        let timed = state.reads.saturating_sub(PASSED_OVER);
        if timed > 0 {
            state.sum += time;
        }
        let mean = state.sum / timed.max(1);
        let TrialState { mut alone, mut refused, .. } = *state;
        let next = match state.phase {
            TrialPhase::Alone if timed == TIMED => {
                alone = mean;
                if mean >= self.slow { TrialPhase::Tried } else { TrialPhase::Refused }
            }
            TrialPhase::Tried if timed == TIMED => {
                if mean * WORTH.1 <= alone * WORTH.0 {
                    refused = REFUSED.0;
                    TrialPhase::Kept
                } else {
                    TrialPhase::Refused
                }
            }
            TrialPhase::Refused if state.reads == refused => {
                refused = (refused * 2).min(REFUSED.1);
                TrialPhase::Alone
            }
            TrialPhase::Kept if state.reads == KEPT => TrialPhase::Alone,
            _ => return,
        };
        *state = TrialState { phase: next, reads: 0, sum: Duration::ZERO, alone, refused };
    }
}

impl Open {
    /// Returns which pages to read from the backing file for a request: its pages alone, or with those around them that are not cached.
    pub(super) fn around(&self, asked: &Range<u64>) -> Range<u64> {
        let header = &self.engine.header;
        let frames = (self.engine.layout.sizes.frames.frames / FRAMES_SHARE).max(2);
        let unit = u64::from((header.get(Word::ReadAround) / PAGE_BYTES as u32).min(frames));
        if header.get(Word::SsdRoom) == 0 || unit <= asked.end - asked.start || !self.engine.has_ssd() || !self.engine.around.is_next() {
            return asked.clone();
        }
        let record = self.record();
        if record.rule() == AdmissionRule::Never || self.bypasses_cache() {
            return asked.clone();
        }
        let end = self.size().div_ceil(PAGE_BYTES as u64);
        asked.start / unit * unit..((asked.end - 1) / unit * unit + unit).min(end).max(asked.end)
    }

    /// Returns whether the cache has a page, as far as a look can tell.
    pub(super) fn is_here(&self, page: u64) -> bool {
        self.engine.pages.contains(self.name(page)) || !matches!(self.look_on_ssd(page), ssdcache::ViewLookup::Miss)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const SLOW: Duration = Duration::from_millis(1);

    /// Simulates reads of a disk with these latencies for single reads and reads around. Returns how many were reads around.
    fn share(alone_us: u64, around_us: u64, reads: u32) -> u32 {
        let around = ReadAround::new(SLOW);
        let mut count = 0;
        for _ in 0..reads {
            let is_around = around.is_next();
            count += u32::from(is_around);
            around.took(is_around, Duration::from_micros(if is_around { around_us } else { alone_us }));
        }
        count
    }

    #[test]
    fn a_disk_that_seeks_brings_more_and_others_do_not() {
        assert!(share(8_000, 9_000, 10_000) > 9_500, "a disk");
        assert_eq!(share(200, 400, 10_000), 0, "an SSD below");
        assert!(share(2_000, 15_000, 10_000) < 400, "a thin wire");
    }

    #[test]
    fn what_a_disk_is_may_change() {
        let around = ReadAround::new(SLOW);
        let reads = |alone_us, around_us| {
            (0..4_000)
                .filter(|_| {
                    let is_around = around.is_next();
                    around.took(is_around, Duration::from_micros(if is_around { around_us } else { alone_us }));
                    is_around
                })
                .count()
        };
        assert!(reads(10_000, 11_000) > 3_500);
        assert!(reads(100, 300) < 1_100, "it has come into the kernel's memory");
        assert!(reads(10_000, 11_000) > 2_000);
    }

    #[test]
    fn what_was_refused_by_chance_is_tried_again_soon() {
        let around = ReadAround::new(SLOW);
        let mut count = 0;
        for read in 0..1_000 {
            let is_around = around.is_next();
            count += u32::from(is_around);
            // Another user keeps the disk busy during the first trial.
            around.took(is_around, Duration::from_millis(if (32..64).contains(&read) { 50 } else { 9 }));
        }
        assert!(count > 700, "{count}");
    }

    /// With many threads, some reads complete in the phase after the one in which they started.
    #[test]
    fn who_comes_late_changes_nothing() {
        let around = ReadAround::new(SLOW);
        (0..PASSED_OVER + TIMED).for_each(|_| around.took(false, Duration::from_millis(8)));
        assert!(around.is_next());
        (0..100).for_each(|_| around.took(false, Duration::from_millis(500)));
        assert_eq!(around.state.lock().reads, 0);
        (0..PASSED_OVER + TIMED).for_each(|_| around.took(true, Duration::from_millis(9)));
        assert_eq!(around.state.lock().phase, TrialPhase::Kept);
    }
}
