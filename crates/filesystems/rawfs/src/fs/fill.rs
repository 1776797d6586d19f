//! Small syncs: the bytes of a few blocks go into the log with the batch that says whose they are, so that a sync is one request.
//!
//! Blocks that the file has already stay where they are, and only their checksums change: a database that is overwritten at random keeps
//! its runs. The store brings the bytes to their place later ([`Store::may_fill`]).

use super::core::FsCore;
use super::error::Result;
use super::extent::{Run, pieces};
use super::flush::{PreparedWriteBack, rows};
use super::record::RecordBody;
use super::table::InodeState;
use crate::{Batch, Block};

/// Blocks of a sync that go with the log; more are written to their places first, in long rows.
pub const FILL_MAX: usize = 16;

/// Blocks of a file that become other ones, or get other bytes.
enum BlockUpdate {
    New(Run),
    Same(Run),
}

impl BlockUpdate {
    fn run(&self) -> &Run {
        match self {
            BlockUpdate::New(run) | BlockUpdate::Same(run) => run,
        }
    }
}

impl FsCore {
    /// Whether so many blocks are to go with the log, if somebody waits until they are durable.
    pub fn fills(&self, blocks: usize) -> bool {
        (1..=FILL_MAX).contains(&blocks) && self.store.may_fill(blocks)
    }

    /// Puts the bytes of all pages of a file into a batch, with their places; the record only into what is returned.
    pub fn plan_filled(&self, state: &InodeState, batch: &mut Batch) -> Result<PreparedWriteBack> {
        let mut prepared = PreparedWriteBack::of(&state.record);
        if state.pages.is_empty() {
            return Ok(prepared);
        }
        let outcome = self.parts(state, &mut prepared).and_then(|parts| self.put_parts(state, batch, &mut prepared, &parts));
        outcome.inspect_err(|_| self.undo(&prepared))?;
        Ok(prepared)
    }

    /// Where pages are or will be, in order.
    fn parts(&self, state: &InodeState, prepared: &mut PreparedWriteBack) -> Result<Vec<BlockUpdate>> {
        let pages: Vec<u64> = state.pages.keys().copied().collect();
        let sum = |page: u64| crc32c::crc32c(&state.pages[&page][..]);
        let run = |at: u64, start: Block, blocks: u64| Run::written(at, start, (at..at + blocks).map(sum).collect());
        let overwrites = self.store.may_overwrite();
        let (mut parts, mut goal) = (Vec::new(), None);
        for row in rows(&pages) {
            // With the block before it, for the place behind that one.
            let old = self.runs(&state.record, &(row.start.saturating_sub(1)..row.end))?;
            let mut at = row.start;
            goal = old.iter().find(|run| run.end() == at).and_then(|run| run.extent().end()).or(goal);
            while at < row.end {
                let here = old.iter().find(|run| overwrites && run.sums.is_some() && (run.at..run.end()).contains(&at));
                if let Some(part) = here.and_then(|old| old.part(&(at..row.end))) {
                    parts.push(BlockUpdate::Same(run(at, part.start, u64::from(part.blocks))));
                    goal = part.extent().end();
                    at = part.end();
                    continue;
                }
                let next = old.iter().filter(|run| overwrites && run.sums.is_some() && run.at > at).map(|run| run.at).min();
                let wanted = next.unwrap_or(row.end).min(row.end) - at;
                let extent = self.store.allocate(goal, u32::try_from(wanted).unwrap_or(u32::MAX))?;
                prepared.extents.push((at, extent));
                parts.extend(pieces(extent, at).map(|(at, piece)| BlockUpdate::New(run(at, piece.start, u64::from(piece.blocks)))));
                goal = extent.end();
                at += u64::from(extent.blocks);
            }
        }
        Ok(parts)
    }

    fn put_parts(&self, state: &InodeState, batch: &mut Batch, prepared: &mut PreparedWriteBack, parts: &[BlockUpdate]) -> Result<()> {
        let record = &mut prepared.record;
        if matches!(record.body, RecordBody::Inline(_)) {
            record.body = RecordBody::Runs(Vec::new());
        }
        let together = record.body != RecordBody::Items;
        for near in parts.chunk_by(|a, b| together || super::flush::are_near(a.run(), b.run())) {
            let mut edit = self.edit(record, &(near[0].run().at..near[near.len() - 1].run().end()))?;
            let new: Vec<Run> = near.iter().filter(|part| matches!(part, BlockUpdate::New(_))).map(|part| part.run().clone()).collect();
            if !new.is_empty() {
                edit.fill(new);
            }
            near.iter().filter(|part| matches!(part, BlockUpdate::Same(_))).for_each(|part| edit.overwrite(part.run()));
            self.put(batch, record, edit);
        }
        for run in parts.iter().map(BlockUpdate::run) {
            let pages: Vec<&[u8]> = (run.at..run.end()).map(|page| &state.pages[&page][..]).collect();
            batch.fill_blocks(run.start, &pages);
            prepared.places.extend((run.at..run.end()).zip(run.start.0..).map(|(page, block)| (page, Block(block))));
        }
        Ok(())
    }
}
