//! Making room: dirty pages in the order to write them back, hot ones to put again, and the oldest segment's end.

use crate::cache::{Put, Refused, SsdCache};
use crate::units::{FileKey, Item, Page, Slot};

/// Which pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Of so many segments, the oldest first: what has to be clean before they are reclaimed.
    Oldest(u32),
    /// Of a file.
    File(FileKey),
    /// All.
    All,
}

impl SsdCache {
    /// The first dirty pages by file and page, at most so many, for the migration worker. Only durable ones: a page that was
    /// put just now comes after the next flush.
    pub fn collect_dirty(&self, scope: Scope, most: usize, found: &mut Vec<Item>) {
        found.clear();
        let number = match scope {
            Scope::File(key) => match self.files.find(key) {
                Some(number) if self.files.get(number).dirty > 0 => Some(number),
                _ => return,
            },
            _ => None,
        };
        let segments = self.segments.len() as u64;
        let seqs = match scope {
            Scope::Oldest(count) => self.superblock.tail..self.superblock.tail + u64::from(count).min(segments),
            _ => 0..u64::MAX,
        };
        for (place, segment) in self.segments.iter().enumerate() {
            if segment.dirty == 0 || !seqs.contains(&segment.seq) {
                continue;
            }
            for slot in self.slots_of(place) {
                let wanted = |name: &crate::slots::Name| number.is_none_or(|number| name.file() == number);
                if !self.slots.is_dirty(slot) || !self.slots.name(slot).as_ref().is_some_and(wanted) || !self.is_durable(slot) {
                    continue;
                }
                found.extend(self.item(slot));
                if found.len() >= most.saturating_mul(2).max(64) {
                    found.sort_unstable();
                    found.truncate(most);
                }
            }
        }
        found.sort_unstable();
        found.truncate(most);
    }

    /// These bytes are below, and durable there. Seal after each 126, or their marks find no room, and after a crash they are
    /// written back again ([`crate::Stats::unmarked`]). False: there is a newer version meanwhile, which is still dirty.
    pub fn written_back(&mut self, item: &Item) -> bool {
        if !self.is_current(item) || !self.slots.is_dirty(item.slot) {
            return false;
        }
        if self.note(item.key, item.page.0, 1, false).is_err() {
            self.stats.unmarked += 1;
        }
        let segment = self.place(item.slot).0;
        self.segments[segment].dirty -= 1;
        if let Some(name) = self.slots.name(item.slot) {
            self.files.cleaned(name.file());
        }
        self.slots.cleaned(item.slot);
        true
    }

    /// Pages of the segment that is reclaimed next that were asked for while here: at most so many, and at most a quarter of the
    /// segment, so that the cache cannot be busy with itself.
    pub fn collect_hot(&self, most: usize, found: &mut Vec<Item>) {
        found.clear();
        let place = self.place_of(self.superblock.tail);
        if self.segments[place].seq != self.superblock.tail || !self.is_full() {
            return;
        }
        let most = most.min(self.superblock.shape.segment_pages as usize / 4);
        for least in [3, 2, 1] {
            let hot = self.slots_of(place).filter(|slot| self.slots.hits(*slot) == least && !self.slots.is_dirty(*slot));
            found.extend(hot.filter_map(|slot| self.item(slot)).take(most - found.len()));
        }
    }

    /// Puts a hot page again, with one hit less. The bytes were read from its place and verified.
    ///
    /// # Errors
    /// `Changed`: nothing is to be done. `Dirty`: it has to be written back. The others as [`Refused`] says.
    pub fn reinsert(&mut self, item: &Item, bytes: &Page) -> Result<Put, Refused> {
        if !self.is_current(item) {
            return Err(Refused::Changed);
        }
        if self.slots.is_dirty(item.slot) {
            return Err(Refused::Dirty);
        }
        let hits = self.slots.hits(item.slot).saturating_sub(1);
        let put = self.place_page(item.key, item.page, false, hits, bytes)?;
        self.stats.reinserted += 1;
        Ok(put)
    }

    /// Whether the segment after this one still has to be reclaimed: best done before this one is full.
    pub fn is_full(&self) -> bool {
        self.superblock.tail + self.segments.len() as u64 <= self.head.seq + 1
    }

    /// Gives up the oldest segment, if the next one needs its place; how many pages went with it.
    ///
    /// # Errors
    /// `Dirty`: some of its pages have to be written back first.
    pub fn reclaim(&mut self) -> Result<u32, Refused> {
        if !self.is_full() {
            return Ok(0);
        }
        let place = self.place_of(self.superblock.tail);
        let segment = self.segments[place];
        if segment.dirty > 0 {
            return Err(Refused::Dirty);
        }
        if segment.live > 0 {
            self.slots_of(place).for_each(|slot| self.unmap(slot));
        }
        self.superblock.tail += 1;
        self.stats.evicted += u64::from(segment.live);
        Ok(segment.live)
    }

    fn is_durable(&self, slot: Slot) -> bool {
        let (place, position) = self.place(slot);
        place != self.place_of(self.head.seq) || position < self.head.durable_end()
    }

    pub(crate) fn slots_of(&self, place: usize) -> impl Iterator<Item = Slot> + use<> {
        let pages = self.superblock.shape.segment_pages;
        (place as u32 * pages..(place as u32 + 1) * pages).map(Slot)
    }
}
