//! Write-back: blocks that are only in memory get their place on the device, and the record says where.
//!
//! ```text
//!  allocate (as long rows as there are) -> write all, in flight together -> one batch: runs, sums, record -> pages go to the cache
//! ```
//!
//! What fails leaves the pages as they are, in memory and to be written, and is told to every handle once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Core;
use super::error::{Error, Result};
use super::extent::{Run, pieces};
use super::record::{Body, Record};
use super::table::{Inode, Page, State};
use crate::disk::Flight;
use crate::{Batch, Block, Extent, Lane, Lsn};

/// Blocks of one batch, at most.
const BATCH_MAX: usize = 8192;
/// Changes further apart than this are not in one run, whatever becomes one with its neighbours.
const APART: u64 = 2 * super::extent::RUN_MAX as u64 + 2;

/// Writes under way.
pub type Flights<'c> = Vec<Flight<'c, 'static>>;

/// What a batch will make of a file, when it is applied.
pub struct Prepared {
    /// The record as it will be.
    pub record: Record,
    /// Where pages will be.
    places: Vec<(u64, Block)>,
    extents: Vec<(u64, Extent)>,
    /// Pages are kept for the next reader.
    keep: bool,
}

impl Core {
    /// Brings a file to the store. Its lock is held, and the name space shared.
    pub fn write_back(&self, inode: &Arc<Inode>, state: &mut State) -> Result<()> {
        self.write_back_and(inode, state, true)
    }

    /// Likewise; `keep`: in the cache, too.
    pub fn write_back_and(&self, inode: &Arc<Inode>, state: &mut State, keep: bool) -> Result<()> {
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

    fn write_back_some(&self, inode: &Arc<Inode>, state: &mut State, keep: bool) -> Result<()> {
        let (mut batch, mut flights) = (Batch::new(), Vec::new());
        let mut prepared = self.prepare(state, &mut batch, &mut flights, BATCH_MAX)?;
        prepared.keep = keep;
        land(flights).inspect_err(|_| self.undo(&prepared))?;
        self.put_record(&mut batch, inode, state, &prepared.record);
        match self.apply(batch) {
            Ok(lsn) => self.finish(state, prepared, lsn),
            Err(error) => {
                self.undo(&prepared);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Puts a whole record into a batch.
    pub fn put_record(&self, batch: &mut Batch, inode: &Arc<Inode>, state: &State, record: &Record) {
        let at = state.at.as_ref().expect("loaded");
        let (tree, key) = self.key(inode.ino, at);
        batch.put(tree, &key, &record.bytes());
    }

    /// Begins to write pages, and puts their places into a batch; the record only into what is returned. The flights have to land
    /// before the batch is applied, or the preparation is undone.
    pub fn prepare<'c>(&'c self, state: &State, batch: &mut Batch, flights: &mut Flights<'c>, most: usize) -> Result<Prepared> {
        let pages: Vec<u64> = state.pages.keys().copied().take(most).collect();
        let mut prepared = Prepared { record: state.record.clone(), places: Vec::new(), extents: Vec::new(), keep: true };
        if pages.is_empty() {
            return Ok(prepared);
        }
        if matches!(prepared.record.body, Body::Inline(_)) {
            prepared.record.body = Body::Runs(Vec::new());
        }
        let outcome = self.place(state, &pages, &mut prepared, flights).and_then(|runs| self.put_new(batch, &mut prepared.record, runs));
        if let Err(error) = outcome {
            // Blocks are given back when nothing is on its way to them.
            let _ = land(std::mem::take(flights));
            self.undo(&prepared);
            return Err(error);
        }
        Ok(prepared)
    }

    /// Finds places for pages and begins to write them there; returns the runs they make.
    fn place<'c>(&'c self, state: &State, pages: &[u64], prepared: &mut Prepared, flights: &mut Flights<'c>) -> Result<Vec<Run>> {
        let mut goal = None;
        for row in rows(pages) {
            let mut at = row.start;
            if goal.is_none() {
                goal = self.runs(&state.record, &(at.saturating_sub(1)..at))?.last().and_then(|run| run.extent().end());
            }
            while at < row.end {
                let extent = self.store.allocate(goal, u32::try_from(row.end - at).unwrap_or(u32::MAX))?;
                prepared.extents.push((at, extent));
                goal = extent.end();
                at += u64::from(extent.blocks);
            }
        }
        let blocks =
            prepared.extents.iter().flat_map(|(at, extent)| (0..u64::from(extent.blocks)).map(move |n| (at + n, extent.start.after(n))));
        prepared.places = blocks.collect();
        let bytes = |page: &u64| -> &[u8] { &state.pages[page][..] };
        let writes: Vec<(Block, &[u8])> = prepared.places.iter().map(|(page, block)| (*block, bytes(page))).collect();
        flights.push(self.store.disk().start_writes(Lane::Data, &writes));
        let sum = |page: u64| crc32c::crc32c(bytes(&page));
        let all = prepared.extents.iter().flat_map(|(at, extent)| pieces(*extent, *at));
        Ok(all.map(|(at, extent)| Run::written(at, extent.start, (at..at + u64::from(extent.blocks)).map(sum).collect())).collect())
    }

    /// Puts new runs into a batch, near ones together.
    fn put_new(&self, batch: &mut Batch, record: &mut Record, mut runs: Vec<Run>) -> Result<()> {
        let together = record.body != Body::Items;
        while !runs.is_empty() {
            let near = |pair: &[Run]| pair[1].at - pair[0].end() < APART;
            let count = 1 + runs.windows(2).take_while(|pair| together || near(pair)).count();
            let rest = runs.split_off(count);
            let mut edit = self.edit(record, &(runs[0].at..runs[runs.len() - 1].end()))?;
            for run in runs {
                edit.replace(&(run.at..run.end()), vec![run]);
            }
            self.put(batch, record, edit);
            runs = rest;
        }
        Ok(())
    }

    /// The batch was applied: what was written is read from the cache from now on.
    pub fn finish(&self, state: &mut State, prepared: Prepared, lsn: Lsn) {
        for (page, block) in &prepared.places {
            let page: Box<Page> = state.pages.remove(page).expect("prepared");
            if prepared.keep {
                self.cache.put(*block, Arc::from(page));
            }
        }
        self.dirty_pages.fetch_sub(prepared.places.len() as u64, Ordering::SeqCst);
        (state.record, state.lsn) = (prepared.record, lsn);
        // What remains was not prepared, and the record says more than is there: it is put again with the rest.
        state.changed = !state.pages.is_empty();
    }

    /// The batch was not applied.
    pub fn undo(&self, prepared: &Prepared) {
        prepared.extents.iter().for_each(|(_, extent)| self.store.abandon(*extent));
    }

    /// Writes back files until so many bytes may be written without more memory than is allowed. No lock is held.
    pub fn make_room(&self, bytes: usize) -> Result<()> {
        let limit = self.settings.dirty_bytes / crate::BLOCK_BYTES;
        let wanted = (bytes / crate::BLOCK_BYTES) as u64 + 2;
        let full = || self.dirty_pages.load(Ordering::SeqCst) + wanted > limit as u64 || self.dirty.lock().len() > limit;
        let mut after = 0;
        while full() {
            let next = self.dirty.lock().range(after..).next().map(|(ino, _)| *ino);
            let Some(ino) = next else { break };
            after = ino + 1;
            if let Some(held) = self.in_use(ino) {
                let _names = self.locks.shared();
                // It is told to those who have the file open.
                let _ = self.write_back(&held.inode, &mut held.state.write());
            }
        }
        Ok(())
    }

    /// Writes back everything; the first error, but all are tried.
    pub fn write_back_all(&self) -> Result<()> {
        let all: Vec<u64> = self.dirty.lock().keys().copied().collect();
        let mut outcome = Ok(());
        for held in all.into_iter().filter_map(|ino| self.in_use(ino)) {
            let _names = self.locks.shared();
            let mut state = held.state.write();
            outcome = outcome.and(self.write_back(&held.inode, &mut state));
            drop(state);
        }
        outcome
    }

    /// Everything of a file is on the device when this returns.
    pub fn sync_file(&self, inode: &Arc<Inode>) -> Result<()> {
        let lsn = {
            let _names = self.locks.shared();
            let mut state = inode.state.write();
            self.write_back(inode, &mut state)?;
            state.lsn
        };
        self.sync_to(inode, lsn)
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

/// Waits for all of some writes.
pub fn land(flights: Flights<'_>) -> Result<()> {
    // All of them, also behind one that failed.
    let outcomes: Vec<_> = flights.into_iter().map(Flight::finish).collect();
    Ok(outcomes.into_iter().collect::<std::result::Result<(), _>>()?)
}

/// Numbers in a row, as ranges.
fn rows(pages: &[u64]) -> Vec<Range<u64>> {
    let mut rows: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match rows.last_mut() {
            Some(row) if row.end == *page => row.end += 1,
            _ => rows.push(*page..*page + 1),
        }
    }
    rows
}
