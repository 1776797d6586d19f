//! Write-back: blocks that are only in memory get their place on the device, and the record says where.
//!
//! ```text
//!  allocate (as long rows as there are) -> write all, in flight together -> one batch: runs, sums, record -> pages go to the cache
//! ```
//!
//! A failure leaves the pages in memory and dirty, and every handle reports it once.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{RwLockUpgradableReadGuard, RwLockWriteGuard};

use super::core::FsCore;
use super::error::{Error, Result};
use super::extent::{Run, pieces};
use super::job::WriteBackJob;
use super::record::{Record, RecordBody};
use super::table::{Inode, InodeState};
use crate::disk::InFlight;
use crate::{BLOCK_BYTES, Batch, Block, Extent, Lsn, QueueClass};

/// Blocks of one batch, at most.
const BATCH_MAX: usize = 8192;
/// Changes further apart than this are not in one run, whatever becomes one with its neighbours.
const APART: u64 = 2 * super::extent::RUN_MAX as u64 + 2;

/// Files written back at once where memory is full, the part of it that is to be free then, and the part that is free when that begins.
const ROOM_FILES: usize = 512;
const ROOM_PART: u64 = 8;
const BEGIN_PART: u64 = 16;

/// Writes under way. As long as there are any, nothing is read from files: reads need buffers that these may have.
pub type Writes<'c> = InFlight<'c, 'static>;

/// Gives free blocks in a row, near a goal; perhaps fewer than are wanted.
pub type BlockSource<'s> = dyn FnMut(Option<Block>, u32) -> std::result::Result<Extent, crate::Error> + 's;

/// What a batch will make of a file, when it is applied.
pub struct PreparedWriteBack {
    /// The record as it will be.
    pub record: Record,
    /// Where pages will be.
    pub(super) places: Vec<(u64, Block)>,
    /// New ones.
    pub(super) extents: Vec<(u64, Extent)>,
    /// Pages are kept for the next reader.
    keep: bool,
}

impl PreparedWriteBack {
    /// Nothing yet.
    pub(super) fn of(record: &Record) -> PreparedWriteBack {
        PreparedWriteBack { record: record.clone(), places: Vec::new(), extents: Vec::new(), keep: true }
    }

    /// Returns each block to write, with its data.
    pub fn writes<'s>(&'s self, state: &'s InodeState) -> impl Iterator<Item = (Block, &'s [u8])> {
        self.places.iter().map(|(page, block)| (*block, &state.pages[page][..]))
    }
}

impl FsCore {
    /// Brings a file to the store. Its lock is held, and the name space shared.
    pub fn write_back(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        self.write_back_and(inode, state, true)
    }

    /// Likewise; `keep`: in the cache, too.
    pub fn write_back_and(&self, inode: &Arc<Inode>, state: &mut InodeState, keep: bool) -> Result<()> {
        while !state.is_clean() {
            if let Err(error) = self.write_back_some(inode, state, keep) {
                state.errors += 1;
                state.error = Some(error.clone());
                return Err(error);
            }
        }
        self.unlist(inode, state);
        Ok(())
    }

    fn write_back_some(&self, inode: &Arc<Inode>, state: &mut InodeState, keep: bool) -> Result<()> {
        let (batch, mut prepared) = self.write_some(state, false)?;
        prepared.keep = keep;
        self.apply_some(inode, state, batch, prepared)
    }

    /// The part of it that readers need not wait for: the device. `synced`: a sync follows.
    fn write_some(&self, state: &InodeState, synced: bool) -> Result<(Batch, PreparedWriteBack)> {
        let mut batch = Batch::new();
        if synced && self.fills(state.pages.len()) {
            let prepared = self.plan_filled(state, &mut batch)?;
            return Ok((batch, prepared));
        }
        let mut writes = self.writes();
        let prepared = self.prepare(state, &mut batch, &mut writes, BATCH_MAX)?;
        writes.finish().inspect_err(|_| self.undo(&prepared))?;
        Ok((batch, prepared))
    }

    fn apply_some(&self, inode: &Arc<Inode>, state: &mut InodeState, batch: Batch, prepared: PreparedWriteBack) -> Result<()> {
        let lsn = self.apply_prepared(inode, state, batch, &prepared)?;
        self.finish(state, prepared, lsn);
        Ok(())
    }

    fn apply_prepared(&self, inode: &Arc<Inode>, state: &InodeState, mut batch: Batch, prepared: &PreparedWriteBack) -> Result<Lsn> {
        self.put_record(&mut batch, inode, state, &prepared.record);
        self.apply(batch).inspect_err(|_| self.undo(prepared))
    }

    /// As [`FsCore::write_back`], for callers that hold only the name space's lock, shared: others read the file while the device works,
    /// and while the store takes the batch: what it changes is among the pages, which they look at first. Returns what has to be durable
    /// for the file to be. `keep`: in the cache, too. `synced`: the caller waits until it is durable.
    pub fn write_back_beside_readers(&self, inode: &Arc<Inode>, keep: bool, synced: bool) -> Result<Lsn> {
        let mut state = inode.state.upgradable_read();
        while !state.is_clean() {
            let applied = self.write_some(&state, synced).and_then(|(batch, mut prepared)| {
                prepared.keep = keep;
                self.apply_prepared(inode, &state, batch, &prepared).map(|lsn| (prepared, lsn))
            });
            let mut alone = RwLockUpgradableReadGuard::upgrade(state);
            match applied {
                Ok((prepared, lsn)) => self.finish(&mut alone, prepared, lsn),
                Err(error) => {
                    alone.errors += 1;
                    alone.error = Some(error.clone());
                    return Err(error);
                }
            }
            if alone.is_clean() {
                self.unlist(inode, &mut alone);
                return Ok(alone.lsn);
            }
            state = RwLockWriteGuard::downgrade_to_upgradable(alone);
        }
        if state.listed {
            self.unlist(inode, &mut RwLockUpgradableReadGuard::upgrade(state));
            return Ok(inode.state.read().lsn);
        }
        Ok(state.lsn)
    }

    /// Puts a whole record into a batch.
    pub fn put_record(&self, batch: &mut Batch, inode: &Arc<Inode>, state: &InodeState, record: &Record) {
        let at = state.at.as_ref().expect("loaded");
        let (tree, key) = self.key(inode.ino, at);
        batch.put(tree, &key, &record.bytes());
    }

    /// Starts a flight of writes on the data queues, for [`FsCore::prepare`].
    pub fn writes(&self) -> Writes<'_> {
        self.store.disk().flight(QueueClass::Data)
    }

    /// Begins to write pages, and puts their places into a batch; the record only into what is returned. They have to land
    /// before the batch is applied, or the preparation is undone.
    pub fn prepare<'c>(&'c self, state: &InodeState, batch: &mut Batch, writes: &mut Writes<'c>, most: usize) -> Result<PreparedWriteBack> {
        let prepared = self.plan(state, batch, most, &mut |goal, blocks| self.store.allocate(goal, blocks)).inspect_err(|_| {
            // Blocks are given back when nothing is on its way to them.
            let _ = writes.land();
        })?;
        if !prepared.places.is_empty() {
            let blocks: Vec<(Block, &[u8])> = prepared.writes(state).collect();
            writes.write(&blocks);
        }
        Ok(prepared)
    }

    /// As [`FsCore::prepare`], but for the writing, and with blocks from somewhere else.
    pub fn plan(&self, state: &InodeState, batch: &mut Batch, most: usize, blocks: &mut BlockSource<'_>) -> Result<PreparedWriteBack> {
        let pages: Vec<u64> = state.pages.keys().copied().take(most).collect();
        let mut prepared = PreparedWriteBack::of(&state.record);
        if pages.is_empty() {
            return Ok(prepared);
        }
        if matches!(prepared.record.body, RecordBody::Inline(_)) {
            prepared.record.body = RecordBody::Runs(Vec::new());
        }
        let outcome = self.place(state, &pages, &mut prepared, blocks).and_then(|runs| self.put_new(batch, &mut prepared.record, runs));
        outcome.inspect_err(|_| self.undo(&prepared))?;
        Ok(prepared)
    }

    /// Finds places for pages; returns the runs they make.
    fn place(&self, state: &InodeState, pages: &[u64], prepared: &mut PreparedWriteBack, blocks: &mut BlockSource<'_>) -> Result<Vec<Run>> {
        let mut goal = None;
        for row in rows(pages) {
            let mut at = row.start;
            if goal.is_none() {
                goal = self.runs(&state.record, &(at.saturating_sub(1)..at))?.last().and_then(|run| run.extent().end());
            }
            while at < row.end {
                let extent = blocks(goal, u32::try_from(row.end - at).unwrap_or(u32::MAX))?;
                prepared.extents.push((at, extent));
                goal = extent.end();
                at += u64::from(extent.blocks);
            }
        }
        let blocks =
            prepared.extents.iter().flat_map(|(at, extent)| (0..u64::from(extent.blocks)).map(move |n| (at + n, extent.start.after(n))));
        prepared.places = blocks.collect();
        let sum = |page: u64| crc32c::crc32c(&state.pages[&page][..]);
        let all = prepared.extents.iter().flat_map(|(at, extent)| pieces(*extent, *at));
        Ok(all.map(|(at, extent)| Run::written(at, extent.start, (at..at + u64::from(extent.blocks)).map(sum).collect())).collect())
    }

    /// Puts new runs into a batch, near ones together.
    fn put_new(&self, batch: &mut Batch, record: &mut Record, mut runs: Vec<Run>) -> Result<()> {
        let together = record.body != RecordBody::Items;
        while !runs.is_empty() {
            let count = 1 + runs.windows(2).take_while(|pair| together || are_near(&pair[0], &pair[1])).count();
            let rest = runs.split_off(count);
            let mut edit = self.edit(record, &(runs[0].at..runs[runs.len() - 1].end()))?;
            edit.replace_all(runs);
            self.put(batch, record, edit);
            runs = rest;
        }
        Ok(())
    }

    /// The batch was applied: what was written is read from the cache from now on.
    pub fn finish(&self, state: &mut InodeState, prepared: PreparedWriteBack, lsn: Lsn) {
        let ino = prepared.record.ino;
        // First, so that the cache has the room.
        self.fewer_unwritten(prepared.places.len() as u64);
        for (at, _) in &prepared.places {
            let page = state.pages.remove(at).expect("prepared");
            if prepared.keep {
                self.cache.put(ino, *at, page);
            } else {
                self.cache.forget(ino, *at..at + 1);
            }
        }
        (state.record, state.lsn) = (prepared.record, lsn);
        // What remains was not prepared, and the record says more than is there: it is put again with the rest.
        state.changed = !state.pages.is_empty();
    }

    /// The batch was not applied.
    pub fn undo(&self, prepared: &PreparedWriteBack) {
        prepared.extents.iter().for_each(|(_, extent)| self.store.abandon(*extent));
    }

    /// Waits until so many bytes may be written without more memory than is allowed. No lock is held.
    pub fn make_room(&self, bytes: usize) {
        let limit = self.settings.dirty_bytes as u64;
        let wanted = (bytes + 2 * BLOCK_BYTES) as u64;
        let after = self.unwritten() + wanted;
        if after > limit - limit / BEGIN_PART {
            self.bell.ring();
        }
        if after > limit {
            // Where no thread does it beside us, a good part at once: what is written together takes fewer requests.
            let part = if self.settings.write_back.is_zero() { limit / ROOM_PART } else { 0 };
            self.write_back_down_to(limit.saturating_sub(wanted.max(part)));
        }
    }

    /// Writes back before anybody has to wait for it.
    pub fn keep_room(&self) {
        let limit = self.settings.dirty_bytes as u64;
        self.write_back_down_to(limit - limit / ROOM_PART);
    }

    /// Until no more than so many bytes are unwritten, or all was tried. Handles of a file report its failures.
    fn write_back_down_to(&self, enough: u64) {
        let mut left = self.dirty.lock().len();
        while left > 0 && self.unwritten() > enough {
            let some = self.some_unwritten();
            if some.is_empty() {
                break;
            }
            left = left.saturating_sub(some.len());
            let _ = self.write_back_each(&some, false);
        }
    }

    /// Files to write back together, on from where the last who asked ended.
    fn some_unwritten(&self) -> Vec<u64> {
        let mut from = self.room_from.lock();
        let dirty = self.dirty.lock();
        let mut some: Vec<u64> = dirty.range(*from..).map(|(ino, _)| *ino).take(ROOM_FILES).collect();
        if some.is_empty() {
            some = dirty.keys().copied().take(ROOM_FILES).collect();
        }
        *from = some.last().map_or(0, |last| last + 1);
        some
    }

    /// Writes back everything; the first error, but all are tried. `synced`: a sync follows.
    pub fn write_back_all(&self, synced: bool) -> Result<()> {
        let all: Vec<u64> = self.dirty.lock().keys().copied().collect();
        let Some(job) = WriteBackJob::new(&all, self.files_together()).filter(|_| synced) else {
            return self.write_back_each(&all, synced);
        };
        let job = Arc::new(job);
        self.bell.help(&job);
        job.work(|files| self.write_back_each(files, true));
        self.bell.take_back(&job);
        job.wait()
    }

    /// Everything of a file is on the device when this returns.
    pub fn sync_file(&self, inode: &Arc<Inode>) -> Result<()> {
        let lsn = {
            let _names = self.locks.shared();
            self.write_back_beside_readers(inode, true, true)?
        };
        self.sync_to(inode, lsn)
    }

    /// Records an error of earlier writes, which every handle of the file reports once.
    pub fn failed(&self, inode: &Inode, error: &Error) {
        let mut state = inode.state.write();
        state.errors += 1;
        state.error = Some(error.clone());
    }

    /// Waits until a batch is durable; if it will not be, the file remembers.
    pub fn sync_to(&self, inode: &Inode, lsn: Lsn) -> Result<()> {
        if lsn <= self.store.synced() {
            return Ok(());
        }
        let outcome = self.store.sync(lsn).map_err(Error::from);
        outcome.inspect_err(|error| self.failed(inode, error))
    }
}

/// Whether two runs, in order, are changed together.
pub(super) fn are_near(one: &Run, next: &Run) -> bool {
    next.at - one.end() < APART
}

/// Numbers in a row, as ranges.
pub(super) fn rows(pages: &[u64]) -> Vec<Range<u64>> {
    let mut rows: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match rows.last_mut() {
            Some(row) if row.end == *page => row.end += 1,
            _ => rows.push(*page..*page + 1),
        }
    }
    rows
}
