//! Reclaiming space: collects dirty pages to write back and hot pages to put again, and frees the oldest segment.

use crate::cache::{CacheError, PutResult, SsdCache, WritePurpose};
use crate::slots::PageName;
use crate::units::{FileKey, Item, Page, PageIndex, SsdSlot};

/// The pages that a collection covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectScope {
    /// Pages of this number of oldest segments, which have to be clean before they are reclaimed.
    Oldest(u32),
    /// Pages of one file.
    File(FileKey),
    /// Pages of all files.
    All,
}

/// Splits sorted pages into runs of adjacent pages.
pub fn runs(items: &[Item]) -> impl Iterator<Item = &[Item]> {
    items.chunk_by(|a, b| a.key == b.key && a.page.0 + 1 == b.page.0)
}

impl SsdCache {
    /// Collects the first `most` dirty pages by file and page, for the migration worker. Only durable pages are collected: one that was
    /// just put follows after the next flush. The cache's own pages are collected only if `scope` names their file.
    pub fn collect_dirty(&self, scope: CollectScope, most: usize, found: &mut Vec<Item>) {
        found.clear();
        self.gather(scope, most, found, |_| true);
    }

    /// Collects the next `most` dirty pages after a page, by file and page, and continues at the first one. For write-back in one
    /// direction: adjacent pages come together, see [`runs`]. The larger `most`, the longer the runs; the call scans all slots.
    pub fn collect_sweep(&self, after: (FileKey, PageIndex), most: usize, found: &mut Vec<Item>) {
        found.clear();
        self.gather(CollectScope::All, most, found, |item| (item.key, item.page) > after);
        let mut rest = Vec::new();
        if found.len() < most {
            self.gather(CollectScope::All, most - found.len(), &mut rest, |item| (item.key, item.page) <= after);
        }
        found.append(&mut rest);
    }

    /// Collects the first wanted pages, sorted, in an empty list.
    fn gather(&self, scope: CollectScope, most: usize, found: &mut Vec<Item>, wanted: impl Fn(&Item) -> bool) {
        let number = match scope {
            CollectScope::File(key) => match self.files.find(key) {
                Some(number) if self.files.get(number).dirty() > 0 => Some(number),
                _ => return,
            },
            _ => None,
        };
        let own = self.files.find(FileKey::OWN).filter(|_| number.is_none());
        let segments = self.segments.len() as u64;
        let seqs = match scope {
            CollectScope::Oldest(count) => self.superblock.tail..self.superblock.tail + u64::from(count).min(segments),
            _ => 0..u64::MAX,
        };
        for (place, _) in self.segments.iter().enumerate().filter(|(_, one)| one.dirty > 0 && seqs.contains(&one.seq)) {
            for slot in self.slots_of(place).filter(|slot| self.shared.is_dirty(*slot)) {
                let in_file = |name: PageName| number.is_none_or(|number| name.file() == number) && own != Some(name.file());
                if !self.shared.name(slot).is_some_and(in_file) || !self.is_durable(slot) {
                    continue;
                }
                found.extend(self.item(slot).filter(&wanted));
                if found.len() >= most.saturating_mul(2).max(64) {
                    found.select_nth_unstable(most);
                    found.truncate(most);
                }
            }
        }
        found.sort_unstable();
        found.truncate(most);
    }

    /// Collects the clean pages of a file in a range, sorted. It scans all slots.
    pub fn collect_clean(&self, key: FileKey, pages: std::ops::Range<u64>, found: &mut Vec<Item>) {
        found.clear();
        let Some(number) = self.files.find(key) else { return };
        let is_wanted = |slot: &SsdSlot| {
            let name = self.shared.name(*slot).filter(|name| name.file() == number);
            name.is_some_and(|name| pages.contains(&name.page().0)) && !self.shared.is_dirty(*slot)
        };
        let slots = (0..self.segments.len()).flat_map(|place| self.slots_of(place)).filter(is_wanted);
        found.extend(slots.filter_map(|slot| self.item(slot)));
        found.sort_unstable();
    }

    /// Collects the dirty pages of file key 0 in the segment that is reclaimed next. They are never written back: put them again with
    /// [`SsdCache::reinsert`], which keeps them dirty.
    pub fn collect_own(&self, found: &mut Vec<Item>) {
        found.clear();
        let Some(number) = self.files.find(FileKey::OWN).filter(|_| self.is_full()) else { return };
        let own = |slot: &SsdSlot| self.shared.name(*slot).is_some_and(|name| name.file() == number) && self.shared.is_dirty(*slot);
        let slots = self.slots_of(self.place_of(self.superblock.tail)).filter(own);
        found.extend(slots.filter_map(|slot| self.item(slot)));
    }

    /// Records that the bytes of the item are durable in the backing file. Seal after each 126 calls: an unrecorded page is written back
    /// again after a crash ([`crate::CacheStats::unmarked`]). Returns false if there is a newer version, which is still dirty.
    pub fn written_back(&mut self, item: &Item) -> bool {
        if !self.is_current(item) || !self.shared.is_dirty(item.slot) {
            return false;
        }
        if self.note(item.key, item.page.0, 1, false).is_err() {
            self.stats.unmarked += 1;
        }
        let segment = self.place(item.slot).0;
        self.segments[segment].dirty = self.segments[segment].dirty.saturating_sub(1);
        if let Some(name) = self.shared.name(item.slot) {
            self.files.cleaned(name.file());
        }
        self.shared.cleaned(item.slot);
        true
    }

    /// Collects pages with hits in the segment that is reclaimed next: at most `most`, and at most seven eighths of the segment, so that
    /// re-insertion alone cannot keep the cache busy.
    pub fn collect_hot(&self, most: usize, found: &mut Vec<Item>) {
        found.clear();
        let place = self.place_of(self.superblock.tail);
        if self.segments[place].seq != self.superblock.tail || !self.is_full() {
            return;
        }
        let most = most.min(self.superblock.shape.segment_pages as usize * 7 / 8);
        for least in [3, 2, 1] {
            let hot = self.slots_of(place).filter(|slot| self.shared.hits(*slot) == least && !self.shared.is_dirty(*slot));
            found.extend(hot.filter_map(|slot| self.item(slot)).take(most - found.len()));
        }
    }

    /// Puts a hot page again, with one hit less, or one of the cache's own pages, dirty as before. The caller has read the bytes from
    /// its place and verified them.
    ///
    /// # Errors
    /// `Changed`: there is nothing to do. `Dirty`: the page has to be written back. For the others see [`CacheError`].
    pub fn reinsert(&mut self, item: &Item, bytes: &Page) -> Result<PutResult, CacheError> {
        if !self.is_current(item) {
            return Err(CacheError::Changed);
        }
        let dirty = self.shared.is_dirty(item.slot);
        if dirty && item.key != FileKey::OWN {
            return Err(CacheError::Dirty);
        }
        let hits = self.shared.hits(item.slot).saturating_sub(1);
        let place = if dirty { WritePurpose::Spare } else { WritePurpose::Any };
        let put = self.place_page(item.key, item.page, dirty, hits, bytes, place)?;
        self.stats.reinserted += 1;
        Ok(put)
    }

    /// Reports whether a segment has to be reclaimed before the next one starts: best done before this one is full.
    pub fn is_full(&self) -> bool {
        self.free_after(self.head.seq) <= 1
    }

    /// Frees the oldest segment if the next one needs its place; returns the number of evicted pages.
    ///
    /// # Errors
    /// `Dirty`: some of its pages have to be written back first, or put again if they are the cache's own. `Seal`, `Flush`: the newer
    /// versions of its dirty pages are not durable yet. `Superblock`, `Failed`: see [`CacheError`].
    pub fn reclaim(&mut self) -> Result<u32, CacheError> {
        if !self.is_open {
            return Err(CacheError::Superblock);
        }
        if !self.is_full() {
            return Ok(0);
        }
        let place = self.place_of(self.superblock.tail);
        let mut segment = self.segments[place];
        if segment.dirty > 0 {
            // Others can write to the map: what counts is what is there.
            segment.dirty = self.slots_of(place).filter(|slot| self.shared.is_dirty(*slot)).count() as u32;
            self.segments[place].dirty = segment.dirty;
        }
        if segment.dirty > 0 {
            return Err(CacheError::Dirty);
        }
        if segment.replaced > self.durable {
            return Err(self.not_durable());
        }
        if segment.live > 0 {
            self.slots_of(place).for_each(|slot| self.unmap(slot));
        }
        self.superblock.tail += 1;
        self.stats.evicted += u64::from(segment.live);
        Ok(segment.live)
    }

    fn not_durable(&self) -> CacheError {
        match self.head.failed {
            Some(_) => CacheError::Failed,
            None if self.head.entries.is_empty() || self.head.tracks.len() >= crate::batch::TRACKS => CacheError::Flush,
            None => CacheError::Seal,
        }
    }

    fn is_durable(&self, slot: SsdSlot) -> bool {
        let (place, position) = self.place(slot);
        place != self.place_of(self.head.seq) || position < self.head.durable_end()
    }

    pub(crate) fn slots_of(&self, place: usize) -> impl Iterator<Item = SsdSlot> + use<> {
        let pages = self.superblock.shape.segment_pages;
        (place as u32 * pages..(place as u32 + 1) * pages).map(SsdSlot)
    }
}
