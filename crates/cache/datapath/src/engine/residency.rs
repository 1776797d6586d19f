//! Where the pages of a file are: in memory, on the SSD, or in the backing file only. And their eviction on request.

use std::collections::HashSet;
use std::ops::Range;

use pagecache::Name;
use rustix::io::Errno;
use ssdcache::{PAGE_BYTES, PageIndex, ViewLookup};

use super::open::Open;

/// The number of pages that are looked up at most: of a larger file, evenly spaced pages stand for the others.
const LOOKUPS_MAX: u64 = 1 << 22;

/// The locations of a file's pages. While other processes use the file, a count may be a few pages old.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Residency {
    /// The length of the file, bytes.
    pub bytes: u64,
    /// Bytes of pages in memory.
    pub in_memory_bytes: u64,
    /// Bytes of pages on the SSD, also of those that are in memory too.
    pub on_ssd_bytes: u64,
    /// Bytes of pages in memory or on the SSD.
    pub cached_bytes: u64,
    /// Bytes of pages that are newer than the backing file.
    pub dirty_bytes: u64,
    /// Whether the file is so large that the counts are estimates from evenly spaced pages.
    pub is_estimated: bool,
    /// The file in parts of equal length, from its start to its end.
    pub parts: Vec<ResidencyPart>,
}

/// One part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResidencyPart {
    /// The number of pages of this part that were looked up.
    pub pages: u64,
    /// The number of these in memory.
    pub in_memory: u64,
    /// The number of these on the SSD.
    pub on_ssd: u64,
    /// The number of these in memory or on the SSD.
    pub cached: u64,
    /// The number of these that are newer than the backing file.
    pub dirty: u64,
}

impl Open {
    /// Returns where the pages of the file are, as a whole and by `parts` parts of equal length (fewer if it has fewer pages).
    pub fn residency(&self, parts: usize) -> Residency {
        let bytes = self.size();
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        let step = pages.div_ceil(LOOKUPS_MAX).max(1);
        let parts = (parts as u64).min(pages.div_ceil(step));
        let mut found = Residency { bytes, is_estimated: step > 1, ..Residency::default() };
        let mut sum = ResidencyPart::default();
        let dirty = self.dirty_frames();
        for part in 0..parts {
            // Without overflow: 2^40 pages and some dozens of parts.
            let range = part * pages / parts..(part + 1) * pages / parts;
            let seen = self.residency_of(range, step, &dirty);
            sum.pages += seen.pages;
            sum.in_memory += seen.in_memory;
            sum.on_ssd += seen.on_ssd;
            sum.cached += seen.cached;
            sum.dirty += seen.dirty;
            found.parts.push(seen);
        }
        let scaled = |count: u64| match count {
            count if count == sum.pages => bytes,
            count => (u128::from(count) * u128::from(bytes) / u128::from(sum.pages.max(1))) as u64,
        };
        found.in_memory_bytes = scaled(sum.in_memory);
        found.on_ssd_bytes = scaled(sum.on_ssd);
        found.cached_bytes = scaled(sum.cached);
        found.dirty_bytes = scaled(sum.dirty);
        found
    }

    /// Returns where the pages of a range of bytes are, as far as the file has them.
    pub fn residency_in(&self, range: Range<u64>) -> ResidencyPart {
        let page = PAGE_BYTES as u64;
        self.residency_of(range.start / page..range.end.min(self.size()).div_ceil(page), 1, &self.dirty_frames())
    }

    /// Drops the pages of a range of bytes from memory that are neither dirty nor newer than those on the SSD. A read of a page in memory
    /// does not bring it to the SSD; after this it does.
    ///
    /// # Errors
    /// EIO: another process has stopped in the middle of a change of the page table.
    pub fn release(&self, range: Range<u64>) -> Result<(), Errno> {
        let page = PAGE_BYTES as u64;
        self.engine.drop_unmarked(self.no, range.start / page..range.end.div_ceil(page)).map(drop)
    }

    fn dirty_frames(&self) -> HashSet<pagecache::PageIndex> {
        self.engine.pages.dirty_of(pagecache::FileNo(self.no.0))
    }

    /// Counts every `step`th page of a range of pages. `dirty`: those that are dirty in memory.
    fn residency_of(&self, range: Range<u64>, step: u64, dirty: &HashSet<pagecache::PageIndex>) -> ResidencyPart {
        let number = self.engine.records.get(self.no).on_ssd();
        let mut part = ResidencyPart::default();
        for page in range.step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let page = PageIndex(page);
            let name = Name { file: pagecache::FileNo(self.no.0), page: pagecache::PageIndex(page.0) };
            let in_memory = self.engine.pages.contains(name);
            let found = match (&self.engine.view, number) {
                (Some(view), Some(number)) => view.lookup(number, self.key, page),
                _ => ViewLookup::Miss,
            };
            let (on_ssd, is_dirty_there) = match found {
                ViewLookup::Hit(hit) => (true, hit.is_dirty()),
                _ => (false, false),
            };
            part.pages += 1;
            part.in_memory += u64::from(in_memory);
            part.on_ssd += u64::from(on_ssd);
            part.cached += u64::from(in_memory || on_ssd);
            part.dirty += u64::from(is_dirty_there || dirty.contains(&name.page));
        }
        part
    }

    /// Writes dirty pages of the file back, and removes all of its pages from memory and from the SSD. Pages that a process has pinned
    /// leave when they are unpinned.
    ///
    /// # Errors
    /// Returns the error of the write-back: then the dirty pages stay. EIO: a process makes pages dirty all the time.
    pub fn evict(&self) -> Result<(), Errno> {
        let lock = || self.engine.lock_file(self.no).map(Some);
        let mut ask = |kind, a| self.engine.ask(kind, self.no, a, 0);
        self.engine.clean_and_drop(self.no, &lock, &mut || true, &mut ask).map(drop)
    }
}

#[cfg(test)]
mod test {
    use ssdcache::Mode;

    use super::*;
    use crate::test_engine::{lead, lead_with_ssd};

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn pages_are_counted_by_place_and_by_part() {
        let (file, _engine, open) = lead(Mode::WriteBack);
        open.write(0, &vec![1; 8 * PAGE_BYTES - 96]).expect("written");
        let found = open.residency(4);
        assert_eq!((found.bytes, found.in_memory_bytes, found.on_ssd_bytes), (8 * PAGE - 96, 8 * PAGE - 96, 0));
        assert_eq!(found.dirty_bytes, 8 * PAGE - 96);
        assert_eq!(found.parts, [ResidencyPart { pages: 2, in_memory: 2, on_ssd: 0, cached: 2, dirty: 2 }; 4]);
        assert_eq!(open.residency(100).parts.len(), 8, "no more parts than pages");

        assert_eq!(open.residency_in(0..PAGE + 1).in_memory, 2);
        assert_eq!(open.residency_in(7 * PAGE..100 * PAGE).pages, 1, "up to the end of the file");
        open.release(0..8 * PAGE).expect("released");
        assert_eq!(open.residency_in(0..8 * PAGE).in_memory, 8, "dirty pages stay");

        open.evict().expect("evicted");
        let found = open.residency(2);
        assert_eq!((found.in_memory_bytes, found.dirty_bytes, found.cached_bytes), (0, 0, 0));
        assert_eq!(file.bytes.lock()[..], vec![1; 8 * PAGE_BYTES - 96], "what was dirty is in the file");
        let mut byte = [0];
        assert_eq!((open.read(PAGE, &mut byte), byte), (Ok(1), [1]));
        assert_eq!(open.residency(8).parts[1].in_memory, 1, "read again");
        open.release(PAGE..PAGE + 1).expect("released");
        assert_eq!(open.residency(8).parts[1].in_memory, 0);
    }

    #[test]
    fn pages_of_the_ssd_are_evicted_too() {
        let (file, _engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[7; 3 * PAGE_BYTES]).expect("written");
        open.sync().expect("on the SSD");
        let found = open.residency(3);
        assert_eq!((found.on_ssd_bytes, found.cached_bytes, found.dirty_bytes), (3 * PAGE, 3 * PAGE, 3 * PAGE));
        open.evict().expect("evicted");
        let found = open.residency(3);
        assert_eq!((found.on_ssd_bytes, found.cached_bytes, found.dirty_bytes), (0, 0, 0));
        assert_eq!(file.bytes.lock()[..], [7; 3 * PAGE_BYTES]);
    }

    /// The SSD has an older page than memory: that is no reason to write to the backing file, which has it.
    #[test]
    fn what_is_written_through_is_not_dirty() {
        let (_file, _engine, open) = lead_with_ssd(Mode::WriteThrough);
        open.write(0, &[7; 3 * PAGE_BYTES]).expect("written");
        open.write(0, &[8; PAGE_BYTES]).expect("written again");
        assert_eq!((open.residency(1).in_memory_bytes, open.residency(1).dirty_bytes), (3 * PAGE, 0));
    }

    /// One page is dirty in memory, another on the SSD, a third in both.
    #[test]
    fn a_page_that_is_dirty_twice_counts_once() {
        let (_file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[7; 2 * PAGE_BYTES]).expect("written");
        open.sync().expect("on the SSD");
        open.write(PAGE, &[8; 2 * PAGE_BYTES]).expect("written");
        assert_eq!(open.residency(1).dirty_bytes, 3 * PAGE);
        let status = engine.status().expect("whole");
        let file = status.files().into_iter().find(|file| file.no == open.no()).expect("there");
        assert_eq!(status.dirty_bytes(&file), 3 * PAGE);
    }

    #[test]
    fn an_empty_file_has_no_parts() {
        let (_file, _engine, open) = lead(Mode::WriteBack);
        assert_eq!(open.residency(10), Residency::default());
    }
}
