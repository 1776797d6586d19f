//! Blocks that batches have freed. They are given out anew only when the log on the device says of the batch that it is durable:
//! recovery then does not look any more at what lies in blocks that older batches in the log had named.
//!
//! Blocks that the log has bytes for wait longer: until a checkpoint has the batch that freed them. Whatever is done again from the
//! log, or was frozen for a checkpoint, goes to its place whoever has it since.

use std::collections::VecDeque;
use std::ops::Range;

use crate::units::Lsn;

/// Rows remembered for discard; more are forgotten, and stay as they are on the device.
const DISCARDS_MAX: usize = 4096;
/// Shorter rows are not worth a request.
const DISCARD_BLOCKS_MIN: u64 = 16;

/// Freed blocks that may not be reused yet.
#[derive(Default)]
pub struct FreedBlocks {
    waiting: VecDeque<(Lsn, Range<u64>)>,
    /// The log may have bytes for them.
    held: VecDeque<(Lsn, Range<u64>)>,
    blocks: u64,
    discards: Vec<Range<u64>>,
}

impl FreedBlocks {
    /// A batch has freed them. Batches come in order. `held`: the log has bytes for some of them.
    pub fn push(&mut self, lsn: Lsn, range: Range<u64>, held: bool) {
        self.blocks += range.end - range.start;
        if held { &mut self.held } else { &mut self.waiting }.push_back((lsn, range));
    }

    /// Whether a checkpoint would set some free.
    pub fn wants_checkpoint(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the number of blocks that wait.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next that can be given out: the device says that batches up to one are durable, and has a checkpoint of another.
    pub fn pop(&mut self, recorded: Lsn, saved: Lsn) -> Option<Range<u64>> {
        let next = |queue: &mut VecDeque<(Lsn, Range<u64>)>, lsn: Lsn| match queue.front() {
            Some((freed, _)) if *freed <= lsn => queue.pop_front(),
            _ => None,
        };
        let (_, range) = next(&mut self.waiting, recorded).or_else(|| next(&mut self.held, saved))?;
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
