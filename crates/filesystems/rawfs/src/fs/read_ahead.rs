//! Read-ahead of one handle.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Blocks read ahead at the first read that continues another.
const FIRST_BLOCKS: u64 = 4;

/// The order in which a program says it will read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ReadPattern {
    /// It has said nothing: the reads decide.
    Any = 0,
    /// At random offsets: nothing is read ahead.
    Random = 1,
    /// In order: as much as may be is read ahead.
    Sequential = 2,
}

/// Decides how many blocks are read ahead.
#[derive(Default)]
pub struct ReadAhead {
    /// The offset at which a sequential read would go on.
    next: AtomicU64,
    /// Blocks that were read ahead last.
    window: AtomicU64,
    pattern: AtomicU8,
}

impl ReadAhead {
    /// Sets the pattern to expect.
    pub fn set_pattern(&self, pattern: ReadPattern) {
        self.pattern.store(pattern as u8, Ordering::Relaxed);
    }

    /// Returns the number of blocks to read behind a read, up to `most`: twice as many each time it continues the last one.
    pub fn blocks(&self, at: u64, len: u64, most: u64) -> u64 {
        let pattern = self.pattern.load(Ordering::Relaxed);
        if pattern == ReadPattern::Random as u8 {
            return 0;
        }
        if pattern == ReadPattern::Sequential as u8 {
            return most;
        }
        let in_order = self.next.swap(at + len, Ordering::Relaxed) == at && at > 0;
        let window = if in_order { (self.window.load(Ordering::Relaxed) * 2).clamp(FIRST_BLOCKS.min(most), most) } else { 0 };
        self.window.store(window, Ordering::Relaxed);
        window
    }
}
