//! The index of a shard, for the holder of its lock: open addressing, linear probing, at most half full.
//!
//! An entry of four bytes is a piece of the hash and the number of a frame; zero is empty. Removal leaves no tombstone: later entries
//! move up. The gate is closed meanwhile, since a reader may miss an entry that moves.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::name_hash::HashedName;
use super::probe::step;
use super::shard::Shard;

impl Shard<'_> {
    fn table(&self) -> &[AtomicU32] {
        let places = self.pages.plan.places;
        &self.pages.index[self.no * places..(self.no + 1) * places]
    }

    fn put(&self, place: usize, entry: u32) {
        step();
        self.table()[place].store(entry, Release);
    }

    /// Adds a frame to the index. Lookups find it from now on.
    pub fn index_insert(&self, key: &HashedName, local: u32) {
        let (table, mask) = (self.table(), self.pages.plan.places - 1);
        let home = self.pages.home(key);
        match (0..=mask).map(|step| (home + step) & mask).find(|&place| table[place].load(Relaxed) == 0) {
            Some(place) => self.put(place, key.tag() << 16 | local),
            None => self.torn.set(true),
        }
    }

    /// Removes a frame from the index.
    pub fn index_remove(&self, key: &HashedName, local: u32) {
        let (table, mask) = (self.table(), self.pages.plan.places - 1);
        let (home, wanted) = (self.pages.home(key), key.tag() << 16 | local);
        let mut run = (0..=mask).map(|step| (home + step) & mask).take_while(|&place| table[place].load(Relaxed) != 0);
        let Some(hole) = run.find(|&place| table[place].load(Relaxed) == wanted) else {
            self.torn.set(true);
            return;
        };
        if table[(hole + 1) & mask].load(Relaxed) == 0 {
            self.put(hole, 0);
        } else {
            self.close_gate();
            self.move_up(hole);
            self.open_gate();
        }
    }

    /// Fills a hole with a later entry, and then that entry's hole, to the end of the run.
    fn move_up(&self, mut hole: usize) {
        let (table, mask) = (self.table(), self.pages.plan.places - 1);
        let mut place = hole;
        for _ in 0..=mask {
            place = (place + 1) & mask;
            let entry = table[place].load(Relaxed);
            if entry == 0 {
                break;
            }
            let local = entry & 0xffff;
            if local >= self.pages.plan.frames {
                self.torn.set(true);
                break;
            }
            let home = self.pages.home(&self.pages.key_of_word(self.pages.name_at(self.global(local))));
            // The entry may move into the hole unless its home is behind the hole.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.put(hole, entry);
                hole = place;
            }
        }
        self.put(hole, 0);
    }

    /// Clears all entries of the index.
    pub fn index_clear(&self) {
        for place in self.table() {
            if place.load(Relaxed) != 0 {
                place.store(0, Relaxed);
            }
        }
    }
}
