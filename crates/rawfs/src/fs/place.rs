//! Other blocks for what a file has: as repairing and shrinking need it.

use super::core::Core;
use super::error::Result;
use super::extent::{self, Run, pieces};
use super::key::{self, Item};
use super::record::{Body, RUNS_MAX, Record};
use crate::{BLOCK_BYTES, Batch, Extent, Lane, Next, Store, Tree};

/// Where a record is, and what it says.
pub type Place = (Tree, Vec<u8>, Record);

/// Blocks of a run, somewhere else.
pub struct Copy {
    runs: Vec<Run>,
    /// They are what the file wrote; if not, reading them is the error that it was.
    pub right: bool,
}

impl Copy {
    /// Copies the blocks of a run that was written; none if there is no room. `readable`: else nothing is known of them.
    pub fn of(core: &Core, old: &Run, readable: bool) -> Result<Option<Copy>> {
        let Some(sums) = &old.sums else { return Ok(Some(Copy { runs: Vec::new(), right: true })) };
        let mut bytes = vec![0; old.blocks as usize * BLOCK_BYTES];
        if readable {
            for (n, bytes) in (0..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
                match core.store.read_data(&mut [(old.start.after(n), bytes)]) {
                    Ok(()) | Err(crate::Error::Device(block::Error::Media)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let right = bytes.chunks(BLOCK_BYTES).zip(sums).all(|(block, sum)| crc32c::crc32c(block) == *sum);
        let Some(extents) = allocate(core, old.blocks)? else { return Ok(None) };
        let (mut runs, mut done) = (Vec::new(), 0);
        for extent in &extents {
            let from = done * BLOCK_BYTES;
            core.store.disk().write_blocks(Lane::Data, &[(extent.start, &bytes[from..from + extent.blocks as usize * BLOCK_BYTES])])?;
            for (at, piece) in pieces(*extent, old.at + done as u64) {
                let index = (at - old.at) as usize;
                runs.push(Run::written(at, piece.start, sums[index..index + piece.blocks as usize].to_vec()));
            }
            done += extent.blocks as usize;
        }
        if !right {
            // Their sums are not those of the record, so recovery cannot look whether they are there.
            core.store.disk().flush()?;
        }
        Ok(Some(Copy { runs, right }))
    }
}

/// So many blocks, wherever they are; none if there are not enough.
fn allocate(core: &Core, mut blocks: u32) -> Result<Option<Vec<Extent>>> {
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
pub fn exchange(batch: &mut Batch, (tree, key, mut record): Place, old: &Run, copy: Option<Copy>) {
    let (new, right) = copy.map_or((Vec::new(), true), |copy| (copy.runs, copy.right));
    for run in &new {
        batch.use_blocks(run.extent(), if right { run.sums.as_deref().unwrap_or(&[]) } else { &[] });
    }
    record.blocks = record.blocks.saturating_sub(u64::from(old.blocks)) + extent::blocks(&new);
    if let Body::Runs(runs) = &mut record.body {
        runs.retain(|run| run != old);
        runs.extend(new);
        runs.sort_by_key(|run| run.at);
        if runs.iter().map(Run::stored_len).sum::<usize>() > RUNS_MAX {
            runs.iter().for_each(|run| batch.put(Tree::Files, &key::file(record.ino, Item::Extent, run.at), &run.bytes()));
            record.body = Body::Items;
        }
    } else {
        batch.delete(Tree::Files, &key::file(record.ino, Item::Extent, old.at));
        new.iter().for_each(|run| batch.put(Tree::Files, &key::file(record.ino, Item::Extent, run.at), &run.bytes()));
    }
    batch.put(tree, &key, &record.bytes());
}

/// All runs of a file.
pub fn all_runs(store: &Store, record: &Record) -> Result<Vec<Run>> {
    if let Body::Runs(runs) = &record.body {
        return Ok(runs.clone());
    }
    let (from, to) = (key::file(record.ino, Item::Extent, 0), key::file(record.ino, Item::Extent, u64::MAX));
    let mut runs = Vec::new();
    store.scan(Tree::Files, &from, &to, &mut |_, value| {
        runs.extend(Run::parse(value));
        Next::Go
    })?;
    Ok(runs)
}
