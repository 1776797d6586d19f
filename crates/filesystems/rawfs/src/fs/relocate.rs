//! Other blocks for what a file has: as repairing and shrinking need it.

use super::core::FsCore;
use super::error::Result;
use super::extent::{self, Run, pieces};
use super::key::{self, FileItem};
use super::record::{RUNS_MAX, Record, RecordBody};
use crate::{BLOCK_BYTES, Batch, Block, Extent, QueueClass, ScanStep, Store, TreeId};

/// Where a record is, and what it says.
pub type RecordPlace = (TreeId, Vec<u8>, Record);

/// Blocks of a run, somewhere else.
pub struct RelocatedRun {
    runs: Vec<Run>,
    /// They are what the file wrote; if not, reading them is the error that it was.
    pub right: bool,
}

impl RelocatedRun {
    /// Copies the blocks of a run that was written; none if there is no room. Of those that are not `readable` nothing is known.
    pub fn of(core: &FsCore, old: &Run, readable: impl Fn(Block) -> bool) -> Result<Option<RelocatedRun>> {
        let Some(sums) = &old.sums else { return Ok(Some(RelocatedRun { runs: Vec::new(), right: true })) };
        let bytes = read(core, old, readable)?;
        let right = rights(&bytes, sums).all(|right| right);
        let mut runs = Vec::new();
        if !put(core, old.at, &bytes, sums, &mut runs)? {
            return Ok(None);
        }
        if !right {
            // Their sums are not those of the record, so recovery cannot look whether they are there.
            core.store.disk().flush()?;
        }
        Ok(Some(RelocatedRun { runs, right }))
    }

    /// As [`RelocatedRun::of`], but only of the blocks that have what the file wrote: the others become a hole.
    pub fn of_right(core: &FsCore, old: &Run, readable: impl Fn(Block) -> bool) -> Result<Option<RelocatedRun>> {
        let Some(sums) = &old.sums else { return Ok(Some(RelocatedRun { runs: Vec::new(), right: true })) };
        let bytes = read(core, old, readable)?;
        let (mut runs, mut from) = (Vec::new(), 0);
        for same in rights(&bytes, sums).collect::<Vec<_>>().chunk_by(|a, b| a == b) {
            let to = from + same.len();
            let row = &bytes[from * BLOCK_BYTES..to * BLOCK_BYTES];
            if same[0] && !put(core, old.at + from as u64, row, &sums[from..to], &mut runs)? {
                return Ok(None);
            }
            from = to;
        }
        Ok(Some(RelocatedRun { runs, right: true }))
    }
}

/// The bytes of a run's blocks; zeros for what cannot be read.
fn read(core: &FsCore, old: &Run, readable: impl Fn(Block) -> bool) -> Result<Vec<u8>> {
    let mut bytes = vec![0; old.blocks as usize * BLOCK_BYTES];
    for (n, bytes) in (0..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
        let at = old.start.after(n);
        if !readable(at) {
            continue;
        }
        match core.store.read_data(&mut [(at, bytes)]) {
            Ok(()) | Err(crate::Error::Device(block::Error::Media)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

fn rights(bytes: &[u8], sums: &[u32]) -> impl Iterator<Item = bool> {
    bytes.chunks(BLOCK_BYTES).zip(sums).map(|(block, sum)| crc32c::crc32c(block) == *sum)
}

/// Writes blocks of a file to where there is room, behind `runs`. False: there is none, and all of `runs` are given back.
fn put(core: &FsCore, at: u64, bytes: &[u8], sums: &[u32], runs: &mut Vec<Run>) -> Result<bool> {
    let Some(extents) = allocate(core, sums.len() as u32)? else {
        runs.drain(..).for_each(|run| core.store.abandon(run.extent()));
        return Ok(false);
    };
    let mut done = 0;
    for extent in &extents {
        let from = done * BLOCK_BYTES;
        core.store.disk().write_blocks(QueueClass::Data, &[(extent.start, &bytes[from..from + extent.blocks as usize * BLOCK_BYTES])])?;
        for (at, piece) in pieces(*extent, at + done as u64) {
            runs.push(Run::written(at, piece.start, sums[done..done + piece.blocks as usize].to_vec()));
            done += piece.blocks as usize;
        }
    }
    Ok(true)
}

/// So many blocks, wherever they are; none if there are not enough.
fn allocate(core: &FsCore, mut blocks: u32) -> Result<Option<Vec<Extent>>> {
    let mut extents = Vec::new();
    while blocks > 0 {
        match core.store.allocate(None, blocks) {
            Ok(extent) => {
                blocks -= extent.blocks;
                extents.push(extent);
            }
            Err(crate::Error::NoSpace) => {
                extents.into_iter().for_each(|extent| core.store.abandon(extent));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(extents))
}

/// One run of a file becomes others, or (none) a hole. The old blocks are for the caller to free.
pub fn exchange(batch: &mut Batch, (tree, key, mut record): RecordPlace, old: &Run, copy: Option<RelocatedRun>) {
    let (new, right) = copy.map_or((Vec::new(), true), |copy| (copy.runs, copy.right));
    for run in &new {
        batch.use_blocks(run.extent(), if right { run.sums.as_deref().unwrap_or(&[]) } else { &[] });
    }
    record.blocks = record.blocks.saturating_sub(u64::from(old.blocks)) + extent::blocks(&new);
    if let RecordBody::Runs(runs) = &mut record.body {
        runs.retain(|run| run != old);
        runs.extend(new);
        runs.sort_by_key(|run| run.at);
        if runs.iter().map(Run::stored_len).sum::<usize>() > RUNS_MAX {
            runs.iter().for_each(|run| batch.put(TreeId::Files, &key::file(record.ino, FileItem::Extent, run.at), &run.bytes()));
            record.body = RecordBody::Items;
        }
    } else {
        batch.delete(TreeId::Files, &key::file(record.ino, FileItem::Extent, old.at));
        new.iter().for_each(|run| batch.put(TreeId::Files, &key::file(record.ino, FileItem::Extent, run.at), &run.bytes()));
    }
    batch.put(tree, &key, &record.bytes());
}

/// All runs of a file.
pub fn all_runs(store: &Store, record: &Record) -> Result<Vec<Run>> {
    if let RecordBody::Runs(runs) = &record.body {
        return Ok(runs.clone());
    }
    let (from, to) = (key::file(record.ino, FileItem::Extent, 0), key::file(record.ino, FileItem::Extent, u64::MAX));
    let mut runs = Vec::new();
    store.scan(TreeId::Files, &from, &to, &mut |_, value| {
        runs.extend(Run::parse(value));
        ScanStep::Go
    })?;
    Ok(runs)
}
