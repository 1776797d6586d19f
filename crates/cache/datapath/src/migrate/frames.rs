//! Cleans marked frames. Dirty ones are written to the SSD in write-back mode, otherwise to the backing file; old copies on the SSD are
//! dropped. The marks are cleared once the data is durable, unless a writer changed the page meanwhile.

use std::time::Instant;

use pagecache::{Marks, Name, Snapshot};
use rustix::io::Errno;
use ssdcache::{FileKey, Mode, PAGE_BYTES, Page, PageIndex, PageVersion};

use super::Worker;
use crate::engine::open::errno_of;
use crate::engine::{CacheEngine, Count, FileNo, Tier, flag};

/// Drops that are prepared together: they must fit into one summary with everything else that it records.
const CHUNK: usize = 100;

/// Rounds of dropping the same pages: making room for a drop occasionally brings a page back.
pub(super) const DROPS: usize = 64;

/// The result of cleaning marked frames.
#[derive(Default)]
pub(super) struct Cleaned {
    pub(super) count: usize,
    /// For each file, the error that kept it from being cleaned.
    pub(super) failed: Vec<(FileNo, Errno)>,
    /// Frames to be settled once the log is durable.
    waiting: Vec<(Name, Snapshot)>,
    /// The same, for pages that only the log has.
    stored: Vec<(Name, Snapshot)>,
}

/// How long pages are tried one by one after the medium refused one.
const FAILING_MAX: std::time::Duration = std::time::Duration::from_secs(1);

type Taken = (Name, Snapshot, Box<Page>);

impl Worker {
    /// Cleans frames; returns their number and the first failure.
    pub(super) fn clean_frames(&mut self, engine: &CacheEngine, marked: &[(Name, u32)]) -> (usize, Result<(), Errno>) {
        let cleaned = self.clean_each(engine, marked, false);
        (cleaned.count, cleaned.failed.first().map_or(Ok(()), |(_, errno)| Err(*errno)))
    }

    /// Cleans frames; returns the failures by file. `asked`: a caller waits, so files that failed recently are tried again.
    pub(super) fn clean_each(&mut self, engine: &CacheEngine, marked: &[(Name, u32)], asked: bool) -> Cleaned {
        let mut names: Vec<Name> = marked.iter().map(|(name, _)| *name).collect();
        names.sort_unstable_by_key(|name| (name.file.0, name.page.0));
        let mut cleaned = Cleaned::default();
        for names in names.chunk_by(|a, b| a.file == b.file) {
            let no = FileNo(names[0].file.0);
            let record = engine.records.get(no);
            let Some(key) = record.key().filter(|_| no.0 < engine.records.count) else {
                // The pages belong to no file, or to one whose record was overwritten: their file cannot be determined.
                self.drop_unowned(engine, no);
                continue;
            };
            let is_stored = self.has_log(engine) && record.mode().within(engine.mode()) == Mode::WriteBack;
            if !record.is_sound(key) {
                cleaned.failed.push((no, Errno::IO));
            } else if self.is_removed(engine, key) && self.drop_removed(engine, key).is_ok() {
                cleaned.count += names.len();
            } else if record.has(flag::CONFLICT) && !is_stored {
                cleaned.failed.push((no, Errno::STALE));
            } else if asked || !self.is_patient(engine, key) || (record.has(flag::CONFLICT) && is_stored) {
                let since_ms = marked.iter().filter(|(name, _)| name.file == names[0].file).map(|(_, since_ms)| *since_ms);
                let now_ms = engine.world.now_ms();
                let since_ms = since_ms.max_by_key(|since_ms| now_ms.wrapping_sub(*since_ms)).unwrap_or(now_ms);
                let mut failing = None;
                for some in names.chunks(CHUNK) {
                    if let Err(errno) = self.clean_some(engine, no, key, some, since_ms, &mut cleaned) {
                        cleaned.failed.push((no, errno));
                        // A page that the medium refuses does not keep others from being written.
                        if errno != Errno::IO || failing.get_or_insert_with(Instant::now).elapsed() > FAILING_MAX {
                            break;
                        }
                    }
                }
            }
        }
        self.settle(engine, &mut cleaned);
        cleaned
    }

    /// Drops dirty frames whose record is free, broken or out of range: any file they were written to could be the wrong one.
    fn drop_unowned(&mut self, engine: &CacheEngine, no: FileNo) {
        let Ok(_held) = engine.lock_records() else { return };
        // The record was just taken for a file.
        if no.0 < engine.records.count && engine.records.get(no).key().is_some() {
            return;
        }
        engine
            .world
            .report("unwritten pages in memory belong to no file: somebody wrote over the shared memory of the cache; they are dropped");
        let _ = engine.drop_frames(no, 0..u64::MAX);
    }

    /// Makes stored pages durable, and clears the marks.
    fn settle(&mut self, engine: &CacheEngine, cleaned: &mut Cleaned) {
        let had_log = self.has_log(engine);
        let flushed = if let (true, Some(log)) = (had_log, &mut self.log) { log.flush() } else { Ok(()) };
        let failed = flushed.map_err(|stop| self.stopped(engine, stop)).err();
        let not_durable = |all: &mut Vec<(Name, Snapshot)>| {
            let errno = failed.unwrap_or(Errno::IO);
            all.drain(..).map(|(name, _)| (FileNo(name.file.0), errno)).collect::<Vec<_>>()
        };
        if !self.has_log(engine) {
            // The SSD has failed, perhaps during this call. Pages written to the backing file are safe.
            cleaned.failed.extend(not_durable(&mut cleaned.stored));
        } else if failed.is_some() {
            cleaned.failed.extend(not_durable(&mut cleaned.stored));
            cleaned.failed.extend(not_durable(&mut cleaned.waiting));
        }
        // First the SSD's dirty pages are published: a status in between must not show that nothing is dirty.
        self.tell(engine);
        let mut files = Vec::new();
        for (name, snapshot) in cleaned.stored.drain(..).chain(cleaned.waiting.drain(..)) {
            // An unsettled page was written meanwhile, and is cleaned again later.
            cleaned.count += usize::from(engine.pages.settle(name, &snapshot, Marks::DIRTY | Marks::SSD_STALE));
            if !files.contains(&name.file.0) {
                files.push(name.file.0);
            }
        }
        for key in files.into_iter().filter_map(|no| engine.records.get(FileNo(no)).key()) {
            self.over(engine, key);
        }
    }

    fn clean_some(
        &mut self,
        engine: &CacheEngine,
        no: FileNo,
        key: FileKey,
        names: &[Name],
        since_ms: u32,
        cleaned: &mut Cleaned,
    ) -> Result<(), Errno> {
        let size = || engine.records.get(no).size().load(std::sync::atomic::Ordering::Acquire);
        let mut taken: Vec<Taken> = Vec::with_capacity(names.len());
        let mut is_behind_end = false;
        for name in names {
            let mut bytes = Box::new([0; PAGE_BYTES]);
            let Some(snapshot) = engine.pages.snapshot(*name, &mut bytes) else {
                if engine.pages.is_stuck(*name) {
                    return Err(Errno::IO);
                }
                continue;
            };
            // The length is read after the bytes, here and for the backing file: a writer that extends the file touches its last page
            // again after that.
            let left = size().saturating_sub(name.page.0 * PAGE_BYTES as u64);
            let behind = &mut bytes[usize::try_from(left).unwrap_or(PAGE_BYTES).min(PAGE_BYTES)..];
            is_behind_end |= left == 0 || behind.iter().any(|byte| *byte != 0);
            behind.fill(0);
            if left > 0 && !snapshot.marks.is_none() {
                taken.push((*name, snapshot, bytes));
            }
        }
        // The page is being truncated, or its writer holds the lock and is about to publish the new length. Or that process has died.
        if is_behind_end && let Some(_held) = self.try_lock(engine, no) {
            engine.drop_behind_end(no)?;
        }
        let mode = engine.records.get(no).mode().within(engine.mode());
        // A page that was written through while the SSD had it dirty is newer than the backing file as a whole.
        let is_dirty = |name: &Name| self.log.as_ref().is_some_and(|log| log.cache.is_dirty(key, PageIndex(name.page.0)));
        let (dirty, stale): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|(name, snapshot, _)| snapshot.marks.has(Marks::DIRTY) || is_dirty(name));
        let is_stored = self.has_log(engine) && mode == Mode::WriteBack;
        // During a truncation the page is stored: a crash may repeat the truncation of the backing file.
        if is_stored && (self.is_being_cut(engine, no) || self.may_store()) {
            let stored = self.store(engine, no, key, dirty, cleaned);
            // Also if only some pages were stored.
            if self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0) {
                self.dirty_since.entry(key).or_insert(since_ms);
                self.keep_dirty_record(engine, key);
            }
            stored?;
        } else {
            if is_stored {
                engine.counters.add(Count::RefusedBudget, dirty.len() as u64);
            }
            self.write_below(engine, no, key, dirty, cleaned)?;
        }
        self.refresh(engine, no, key, mode, stale, cleaned)
    }

    /// Returns whether the daily write budget allows writes to the SSD.
    fn may_store(&mut self) -> bool {
        let now = self.now();
        self.admission.as_mut().is_none_or(|admission| admission.may_spend(now))
    }

    fn store(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, dirty: Vec<Taken>, cleaned: &mut Cleaned) -> Result<(), Errno> {
        if dirty.is_empty() {
            return Ok(());
        }
        self.note(engine, no)?;
        let now = self.now();
        for (name, snapshot, bytes) in dirty {
            self.put(engine, key, PageIndex(name.page.0), PageVersion::Dirty, &bytes)?;
            if let Some(admission) = &mut self.admission {
                admission.spend(now, PAGE_BYTES as u64);
            }
            cleaned.stored.push((name, snapshot));
        }
        Ok(())
    }

    /// Writes dirty frames to the backing file, and drops their SSD copies: the frames cover whole pages.
    fn write_below(
        &mut self,
        engine: &CacheEngine,
        no: FileNo,
        key: FileKey,
        dirty: Vec<Taken>,
        cleaned: &mut Cleaned,
    ) -> Result<(), Errno> {
        if dirty.is_empty() {
            return Ok(());
        }
        if self.found(engine, key)?.is_none() {
            cleaned.count += dirty.len();
            return Ok(());
        }
        let size = self.begin_writing(engine, key)?;
        // The truncation is finished before these pages are only in the backing file: after a crash it would be repeated, and remove
        // them.
        if !self.is_being_cut(engine, no) {
            self.end_cut(engine, key)?;
        }
        let pages: Vec<u64> = dirty.iter().map(|(name, ..)| name.page.0).collect();
        self.will_be_old(engine, key, &pages)?;
        let (is_written, result) = self.write_runs(engine, key, &dirty, size);
        match result {
            Ok(()) => self.succeeded(key),
            Err(errno) if !self.is_stranded(engine, key) => self.failed(engine, key, errno),
            Err(_) => {}
        }
        let mut is_written = is_written.into_iter();
        let dirty: Vec<Taken> = dirty.into_iter().filter(|_| is_written.next() == Some(true)).collect();
        if dirty.is_empty() {
            return result;
        }
        for (name, ..) in &dirty {
            if self.log.is_some() {
                self.drop_pages(engine, key, name.page.0..name.page.0 + 1)?;
            }
        }
        // Not earlier: making room for the entry could write dropped pages over the newer ones.
        self.note_after(engine, key);
        cleaned.waiting.extend(dirty.into_iter().map(|(name, snapshot, _)| (name, snapshot)));
        result
    }

    /// Prepares for pages that will be newer in the backing file than on the SSD. Clean copies are dropped first, durably: after a crash
    /// they would be taken for the current version. Dirty copies are dropped afterwards. Nothing is put until then: making room for it
    /// could write the older versions over the newer ones.
    pub(super) fn will_be_old(&mut self, engine: &CacheEngine, key: FileKey, pages: &[u64]) -> Result<(), Errno> {
        for _ in 0..DROPS {
            self.prepare_drops(engine, pages.len())?;
            let Some(log) = &self.log else { return Ok(()) };
            let is_clean = |page: &&u64| {
                log.cache.lookup(key, PageIndex(**page)) != ssdcache::LookupResult::Miss && !log.cache.is_dirty(key, PageIndex(**page))
            };
            let clean: Vec<u64> = pages.iter().filter(is_clean).copied().collect();
            if clean.is_empty() {
                return self.tell_reclaimed(engine);
            }
            for page in clean {
                self.drop_pages(engine, key, page..page + 1)?;
            }
            self.flush_log(engine)?;
        }
        // Dropped pages are still there: another process overwrote the map.
        Err(Errno::IO)
    }

    fn prepare_drops(&mut self, engine: &CacheEngine, drops: usize) -> Result<(), Errno> {
        if !self.has_log(engine) {
            return Ok(());
        }
        let mut room = self.room_ahead(engine);
        for _ in 0..3 {
            // The SSD may have failed during this call: then nothing needs to be dropped.
            if !self.has_log(engine) {
                return Ok(());
            }
            room?;
            let Some(log) = &mut self.log else { return Ok(()) };
            room = match log.prepare(drops) {
                Ok(()) => return Ok(()),
                Err(crate::engine::log::Stop::Room) => self.make_room(engine),
                Err(stop) => Err(self.stopped(engine, stop)),
            };
        }
        Err(Errno::NOSPC)
    }

    /// Writes adjacent pages in one call, then syncs. Returns which pages are durable, and the first failure.
    fn write_runs(&mut self, engine: &CacheEngine, key: FileKey, dirty: &[Taken], size: u64) -> (Vec<bool>, Result<(), Errno>) {
        let mut is_written = vec![false; dirty.len()];
        let below = match self.below(engine, key) {
            Ok(below) => below,
            Err(errno) => return (is_written, Err(errno)),
        };
        let window = match self.open_window(engine, key, &*below) {
            Ok(window) => window,
            Err(errno) => return (is_written, Err(errno)),
        };
        let write = |run: &[Taken]| {
            let at = run[0].0.page.0 * PAGE_BYTES as u64;
            let mut bytes: Vec<u8> = run.iter().flat_map(|(_, _, page)| page.iter().copied()).collect();
            bytes.truncate(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
            let begun = Instant::now();
            let written = below.write_at(at, &bytes).map_err(|error| errno_of(&error));
            engine.counters.write_took(Tier::Below, begun.elapsed().as_nanos() as u64);
            if written.is_ok() {
                engine.counters.add(Count::BelowWrites, 1);
                engine.counters.add(Count::BelowWritten, bytes.len() as u64);
            }
            written
        };
        let (mut first_failure, mut failing, mut at) = (Ok(()), None, 0);
        'runs: for run in dirty.chunk_by(|(a, ..), (b, ..)| a.page.0 + 1 == b.page.0) {
            let mut written = write(run);
            if written == Err(Errno::IO) {
                // One page may be the cause: the others are written without it, unless the medium takes too long to refuse.
                let since = *failing.get_or_insert_with(Instant::now);
                for (page, is_written) in run.chunks(1).zip(&mut is_written[at..]) {
                    if since.elapsed() > FAILING_MAX {
                        first_failure = first_failure.and(written);
                        break 'runs;
                    }
                    let alone = if run.len() > 1 { write(page) } else { written };
                    *is_written = alone.is_ok();
                    first_failure = first_failure.and(alone);
                }
                written = Ok(());
            } else if written.is_ok() {
                is_written[at..at + run.len()].fill(true);
            }
            if written.is_err() {
                first_failure = first_failure.and(written);
                break;
            }
            at += run.len();
        }
        let synced = if is_written.contains(&true) { below.sync().map_err(|error| errno_of(&error)) } else { Ok(()) };
        self.close_window(engine, window, &*below);
        if synced.is_err() {
            is_written.fill(false);
        }
        engine.counters.add(Count::WrittenBack, is_written.iter().filter(|is_written| **is_written).count() as u64);
        (is_written, first_failure.and(synced))
    }

    /// Replaces or drops the SSD copies of pages that were written through.
    fn refresh(
        &mut self,
        engine: &CacheEngine,
        no: FileNo,
        key: FileKey,
        mode: Mode,
        stale: Vec<Taken>,
        cleaned: &mut Cleaned,
    ) -> Result<(), Errno> {
        if stale.is_empty() {
            return Ok(());
        }
        self.prepare_drops(engine, stale.len())?;
        // Dropped before it is put: until the page is durable in the backing file, the SSD has no copy.
        let mut replace = Vec::new();
        for (name, snapshot, bytes) in stale {
            let page = PageIndex(name.page.0);
            let was_here = self.log.as_ref().is_some_and(|log| log.cache.lookup(key, page) != ssdcache::LookupResult::Miss);
            self.drop_pages(engine, key, page.0..page.0 + 1)?;
            if was_here && mode == Mode::WriteThrough && self.has_log(engine) {
                replace.push((page, bytes));
            }
            cleaned.waiting.push((name, snapshot));
        }
        // A writer is between the backing file and its frame: this time the copy is not replaced.
        if replace.is_empty() || self.try_lock(engine, no).is_none() {
            return Ok(());
        }
        let is_durable = self.below(engine, key).is_ok_and(|below| below.sync().is_ok());
        if is_durable && self.note(engine, no).is_ok() {
            for (page, bytes) in replace {
                self.put(engine, key, page, PageVersion::Clean, &bytes)?;
            }
        }
        Ok(())
    }
}
