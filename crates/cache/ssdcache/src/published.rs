//! The metadata of a failing SSD, from what the last leader published of it.
//!
//! The map in the segment says which pages only the SSD had, exactly; the device may not say anything any more, or what it said
//! before. So nothing is recovered then: the metadata comes from the map, and can look up, verify and forget, but take nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shm::Region;

use crate::cache::SsdCache;
use crate::open_error::CacheOpenError;
use crate::shared::SharedMap;
use crate::slots::PageName;
use crate::superblock::Superblock;
use crate::units::{FileKey, Item, PageIndex, SsdSlot};

impl SsdCache {
    /// Builds the metadata from the published map. `held`: as for [`crate::recover`]. Pages of other files are unknown; the second
    /// value is the number of dirty pages among them.
    ///
    /// # Errors
    /// `Segment`: no complete map was published.
    pub fn of_published(
        region: &Arc<Region>,
        at: usize,
        files_max: u32,
        held: &[(FileKey, u32)],
    ) -> Result<(SsdCache, u64), CacheOpenError> {
        let shared = SharedMap::attach(region, at, region.len().saturating_sub(at))?;
        if !shared.is_still(shared.gate()) {
            return Err(CacheOpenError::Segment);
        }
        let (head, written) = shared.head();
        let shape = shared.shape();
        let segments = u64::from(shape.segments);
        let seqs: Vec<u64> = (0..shape.segments as usize).map(|place| shared.seq(place).load(Ordering::Acquire)).collect();
        let place = seqs.iter().position(|seq| *seq == head).unwrap_or(0) as u64;
        let superblock = Superblock { rotation: (place + segments - head % segments) % segments, ..Superblock::new([0; 16], shape) };
        let mut cache = SsdCache::empty(superblock, files_max, held)?;
        (cache.shared, cache.head.seq, cache.head.start) = (shared, head, written);
        for (segment, seq) in cache.segments.iter_mut().zip(seqs) {
            segment.seq = seq;
        }
        let unknown = cache.count_published();
        Ok((cache, unknown))
    }

    /// Copies the map into the metadata; what the last leader had put and not written is in a frame, and is left out.
    fn count_published(&mut self) -> u64 {
        let own = self.shared.own();
        let mut unknown = 0;
        for slot in (0..self.shape().slots()).map(SsdSlot) {
            let Some(name) = self.shared.name(slot) else { continue };
            let (place, position) = self.place(slot);
            let is_written = self.segments[place].seq != self.head.seq || position < self.head.start;
            if self.shared.find(name) != Some(slot) || (!is_written && self.files.key(name.file()).is_some()) {
                // Twice in it, by a leader who died; or never on the device.
                if self.shared.find(name) == Some(slot) {
                    self.shared.remove(name);
                }
                self.shared.clear(slot);
                continue;
            }
            let dirty = self.shared.is_dirty(slot);
            if self.files.key(name.file()).is_none() {
                unknown += u64::from(dirty && is_written && Some(name.file()) != own);
                continue;
            }
            self.segments[place].live += 1;
            self.segments[place].dirty += u32::from(dirty);
            self.files.came(name.file(), dirty);
        }
        unknown
    }

    /// Files with dirty pages, without the cache's own.
    pub fn dirty_files(&self) -> Vec<FileKey> {
        let is_dirty = |number: &u32| self.files.get(*number).dirty() > 0;
        let keys = (0..self.files.most()).filter(is_dirty).filter_map(|number| self.files.key(number));
        keys.filter(|key| *key != FileKey::OWN).collect()
    }

    /// The last page of a file that is dirty.
    pub fn last_dirty(&self, key: FileKey) -> Option<PageIndex> {
        let number = self.files.find(key)?;
        let slots = (0..self.shape().slots()).map(SsdSlot).filter(|slot| self.shared.is_dirty(*slot));
        slots.filter_map(|slot| self.shared.name(slot)).filter(|name| name.file() == number).map(PageName::page).max()
    }

    /// Dirty pages of a map that this metadata does not have: found damaged, they would be missed in silence.
    pub(crate) fn missing(&self, published: &SharedMap) -> (Vec<Item>, u64) {
        let (mut missing, mut unknown) = (Vec::new(), 0);
        if !published.is_still(published.gate()) {
            return (missing, unknown);
        }
        let (head, written) = published.head();
        for slot in (0..published.slots()).map(SsdSlot).filter(|slot| published.is_dirty(*slot)) {
            let Some(name) = published.name(slot) else { continue };
            let (place, position) = self.place(slot);
            let is_pending = published.seq(place).load(Ordering::Acquire) == head && position >= written;
            if is_pending || published.find(name) != Some(slot) || Some(name.file()) == published.own() {
                continue;
            }
            match self.files.key(name.file()) {
                Some(key) if !self.is_dirty(key, name.page()) => {
                    missing.push(Item { key, page: name.page(), slot, at: self.address(slot) });
                }
                Some(_) => {}
                None => unknown += 1,
            }
        }
        (missing, unknown)
    }

    /// Enters suspect pages again, dirty: with the checksum that the last leader knew, so that a reader that can read them still
    /// gets them, or with one that nothing adds up to. How many have no place.
    pub(crate) fn keep_suspects(&mut self, suspect: &[Item], published: &SharedMap) -> u64 {
        let mut without = 0;
        for item in suspect.iter().filter(|item| item.key != FileKey::OWN && item.slot.0 < published.slots()) {
            let Some(number) = self.files.number(item.key) else {
                without += 1;
                continue;
            };
            let name = PageName::new(number, item.page);
            let is_known = published.name(item.slot) == Some(name) && published.is_dirty(item.slot);
            match self.shared.find(name) {
                Some(slot) if is_known => self.unmap(slot),
                // A newer one was found.
                Some(_) => continue,
                None => {}
            }
            if self.shared.name(item.slot).is_some() {
                without += 1;
                continue;
            }
            let place = self.place(item.slot).0;
            let seq = published.seq(place).load(Ordering::Acquire);
            if self.segments[place].live == 0 {
                self.segments[place].seq = seq;
                self.shared.set_seq(place, seq);
            }
            let checksum = published.checksum(item.slot);
            self.map(item.slot, name, true, 0, if is_known { checksum } else { !checksum });
        }
        if !suspect.is_empty() {
            // Nothing is put any more, and all there is counts as written: those behind a summary that is missing, too.
            self.head.tracks.clear();
            (self.head.start, self.head.closed) = (self.shape().segment_pages, true);
            self.tell_head();
        }
        without
    }
}

#[cfg(test)]
mod test {
    use shm::PageSize;

    use super::*;
    use crate::recover::recover;
    use crate::shared::{format_shared, shared_bytes};
    use crate::superblock::Shape;
    use crate::units::{DevicePage, PAGE_BYTES, Page};
    use crate::{LookupResult, PageVersion, VerifyResult, View};

    const SHAPE: Shape = Shape { segment_pages: 32, segments: 6 };

    struct TestWorld {
        media: Vec<Page>,
        region: Arc<Region>,
        cache: SsdCache,
    }

    fn open(media: &[Page], region: &Arc<Region>, held: &[(FileKey, u32)]) -> (SsdCache, crate::RecoveryResult) {
        let opened = recover(media.len() as u64, None, 8, Some((region, 0)), held, |wanted, each| {
            wanted.iter().enumerate().for_each(|(n, at)| each(n, &media[at.0 as usize]));
        });
        opened.expect("opened")
    }

    impl TestWorld {
        fn new() -> TestWorld {
            let mut media = vec![[0; PAGE_BYTES]; SHAPE.device_pages() as usize];
            media[..2].copy_from_slice(&SsdCache::format([3; 16], SHAPE));
            let region = Arc::new(Region::private(shared_bytes(SHAPE), PageSize::Small).expect("memory"));
            format_shared(&region, 0, SHAPE);
            let (cache, _) = open(&media, &region, &[]);
            let mut world = TestWorld { media, region, cache };
            world.superblock();
            world
        }

        fn superblock(&mut self) {
            let mut page = [0; PAGE_BYTES];
            let at = self.cache.superblock(&mut page);
            self.media[at.0 as usize] = page;
            self.cache.superblock_written();
        }

        /// A batch of these pages, durable.
        fn put(&mut self, key: FileKey, pages: std::ops::Range<u64>, version: PageVersion, byte: u8) {
            let mut places: Vec<DevicePage> = Vec::new();
            for page in pages {
                places.push(self.cache.put(key, PageIndex(page), version, &[byte; PAGE_BYTES]).expect("room").at);
            }
            let mut summary = [0; PAGE_BYTES];
            let sealed = self.cache.seal(&mut summary).expect("a batch");
            self.media[sealed.at.0 as usize] = summary;
            places.iter().for_each(|at| self.media[at.0 as usize] = [byte; PAGE_BYTES]);
            self.cache.ended(sealed.stamp, true);
            let began = self.cache.flush_begins();
            self.cache.flush_ended(began, true);
        }
    }

    fn page(cache: &SsdCache, key: FileKey, at: u64) -> Option<Item> {
        match cache.lookup(key, PageIndex(at)) {
            LookupResult::Hit(item) => Some(item),
            _ => None,
        }
    }

    #[test]
    fn what_was_published_is_known_again_without_the_device() {
        let mut world = TestWorld::new();
        let (one, two) = (FileKey(11), FileKey(12));
        let held = [one, two].map(|key| (key, world.cache.hold(key).expect("a number")));
        world.put(one, 0..3, PageVersion::Dirty, 1);
        world.put(two, 5..7, PageVersion::Clean, 2);
        world.put(FileKey(13), 0..1, PageVersion::Dirty, 3);
        world.put(FileKey::OWN, 40..41, PageVersion::Dirty, 4);
        // Put, and not written: whoever put it has it still.
        world.cache.put(two, PageIndex(9), PageVersion::Dirty, &[9; PAGE_BYTES]).expect("room");
        let (mut again, unknown) = SsdCache::of_published(&world.region, 0, 8, &held).expect("published");
        assert_eq!(unknown, 1, "a page of a file that nobody can name");
        assert_eq!((again.dirty_files(), again.dirty_of(one), again.dirty_of(two)), (vec![one], 3, 0));
        assert_eq!(again.last_dirty(one), Some(PageIndex(2)));
        assert_eq!(page(&again, two, 9), None);
        let item = page(&again, one, 1).expect("there");
        assert_eq!(again.verify(&item, &world.media[item.at.0 as usize]), VerifyResult::Good);
        assert_eq!(again.verify(&item, &[8; PAGE_BYTES]), VerifyResult::Bad);
        again.forget(one, 0..2);
        assert_eq!(again.dirty_of(one), 1);
        let view = View::attach(&world.region, 0, shared_bytes(SHAPE)).expect("the map");
        assert_eq!(view.lookup(held[0].1, one, PageIndex(0)), crate::ViewLookup::Miss, "others see it, too");
    }

    #[test]
    fn what_was_never_published_is_not_known() {
        let region = Arc::new(Region::private(shared_bytes(SHAPE), PageSize::Small).expect("memory"));
        format_shared(&region, 0, SHAPE);
        assert_eq!(SsdCache::of_published(&region, 0, 8, &[]).err(), Some(CacheOpenError::Segment));
    }

    #[test]
    fn dirty_pages_that_the_device_has_lost_stay_in_the_metadata() {
        let mut world = TestWorld::new();
        let (one, two) = (FileKey(11), FileKey(12));
        let held = [one, two].map(|key| (key, world.cache.hold(key).expect("a number")));
        world.put(one, 0..4, PageVersion::Dirty, 1);
        world.put(two, 0..4, PageVersion::Dirty, 2);
        world.put(one, 10..14, PageVersion::Dirty, 3);
        let lost = page(&world.cache, two, 0).expect("there");
        // The summary of the batch in the middle is gone.
        world.media[lost.at.0 as usize - 1] = [0; PAGE_BYTES];
        let (again, found) = open(&world.media, &world.region, &held);
        assert!(found.damaged > 0 && found.suspect.len() == 12, "{found:?}");
        for (key, pages) in [(one, 0..4), (two, 0..4), (one, 10..14)] {
            for at in pages {
                let item = page(&again, key, at).unwrap_or_else(|| panic!("page {at} of {key:?}"));
                assert!(again.is_dirty(key, PageIndex(at)));
                assert_eq!(again.verify(&item, &world.media[item.at.0 as usize]), VerifyResult::Good, "and it can be read");
            }
        }
    }
}
