//! Write-back of many files together: their blocks in as few requests as there are rows of them, their records in one batch.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;

use super::core::{FsCore, HeldInode};
use super::error::{Error, Result};
use super::flush::PreparedWriteBack;
use super::key::KEY_MAX;
use super::record::{HEAD, RUNS_MAX, RecordBody};
use super::table::{Inode, InodeState};
use crate::{Batch, Block, Extent, QueueClass};

/// Files of one batch, at most; and at least, however little memory there is.
const FILES_MAX: usize = 2048;
const FILES_LEAST: usize = 64;
/// The part of the nodes that may be changed that one batch may change: others let go of memory only once it is done.
const CHANGED_PART: usize = 4;
/// Blocks written together, at most; a file with more goes alone.
const BLOCKS_MAX: usize = 2048;

/// Free blocks for many files, one behind the other.
struct BlockRow<'c> {
    core: &'c FsCore,
    /// Blocks that are still to be found a place for.
    wanted: u32,
    free: Option<Extent>,
}

impl BlockRow<'_> {
    fn take(&mut self, blocks: u32) -> std::result::Result<Extent, crate::Error> {
        let row = match self.free.take() {
            Some(row) => row,
            None => self.core.store.allocate(None, self.wanted.max(blocks))?,
        };
        let taken = row.blocks.min(blocks);
        self.wanted = self.wanted.saturating_sub(taken);
        if taken < row.blocks {
            self.free = Some(Extent::new(row.start.after(u64::from(taken)), row.blocks - taken));
        }
        Ok(Extent::new(row.start, taken))
    }
}

impl Drop for BlockRow<'_> {
    fn drop(&mut self) {
        if let Some(rest) = self.free.take() {
            self.core.store.abandon(rest);
        }
    }
}

type LockedInodes<'h> = Vec<(&'h Arc<Inode>, RwLockWriteGuard<'h, InodeState>)>;

/// What a file takes of a batch, at most, if its blocks lie in few rows: key and record, and each block with its checksum twice.
fn log_bytes(state: &InodeState) -> usize {
    let inline = if let RecordBody::Inline(content) = &state.record.body { content.len() } else { RUNS_MAX };
    KEY_MAX + HEAD + inline + 64 + 8 * state.pages.len()
}

impl FsCore {
    /// Files of one batch, at most: each may change another node.
    pub fn files_together(&self) -> usize {
        (self.store.changed_max() / CHANGED_PART).clamp(FILES_LEAST, FILES_MAX)
    }

    /// Writes back the files of these numbers; the first error, but all are tried. No lock is held. `synced`: a sync follows.
    pub fn write_back_each(&self, numbers: &[u64], synced: bool) -> Result<()> {
        let mut outcome = Ok(());
        for some in numbers.chunks(self.files_together()) {
            let held: Vec<HeldInode<'_>> = some.iter().filter_map(|ino| self.in_use(*ino)).collect();
            let mut rest = &held[..];
            while rest.len() > 1 {
                let _names = self.locks.shared();
                let taken = self.write_back_together(rest, synced);
                rest = &rest[taken..];
            }
            for held in &held {
                let _names = self.locks.shared();
                // Most are clean by now. What failed together is tried alone, so that each file gets its own error.
                outcome = outcome.and(self.write_back_beside_readers(&held.inode, true, synced).map(drop));
            }
        }
        outcome
    }

    /// As many of the first files as are good for one batch; returns how many that were. Whatever fails, they are as before.
    fn write_back_together(&self, held: &[HeldInode<'_>], synced: bool) -> usize {
        let (mut files, mut blocks, mut bytes, mut taken) = (LockedInodes::new(), 0, 0, 0);
        let bytes_max = self.store.batch_bytes_max();
        for held in held {
            // A holder of another file's lock never waits here for one.
            let state = held.state.try_write().filter(|state| !state.is_clean() && state.pages.len() <= BLOCKS_MAX);
            blocks += state.as_ref().map_or(0, |state| state.pages.len());
            bytes += state.as_ref().map_or(0, |state| log_bytes(state));
            if taken > 0 && (blocks > BLOCKS_MAX || bytes > bytes_max) {
                break;
            }
            files.extend(state.map(|state| (&held.inode, state)));
            taken += 1;
        }
        let mut prepared = Vec::with_capacity(files.len());
        if self.carry_out_together(&mut files, &mut prepared, synced).is_err() {
            prepared.iter().for_each(|prepared| self.undo(prepared));
        }
        taken
    }

    /// An error: what was prepared is to be undone.
    fn carry_out_together(&self, files: &mut LockedInodes<'_>, prepared: &mut Vec<PreparedWriteBack>, synced: bool) -> Result<()> {
        let mut batch = Batch::new();
        let wanted: usize = files.iter().map(|(_, state)| state.pages.len()).sum();
        let fills = synced && self.fills(wanted);
        let mut row = BlockRow { core: self, wanted: wanted as u32, free: None };
        for (inode, state) in &*files {
            let plan = if fills {
                self.plan_filled(state, &mut batch)?
            } else {
                self.plan(state, &mut batch, BLOCKS_MAX, &mut |_, blocks| row.take(blocks))?
            };
            self.put_record(&mut batch, inode, state, &plan.record);
            prepared.push(plan);
        }
        drop(row);
        if !fills {
            let mut writes: Vec<(Block, &[u8])> = files.iter().zip(&*prepared).flat_map(|((_, state), plan)| plan.writes(state)).collect();
            writes.sort_unstable_by_key(|(at, _)| *at);
            self.store.disk().write_blocks(QueueClass::Data, &writes).map_err(Error::from)?;
        }
        let lsn = self.apply(batch)?;
        for ((inode, state), plan) in files.iter_mut().zip(prepared.drain(..)) {
            self.finish(state, plan, lsn);
            self.unlist(inode, state);
        }
        Ok(())
    }
}
