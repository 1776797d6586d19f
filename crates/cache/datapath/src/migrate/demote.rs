//! Writes dirty pages of the SSD to their backing files: sorted, adjacent pages in one call. They count as clean only once they are
//! durable there. Also makes room in the log by freeing its oldest segment.

use std::time::Instant;

use block::Error;
use rustix::io::Errno;
use ssdcache::{CollectScope, FileKey, Item, PAGE_BYTES, Page, VerifyResult, runs};

use super::{STEP_PAGES, Worker};
use crate::engine::layout::Word;
use crate::engine::log::Stop;
use crate::engine::open::errno_of;
use crate::engine::{CATALOGUE, CacheEngine, Count, Entry, Tier, flag, place};

/// Pages written back in one sweep: the more, the more of them are adjacent.
const SWEEP_PAGES: usize = 4096;
/// Pages whose bytes are in memory at a time.
const PIECE_PAGES: usize = 512;
/// Write-back marks that fit into a batch.
const MARKS: usize = 100;
/// The interval between sweeps while readers wait for backing files, ms.
const YIELD_MS: u32 = 50;
/// Up to this many files that are due are written back one by one.
const DUE_ONE_BY_ONE: usize = 16;

/// The reason why the write-back of a file did not begin.
enum NotBegun {
    /// Its entry cannot be put into the log now.
    NoEntry(Errno),
    /// The backing file cannot be written to.
    Failed(Errno),
}

impl From<Errno> for NotBegun {
    fn from(errno: Errno) -> NotBegun {
        NotBegun::Failed(errno)
    }
}

impl Worker {
    /// Writes pages back ahead of need, when too many are dirty. Returns whether there was work to do.
    pub(super) fn write_back_ahead(&mut self, engine: &CacheEngine) -> bool {
        if self.log.is_none() {
            return false;
        }
        if !self.has_log(engine) {
            return self.evacuate(engine);
        }
        let due = self.due(engine);
        if !due.is_empty() {
            return self.write_back_due(engine, &due);
        }
        let Some(log) = &self.log else { return false };
        let (_, dirty) = log.cache.len();
        let own = u64::from(log.cache.dirty_of(CATALOGUE));
        let limit = u64::from(log.cache.shape().slots()) * u64::from(engine.limits.ssd_dirty_percent) / 100;
        // In a mode without dirty pages, those left from another mode or life are written back.
        let limit = if engine.mode().keeps_dirty() { limit } else { own };
        let now = engine.world.now_ms();
        if dirty <= limit {
            if now.wrapping_sub(self.last_idle_work) < 1000 {
                return false;
            }
            self.last_idle_work = now;
            return self.settle_entries(engine, 16);
        }
        // Reads from backing files come first, as long as the SSD is not nearly full of dirty pages.
        let reads = engine.counters.sum(Count::Misses);
        let is_read = reads != std::mem::replace(&mut self.below_reads, reads);
        if is_read && dirty < limit * 2 && now.wrapping_sub(self.last_idle_work) < YIELD_MS {
            return false;
        }
        self.last_idle_work = now;
        self.sweep(engine, SWEEP_PAGES / 4).is_ok_and(|count| count > 0)
    }

    /// Returns the writable files that have had dirty pages on the SSD for longer than the dirty age.
    fn due(&self, engine: &CacheEngine) -> Vec<FileKey> {
        let (now, age) = (engine.world.now_ms(), engine.header.get(Word::DirtyAge));
        let is_old = |since_ms: u32| now.wrapping_sub(since_ms) >= age;
        let old = self.dirty_since.iter().filter(|(_, since_ms)| is_old(**since_ms)).map(|(key, _)| *key);
        // A missing file is searched for now and then.
        let is_conflict = |key: FileKey| engine.records.find(key).is_some_and(|no| engine.records.get(no).has(flag::CONFLICT));
        let mut due: Vec<FileKey> = old.filter(|key| !self.is_patient(engine, *key) && !is_conflict(*key)).collect();
        // In rotation: a file that is written all the time does not starve the others.
        due.sort_unstable();
        let first = due.partition_point(|key| *key <= self.last_due);
        due.rotate_left(first);
        due
    }

    /// Writes back some pages of the due files; returns whether there was work to do.
    fn write_back_due(&mut self, engine: &CacheEngine, due: &[FileKey]) -> bool {
        let now = engine.world.now_ms();
        let reads = engine.counters.sum(Count::Misses);
        let is_read = reads != std::mem::replace(&mut self.below_reads, reads);
        if is_read && now.wrapping_sub(self.last_idle_work) < YIELD_MS {
            return false;
        }
        self.last_idle_work = now;
        // Only durable pages are written back.
        if self.flush_log(engine).is_err() {
            return false;
        }
        let most = SWEEP_PAGES / 4;
        let Some(log) = &self.log else { return false };
        let mut items = Vec::new();
        if let ([key], _) | ([key, ..], true) = (due, due.len() <= DUE_ONE_BY_ONE) {
            self.last_due = *key;
            log.cache.collect_dirty(CollectScope::File(*key), most, &mut items);
            let is_all = items.len() < most;
            let written = self.write_back(engine, &items).unwrap_or(0);
            if let Some(since_ms) = self.dirty_since.get_mut(key).filter(|_| is_all) {
                // Pages that are dirty now are newer.
                *since_ms = now;
            }
            if self.log.as_ref().is_none_or(|log| log.cache.dirty_of(*key) == 0) {
                self.dirty_since.remove(key);
            }
            return written > 0;
        }
        // A scan of the SSD's map takes as long for one file as for all.
        log.cache.collect_sweep(self.swept, most, &mut items);
        if let Some(last) = items.last() {
            self.swept = (last.key, last.page);
        }
        let due: std::collections::HashSet<FileKey> = due.iter().copied().collect();
        items.retain(|item| due.contains(&item.key));
        let done = self.write_back(engine, &items).is_ok();
        let log = &self.log;
        self.dirty_since.retain(|key, _| log.as_ref().is_some_and(|log| log.cache.dirty_of(*key) > 0));
        done
    }

    /// Writes back the next pages in the order of files and pages; returns their number.
    pub(super) fn sweep(&mut self, engine: &CacheEngine, most: usize) -> Result<usize, Errno> {
        let Some(log) = &self.log else { return Ok(0) };
        let mut items = Vec::new();
        log.cache.collect_sweep(self.swept, most, &mut items);
        if let Some(last) = items.last() {
            self.swept = (last.key, last.page);
        }
        self.write_back(engine, &items)
    }

    /// Writes back all dirty pages of a file that are on the SSD.
    pub(super) fn write_back_file(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        let mut items = Vec::new();
        for _ in 0..self.rounds(engine) {
            let Some(log) = &mut self.log else { return Ok(()) };
            // Only durable pages are written back.
            let flushed = if engine.header.ssd_failed() == 0 { log.flush() } else { Ok(()) };
            flushed.unwrap_or_else(|stop| _ = self.stopped(engine, stop));
            let Some(log) = &self.log else { return Ok(()) };
            log.cache.collect_dirty(CollectScope::File(key), SWEEP_PAGES, &mut items);
            if !self.has_log(engine) {
                items.retain(|item| !is_newer_in_frame(engine, *item));
            }
            if items.is_empty() {
                return Ok(());
            }
            let dirty = |worker: &Worker| worker.log.as_ref().map_or(0, |log| log.cache.dirty_of(key));
            let before = dirty(self);
            // If pages were written and are still dirty, another process overwrote the map.
            if self.write_back(engine, &items)? == 0 || dirty(self) >= before {
                return Err(Errno::IO);
            }
        }
        // The pages were written and are still dirty: another process overwrote the map.
        Err(Errno::IO)
    }

    /// Returns a number of rounds that suffices to write back everything, with some to spare.
    pub(super) fn rounds(&self, engine: &CacheEngine) -> u32 {
        let slots = self.log.as_ref().map_or(0, |log| log.cache.shape().slots());
        16 + 4 * (slots / SWEEP_PAGES as u32 + engine.layout.sizes.frames.frames / STEP_PAGES as u32)
    }

    /// Writes items back, sorted; returns their number. A failure of one file does not stop the others: the first one is returned only if
    /// nothing was written.
    pub(super) fn write_back(&mut self, engine: &CacheEngine, items: &[Item]) -> Result<usize, Errno> {
        let (mut count, mut result, mut begun) = (0, Ok(()), Vec::new());
        // The entries of all files become durable together: each flush takes a page of the log.
        for of_file in items.chunk_by(|a, b| a.key == b.key) {
            let key = of_file[0].key;
            if key == CATALOGUE || self.is_patient(engine, key) {
                result = result.and(if key == CATALOGUE { Ok(()) } else { Err(Errno::IO) });
                continue;
            }
            match self.begin_write_back(engine, key) {
                Ok(true) => begun.push((key, of_file)),
                Ok(false) => count += of_file.len(),
                // The write-back has not begun: the dirty pages wait on the SSD until the log has room.
                Err(NotBegun::NoEntry(errno)) => result = result.and(Err(errno)),
                Err(NotBegun::Failed(errno)) => result = result.and(self.write_back_failed(engine, key, errno)),
            }
        }
        if !begun.is_empty() {
            self.flush_log(engine).or_else(|errno| self.unless_ssd_failed(engine, errno))?;
        }
        for (key, of_file) in begun {
            match self.write_back_of(engine, key, of_file) {
                Ok(written) => count += written,
                Err(errno) => result = result.and(self.write_back_failed(engine, key, errno)),
            }
        }
        if count > 0 { Ok(count) } else { result.map(|()| 0) }
    }

    fn write_back_failed(&mut self, engine: &CacheEngine, key: FileKey, errno: Errno) -> Result<(), Errno> {
        // A stranded file has its own flag, and retrying does not help.
        if !self.is_stranded(engine, key) {
            self.failed(engine, key, errno);
        }
        Err(errno)
    }

    /// Prepares the write-back of a file: its entry says so once the log is flushed. Without that entry, the next leader could not know
    /// that the changes were ours. Returns false if the file was removed, and its pages are dropped.
    fn begin_write_back(&mut self, engine: &CacheEngine, key: FileKey) -> Result<bool, NotBegun> {
        let Some(below) = self.found(engine, key)? else { return Ok(false) };
        self.cut_again(engine, key)?;
        self.look_first(engine, key, &*below)?;
        let said = self.say_writing(engine, key).map(drop);
        said.or_else(|errno| self.unless_ssd_failed(engine, errno)).map_err(NotBegun::NoEntry)?;
        Ok(true)
    }

    /// Returns the error of the log, unless the SSD has failed: then nothing is read from it after a restart.
    fn unless_ssd_failed(&self, engine: &CacheEngine, errno: Errno) -> Result<(), Errno> {
        if self.has_log(engine) { Err(errno) } else { Ok(()) }
    }

    fn write_back_of(&mut self, engine: &CacheEngine, key: FileKey, items: &[Item]) -> Result<usize, Errno> {
        let Some(below) = self.found(engine, key)? else { return Ok(items.len()) };
        let window = self.open_window(engine, key, &*below)?;
        // The window takes another program's truncation into account.
        let size = self.end_below(engine, key);
        let mut written = Vec::with_capacity(items.len());
        let (mut lost, mut cleaned, mut result) = (0, 0, Ok(()));
        for piece in runs(items).flat_map(|run| run.chunks(PIECE_PAGES)) {
            let Some(log) = &mut self.log else { break };
            // Making room for the entry may have written pages back since they were collected. The file may have newer bytes of them now.
            let run: Vec<Item> = piece.iter().filter(|item| log.cache.is_dirty(item.key, item.page)).copied().collect();
            cleaned += piece.len() - run.len();
            let pages = log.read_items(&run);
            let pages = run.iter().copied().zip(pages).map(|(item, page)| (item, page.or_else(|| from_frame(engine, item))));
            let whole: Vec<(Item, Box<Page>)> = pages.filter_map(|(item, page)| Some((item, page?))).collect();
            lost += self.lost(engine, &run, &whole);
            for piece in whole.chunk_by(|(a, _), (b, _)| a.page.0 + 1 == b.page.0) {
                let at = piece[0].0.page.0 * PAGE_BYTES as u64;
                let mut bytes: Vec<u8> = piece.iter().flat_map(|(_, page)| page.iter().copied()).collect();
                bytes.truncate(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
                if !bytes.is_empty() {
                    let begun = Instant::now();
                    result = below.write_at(at, &bytes);
                    engine.counters.write_took(Tier::Below, begun.elapsed().as_nanos() as u64);
                    engine.counters.add(Count::BelowWrites, 1);
                    engine.counters.add(Count::BelowWritten, bytes.len() as u64);
                }
                if result.is_err() {
                    break;
                }
                written.extend(piece.iter().map(|(item, _)| *item));
            }
            if result.is_err() {
                break;
            }
        }
        // The file has a length without data: the data there was lost, or is written later.
        if result.is_ok() && size != u64::MAX && below.stamp().is_ok_and(|stamp| stamp.size < size) {
            result = below.set_len(size);
        }
        let synced = below.sync();
        self.close_window(engine, window, &*below);
        synced.map_err(|error| errno_of(&error))?;
        self.synced_below(engine, key)?;
        self.note_after(engine, key);
        self.mark_written(engine, &written);
        self.end_trim(engine, key);
        result.map_err(|error| errno_of(&error))?;
        engine.counters.add(Count::WrittenBack, written.len() as u64);
        if lost == items.len() {
            return Err(Errno::IO);
        }
        self.succeeded(key);
        self.over(engine, key);
        // On a failed SSD, newer versions in frames are still to be written.
        Ok(if self.has_log(engine) { items.len() - lost } else { written.len() + cleaned })
    }

    fn mark_written(&mut self, engine: &CacheEngine, written: &[Item]) {
        for some in written.chunks(MARKS) {
            let Some(log) = &mut self.log else { return };
            // Without room for the mark, the page is dirty again for the next process that opens the SSD.
            if engine.header.ssd_failed() == 0 {
                let _ = log.prepare(some.len());
            }
            for item in some {
                log.cache.written_back(item);
            }
            if engine.header.ssd_failed() == 0
                && let Err(stop) = log.seal()
                && stop != Stop::Room
            {
                self.stopped(engine, stop);
            }
        }
    }

    /// Frees the next segment as soon as a new one is started, while the log has room for the writes that this takes.
    pub(super) fn room_ahead(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        if self.making_room || !self.log.as_ref().is_some_and(|log| log.cache.is_full()) {
            return Ok(());
        }
        self.make_room(engine)
    }

    /// Frees the oldest segment: writes back its dirty pages, and reinserts its catalogue entries and hot pages.
    pub(super) fn make_room(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        if self.making_room {
            return Err(Errno::NOSPC);
        }
        self.making_room = true;
        let result = self.make_room_once(engine);
        self.making_room = false;
        result
    }

    fn make_room_once(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        let mut items = Vec::new();
        for round in 0..4 {
            self.keep_entries(engine, &mut items)?;
            let Some(log) = &mut self.log else { return Ok(()) };
            if round == 0 {
                log.cache.collect_hot(usize::MAX, &mut items);
                let pages = log.read_items(&items);
                for (item, page) in items.iter().zip(pages).filter_map(|(item, page)| Some((item, page?))) {
                    if log.reinsert(item, &page).is_err() {
                        break;
                    }
                }
            }
            match log.reclaim() {
                Ok(()) => return Ok(()),
                // Only durable pages are written back.
                Err(ssdcache::CacheError::Dirty) => log.flush().map_err(|stop| self.stopped(engine, stop))?,
                Err(refused) => {
                    log.resolve(refused).map_err(|stop| self.stopped(engine, stop))?;
                    continue;
                }
            }
            let Some(log) = &mut self.log else { return Ok(()) };
            // More than the oldest segment, because adjacent pages are cheaper to write together. But with many files their entries would
            // take the room that those of the oldest segment need.
            let files_max = log.cache.shape().segment_pages as usize / 8;
            for segments in [8, 1] {
                log.cache.collect_dirty(CollectScope::Oldest(segments), SWEEP_PAGES, &mut items);
                items.retain(|item| item.key != CATALOGUE);
                if items.chunk_by(|a, b| a.key == b.key).count() <= files_max {
                    break;
                }
            }
            let result = self.write_back(engine, &items);
            if round == 3 {
                result?;
            }
        }
        Err(Errno::NOSPC)
    }

    /// Reinserts catalogue entries of the oldest segment whose files still have pages.
    fn keep_entries(&mut self, engine: &CacheEngine, items: &mut Vec<Item>) -> Result<(), Errno> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.cache.collect_own(items);
        for item in items.iter() {
            let Some(log) = &mut self.log else { return Ok(()) };
            let page = match log.read_item(item) {
                Ok(page) => page,
                Err(VerifyResult::Changed) => continue,
                Err(_) => self.known_entry(engine, item)?,
            };
            let Some(log) = &mut self.log else { return Ok(()) };
            let is_needed = Entry::decode(&page).is_some_and(|entry| log.cache.pages_of(entry.key) > 0);
            if !is_needed && log.drop_pages(item.key, item.page.0..item.page.0 + 1).is_ok() {
                if let Some(entry) = Entry::decode(&page) {
                    self.forget(engine, entry.key);
                }
                continue;
            }
            match log.reinsert(item, &page) {
                Ok(()) | Err(Stop::Changed) => {}
                Err(stop) => return Err(self.stopped(engine, stop)),
            }
        }
        Ok(())
    }

    /// Returns an entry that the SSD cannot return, from memory. If memory has none either, the SSD fails.
    fn known_entry(&mut self, engine: &CacheEngine, item: &Item) -> Result<Box<Page>, Errno> {
        let noted = self.known.iter().filter(|(key, _)| place(**key) == item.page).find_map(|(_, known)| known.noted());
        match noted {
            Some(entry) => Ok(entry.encode()),
            None => {
                self.fail(engine, Error::Media, "it cannot read what it had written");
                Err(Errno::IO)
            }
        }
    }
}

/// Returns whether a frame has a newer, marked version, which is written back from there.
pub(super) fn is_newer_in_frame(engine: &CacheEngine, item: Item) -> bool {
    let Some(no) = engine.records.find(item.key) else { return false };
    engine.pages.snapshot(engine.name(no, item.page.0), &mut [0; PAGE_BYTES]).is_some_and(|snapshot| !snapshot.marks.is_none())
}

/// Returns a page from its frame, which has the newest version and all of its bytes.
fn from_frame(engine: &CacheEngine, item: Item) -> Option<Box<Page>> {
    let no = engine.records.find(item.key)?;
    let mut bytes = Box::new([0; PAGE_BYTES]);
    let snapshot = engine.pages.snapshot(engine.name(no, item.page.0), &mut bytes)?;
    // A marked page is handled by write-back.
    snapshot.marks.is_none().then_some(bytes)
}

#[cfg(test)]
mod test {
    use std::path::Path;
    use std::sync::atomic::Ordering;

    use ssdcache::{Mode, PageIndex};

    use super::*;
    use crate::engine::OpenOptions;

    /// A sweep begins within the pages of a removed file, and its end has the others.
    #[test]
    fn a_removed_file_on_both_sides_of_a_sweep_is_not_reported_as_missing() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        let (no, key) = (open.no(), open.key());
        let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
        let below = engine.world.open(FileKey(8), Path::new("/file"), &[], true).expect("there");
        let other = engine.open(FileKey(8), Path::new("/file"), options, below).expect("opened");
        for open in [&open, &other] {
            open.write(0, &[1; 3 * PAGE_BYTES]).expect("written");
            open.sync().expect("on the SSD");
        }
        let mut worker = Worker::begin(&engine);
        worker.hold(&engine, no, key).expect("held");
        drop(open);
        file.is_gone.store(true, Ordering::Relaxed);
        worker.swept = (key, PageIndex(0));
        assert_eq!(worker.sweep(&engine, SWEEP_PAGES), Ok(6));
        assert!(!worker.is_dirty(&engine, no, key) && !engine.records.get(no).has(flag::STRANDED));
    }

    #[test]
    fn an_entry_is_found_in_memory_though_another_file_has_the_same_place() {
        let (_, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        let (key, other) = (open.key(), FileKey(open.key().0 + (1 << 33)));
        let mut worker = Worker::begin(&engine);
        let entry = Entry { key: other, ..worker.entry(key).expect("an entry") };
        worker.put_entry(&engine, other, |_| entry.clone()).expect("put");
        let mut items = Vec::new();
        worker.log.as_ref().expect("a log").cache.collect_dirty(CollectScope::File(key), 1, &mut items);
        let item = Item { key: CATALOGUE, page: place(other), ..items[0] };
        let page = worker.known_entry(&engine, &item).expect("in memory");
        assert_eq!(Entry::decode(&page), Some(entry));
    }

    /// The pages were written back after they were collected, and a process has written through to the file since.
    #[test]
    fn pages_that_became_clean_are_not_written_again() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 3 * PAGE_BYTES]).expect("written");
        open.sync().expect("on the SSD");
        let mut worker = Worker::begin(&engine);
        let mut items = Vec::new();
        let log = worker.log.as_ref().expect("a log");
        log.cache.collect_dirty(CollectScope::File(open.key()), SWEEP_PAGES, &mut items);
        assert_eq!(items.len(), 3);
        assert_eq!(worker.write_back(&engine, &items[..2]), Ok(2));
        file.bytes.lock()[..2 * PAGE_BYTES].fill(2);
        assert_eq!(worker.write_back_of(&engine, open.key(), &items), Ok(3));
        let bytes = file.bytes.lock();
        assert!(bytes[..2 * PAGE_BYTES].iter().all(|byte| *byte == 2) && bytes[2 * PAGE_BYTES..] == [1; PAGE_BYTES]);
    }
}
