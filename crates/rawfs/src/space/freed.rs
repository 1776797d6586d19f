//! Blocks that batches have freed. They are given out anew only when the log on the device says of the batch that it is durable:
//! recovery then does not look any more at what lies in blocks that older batches in the log had named.

use std::collections::VecDeque;
use std::ops::Range;

use crate::units::Lsn;

/// Rows remembered for discard; more are forgotten, and stay as they are on the device.
const DISCARDS_MAX: usize = 4096;
/// Shorter rows are not worth a request.
const DISCARD_BLOCKS_MIN: u64 = 16;

/// See the module.
#[derive(Default)]
pub struct Freed {
    waiting: VecDeque<(Lsn, Range<u64>)>,
    blocks: u64,
    discards: Vec<Range<u64>>,
}

impl Freed {
    /// A batch has freed them. Batches come in order.
    pub fn push(&mut self, lsn: Lsn, range: Range<u64>) {
        self.blocks += range.end - range.start;
        self.waiting.push_back((lsn, range));
    }

    /// Blocks that wait.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next of those that were freed by this batch or before.
    pub fn pop(&mut self, recorded: Lsn) -> Option<Range<u64>> {
        if self.waiting.front()?.0 > recorded {
            return None;
        }
        let (_, range) = self.waiting.pop_front()?;
        self.blocks -= range.end - range.start;
        self.remember(range.clone());
        Some(range)
    }

    fn remember(&mut self, range: Range<u64>) {
        if let Some(last) = self.discards.last_mut() {
            if last.end == range.start {
                last.end = range.end;
                return;
            }
            if range.end == last.start {
                last.start = range.start;
                return;
            }
        }
        if self.discards.len() < DISCARDS_MAX {
            self.discards.push(range);
        }
    }

    /// Rows that could be discarded, if they are still free.
    pub fn take_discards(&mut self) -> Vec<Range<u64>> {
        let mut rows = std::mem::take(&mut self.discards);
        rows.sort_by_key(|row| row.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(rows.len());
        for row in rows {
            match joined.last_mut() {
                Some(last) if last.end >= row.start => last.end = last.end.max(row.end),
                _ => joined.push(row),
            }
        }
        joined.retain(|row| row.end - row.start >= DISCARD_BLOCKS_MIN);
        joined
    }
}
