//! The index from a page's name to its slot: open addressing, linear probing, four bytes an entry, fixed size.
//!
//! An entry is the slot plus one, and the remaining bits of the hash as a tag: 11 at a million slots, 3 at the maximum. Zero is empty. The
//! name itself is in the slot. Removal shifts entries back: there are no tombstones and no rehash. It is at most nine tenths full, when
//! every slot has a page; summaries and superseded pages keep it below that.

use std::sync::atomic::Ordering;

use crate::shared::{SharedMap, pause};
use crate::slots::PageName;
use crate::units::SsdSlot;

/// Maximum number of entries that are prefetched for a search: in a full map one search in fifteen is longer.
const PREFETCHED: usize = 16;
/// Most searches read no more entries than this, which may be in two cache lines.
const NEAR: usize = 8;

/// A name and its hash, computed once by callers that look up the same page again.
#[derive(Clone, Copy, Debug)]
pub struct LookupKey {
    name: PageName,
    hash: u64,
}

impl LookupKey {
    #[inline]
    pub(crate) fn new(name: PageName) -> LookupKey {
        LookupKey { name, hash: name.hash() }
    }

    #[inline]
    pub(crate) fn name(&self) -> PageName {
        self.name
    }
}

impl SharedMap {
    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        ((hash & u64::from(u32::MAX >> self.slot_bits())) as u32) << self.slot_bits()
    }

    /// Returns the slot of a nonzero entry, or none if it is invalid.
    #[inline]
    fn slot_of(&self, entry: u32) -> Option<SsdSlot> {
        let slot = (entry & ((1 << self.slot_bits()) - 1)).wrapping_sub(1);
        (slot < self.slots()).then_some(SsdSlot(slot))
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.entries() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries() { 0 } else { at + 1 }
    }

    /// Returns the position and slot of its entry, or the position for a new one.
    fn place(&self, name: PageName) -> Result<(usize, SsdSlot), usize> {
        self.search(&LookupKey::new(name)).map(|(at, slot, _)| (at, slot))
    }

    /// Returns the same, with the slot's word that had the name.
    #[inline]
    fn search(&self, &LookupKey { name, hash }: &LookupKey) -> Result<(usize, SsdSlot, u64), usize> {
        let (mut at, tag) = (self.home(hash), self.tag(hash));
        pause();
        let mut entry = self.entry(at).load(Ordering::Acquire);
        // Others may look while it changes, and a damaged one may have no hole: never longer than once round.
        for _ in 0..self.entries() {
            if entry == 0 {
                return Err(at);
            }
            if entry >> self.slot_bits() << self.slot_bits() == tag
                && let Some(slot) = self.slot_of(entry)
            {
                pause();
                // Both come at the same time: it is most likely this one.
                self.prefetch_checksum(slot);
                let word = self.load(slot);
                if name.is_in(word) {
                    return Ok((at, slot, word));
                }
                // The page may have got another slot just now: that is entered before the old slot is emptied.
                let again = self.entry(at).load(Ordering::Acquire);
                if again != entry {
                    entry = again;
                    continue;
                }
            }
            at = self.next(at);
            pause();
            entry = self.entry(at).load(Ordering::Acquire);
        }
        Err(at)
    }

    /// Prefetches the start of the search for it.
    #[inline]
    pub(crate) fn prefetch(&self, sought: &LookupKey) {
        let home = self.home(sought.hash);
        self.prefetch_entry(home);
        self.prefetch_entry((home + NEAR).min(self.entries() - 1));
    }

    /// Prefetches the slot that the search for it reads. Call `prefetch` some time before.
    #[inline]
    pub(crate) fn prefetch_found(&self, &LookupKey { hash, .. }: &LookupKey) {
        let (mut at, tag) = (self.home(hash), self.tag(hash));
        for _ in 0..PREFETCHED {
            let entry = self.entry(at).load(Ordering::Relaxed);
            if entry == 0 {
                return;
            }
            if entry >> self.slot_bits() << self.slot_bits() == tag
                && let Some(slot) = self.slot_of(entry)
            {
                return self.prefetch_held(slot);
            }
            at = self.next(at);
        }
    }

    /// Returns the slot, and its word that had the name.
    #[inline]
    pub(crate) fn find_word(&self, sought: &LookupKey) -> Option<(SsdSlot, u64)> {
        self.search(sought).ok().map(|(_, slot, word)| (slot, word))
    }

    pub(crate) fn find(&self, name: PageName) -> Option<SsdSlot> {
        self.place(name).ok().map(|(_, slot)| slot)
    }

    /// Maps the page to this slot and returns its old slot. Both slots have its name.
    pub(crate) fn enter(&self, name: PageName, slot: SsdSlot) -> Option<SsdSlot> {
        let (at, old) = match self.place(name) {
            Ok((at, old)) => (at, Some(old)),
            Err(at) => (at, None),
        };
        self.store_entry(at, self.tag(name.hash()) | (slot.0 + 1));
        old
    }

    /// Removes a page; its slot still has its name.
    pub(crate) fn remove(&self, name: PageName) -> Option<SsdSlot> {
        let (mut hole, slot) = self.place(name).ok()?;
        let mut at = hole;
        for _ in 0..self.entries() {
            at = self.next(at);
            let entry = self.entry(at).load(Ordering::Relaxed);
            if entry == 0 {
                break;
            }
            // It may move into the hole unless its home lies behind the hole.
            let home = self.slot_of(entry).and_then(|slot| self.name(slot)).map_or(at, |name| self.home(name.hash()));
            if self.distance(home, at) >= self.distance(hole, at) {
                self.overwrite(hole, entry);
                hole = at;
            }
        }
        self.overwrite(hole, 0);
        Some(slot)
    }

    fn overwrite(&self, at: usize, entry: u32) {
        self.count_up();
        self.store_entry(at, entry);
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries() - from }
    }
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use super::*;
    use crate::superblock::Shape;
    use crate::units::PageIndex;

    #[test]
    fn finds_what_a_map_finds() {
        let mut rng = fastrand::Rng::with_seed(4);
        for segments in [1_u32, 7] {
            let (map, mut model) = (SharedMap::private(Shape { segment_pages: 9, segments }).expect("memory"), BTreeMap::new());
            let slots = map.slots();
            let mut free: Vec<u32> = (0..slots).collect();
            for _ in 0..20_000 {
                let page = rng.u64(..u64::from(slots));
                let name = PageName::new(rng.u32(..2), PageIndex(page));
                let key = (name.file(), page);
                if rng.bool()
                    && let Some(slot) = free.pop()
                {
                    map.set(SsdSlot(slot), name, false, 0, 0);
                    let old = map.enter(name, SsdSlot(slot));
                    assert_eq!(old.map(|old| old.0), model.insert(key, slot));
                    old.inspect(|old| free.push(old.0)).inspect(|old| map.clear(*old));
                } else {
                    let old = map.remove(name);
                    assert_eq!(old.map(|old| old.0), model.remove(&key));
                    old.inspect(|old| free.push(old.0)).inspect(|old| map.clear(*old));
                }
                for ((file, page), slot) in &model {
                    assert_eq!(map.find(PageName::new(*file, PageIndex(*page))), Some(SsdSlot(*slot)));
                }
            }
        }
    }
}
