//! Rebuilds the metadata from the device.
//!
//! It first reads the first summary of each segment, in any order: they show which segments exist. Then it reads the summaries of each
//! segment, from the oldest to the newest, for 256 segments in parallel. It reads pages only in the newest segment, behind the part that is
//! known to be durable. Reads: two for each first summary, one for each other, and one segment. Nothing is written.
//!
//! *Damage.* If a durable batch is missing, it is unknown what it superseded or dropped. All older pages are discarded, the clean ones
//! silently, the dirty ones by name ([`RecoveryResult::suspect`]). Every number that is read is checked against the sizes: a malicious
//! image gives less cache, in bounded time and memory.

use std::collections::BinaryHeap;
use std::sync::Arc;

use shm::Region;

use crate::batch::{BatchTrack, HeadSegment};
use crate::cache::SsdCache;
use crate::checksum::page_checksum;
use crate::open_error::CacheOpenError;
use crate::reader::{AT_ONCE, KEPT, Reader};
use crate::shared::SharedMap;
use crate::slots::PageName;
use crate::summary::{Entry, EntryKind, SummaryHeader};
use crate::superblock::Superblock;
use crate::units::{DevicePage, FileKey, Item, PAGE_BYTES, Page, SsdSlot, Stamp};

/// The counts and losses of a recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryResult {
    /// The number of summaries read, and of pages read to verify them.
    pub reads: u64,
    /// The number of segments with missing or damaged durable batches.
    pub damaged: u64,
    /// Dirty pages that were discarded because a missing batch may have had a newer version. The items name their places; the bytes there
    /// may or may not be the newest.
    pub suspect: Vec<Item>,
    /// The number of pages discarded because there are too many files.
    pub crowded: u64,
    /// The number of dirty pages that the last leader knew and that are missing, of files without a known key.
    pub unknown: u64,
}

/// A drop or a write-back that is still to be applied to older pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PendingNote {
    file: u32,
    start: u64,
    end: u64,
    order: u64,
    drop: bool,
}

/// Opens the cache on a device with this number of pages.
///
/// `published`: the segment, and the place in it, where other processes have a [`crate::View`] of the map. They use the old map until the
/// new one replaces it. If something is missing, the dirty pages of the old map and the suspect ones stay in the new map, dirty, so that
/// nobody uses the backing file instead; no page may be put to such a cache. `held`: files that others have open, with their numbers, which
/// stay valid ([`SsdCache::hold`]). `read` reads the requested pages in any order, best many at once, and calls back with the number and
/// the bytes of each readable page.
///
/// See [`CacheOpenError`]; `uuid`: that of the expected cache.
/// As [`CacheOpenError`] says; `uuid`: of the cache that is wanted.
pub fn recover(
    device_pages: u64,
    uuid: Option<[u8; 16]>,
    files_max: u32,
    published: Option<(&Arc<Region>, usize)>,
    held: &[(FileKey, u32)],
    read: impl FnMut(&[DevicePage], &mut dyn FnMut(usize, &Page)),
) -> Result<(SsdCache, RecoveryResult), CacheOpenError> {
    let mut reader = Reader::new(read);
    reader.fetch((0..2).map(DevicePage));
    let mut pages = [[0; PAGE_BYTES]; 2];
    for (at, page) in pages.iter_mut().enumerate() {
        if reader.read(DevicePage(at as u64)) {
            *page = reader.buffer;
        }
    }
    let superblock = Superblock::choose(&pages, device_pages)?;
    if uuid.is_some_and(|uuid| uuid != superblock.uuid) {
        return Err(CacheOpenError::Uuid);
    }
    let published = published.map(|(region, at)| SharedMap::attach(region, at, region.len().saturating_sub(at))).transpose()?;
    if published.as_ref().is_some_and(|shared| shared.shape() != superblock.shape) {
        return Err(CacheOpenError::Segment);
    }
    let mut scan = RecoveryScan {
        cache: SsdCache::empty(superblock, files_max, held)?,
        reader,
        found: RecoveryResult::default(),
        entries: Vec::new(),
        notes: Vec::new(),
        firsts: Vec::new(),
    };
    scan.firsts();
    scan.segments();
    scan.apply();
    // The flush of the superblock makes all durable that was found, before anything is reclaimed.
    scan.cache.segments.iter_mut().for_each(|segment| segment.replaced = Stamp::default());
    scan.found.reads = scan.reader.reads;
    scan.cache.tell_head();
    scan.cache.shared.set_own(scan.cache.files.find(FileKey::OWN));
    if let Some(shared) = published {
        if scan.found.damaged > 0 {
            scan.compare(&shared);
            scan.found.unknown += scan.cache.keep_suspects(&scan.found.suspect, &shared);
        }
        scan.cache.shared.publish(&shared)?;
        scan.cache.shared = shared;
    }
    Ok((scan.cache, scan.found))
}

/// Number of segments whose summaries are read at the same time.
const WINDOW: u64 = 256;

/// The position that a chain of batches has reached.
#[derive(Clone, Copy, Default)]
struct BatchChain {
    batch: u32,
    position: u32,
    life: u32,
}

struct RecoveryScan<R> {
    cache: SsdCache,
    reader: Reader<R>,
    found: RecoveryResult,
    /// The entries of the summary read last.
    entries: Vec<Entry>,
    notes: Vec<PendingNote>,
    /// The first summaries, by place of the segment.
    firsts: Vec<Option<SummaryHeader>>,
}

impl<R: FnMut(&[DevicePage], &mut dyn FnMut(usize, &Page))> RecoveryScan<R> {
    /// Reads the first summary of each segment, and derives the tail from them.
    fn firsts(&mut self) {
        let segments = self.cache.segments.len() as u64;
        for place in 0..segments {
            if place.is_multiple_of(AT_ONCE as u64) {
                self.reader.forget();
                let places = place..segments.min(place + AT_ONCE as u64);
                self.reader.fetch(places.map(|place| self.cache.address(SsdSlot(place as u32 * self.cache.shape().segment_pages))));
            }
            let first = self.summary(place as usize, BatchChain::default());
            self.firsts.push(first.filter(|head| self.cache.place_of(head.seq) as u64 == place));
        }
        let newest = self.firsts.iter().flatten().max_by_key(|head| head.seq).copied();
        let mut tail = self.cache.superblock.tail;
        if let Some(newest) = newest {
            tail = tail.max((newest.seq + 1).saturating_sub(segments));
            // Of any summary that is whole: what it says was reclaimed was clean, and may be half overwritten.
            let (place, mut chain) = (self.cache.place_of(newest.seq), BatchChain::default());
            while let Some(head) = self.next(place, newest.seq, chain) {
                tail = tail.max(head.tail);
                chain = self.after(head);
            }
        }
        self.cache.superblock.tail = tail;
        self.cache.head.seq = newest.map_or(0, |head| head.seq).max(tail - 1);
    }

    /// Reads the summary that continues the chain, if it exists.
    fn summary(&mut self, place: usize, chain: BatchChain) -> Option<SummaryHeader> {
        let pages = self.cache.shape().segment_pages;
        if chain.position >= pages {
            return None;
        }
        let at = self.cache.address(SsdSlot(place as u32 * pages + chain.position));
        // Where batches are small, the next summaries are near.
        let near = if chain.position < 16 * chain.batch { (pages - chain.position).min(64) } else { 1 };
        if !self.reader.has(at) {
            self.reader.fetch((0..u64::from(near)).map(|n| DevicePage(at.0 + n)));
        }
        if !self.reader.read(at) {
            return None;
        }
        let head = SummaryHeader::decode(&self.reader.buffer, at, &self.cache.superblock.uuid, &mut self.entries)?;
        let fits = u64::from(chain.position) + 1 + self.data() <= u64::from(pages);
        let life = chain.life..=u32::try_from(self.cache.superblock.generation).unwrap_or(u32::MAX);
        (fits && head.batch == chain.batch && head.position == chain.position && life.contains(&head.life)).then_some(head)
    }

    fn data(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.is_data()).count() as u64
    }

    fn segments(&mut self) {
        let (tail, newest) = (self.cache.superblock.tail, self.cache.head.seq);
        let expected = self.expected(tail);
        for seq in tail..=newest {
            if (seq - tail).is_multiple_of(WINDOW) {
                self.read_ahead(seq..(seq + WINDOW).min(newest + 1));
            }
            let (place, expected) = (self.cache.place_of(seq), expected[(seq - tail) as usize]);
            let Some(first) = self.firsts[place].filter(|head| head.seq == seq) else {
                if expected != Some(0) {
                    self.damage();
                }
                continue;
            };
            self.cache.segments[place].seq = seq;
            self.cache.shared.set_seq(place, seq);
            if seq == newest {
                self.newest(place, first);
                return;
            }
            let mut chain = BatchChain::default();
            while expected.is_none_or(|batches| chain.batch < batches)
                && let Some(head) = self.next(place, seq, chain)
            {
                chain = self.accept(place, head);
            }
            if expected.is_some_and(|batches| chain.batch < batches) {
                self.damage();
            }
        }
    }

    /// Reads the summaries of many segments: the first of each, then the second, and so on. The remaining ones are read one by one later.
    fn read_ahead(&mut self, seqs: std::ops::Range<u64>) {
        self.reader.forget();
        let pages = self.cache.shape().segment_pages;
        let mut tips: Vec<(usize, u64, BatchChain)> = seqs.map(|seq| (self.cache.place_of(seq), seq, BatchChain::default())).collect();
        tips.retain(|(place, seq, _)| self.firsts[*place].is_some_and(|head| head.seq == *seq));
        while !tips.is_empty() && self.reader.kept() + tips.len() <= KEPT {
            let wanted = tips.iter().map(|(place, _, chain)| self.cache.address(SsdSlot(*place as u32 * pages + chain.position)));
            self.reader.fetch(wanted);
            let next = |(place, seq, chain)| self.next(place, seq, chain).map(|head| (place, seq, self.after(head)));
            tips = std::mem::take(&mut tips).into_iter().filter_map(next).filter(|(_, _, chain)| chain.position < pages).collect();
        }
    }

    /// Returns the number of batches of each segment from the tail on, as recorded by its successors; the latest record counts.
    fn expected(&self, tail: u64) -> Vec<Option<u32>> {
        let mut expected = vec![None; self.cache.segments.len()];
        let mut firsts: Vec<SummaryHeader> = self.firsts.iter().flatten().copied().collect();
        firsts.sort_unstable_by_key(|head| head.seq);
        for head in firsts {
            let last = head.seq.saturating_sub(1 + u64::from(head.before.skipped));
            for seq in last.max(tail)..head.seq {
                let batches = if seq == last { u32::from(head.before.batches) } else { 0 };
                expected[(seq - tail) as usize] = Some(batches);
            }
        }
        expected
    }

    fn next(&mut self, place: usize, seq: u64, chain: BatchChain) -> Option<SummaryHeader> {
        self.summary(place, chain).filter(|head| head.seq == seq)
    }

    /// Reads the segment that was being written: the part not known to be durable is valid only up to the first torn batch.
    fn newest(&mut self, place: usize, first: SummaryHeader) {
        let (mut chain, mut durable) = (BatchChain::default(), 0);
        while let Some(head) = self.next(place, first.seq, chain) {
            durable = durable.max(head.durable);
            chain = self.after(head);
        }
        let missing = self.is_cut_short(place, first.seq, chain);
        self.cache.head = HeadSegment { entries: Vec::with_capacity(crate::summary::ENTRIES), ..HeadSegment::new(first.seq, first.before) };
        let (mut chain, mut torn) = (BatchChain::default(), false);
        while let Some(head) = self.next(place, first.seq, chain) {
            if head.batch >= durable && !self.is_whole(place, head) {
                torn = true;
                break;
            }
            let next = self.accept(place, head);
            if head.batch >= durable {
                let (batch, start, end, tail) = (head.batch, chain.position, next.position, head.tail);
                self.cache.head.tracks.push_back(BatchTrack { batch, start, end, tail, ended: true });
            }
            chain = next;
        }
        if missing {
            self.damage();
        }
        let has_room = self.cache.free_after(first.seq) > 0;
        let head = &mut self.cache.head;
        (head.batch, head.start) = (chain.batch, chain.position);
        // What is torn stays so if it can: half written over, with pages that are the same, it could become whole.
        head.closed = (torn && has_room) || chain.position >= self.cache.superblock.shape.segment_pages;
        if torn && !has_room {
            self.cache.given_up = first.seq;
        }
        self.cache.durable = Stamp::new(first.seq, durable.min(chain.batch));
    }

    /// Returns whether the newest segment has a summary behind the end of its chain that records more durable batches than were found.
    fn is_cut_short(&mut self, place: usize, seq: u64, chain: BatchChain) -> bool {
        let pages = self.cache.shape().segment_pages;
        for position in chain.position..pages {
            if (position - chain.position).is_multiple_of(AT_ONCE as u32) {
                let positions = position..pages.min(position + AT_ONCE as u32);
                self.reader.fetch(positions.map(|position| self.cache.address(SsdSlot(place as u32 * pages + position))));
            }
            let at = self.cache.address(SsdSlot(place as u32 * pages + position));
            if self.reader.read(at)
                && let Some(head) = SummaryHeader::decode(&self.reader.buffer, at, &self.cache.superblock.uuid, &mut self.entries)
                && head.seq == seq
                && head.position == position
                && head.durable > chain.batch
            {
                return true;
            }
        }
        false
    }

    /// Verifies the pages of the batch whose summary was read last. It overwrites the buffer, but not the entries.
    fn is_whole(&mut self, place: usize, head: SummaryHeader) -> bool {
        let base = place as u32 * self.cache.shape().segment_pages + head.position + 1;
        let data = self.entries.iter().filter(|entry| entry.is_data());
        self.reader.fetch((0..data.clone().count() as u32).map(|n| self.cache.address(SsdSlot(base + n))));
        for (n, entry) in data.enumerate() {
            let at = self.cache.address(SsdSlot(base + n as u32));
            let (EntryKind::Clean { checksum } | EntryKind::Dirty { checksum }) = entry.kind else { continue };
            if !self.reader.read(at) || page_checksum(&self.reader.buffer, entry.key, entry.page, at, head.seq) != checksum {
                return false;
            }
        }
        true
    }

    fn after(&self, head: SummaryHeader) -> BatchChain {
        BatchChain { batch: head.batch + 1, position: head.position + 1 + self.data() as u32, life: head.life }
    }

    /// Adds a batch, whose summary was read last, to the metadata. All older batches have been added.
    fn accept(&mut self, place: usize, head: SummaryHeader) -> BatchChain {
        let base = place as u32 * self.cache.shape().segment_pages;
        let mut position = head.position + 1;
        for entry in std::mem::take(&mut self.entries) {
            let (dirty, checksum) = match entry.kind {
                EntryKind::Clean { checksum } => (false, checksum),
                EntryKind::Dirty { checksum } => (true, checksum),
                EntryKind::Dropped { count } => {
                    self.note(&entry, count, order(head.seq, position), true);
                    continue;
                }
                EntryKind::Cleaned { count } => {
                    self.note(&entry, count, order(head.seq, position), false);
                    continue;
                }
            };
            match self.cache.files.number(entry.key) {
                Some(number) => self.cache.map(SsdSlot(base + position), PageName::new(number, entry.page), dirty, 0, checksum),
                None => {
                    (self.found.crowded, self.cache.given_up) = (self.found.crowded + 1, self.cache.head.seq);
                }
            }
            position += 1;
        }
        BatchChain { batch: head.batch + 1, position, life: head.life }
    }

    fn note(&mut self, entry: &Entry, count: u64, order: u64, drop: bool) {
        // Without pages there is nothing older.
        let Some(file) = self.cache.files.find(entry.key) else { return };
        let start = entry.page.0;
        self.notes.push(PendingNote { file, start, end: start.saturating_add(count), order, drop });
        if self.notes.len() >= (self.cache.shape().slots() as usize).max(4096) {
            self.apply();
        }
    }

    /// Applies the drops and write-backs to older pages: one pass over both, by file and page.
    fn apply(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        if notes.is_empty() {
            return;
        }
        notes.sort_unstable();
        let cache = &mut self.cache;
        let concerned = |name: PageName| notes.binary_search_by_key(&name.file(), |note| note.file).is_ok();
        let slots = (0..cache.shape().slots()).map(SsdSlot);
        let mut pages: Vec<(u32, u64, SsdSlot)> = slots
            .filter_map(|slot| cache.shared.name(slot).filter(|name| concerned(*name)).map(|name| (name.file(), name.page().0, slot)))
            .collect();
        pages.sort_unstable();
        // By kind: the latest note on top, with its end.
        let mut over: [BinaryHeap<(u64, u64)>; 2] = Default::default();
        let (mut next, mut file) = (0, None);
        for (number, page, slot) in pages {
            if file.replace(number) != Some(number) {
                over.iter_mut().for_each(BinaryHeap::clear);
            }
            while next < notes.len() && (notes[next].file, notes[next].start) <= (number, page) {
                if notes[next].file == number {
                    over[usize::from(notes[next].drop)].push((notes[next].order, notes[next].end));
                }
                next += 1;
            }
            let (place, position) = cache.place(slot);
            let mine = order(cache.segments[place].seq, position);
            let [is_cleaned, is_dropped] = over.each_mut().map(|over| {
                while over.peek().is_some_and(|(_, end)| *end <= page) {
                    over.pop();
                }
                over.peek().is_some_and(|(order, _)| *order > mine)
            });
            if is_dropped {
                cache.unmap(slot);
            } else if is_cleaned && cache.shared.is_dirty(slot) {
                cache.shared.cleaned(slot);
                cache.segments[place].dirty = cache.segments[place].dirty.saturating_sub(1);
                cache.files.cleaned(number);
            }
        }
    }

    /// Compares with the last leader's map, if something is missing.
    fn compare(&mut self, published: &SharedMap) {
        let (missing, unknown) = self.cache.missing(published);
        let known: std::collections::HashSet<(FileKey, u64)> = self.found.suspect.iter().map(|item| (item.key, item.page.0)).collect();
        self.found.suspect.extend(missing.into_iter().filter(|item| !known.contains(&(item.key, item.page.0))));
        self.found.unknown = unknown;
    }

    /// Discards all older pages, because something durable is missing.
    fn damage(&mut self) {
        self.apply();
        self.found.damaged += 1;
        self.cache.given_up = self.cache.head.seq;
        for place in 0..self.cache.segments.len() {
            if self.cache.segments[place].live == 0 {
                continue;
            }
            for slot in self.cache.slots_of(place) {
                if self.cache.shared.is_dirty(slot) {
                    self.found.suspect.extend(self.cache.item(slot));
                }
                self.cache.unmap(slot);
            }
        }
    }
}

fn order(seq: u64, position: u32) -> u64 {
    seq << 16 | u64::from(position)
}

impl RecoveryResult {
    /// Returns the files with suspect pages, each once.
    pub fn suspect_files(&self) -> Vec<FileKey> {
        let mut keys: Vec<FileKey> = self.suspect.iter().map(|item| item.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}
