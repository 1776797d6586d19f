//! Blocks: each belongs to one file, and lies in the data region.

use super::Repair;
use crate::fs::error::{Error, Result};
use crate::fs::extent::Run;
use crate::fs::key::{self, FileItem};
use crate::fs::record::RecordBody;
use crate::fs::relocate::{self, RecordPlace, RelocatedRun};
use crate::fs::scrub::BadBlocks;
use crate::{BLOCK_BYTES, Batch, Block, Extent, TreeId};

/// What became of blocks that were parted from where they lay.
enum SplitRun {
    /// They are what the file wrote.
    Right,
    /// They are not; reading them is the error that it was.
    Wrong,
    /// There is only room for those that are.
    Holes,
}

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

    /// Blocks of two files: one keeps them, the other gets a copy. The checksums say whose bytes they are.
    pub(super) fn part_shared(&mut self, extent: Extent, files: [u64; 2]) -> Result<Option<String>> {
        let ino = if files[1] == 0 { files[0] } else { files[1] };
        let parted = self.part(ino, extent, files[0] == files[1])?;
        Ok(parted.map(|parted| match parted {
            SplitRun::Right => format!("file {ino} has its own copy"),
            SplitRun::Wrong => format!("file {ino} has its own copy, but the bytes are not what it wrote: reading them is an error"),
            SplitRun::Holes => format!("there is no room for a copy: file {ino} has what it wrote there, and holes for the rest"),
        }))
    }

    /// Blocks of a file that are not its own: outside the data region.
    pub(super) fn part_free(&mut self, extent: Extent, ino: u64) -> Result<Option<String>> {
        let parted = self.part(ino, extent, false)?;
        Ok(parted.map(|parted| match parted {
            SplitRun::Right => "they are given a place".to_owned(),
            SplitRun::Wrong => "they are given a place; reading them is an error".to_owned(),
            SplitRun::Holes => "there is no room for them: the file has holes where they cannot be read".to_owned(),
        }))
    }

    /// Gives a file other blocks for one of its runs there; none if there is no such run, or no room for what can be read.
    fn part(&mut self, ino: u64, extent: Extent, last: bool) -> Result<Option<SplitRun>> {
        let Some(place) = self.place(ino)? else { return Ok(None) };
        let touching =
            |run: &Run| run.start.0 < extent.start.0 + u64::from(extent.blocks) && extent.start.0 < run.start.0 + u64::from(run.blocks);
        let mut runs = relocate::all_runs(&self.core.store, &place.2)?;
        runs.retain(touching);
        let Some(old) = (if last { runs.pop() } else { (!runs.is_empty()).then(|| runs.remove(0)) }) else { return Ok(None) };
        if old.sums.is_none() {
            // Set aside and never written: a hole says the same.
            return self.exchange(place, &old, None).map(|()| Some(SplitRun::Right));
        }
        let in_region = |at: Block| self.core.store.shape().data_range(Extent::new(at, 1)).is_some();
        let (copy, parted) = match RelocatedRun::of(&self.core, &old, in_region)? {
            Some(copy) if copy.right => (copy, SplitRun::Right),
            Some(copy) => (copy, SplitRun::Wrong),
            None => match RelocatedRun::of_right(&self.core, &old, in_region)? {
                Some(copy) => (copy, SplitRun::Holes),
                None => return Ok(None),
            },
        };
        self.exchange(place, &old, Some(copy))?;
        Ok(Some(parted))
    }

    fn exchange(&self, place: RecordPlace, old: &Run, copy: Option<RelocatedRun>) -> Result<()> {
        // The old blocks are not freed: they are somebody else's, or nobody's.
        let mut batch = Batch::new();
        relocate::exchange(&mut batch, place, old, copy);
        self.apply(batch)
    }

    /// What lies on the device is what the file has from now on; false: it has other blocks by now, or they cannot be read.
    pub(super) fn accept(&self, bad: &BadBlocks) -> Result<bool> {
        let Some((tree, key, mut record)) = self.place(bad.ino)? else { return Ok(false) };
        let runs = relocate::all_runs(&self.core.store, &record)?;
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
        if let RecordBody::Runs(runs) = &mut record.body {
            runs.iter_mut().filter(|run| *run == old).for_each(|run| *run = new.clone());
            batch.put(tree, &key, &record.bytes());
        } else {
            batch.put(TreeId::Files, &key::file(record.ino, FileItem::Extent, old.at), &new.bytes());
        }
        self.apply(batch)?;
        Ok(true)
    }
}
