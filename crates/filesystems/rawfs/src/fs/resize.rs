//! Another size for a file system that is not in use.
//!
//! To shrink, blocks of files behind the new end move to free ones before it, one run a batch; then the store is given its new size.
//! Wherever it is interrupted, it is a whole file system of the old size or the new one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustix::io::Errno;

use super::calls::Fs;
use super::core::FsCore;
use super::error::{Error, Result};
use super::extent::Run;
use super::key::{self, FileItem};
use super::record::{NameValue, Record, RecordBody};
use super::relocate::{self, RelocatedRun};
use crate::{Batch, ScanStep, TreeId};

/// Files looked at before their blocks are moved: what is remembered of them is bounded.
const FILES_AT_ONCE: usize = 1 << 14;

/// The least blocks of 4 KiB that the image can have with what is in it.
pub fn least_blocks(fs: &Fs) -> u64 {
    let (shape, usage) = (fs.store().shape(), fs.store().usage());
    shape.least_blocks(usage.blocks - usage.blocks_free)
}

/// Gives the image so many blocks of 4 KiB in all, which the device has, and closes it. `progress` gets blocks that were moved.
///
/// # Errors
/// EBUSY if something is held; ENOSPC if there are more blocks in use than there would be; the store's.
pub fn resize(fs: Fs, blocks: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let least = least_blocks(&fs);
    let core = fs.into_core()?;
    let new = core.store.shape().resized(blocks)?;
    if new.data_blocks < core.store.shape().data_blocks {
        if blocks < least {
            return Err(Errno::NOSPC.into());
        }
        while evacuate(&core, new.data_blocks, progress)? {}
    }
    let lsn = core.store.applied();
    core.store.sync(lsn)?;
    core.store.resize(blocks)?;
    Ok(())
}

impl Fs {
    /// What all calls share, alone.
    fn into_core(self) -> Result<FsCore> {
        self.sync()?;
        let core = Arc::clone(&self.root().core);
        drop(self);
        Arc::into_inner(core).ok_or(Error::Refused(Errno::BUSY))
    }
}

/// Moves blocks of some files that lie behind so many; false: there are none.
fn evacuate(core: &FsCore, data_blocks: u64, progress: &mut dyn FnMut(u64)) -> Result<bool> {
    let files = behind(core, data_blocks)?;
    let mut free = 0;
    for (tree, key) in &files {
        let runs = match record(core, *tree, key)? {
            Some(record) => relocate::all_runs(&core.store, &record)?,
            None => continue,
        };
        for run in runs.iter().filter(|run| is_behind(core, run, data_blocks)) {
            if core.store.free_now() > free {
                core.store.fence(data_blocks);
            }
            free = core.store.free_now();
            move_one(core, *tree, key, run)?;
            progress(u64::from(run.blocks));
            free = free.min(core.store.free_now());
        }
    }
    Ok(!files.is_empty())
}

fn is_behind(core: &FsCore, run: &Run, data_blocks: u64) -> bool {
    let end = core.store.shape().data_start().0 + data_blocks;
    run.extent().end().is_some_and(|run| run.0 > end)
}

/// Where records of files are that have blocks there.
fn behind(core: &FsCore, data_blocks: u64) -> Result<Vec<(TreeId, Vec<u8>)>> {
    let (mut found, mut items, mut wanted) = (Vec::new(), HashMap::new(), 0);
    let has = |record: &Record| matches!(&record.body, RecordBody::Runs(runs) if runs.iter().any(|run| is_behind(core, run, data_blocks)));
    core.store.scan(TreeId::Files, &[], &[0xff; 18], &mut |key, value| {
        match key::file_parts(key) {
            Some((ino, FileItem::Record, _)) => {
                if let Ok(record) = Record::parse(value) {
                    if has(&record) {
                        found.push((TreeId::Files, key.to_vec()));
                    }
                    if record.body == RecordBody::Items {
                        items.insert(ino, true);
                    }
                }
            }
            Some((ino, FileItem::Extent, _)) if Run::parse(value).is_ok_and(|run| is_behind(core, &run, data_blocks)) => {
                // Its record came just before, or is with its name.
                if items.get(&ino) == Some(&true) {
                    found.push((TreeId::Files, key::file(ino, FileItem::Record, 0).to_vec()));
                    items.insert(ino, false);
                } else if let Entry::Vacant(place) = items.entry(ino) {
                    place.insert(false);
                    wanted += 1;
                }
            }
            _ => {}
        }
        if found.len() + wanted < FILES_AT_ONCE { ScanStep::Go } else { ScanStep::Stop }
    })?;
    core.store.scan(TreeId::Names, &[], &[0xff; 16], &mut |key, value| {
        if let Ok(NameValue::Here(record)) = NameValue::parse(value)
            && (has(&record) || record.body == RecordBody::Items && items.get(&record.ino) == Some(&false))
        {
            found.push((TreeId::Names, key.to_vec()));
        }
        if found.len() < 2 * FILES_AT_ONCE { ScanStep::Go } else { ScanStep::Stop }
    })?;
    Ok(found)
}

fn record(core: &FsCore, tree: TreeId, key: &[u8]) -> Result<Option<Record>> {
    core.get(tree, key)?.map(|bytes| Record::parse(&bytes).map_err(Error::malformed(0))).transpose()
}

/// Moves one run of a file.
fn move_one(core: &FsCore, tree: TreeId, key: &[u8], run: &Run) -> Result<()> {
    let Some(record) = record(core, tree, key)? else { return Ok(()) };
    // What was set aside and never written becomes a hole: there may be no row of blocks like it.
    let copy = match &run.sums {
        Some(_) => Some(RelocatedRun::of(core, run, |_| true)?.ok_or(Errno::NOSPC)?),
        None => None,
    };
    let mut batch = Batch::new();
    batch.free_blocks(run.extent());
    relocate::exchange(&mut batch, (tree, key.to_vec(), record), run, copy);
    core.apply(batch).map(drop)
}
