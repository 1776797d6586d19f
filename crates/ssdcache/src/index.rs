//! From a page's name to its slot: open addressing, linear probing, four bytes an entry, sized once.
//!
//! An entry is the slot plus one, and what bits are left over of the hash as a tag: 11 at a million slots, 3 at the most there
//! can be. Zero is empty. The name itself stays where the slot leads. Removal shifts back what would be lost: no tombstones, no
//! rehash. Nine tenths full at most, when every slot has a page; summaries and superseded pages keep it below.

use crate::slots::{Name, Slots};
use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct Index {
    entries: Box<[u32]>,
    slot_bits: u32,
}

/// Entries for so many slots.
pub(crate) fn places(slots: u32) -> usize {
    slots as usize + slots as usize / 9 + 2
}

impl Index {
    pub(crate) fn new(slots: u32) -> Index {
        Index { entries: vec![0; places(slots)].into(), slot_bits: 32 - slots.leading_zeros() }
    }

    fn tag(&self, hash: u64) -> u32 {
        ((hash & u64::from(u32::MAX >> self.slot_bits)) as u32) << self.slot_bits
    }

    fn slot(&self, entry: u32) -> Slot {
        Slot((entry & ((1 << self.slot_bits) - 1)) - 1)
    }

    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.entries.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    fn place(&self, slots: &Slots, name: Name) -> Result<usize, usize> {
        let hash = name.hash();
        let (mut at, tag) = (self.home(hash), self.tag(hash));
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return Err(at);
            }
            if entry >> self.slot_bits << self.slot_bits == tag && slots.name(self.slot(entry)) == Some(name) {
                return Ok(at);
            }
            at = self.next(at);
        }
    }

    pub(crate) fn find(&self, slots: &Slots, name: Name) -> Option<Slot> {
        self.place(slots, name).ok().map(|at| self.slot(self.entries[at]))
    }

    /// The page is in this slot from now on; where it was before. Both slots bear its name.
    pub(crate) fn put(&mut self, slots: &Slots, name: Name, slot: Slot) -> Option<Slot> {
        let (at, old) = match self.place(slots, name) {
            Ok(at) => (at, Some(self.slot(self.entries[at]))),
            Err(at) => (at, None),
        };
        self.entries[at] = self.tag(name.hash()) | (slot.0 + 1);
        old
    }

    /// Takes a page out; its slot still bears its name.
    pub(crate) fn remove(&mut self, slots: &Slots, name: Name) -> Option<Slot> {
        let mut hole = self.place(slots, name).ok()?;
        let slot = self.slot(self.entries[hole]);
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.entries[at];
            if entry == 0 {
                break;
            }
            // It may move into the hole unless its home lies behind the hole.
            let home = slots.name(self.slot(entry)).map_or(at, |name| self.home(name.hash()));
            if self.distance(home, at) >= self.distance(hole, at) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = 0;
        Some(slot)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries.len() - from }
    }
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use super::*;
    use crate::units::PageIndex;

    #[test]
    fn finds_what_a_map_finds() {
        let mut rng = fastrand::Rng::with_seed(4);
        for slots in [9_u32, 60] {
            let (mut index, mut books, mut model) = (Index::new(slots), Slots::new(slots), BTreeMap::new());
            let mut free: Vec<u32> = (0..slots).collect();
            for _ in 0..20_000 {
                let page = rng.u64(..u64::from(slots));
                let name = Name::new(rng.u32(..2), PageIndex(page));
                let key = (name.file(), page);
                if rng.bool()
                    && let Some(slot) = free.pop()
                {
                    books.set(Slot(slot), name, false, 0, 0);
                    let old = index.put(&books, name, Slot(slot));
                    assert_eq!(old.map(|old| old.0), model.insert(key, slot));
                    old.inspect(|old| free.push(old.0)).inspect(|old| books.clear(*old));
                } else {
                    let old = index.remove(&books, name);
                    assert_eq!(old.map(|old| old.0), model.remove(&key));
                    old.inspect(|old| free.push(old.0)).inspect(|old| books.clear(*old));
                }
                for ((file, page), slot) in &model {
                    assert_eq!(index.find(&books, Name::new(*file, PageIndex(*page))), Some(Slot(*slot)));
                }
            }
        }
    }
}
