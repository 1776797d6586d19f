// long: the log and its index, whose invariants hold only together.
//! The metadata of the cache: lookup, put, seal, completion, flush, invalidation.

use std::ops::Range;

use crate::batch::{BatchTrack, HeadSegment, SealedBatch, TRACKS};
use crate::checksum::page_checksum;
use crate::files::{FILE_BYTES, Files};
use crate::open_error::CacheOpenError;
use crate::shared::{SharedMap, shared_bytes};
use crate::slots::{FILES_MAX, PageName};
use crate::summary::{ENTRIES, Entry, EntryKind, PreviousSegment, SummaryHeader};
use crate::superblock::{FIRST, Shape, Superblock};
use crate::units::{DevicePage, FileKey, Item, PAGE_INDEX_END, Page, PageIndex, SsdSlot, Stamp};

/// The action that is necessary before the call can succeed; the failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError {
    /// The caller has to seal the open batch and write it.
    #[error("the open batch is full")]
    Seal,
    /// The caller has to flush the device after the batches in flight have completed.
    #[error("batches have to be durable first")]
    Flush,
    /// The caller has to reclaim the oldest segment.
    #[error("no segment is free")]
    Reclaim,
    /// The caller has to write the superblock and flush the device.
    #[error("the superblock has to be written first")]
    Superblock,
    /// Batches failed: the caller has to call [`SsdCache::cut`].
    #[error("a write to the SSD failed")]
    Failed,
    /// The caller has to write back the dirty page or pages first.
    #[error("a dirty page is in the way")]
    Dirty,
    /// The caller has to wait for the batches in flight.
    #[error("batches are in flight")]
    InFlight,
    /// The maximum number of files have cached pages, or the page is beyond 32 TiB. The caller has to bypass the cache.
    #[error("the page cannot be cached")]
    NotCacheable,
    /// The page has left the slot of the item: there is nothing to do.
    #[error("the page has moved or gone")]
    Changed,
}

/// The result of looking up a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupResult {
    /// The page is not cached.
    Miss,
    /// The page is on the device.
    Hit(Item),
    /// The page was put, but is not written yet: the caller of `put` has its bytes.
    Pending(Item),
}

/// The result of verifying bytes that were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifyResult {
    /// The bytes are those of the page.
    Good,
    /// The page moved or was evicted meanwhile: look it up again.
    Changed,
    /// The bytes are not those that were written.
    Bad,
}

/// How a page that is put compares with the backing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageVersion {
    /// The page equals the backing file, where it is durable.
    Clean,
    /// The page is newer than the backing file.
    Dirty,
}

/// The place of a page that was put, and the stamp of its durability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutResult {
    /// The page is durable once [`SsdCache::durable`] has reached this stamp.
    pub stamp: Stamp,
    /// The page of the device to which it has to be written.
    pub at: DevicePage,
}

/// Counts since the cache was opened, in pages unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// The number of pages that callers have put.
    pub put: u64,
    /// The number of pages put again because they were hot.
    pub reinserted: u64,
    /// The number of summary pages written.
    pub summaries: u64,
    /// The number of pages evicted because their segment was reclaimed.
    pub evicted: u64,
    /// The number of entries that record dropped pages.
    pub drops: u64,
    /// The number of pages whose write-back could not be recorded: after a crash they are written back again.
    pub unmarked: u64,
}

impl CacheStats {
    /// Returns the number of pages written for each page put.
    pub fn write_amplification(&self) -> f64 {
        (self.put + self.reinserted + self.summaries) as f64 / self.put.max(1) as f64
    }
}

/// Maximum number of free segments in a full cache: the one kept for the cache's own pages, and the one just reclaimed.
const ALWAYS_FREE: u64 = 2;

/// The segments that a page may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WritePurpose {
    Any,
    /// Also the last free segment.
    Spare,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) seq: u64,
    pub(crate) live: u32,
    pub(crate) dirty: u32,
    /// The newer versions of dirty pages of this segment are durable with this stamp.
    pub(crate) replaced: Stamp,
}

/// The metadata of an SSD cache, kept by its leader.
#[derive(Debug)]
pub struct SsdCache {
    pub(crate) superblock: Superblock,
    /// Whether this life's superblock is durable.
    pub(crate) is_open: bool,
    /// The slots and the index, which other processes may map.
    pub(crate) shared: SharedMap,
    pub(crate) files: Files,
    /// The segments by place; `Superblock::place_of` gives the place of a sequence number.
    pub(crate) segments: Box<[Segment]>,
    pub(crate) head: HeadSegment,
    pub(crate) durable: Stamp,
    /// The stamp that a flush of the superblock makes durable.
    covered: Stamp,
    /// The tail that is durable, in a summary or a superblock.
    pub(crate) tail_durable: u64,
    /// The tail in the last summary.
    pub(crate) tail_noted: u64,
    /// The device may hold versions that the metadata gave up in segments up to this one.
    pub(crate) given_up: u64,
    pub(crate) scratch: Vec<SsdSlot>,
    pub(crate) stats: CacheStats,
}

impl SsdCache {
    /// Returns the two superblocks of an empty cache, for the first two pages of the device; [`crate::recover`] then opens it.
    pub fn format(uuid: [u8; 16], shape: Shape) -> [Page; 2] {
        let first = Superblock::new(uuid, shape);
        [Superblock { generation: 2, ..first }.encode(), first.encode()]
    }

    /// # Errors
    /// There is no memory.
    pub(crate) fn empty(superblock: Superblock, files_max: u32, held: &[(FileKey, u32)]) -> Result<SsdCache, CacheOpenError> {
        Ok(SsdCache {
            superblock,
            is_open: false,
            shared: SharedMap::private(superblock.shape)?,
            files: Files::new(files_max.clamp(1, FILES_MAX), held),
            segments: vec![Segment::default(); superblock.shape.segments as usize].into(),
            head: HeadSegment { closed: true, ..HeadSegment::new(0, PreviousSegment::default()) },
            durable: Stamp::default(),
            covered: Stamp::default(),
            tail_durable: superblock.tail,
            tail_noted: superblock.tail,
            given_up: 0,
            scratch: Vec::new(),
            stats: CacheStats::default(),
        })
    }

    /// Returns the memory of the metadata in bytes, including the shared map, for this shape and number of files. The ghosts of
    /// admission come on top: [`crate::Admission::memory_bytes`].
    pub fn memory_bytes(shape: Shape, files_max: u32) -> u64 {
        let segments = u64::from(shape.segments) * size_of::<Segment>() as u64;
        shared_bytes(shape) as u64 + segments + u64::from(files_max.clamp(1, FILES_MAX)) * FILE_BYTES as u64
    }

    // ---- questions

    /// Returns where a page is cached.
    pub fn lookup(&self, key: FileKey, page: PageIndex) -> LookupResult {
        let Some(slot) = self.find(key, page) else { return LookupResult::Miss };
        let item = Item { key, page, slot, at: self.address(slot) };
        let (place, position) = self.place(slot);
        let written = place != self.place_of(self.head.seq) || self.head.is_written(position);
        if written { LookupResult::Hit(item) } else { LookupResult::Pending(item) }
    }

    /// Counts a hit of a reader, so that the page may be kept longer.
    pub fn touch(&mut self, item: &Item) {
        if let Some(held) = self.shared.held(item.slot).filter(|_| self.is_current(item)) {
            self.shared.touch(item.slot, held);
        }
    }

    /// Verifies that bytes read at the item's place are those of the page.
    pub fn verify(&self, item: &Item, bytes: &Page) -> VerifyResult {
        if !self.is_current(item) {
            return VerifyResult::Changed;
        }
        let seq = self.segments[self.place(item.slot).0].seq;
        if page_checksum(bytes, item.key, item.page, item.at, seq) == self.shared.checksum(item.slot) {
            VerifyResult::Good
        } else {
            VerifyResult::Bad
        }
    }

    /// Returns whether a cached page is newer than the backing file.
    pub fn is_dirty(&self, key: FileKey, page: PageIndex) -> bool {
        self.find(key, page).is_some_and(|slot| self.shared.is_dirty(slot))
    }

    /// Returns the number of dirty pages of a file. They have to be written back before its mode changes to one without dirty pages.
    pub fn dirty_of(&self, key: FileKey) -> u32 {
        self.files.find(key).map_or(0, |number| self.files.get(number).dirty())
    }

    /// Returns the number by which readers name the file (see [`crate::View::lookup`]). It is valid until `release`, even if the file has
    /// no cached pages. `None`: the maximum number of files is reached.
    pub fn hold(&mut self, key: FileKey) -> Option<u32> {
        self.files.hold(key)
    }

    /// Releases the number of a file that is no longer open.
    pub fn release(&mut self, key: FileKey) {
        self.files.release(key);
    }

    /// Returns the number of cached pages of a file.
    pub fn pages_of(&self, key: FileKey) -> u32 {
        self.files.find(key).map_or(0, |number| self.files.get(number).pages)
    }

    /// Returns the number of cached pages, and the number of dirty ones among them.
    pub fn len(&self) -> (u64, u64) {
        self.segments.iter().fold((0, 0), |(live, dirty), one| (live + u64::from(one.live), dirty + u64::from(one.dirty)))
    }

    /// Returns whether no page is cached.
    pub fn is_empty(&self) -> bool {
        self.len().0 == 0
    }

    /// Returns whether pages can be put without evicting others soon: the log has not wrapped around yet. An eighth of the segments is
    /// kept for pages that are known to be hot.
    pub fn has_room(&self) -> bool {
        self.free_after(self.head.seq) > ALWAYS_FREE.max(self.segments.len() as u64 / 8)
    }

    /// Resets the gate of the map. For a caller that finds the map being exchanged while no process exchanges it: it was overwritten.
    pub fn end_exchange(&self) {
        self.shared.end_exchange();
    }

    /// Returns the stamp up to which everything is durable.
    pub fn durable(&self) -> Stamp {
        self.durable
    }

    /// Returns the counts since the cache was opened.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Returns the sizes of the cache.
    pub fn shape(&self) -> Shape {
        self.superblock.shape
    }

    // ---- changes

    /// Assigns a page its place in the open batch. The caller keeps the bytes until the batch has completed.
    ///
    /// # Errors
    /// `Dirty`: the new version is clean, but the cached one is dirty. Put the new bytes dirty, or write back the old ones first.
    /// For the others see [`CacheError`].
    pub fn put(&mut self, key: FileKey, page: PageIndex, version: PageVersion, bytes: &Page) -> Result<PutResult, CacheError> {
        let dirty = version == PageVersion::Dirty;
        if !dirty && self.is_dirty(key, page) {
            return Err(CacheError::Dirty);
        }
        let put = self.place_page(key, page, dirty, 0, bytes, WritePurpose::Any)?;
        self.stats.put += 1;
        Ok(put)
    }

    /// Puts a dirty page of the cache's own file, which may also take the last free segment. For callers that make room.
    ///
    /// # Errors
    /// As [`SsdCache::put`].
    pub fn put_own(&mut self, page: PageIndex, bytes: &Page) -> Result<PutResult, CacheError> {
        let put = self.place_page(FileKey::OWN, page, true, 0, bytes, WritePurpose::Spare)?;
        self.stats.put += 1;
        Ok(put)
    }

    pub(crate) fn place_page(
        &mut self,
        key: FileKey,
        page: PageIndex,
        dirty: bool,
        hits: u32,
        bytes: &Page,
        place: WritePurpose,
    ) -> Result<PutResult, CacheError> {
        if page.0 >= PAGE_INDEX_END {
            return Err(CacheError::NotCacheable);
        }
        self.room(1, place)?;
        let number = self.files.number(key).ok_or(CacheError::NotCacheable)?;
        if key == FileKey::OWN {
            self.shared.set_own(Some(number));
        }
        let head = &mut self.head;
        let place = self.superblock.place_of(head.seq) as u32;
        let slot = SsdSlot(place * self.superblock.shape.segment_pages + head.next_position());
        let at = DevicePage(FIRST + u64::from(slot.0));
        let checksum = page_checksum(bytes, key, page, at, head.seq);
        let kind = if dirty { EntryKind::Dirty { checksum } } else { EntryKind::Clean { checksum } };
        head.entries.push(Entry { key, page, kind });
        head.pages += 1;
        self.map(slot, PageName::new(number, page), dirty, hits, checksum);
        Ok(PutResult { stamp: self.open_stamp(), at })
    }

    /// Reserves room for so many drops, 126 at most, until the next page is put. Call it before bytes newer than the cached ones go to
    /// the backing file: making room for a drop later could write the older dirty bytes back.
    ///
    /// # Errors
    /// As [`CacheError`] says.
    pub fn prepare(&mut self, drops: usize) -> Result<(), CacheError> {
        if self.head.entries.len() + drops.min(ENTRIES) > ENTRIES {
            return Err(CacheError::Seal);
        }
        self.room(0, WritePurpose::Any)
    }

    /// Drops pages of a file that are no longer valid: written around, truncated, removed (`0..u64::MAX`), or bad on the device. Dirty
    /// pages among them are discarded. The stamp, if any, has to be durable before a flush of the file returns, and before the key is
    /// used for another file.
    ///
    /// # Errors
    /// As [`CacheError`] says.
    pub fn invalidate(&mut self, key: FileKey, pages: Range<u64>) -> Result<Option<Stamp>, CacheError> {
        if pages.is_empty() {
            return Ok(None);
        }
        let number = self.files.find(key);
        self.collect(number, &pages);
        if self.scratch.is_empty() && !self.may_be_on_device() {
            return Ok(None);
        }
        self.note(key, pages.start, pages.end - pages.start, true)?;
        self.stats.drops += 1;
        let scratch = std::mem::take(&mut self.scratch);
        scratch.iter().for_each(|slot| self.unmap(*slot));
        self.scratch = scratch;
        Ok(Some(self.open_stamp()))
    }

    /// Drops pages of a file from the map without logging it: for an SSD that accepts no more writes.
    pub fn forget(&mut self, key: FileKey, pages: Range<u64>) {
        let number = self.files.find(key);
        self.collect(number, &pages);
        let scratch = std::mem::take(&mut self.scratch);
        scratch.iter().for_each(|slot| self.unmap(*slot));
        self.scratch = scratch;
    }

    /// Closes the open batch and fills in its summary. `None`: there is nothing to write.
    pub fn seal(&mut self, summary: &mut Page) -> Option<SealedBatch> {
        let tail = self.superblock.tail;
        let head = &mut self.head;
        let idle = head.entries.is_empty() && (tail == self.tail_noted || head.start >= self.superblock.shape.segment_pages);
        if !self.is_open || head.closed || head.failed.is_some() || idle || head.tracks.len() >= TRACKS {
            return None;
        }
        let (batch, position) = (head.batch, head.start);
        let kind = SummaryHeader {
            uuid: self.superblock.uuid,
            seq: head.seq,
            life: self.superblock.generation as u32,
            batch,
            position,
            durable: head.tracks.front().map_or(batch, |track| track.batch),
            before: head.before,
            tail,
        };
        let place = self.superblock.place_of(head.seq) as u64;
        let at = DevicePage(FIRST + place * u64::from(self.superblock.shape.segment_pages) + u64::from(position));
        kind.encode(&head.entries, at, summary);
        let sealed = SealedBatch { stamp: Stamp::new(head.seq, batch + 1), at, pages: head.pages };
        head.tracks.push_back(BatchTrack { batch, start: position, end: head.next_position(), tail, ended: false });
        head.keep_drops();
        (head.start, head.pages, head.batch) = (head.next_position(), 0, batch + 1);
        head.entries.clear();
        self.tail_noted = tail;
        self.stats.summaries += 1;
        Some(sealed)
    }

    /// Records that the write of a sealed batch has completed or failed.
    pub fn ended(&mut self, stamp: Stamp, is_written: bool) {
        let head = &mut self.head;
        let Some(track) = head.tracks.iter_mut().find(|track| Stamp::new(head.seq, track.batch + 1) == stamp) else { return };
        track.ended = true;
        if !is_written {
            head.failed = Some(head.failed.map_or(track.batch, |failed| failed.min(track.batch)));
        }
        self.tell_head();
    }

    /// Returns the stamp that a flush of the device, started now, will make durable.
    pub fn flush_begins(&self) -> Stamp {
        Stamp::new(self.head.seq, self.head.written())
    }

    /// Records the end of a flush; `began` is from [`SsdCache::flush_begins`]. A failed flush may have lost everything that was not
    /// durable: call [`SsdCache::cut`].
    pub fn flush_ended(&mut self, began: Stamp, is_flushed: bool) {
        let head = &mut self.head;
        if !is_flushed {
            head.failed = head.tracks.front().map(|track| track.batch).or(head.failed);
            self.tell_head();
            return;
        }
        if began.seq() != head.seq {
            return;
        }
        while let Some(track) = head.tracks.pop_front_if(|track| track.batch < began.batches()) {
            self.tail_durable = self.tail_durable.max(track.tail);
        }
        while head.drops.pop_front_if(|(batch, ..)| *batch < began.batches()).is_some() {}
        self.durable = self.durable.max(began);
    }

    /// Fills in the superblock of this life and returns its place; the caller writes and flushes it. No batch may be in flight. If the
    /// write or flush after a recovery fails, recover again: the recovered state may be lost.
    pub fn superblock(&mut self, page: &mut Page) -> DevicePage {
        self.superblock.generation += 1;
        // Recovery rejects a summary of a life whose superblock is missing.
        self.is_open = false;
        self.covered = self.flush_begins();
        *page = self.superblock.encode();
        self.superblock.place()
    }

    /// Records that the superblock is durable, and with it all batches completed before, including those that recovery found in the head.
    pub fn superblock_written(&mut self) {
        self.flush_ended(self.covered, true);
        self.is_open = true;
        self.tail_durable = self.superblock.tail;
        self.tail_noted = self.superblock.tail;
    }

    /// Discards the batches from the first failed one on, and the open batch; lists their drops and pages. Before any other change here,
    /// the caller writes the newest bytes of each page of `lost` durably to the backing file, if that differs: the older dirty
    /// versions may be evicted with their segment from now on. Then the caller invalidates `dropped` and `lost`. That has to be durable
    /// before a flush of their files returns: until then the device may hold these pages, or older versions.
    ///
    /// # Errors
    /// `InFlight`: some batches have not completed.
    pub fn cut(&mut self, dropped: &mut Vec<(FileKey, Range<u64>)>, lost: &mut Vec<Item>) -> Result<(), CacheError> {
        if self.head.tracks.iter().any(|track| !track.ended) {
            return Err(CacheError::InFlight);
        }
        let Some(failed) = self.head.failed.take() else { return Ok(()) };
        let from = self.head.tracks.iter().find(|track| track.batch == failed).map_or(self.head.start, |track| track.start);
        let base = self.place_of(self.head.seq) as u32 * self.superblock.shape.segment_pages;
        for slot in (base + from..base + self.superblock.shape.segment_pages).map(SsdSlot) {
            if let Some(item) = self.item(slot) {
                lost.push(item);
                self.unmap(slot);
            }
        }
        let is_last = self.free_after(self.head.seq) == 0;
        let head = &mut self.head;
        head.keep_drops();
        let lost = head.drops.iter().filter(|(batch, ..)| *batch >= failed);
        dropped.extend(lost.map(|(_, key, pages)| (*key, pages.clone())));
        head.drops.retain(|(batch, ..)| *batch < failed);
        head.tracks.retain(|track| track.batch < failed);
        head.entries.clear();
        (head.batch, head.start, head.pages) = (failed, from, 0);
        // The device may hold the failed batches, which would continue this log: start a new segment, or a new life.
        head.closed |= !is_last;
        self.is_open &= !is_last;
        // By now the backing files have the newest bytes of all pages that the batches replaced.
        self.segments.iter_mut().for_each(|segment| segment.replaced = segment.replaced.min(self.durable));
        self.given_up = head.seq;
        self.tail_noted = self.tail_durable;
        self.tell_head();
        Ok(())
    }

    // ---- inside

    /// Publishes the written part of the head segment to readers.
    pub(crate) fn tell_head(&self) {
        self.shared.set_head(self.head.seq, self.head.written_end());
    }

    fn open_stamp(&self) -> Stamp {
        Stamp::new(self.head.seq, self.head.batch + 1)
    }

    fn may_be_on_device(&self) -> bool {
        self.tail_durable < self.superblock.tail || self.tail_durable <= self.given_up
    }

    /// Makes room in the open batch for an entry, and for its page if it has one.
    fn room(&mut self, pages: u32, place: WritePurpose) -> Result<(), CacheError> {
        if !self.is_open {
            return Err(CacheError::Superblock);
        }
        let head = &self.head;
        if head.failed.is_some() {
            return Err(CacheError::Failed);
        }
        if head.entries.len() >= ENTRIES {
            return Err(CacheError::Seal);
        }
        if place == WritePurpose::Any && self.free_after(self.head.seq) == 0 {
            return Err(CacheError::Reclaim);
        }
        let head = &self.head;
        // The last page is reserved for a summary that records a reclaim.
        let fits = head.next_position() + pages < self.superblock.shape.segment_pages;
        if fits && !head.closed {
            return if head.tracks.len() >= TRACKS { Err(CacheError::Flush) } else { Ok(()) };
        }
        self.next_segment(place)
    }

    /// Returns the number of free segments once the log has reached this sequence number.
    pub(crate) fn free_after(&self, seq: u64) -> u64 {
        (self.superblock.tail + self.segments.len() as u64).saturating_sub(seq + 1)
    }

    fn next_segment(&mut self, place: WritePurpose) -> Result<(), CacheError> {
        // One more has to be free, or the cache's own pages in the oldest segment could not be put again.
        let (next, needed) = (self.head.seq + 1, self.segments.len() as u64 - u64::from(place == WritePurpose::Any));
        if !self.head.entries.is_empty() {
            return Err(if self.head.tracks.len() >= TRACKS { CacheError::Flush } else { CacheError::Seal });
        }
        if self.superblock.tail + needed <= next {
            return Err(CacheError::Reclaim);
        }
        if !self.head.tracks.is_empty() || self.durable < Stamp::new(self.head.seq, self.head.batch) {
            return Err(if self.tail_noted < self.superblock.tail && self.can_note_tail() { CacheError::Seal } else { CacheError::Flush });
        }
        if self.tail_durable + needed <= next {
            return Err(if self.can_note_tail() { CacheError::Seal } else { CacheError::Superblock });
        }
        let before = self.head.before;
        let before = if self.head.batch == 0 {
            PreviousSegment { skipped: before.skipped.saturating_add(1), ..before }
        } else {
            PreviousSegment { batches: self.head.batch as u16, skipped: 0 }
        };
        self.head = HeadSegment::new(next, before);
        let place = self.place_of(next);
        self.segments[place] = Segment { seq: next, ..Segment::default() };
        self.tell_head();
        self.shared.set_seq(place, next);
        Ok(())
    }

    fn can_note_tail(&self) -> bool {
        !self.head.closed && self.head.start < self.superblock.shape.segment_pages && self.head.tracks.len() < TRACKS
    }

    /// Logs a drop or a write-back, merged with the previous entry if their ranges touch.
    pub(crate) fn note(&mut self, key: FileKey, page: u64, count: u64, drop: bool) -> Result<(), CacheError> {
        let kind = |count| if drop { EntryKind::Dropped { count } } else { EntryKind::Cleaned { count } };
        if let Some(Entry { key: last, page: first, kind: what }) = self.head.entries.last_mut()
            && *last == key
            && self.head.failed.is_none()
            && let (EntryKind::Dropped { count: had }, true) | (EntryKind::Cleaned { count: had }, false) = (*what, drop)
            && first.0.checked_add(had) == Some(page)
        {
            *what = kind(had + count);
            return Ok(());
        }
        self.room(0, WritePurpose::Any)?;
        self.head.entries.push(Entry { key, page: PageIndex(page), kind: kind(count) });
        Ok(())
    }

    /// Collects the slots of the file's pages in the range in `scratch`.
    fn collect(&mut self, number: Option<u32>, pages: &Range<u64>) {
        self.scratch.clear();
        let Some(number) = number else { return };
        let end = pages.end.min(PAGE_INDEX_END);
        if end.saturating_sub(pages.start) <= u64::from(self.files.get(number).pages) {
            for page in pages.start..end {
                self.scratch.extend(self.shared.find(PageName::new(number, PageIndex(page))));
            }
            return;
        }
        let mut left = self.files.get(number).pages;
        for slot in (0..self.superblock.shape.slots()).map(SsdSlot) {
            if left == 0 {
                break;
            }
            if let Some(name) = self.shared.name(slot).filter(|name| name.file() == number) {
                left -= 1;
                if pages.contains(&name.page().0) {
                    self.scratch.push(slot);
                }
            }
        }
    }

    fn find(&self, key: FileKey, page: PageIndex) -> Option<SsdSlot> {
        let number = self.files.find(key).filter(|_| page.0 < PAGE_INDEX_END)?;
        self.shared.find(PageName::new(number, page))
    }

    pub(crate) fn is_current(&self, item: &Item) -> bool {
        self.find(item.key, item.page) == Some(item.slot)
    }

    pub(crate) fn item(&self, slot: SsdSlot) -> Option<Item> {
        let name = self.shared.name(slot)?;
        let key = self.files.key(name.file())?;
        Some(Item { key, page: name.page(), slot, at: self.address(slot) })
    }

    pub(crate) fn address(&self, slot: SsdSlot) -> DevicePage {
        DevicePage(FIRST + u64::from(slot.0))
    }

    /// Returns the place of the slot's segment, and the position in it.
    pub(crate) fn place(&self, slot: SsdSlot) -> (usize, u32) {
        let pages = self.superblock.shape.segment_pages;
        ((slot.0 / pages) as usize, slot.0 % pages)
    }

    pub(crate) fn place_of(&self, seq: u64) -> usize {
        self.superblock.place_of(seq)
    }

    /// Maps a page to an empty slot, and frees its old slot.
    pub(crate) fn map(&mut self, slot: SsdSlot, name: PageName, dirty: bool, hits: u32, checksum: u32) {
        self.shared.set(slot, name, dirty, hits, checksum);
        if let Some(old) = self.shared.enter(name, slot) {
            self.vacate(old, name);
        }
        let segment = self.place(slot).0;
        self.segments[segment].live += 1;
        self.segments[segment].dirty += u32::from(dirty);
        self.files.came(name.file(), dirty);
    }

    pub(crate) fn unmap(&mut self, slot: SsdSlot) {
        if let Some(name) = self.shared.name(slot) {
            self.shared.remove(name);
            self.vacate(slot, name);
            self.files.settle(name.file());
        }
    }

    fn vacate(&mut self, slot: SsdSlot, name: PageName) {
        let (segment, dirty) = (self.place(slot).0, self.shared.is_dirty(slot));
        self.segments[segment].live = self.segments[segment].live.saturating_sub(1);
        if dirty {
            self.segments[segment].dirty = self.segments[segment].dirty.saturating_sub(1);
            self.segments[segment].replaced = self.open_stamp();
        }
        self.files.went(name.file(), dirty);
        self.shared.clear(slot);
    }
}
