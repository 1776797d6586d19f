//! Checks the consistency of the metadata.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::list::{FREE, MAIN, ORPHANS, SMALL};
use super::record::Frame;
use super::shard::Shard;
use super::{DamagedError, SharedPages};

impl SharedPages {
    /// Checks every frame for consistent metadata; other processes may be active meanwhile.
    ///
    /// # Errors
    /// The inconsistency. A process wrote to memory that is not its own, or the cache has a bug.
    pub fn check(&self) -> Result<(), DamagedError> {
        (0..self.plan.shards).try_for_each(|no| {
            let shard = self.lock(no).ok_or(DamagedError("a shard is kept locked"))?;
            let (lists, index) = (shard.check_lists(), shard.check_index());
            lists.and(index).and((0..self.plan.frames).try_for_each(|local| shard.check_frame(local)))
        })
    }
}

impl Shard<'_> {
    /// Checks that each frame is in one list, that of its queue, and in no other.
    fn check_lists(&self) -> Result<(), DamagedError> {
        let mut seen = vec![false; self.records.len()];
        for list in [FREE, SMALL, MAIN, ORPHANS] {
            let (mut next, mut count) = (self.first(list), 0);
            while let Some(local) = next {
                if std::mem::replace(&mut seen[local as usize], true) {
                    return Err(DamagedError("a frame is listed twice"));
                }
                if self.queue(local) != list {
                    return Err(DamagedError("a frame is in another list than it says"));
                }
                (next, count) = (self.after(local), count + 1);
            }
            if count != self.len(list) {
                return Err(DamagedError("a list has another length than it says"));
            }
        }
        if seen.contains(&false) { Err(DamagedError("a frame is in no list")) } else { Ok(()) }
    }

    /// Checks that every page is in the index, and nothing else.
    fn check_index(&self) -> Result<(), DamagedError> {
        let places = self.pages.plan.places;
        let table = &self.pages.index[self.no * places..(self.no + 1) * places];
        let entries = table.iter().filter(|entry| entry.load(Relaxed) != 0).count();
        if entries == (self.len(SMALL) + self.len(MAIN)) as usize { Ok(()) } else { Err(DamagedError("the index has too many entries")) }
    }

    fn check_frame(&self, local: u32) -> Result<(), DamagedError> {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let (word, queue) = (record.word(), self.queue(local));
        if word.is_named() != matches!(queue, SMALL | MAIN) {
            return Err(DamagedError("a frame without a page is among the pages, or the other way around"));
        }
        if word.is_named() && self.pages.probe(&self.pages.key_of_word(self.pages.name_at(at))).map(|found| found.0) != Some(at) {
            return Err(DamagedError("a page is not in the index"));
        }
        let bit = self.pages.bitmap[self.no * self.pages.plan.bitmap + local as usize / 64].load(SeqCst) >> (local % 64) & 1 != 0;
        if !word.is_changing() && record.word() == word && bit == word.marks().is_none() {
            return Err(DamagedError("a mark is not in the bitmap"));
        }
        Ok(())
    }
}
