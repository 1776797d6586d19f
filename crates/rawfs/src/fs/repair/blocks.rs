//! Blocks: each belongs to one file, and lies in the data region.

use super::Repair;
use crate::fs::error::{Error, Result};
use crate::fs::extent::Run;
use crate::fs::key::{self, Item};
use crate::fs::place::{self, Copy, Place};
use crate::fs::record::Body;
use crate::fs::scrub::Bad;
use crate::{BLOCK_BYTES, Batch, Extent, Tree};

impl Repair {
    /// Blocks that nobody has are free.
    pub(super) fn free_leaked(&mut self, extent: Extent) -> Result<Option<String>> {
        let mut batch = Batch::new();
        batch.free_blocks(extent);
        match self.core.apply(batch) {
            Ok(_) => Ok(Some("they are free".to_owned())),
            Err(Error::Store(crate::Error::Blocks(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Blocks of two files: one keeps them, the other gets a copy. Whose bytes they are is for the sums to say.
    pub(super) fn part_shared(&mut self, extent: Extent, files: [u64; 2]) -> Result<Option<String>> {
        let ino = if files[1] == 0 { files[0] } else { files[1] };
        let copied = self.part(ino, extent, files[0] == files[1])?;
        Ok(copied.map(|right| match right {
            true => format!("file {ino} has a copy of its own"),
            false => format!("file {ino} has a copy of its own, but the bytes are not what it wrote: reading them is an error"),
        }))
    }

    /// Blocks of a file that are not its own: outside the data region.
    pub(super) fn part_free(&mut self, extent: Extent, ino: u64) -> Result<Option<String>> {
        let parted = self.part(ino, extent, false)?;
        Ok(parted.map(|right| if right { "they are given a place" } else { "they are given a place; reading them is an error" }.to_owned()))
    }

    /// Gives a file other blocks for one of its runs there; `Some(true)`: they have what the file wrote.
    fn part(&mut self, ino: u64, extent: Extent, last: bool) -> Result<Option<bool>> {
        let Some(place) = self.place(ino)? else { return Ok(None) };
        let touching =
            |run: &Run| run.start.0 < extent.start.0 + u64::from(extent.blocks) && extent.start.0 < run.start.0 + u64::from(run.blocks);
        let mut runs = place::all_runs(&self.core.store, &place.2)?;
        runs.retain(touching);
        let Some(old) = (if last { runs.pop() } else { (!runs.is_empty()).then(|| runs.remove(0)) }) else { return Ok(None) };
        if old.sums.is_none() {
            // Set aside and never written: a hole says the same.
            return self.exchange(place, &old, None).map(|()| Some(true));
        }
        let in_region = self.core.store.shape().data_range(old.extent()).is_some();
        let Some(copy) = Copy::of(&self.core, &old, in_region)? else { return Ok(None) };
        let right = copy.right;
        self.exchange(place, &old, Some(copy)).map(|()| Some(right))
    }

    fn exchange(&self, place: Place, old: &Run, copy: Option<Copy>) -> Result<()> {
        // The old blocks are not freed: they are somebody else's, or nobody's.
        let mut batch = Batch::new();
        place::exchange(&mut batch, place, old, copy);
        self.apply(batch)
    }

    /// What lies on the device is what the file has from now on; false: it has other blocks by now, or they cannot be read.
    pub(super) fn accept(&self, bad: &Bad) -> Result<bool> {
        let Some((tree, key, mut record)) = self.place(bad.ino)? else { return Ok(false) };
        let runs = place::all_runs(&self.core.store, &record)?;
        let within = |run: &&Run| run.find(bad.at).is_some_and(|(place, _)| place == bad.start) && run.end() >= bad.at + bad.blocks;
        let Some(old) = runs.iter().find(within).filter(|_| !bad.unreadable) else { return Ok(false) };
        let mut new = old.clone();
        let mut block = vec![0; BLOCK_BYTES];
        for at in bad.at..bad.at + bad.blocks {
            self.core.store.read_data(&mut [(bad.start.after(at - bad.at), &mut block)])?;
            if let Some(sums) = &mut new.sums {
                sums[(at - old.at) as usize] = crc32c::crc32c(&block);
            }
        }
        let mut batch = Batch::new();
        if let Body::Runs(runs) = &mut record.body {
            runs.iter_mut().filter(|run| *run == old).for_each(|run| *run = new.clone());
            batch.put(tree, &key, &record.bytes());
        } else {
            batch.put(Tree::Files, &key::file(record.ino, Item::Extent, old.at), &new.bytes());
        }
        self.apply(batch)?;
        Ok(true)
    }
}
