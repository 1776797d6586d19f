// long: what the leader does for each request, in the order of the match.
//! Serves the requests of processes.

use std::sync::atomic::Ordering;

use pagecache::{Leftover, MarkFilter, Marks};
use rustix::io::Errno;
use ssdcache::{FileKey, Mode, PAGE_BYTES, PageIndex};

use super::files::is_same;
use super::{STEP_PAGES, Worker};
use crate::engine::kept_record::KeptRecord;
use crate::engine::layout::{NEVER_OPENED, Word};
use crate::engine::log::Log;
use crate::engine::open::errno_of;
use crate::engine::own_stamp::Writer;
use crate::engine::record::{Record, mode_of_number};
use crate::engine::{CATALOGUE, CUT_BELOW, CacheEngine, Entry, FileNo, Request, RequestKind, STALLED, flag};

/// How long opens wait for a process that keeps the lock of the table, in ms.
const TABLE_KEPT_MS: u32 = 5000;

/// Makes the processes find out again which files bypass the cache.
pub(super) fn count_mode_change(engine: &CacheEngine) {
    engine.header.word(Word::ModeChanges).fetch_add(1, Ordering::SeqCst);
}

/// Changes the mode of a file. The end of pass-through is counted before and after: no call past the cache begins between, and a process
/// that found the file in pass-through between finds out again.
fn change_mode(engine: &CacheEngine, record: Record<'_>, mode: Mode) {
    if record.mode() == Mode::PassThrough {
        count_mode_change(engine);
    }
    record.set_mode(mode);
    count_mode_change(engine);
}

/// Returns whether a request belongs to the opening of a file.
fn is_of_open(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Open | RequestKind::Record | RequestKind::Version)
}

impl Worker {
    /// Serves all pending requests; syncs of several processes share their flushes. Returns whether there were any.
    pub(super) fn answer(&mut self, engine: &CacheEngine) -> bool {
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        engine.requests.take(&mut asked);
        let busy = !asked.is_empty();
        // Opens seldom wait for a disk, and the other requests do: opens go first.
        let (opens, others): (Vec<Request>, Vec<Request>) = asked.drain(..).partition(|asked| is_of_open(asked.kind));
        self.asked = asked;
        self.is_table_kept = false;
        if opens.is_empty() {
            self.table_kept = None;
        }
        let (syncs, others): (Vec<Request>, Vec<Request>) = others.into_iter().partition(|asked| asked.kind == RequestKind::Sync);
        self.each(engine, opens);
        if !syncs.is_empty() {
            self.sync(engine, &syncs);
        }
        self.each(engine, others);
        busy
    }

    fn each(&mut self, engine: &CacheEngine, all: Vec<Request>) {
        for asked in all {
            // The process that takes over from a dead one finishes its work differently; serving the request now would undo that.
            let answer = if !engine.requests.is_wanted(asked.slot) {
                // The requester gave up while this process was stopped: others may have written since.
                Err(Errno::CANCELED)
            } else if engine.processes.is_alive(asked.process) {
                self.at_hand.push(asked.slot);
                self.without_ssd(engine, |worker| worker.one(engine, &asked))
            } else {
                Err(Errno::OWNERDEAD)
            };
            if is_of_open(asked.kind) && answer == Err(STALLED) && self.may_wait_for_table(engine) {
                engine.requests.post_again(asked.slot);
            } else {
                self.answered(engine, &asked, answer);
            }
            self.at_hand.clear();
        }
    }

    /// Repeats an operation without the SSD if it failed because the SSD did.
    fn without_ssd<T>(&mut self, engine: &CacheEngine, mut what: impl FnMut(&mut Worker) -> Result<T, Errno>) -> Result<T, Errno> {
        let was_good = engine.header.ssd_failed() == 0;
        match what(self) {
            Err(_) if was_good && engine.header.ssd_failed() != 0 => what(self),
            done => done,
        }
    }

    // long: one match over all requests.
    fn one(&mut self, engine: &CacheEngine, asked: &Request) -> Result<u32, Errno> {
        if asked.kind == RequestKind::Accept {
            return Ok(self.accept(engine));
        }
        if engine.header.ssd_failed() == NEVER_OPENED {
            return Err(Errno::IO);
        }
        let no = asked.file;
        if asked.kind == RequestKind::ModeOfAll {
            return self.mode_of_all(engine, mode_of_number(asked.a).ok_or(Errno::INVAL)?).map(|()| 0);
        }
        if no.0 == u32::MAX {
            return match asked.kind {
                RequestKind::Clean => self.clean_all(engine),
                RequestKind::Record => self.record_of(engine, FileKey(asked.a), asked.b == 1).map(u32::from),
                RequestKind::Version => Ok(u32::from(self.has_version(FileKey(asked.a), asked.b))),
                _ => {
                    // A process that finds the SSD's map being exchanged sends this: only the leader exchanges it.
                    if let Some(log) = &self.log {
                        log.cache.end_exchange();
                    }
                    Ok(0)
                }
            };
        }
        let record = engine.records.get(no);
        let key = record.key().filter(|key| record.is_sound(*key)).ok_or(if record.is_free() { Errno::BADF } else { Errno::IO })?;
        match asked.kind {
            RequestKind::Open if asked.a == 1 => Ok(self.log.as_ref().map_or(0, |log| log.cache.dirty_of(key))),
            RequestKind::Open if asked.a == 2 => self.below(engine, key).map(|_| 0),
            RequestKind::Open => self.open(engine, no, key).map(|()| 0),
            RequestKind::Clean => self.clean(engine, no, key).map(|()| 0),
            RequestKind::Drop => {
                self.drop_range(engine, no, key, asked.a..asked.b)?;
                Ok(0)
            }
            RequestKind::Truncate => self.truncate(engine, no, key, asked.a).map(|()| 0),
            RequestKind::Punch if asked.a >= asked.b => Err(Errno::INVAL),
            RequestKind::Punch => self.punch(engine, no, key, asked.a, asked.b).map(|()| 0),
            RequestKind::WriteBack => self.write_back_range(engine, no, asked.a..asked.b).map(|()| 0),
            RequestKind::Room => self.room(engine, no).map(|()| 0),
            RequestKind::Mode => {
                let (record, mode) = (engine.records.get(no), mode_of_number(asked.a).ok_or(Errno::INVAL)?);
                let before = record.mode();
                change_mode(engine, record, mode);
                let cleaned = self.clean(engine, no, key);
                if cleaned.is_err() && mode == Mode::PassThrough {
                    // Otherwise reads of the backing file would miss the newer pages here.
                    change_mode(engine, record, before);
                }
                count_mode_change(engine);
                cleaned.map(|()| 0)
            }
            RequestKind::Through => self.through(engine, no, key).map(|()| 0),
            RequestKind::Stale => self.drop_stale(engine, no, key).map(|()| 0),
            RequestKind::DropClean => self.drop_clean_for_good(engine, key).map(|()| 0),
            RequestKind::Hold => self.hold(engine, no, key).map(|()| 0),
            RequestKind::Force => self.force(engine, no, key).map(|()| 0),
            RequestKind::Conflict => {
                self.strand(engine, key, flag::CONFLICT);
                Ok(0)
            }
            RequestKind::DropRemoved if key.0 == asked.a && self.is_removed(engine, key) => self.drop_removed(engine, key).map(|()| 0),
            RequestKind::DropRemoved => Ok(0),
            RequestKind::Sync | RequestKind::ModeOfAll | RequestKind::Accept | RequestKind::Record | RequestKind::Version => {
                Err(Errno::INVAL)
            }
        }
    }

    /// Makes every acknowledged byte of these files durable.
    fn sync(&mut self, engine: &CacheEngine, syncs: &[Request]) {
        let mut files: Vec<FileNo> = syncs.iter().map(|asked| asked.file).collect();
        files.sort_unstable();
        files.dedup();
        let mut results = Vec::new();
        self.at_hand.extend(syncs.iter().map(|asked| asked.slot));
        let all = self.without_ssd(engine, |worker| {
            results = worker.sync_files(engine, &files);
            results.iter().try_for_each(|(_, result)| *result)
        });
        for asked in syncs {
            let result = results.iter().find(|(no, _)| *no == asked.file).map_or(all, |(_, result)| *result);
            self.answered(engine, asked, result.map(|()| 0));
        }
        self.at_hand.clear();
    }

    /// Publishes the counters before it replies: a caller that reads the status after its reply sees at least its own request.
    fn answered(&self, engine: &CacheEngine, asked: &Request, answer: Result<u32, Errno>) {
        self.tell(engine);
        engine.requests.answer(asked.slot, answer);
    }

    fn sync_files(&mut self, engine: &CacheEngine, files: &[FileNo]) -> Vec<(FileNo, Result<(), Errno>)> {
        let mut marked = std::mem::take(&mut self.marked);
        let mut all = Vec::new();
        for no in files.iter().filter(|no| no.0 < engine.records.count) {
            marked.clear();
            engine.pages.marked(MarkFilter::File(pagecache::FileNo(no.0)), usize::MAX, &mut marked);
            all.append(&mut marked);
        }
        self.marked = marked;
        let cleaned = self.clean_each(engine, &all, true);
        let rest: Vec<(FileNo, Result<u32, Errno>)> = files.iter().map(|no| (*no, self.sync_rest(engine, *no))).collect();
        let flushed = self.flush_log(engine);
        let of = |no: FileNo, rest: Result<u32, Errno>| {
            let failed = cleaned.failed.iter().find(|(failed, _)| *failed == no).map_or(Ok(()), |(_, errno)| Err(*errno));
            failed.and(rest.map(drop)).and(flushed)
        };
        let results: Vec<_> = rest.into_iter().map(|(no, rest)| (no, of(no, rest))).collect();
        for (no, _) in results.iter().filter(|(_, result)| result.is_ok()) {
            if let Some(key) = engine.records.get(*no).key() {
                self.over(engine, key);
            }
        }
        results
    }

    /// Syncs the rest of a file besides its frames: the length, and data that was written through.
    fn sync_rest(&mut self, engine: &CacheEngine, no: FileNo) -> Result<u32, Errno> {
        let record = engine.records.get(no);
        if no.0 >= engine.records.count {
            return Err(Errno::BADF);
        }
        let key = record.key().filter(|key| record.is_sound(*key)).ok_or(if record.is_free() { Errno::BADF } else { Errno::IO })?;
        let mode = record.mode().within(engine.mode());
        let has_log = self.has_log(engine);
        if has_log && mode == Mode::WriteBack {
            let has_dirty = self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0);
            if has_dirty {
                self.note(engine, no)?;
            }
            // A length without data (a truncation) and data written in another mode are in the backing file.
            let unsynced = record.flags().fetch_and(!flag::UNSYNCED, Ordering::AcqRel) & flag::UNSYNCED;
            if !has_dirty || unsynced != 0 {
                let synced = self.below_to_sync(engine, no, key).and_then(|below| below.sync().map_err(|error| errno_of(&error)));
                synced.inspect_err(|_| _ = record.flags().fetch_or(unsynced, Ordering::AcqRel))?;
                self.synced_unless_cut(engine, no, key)?;
            }
            return Ok(0);
        }
        // Dirty pages of a failed SSD: readable ones are written to the backing file, the others are lost and reported.
        if !has_log && self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0) {
            self.know(key).not_before = None;
            self.write_back_file(engine, key)?;
        }
        if mode == Mode::ReadOnly {
            return Ok(0);
        }
        self.below_to_sync(engine, no, key)?.sync().map_err(|error| errno_of(&error))?;
        self.synced_unless_cut(engine, no, key).map(|()| 0)
    }

    fn synced_unless_cut(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        if self.is_being_cut(engine, no) { Ok(()) } else { self.synced_below(engine, key) }
    }

    /// Keeps the record of a file that is opened. While another process has the lock of the table, that is tried once in each step.
    ///
    /// # Errors
    /// [`STALLED`]: the lock is not free now. EBADF: the opener has given up, and the record is another file's.
    fn keep_record<'a>(&mut self, engine: &'a CacheEngine, no: FileNo, key: FileKey) -> Result<KeptRecord<'a>, Errno> {
        let _held = self.lock_table(engine)?;
        engine.keep_record(no, key).ok_or(Errno::BADF)
    }

    /// Takes the lock of the table for a request of a process that opens a file. While another process has it, that is tried once in each
    /// step.
    ///
    /// # Errors
    /// [`STALLED`]: the lock is not free now.
    pub(super) fn lock_table<'a>(&mut self, engine: &'a CacheEngine) -> Result<shm::OwnedLockGuard<'a>, Errno> {
        let held = if self.is_table_kept { engine.records.lock().try_lock() } else { engine.lock_records_soon() };
        self.is_table_kept = held.is_none();
        if held.is_none() {
            self.table_kept.get_or_insert_with(|| engine.world.now_ms());
        } else {
            self.table_kept = None;
        }
        held.ok_or(STALLED)
    }

    /// Returns whether an open that needs the lock of the table is tried again in the next step. It delays no other request.
    fn may_wait_for_table(&self, engine: &CacheEngine) -> bool {
        self.table_kept.is_some_and(|kept| engine.world.now_ms().wrapping_sub(kept) < TABLE_KEPT_MS)
    }

    /// Prepares a newly opened file: its number, its entry, and whether its cached pages are still valid.
    pub(super) fn open(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let record = engine.records.get(no);
        if record.on_ssd().is_some() {
            return self.open_found(engine, no, key);
        }
        if engine.header.get(Word::Unknown) != 0 {
            return Err(Errno::IO);
        }
        if !self.has_log(engine) {
            // The failed SSD has no dirty pages of the file, and nothing else of it is used.
            return Ok(());
        }
        // The process may give up and close the file, and nothing of this may then reach another file's record.
        let kept = self.keep_record(engine, no, key)?;
        let opened = self.open_kept(engine, no, key);
        drop(kept);
        if self.is_removed(engine, key) {
            // It was closed meanwhile, and as its record was kept, the close has not dropped its pages. If this fails, write-back does it.
            let _ = self.drop_removed(engine, key);
        }
        opened
    }

    fn open_kept(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let record = engine.records.get(no);
        // First: if the comparison fails, or its process dies, the record stays.
        self.keep_dirty_record(engine, key);
        let Some(log) = &mut self.log else { return Ok(()) };
        let number = log.cache.hold(key);
        if log.cache.pages_of(key) > 0 || self.entry(key).is_some_and(|entry| entry.cut.is_some()) {
            if self.own_stamp(key).is_none()
                && let Ok(below) = self.below(engine, key)
            {
                // The record may have been made while a leader that died wrote to the file: its stamp is from before that.
                self.look_first(engine, key, &*below)?;
            }
            self.greet(engine, no, key)?;
        }
        self.know(key).is_doubtful = false;
        record.set_on_ssd(number);
        self.keep_dirty_record(engine, key);
        self.release_others(engine);
        Ok(())
    }

    /// Compares the entry with the file as it was found.
    fn greet(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let record = engine.records.get(no);
        let is_untrimmed = self.entry(key).is_some_and(|entry| entry.cut == Some(CUT_BELOW));
        let trimmed = if is_untrimmed { self.trim_for_good(engine, key) } else { Ok(()) };
        let dirty = self.log.as_ref().map_or(0, |log| log.cache.dirty_of(key));
        let entry = self.entry(key);
        let own = self.own_stamp(key);
        let now = record.own().get();
        let is_right = entry.is_some() && own.is_none_or(|own| is_same(own, now));
        // Another process of the instance changed the file since its entry was written, or another program did: clean pages may be older.
        let is_unsure = self.know(key).is_doubtful || own.is_none() && entry.as_ref().is_some_and(|entry| !is_same(entry.stamp, now));
        if is_right || dirty == 0 {
            trimmed?;
        }
        match &entry {
            Some(entry) if entry.cut.is_some() && is_right => {
                self.cut_again(engine, key)?;
                record.size().store(entry.size, Ordering::Release);
                self.trim(engine, key)?;
                if entry.through || is_unsure {
                    self.drop_clean(engine, key, 0..u64::MAX)?;
                }
                // Durably, as in the next case: a new leader does not check again.
                self.flush_log(engine)
            }
            // Clean pages may be older than data written before the crash; and the backing file may have grown.
            Some(entry) if entry.through && is_right => {
                if dirty > 0 {
                    record.size().fetch_max(entry.size, Ordering::AcqRel);
                }
                self.drop_clean_for_good(engine, key)
            }
            Some(entry) if is_right && dirty > 0 => {
                record.size().store(entry.size, Ordering::Release);
                if is_unsure { self.drop_clean_for_good(engine, key) } else { Ok(()) }
            }
            Some(_) if is_right && is_unsure => self.drop_all_clean(engine, no, key).map(drop),
            // A write was to extend the file, and did not happen.
            Some(entry) if is_right && entry.size != record.own().get().size => {
                let entry = Entry { size: record.own().get().size, ..entry.clone() };
                self.put_entry(engine, key, |_| entry.clone())
            }
            Some(_) if is_right => Ok(()),
            _ if dirty == 0 => self.drop_all_clean(engine, no, key).map(drop),
            _ => {
                if let Some(entry) = &entry {
                    record.own().begin(own.unwrap_or(entry.stamp));
                    record.size().store(entry.size, Ordering::Release);
                }
                // First: without room on the SSD, an open still finds the conflict.
                self.strand(engine, key, flag::CONFLICT);
                self.drop_doubtful(engine, key)?;
                if entry.is_some_and(|entry| entry.cut.is_some()) && self.trim_for_good(engine, key).is_err() {
                    // The first open after the owner's decision does that.
                    record.flags().fetch_or(flag::UNCOMPARED, Ordering::AcqRel);
                }
                Ok(())
            }
        }
    }

    /// Releases the numbers of files that have no record any more.
    fn release_others(&mut self, engine: &CacheEngine) {
        let Some(log) = &mut self.log else { return };
        let records = &engine.records;
        self.known.keys().filter(|key| records.find(**key).is_none()).for_each(|key| log.cache.release(*key));
    }

    /// Drops pages of a file: first on the SSD, durably, then the frames. In the other order a new leader would find the old pages again,
    /// without marks.
    pub(super) fn drop_range(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        let is_all = pages == (0..u64::MAX);
        if is_all {
            self.drop_file(engine, key)?
        } else {
            self.drop_pages(engine, key, pages.clone())?
        }
        self.flush_log(engine)?;
        engine.drop_frames(no, pages)?;
        if is_all {
            self.forget(engine, key);
            self.dirty_since.remove(&key);
        }
        Ok(())
    }

    /// Writes the dirty pages of a file back, and drops all of its pages, as [`CacheEngine::clean_and_drop`] does. A process that holds the
    /// file's lock, or died with it, does not prevent that.
    ///
    /// # Errors
    /// As there.
    pub(super) fn clean_and_drop(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        engine.clean_and_drop(no, &|| Ok(engine.try_lock_file(no).ok()), &mut || true, &mut |kind, _| match kind {
            RequestKind::Clean => self.clean(engine, no, key).map(|()| 0),
            RequestKind::DropClean => self.drop_clean_for_good(engine, key).map(|()| 0),
            _ => Ok(self.log.as_ref().map_or(0, |log| log.cache.dirty_of(key))),
        })?;
        self.forget_for_good(engine, key)
    }

    /// Drops all pages of a file that are not dirty. If none is, the leader's state of the file is forgotten. Returns whether none is.
    pub(super) fn drop_all_clean(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<bool, Errno> {
        engine.drop_not_dirty(no, &mut |_| self.drop_clean_for_good(engine, key))?;
        let is_dirty = self.is_dirty(engine, no, key);
        if !is_dirty {
            self.forget_for_good(engine, key)?;
        }
        Ok(!is_dirty)
    }

    /// Makes pages that were put or dropped durable. A failed SSD is skipped.
    pub(super) fn flush_log(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        if !self.has_log(engine) {
            return Ok(());
        }
        let flushed = self.log.as_mut().map_or(Ok(()), |log| log.flush());
        flushed.map_err(|stop| self.stopped(engine, stop))?;
        self.is_cut_settled = false;
        Ok(())
    }

    /// Makes freed segments durable before newer bytes are written to the backing file: after a crash their clean pages would be back,
    /// and older.
    pub(super) fn tell_reclaimed(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        if self.log.as_ref().is_some_and(Log::is_unrecorded) { self.flush_log(engine) } else { Ok(()) }
    }

    /// Drops all clean pages of a file after a process died between a write to the backing file and its frames. Dirty pages here are at
    /// least as new as that write. The file keeps the length that the write left.
    pub(super) fn drop_stale(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        self.drop_clean(engine, key, 0..u64::MAX)?;
        self.flush_log(engine)?;
        // Each frame is dropped only if it has no mark then: a page that is written meanwhile stays.
        engine.drop_unmarked(no, 0..u64::MAX)?;
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::File(pagecache::FileNo(no.0)), usize::MAX, &mut marked);
        // A frame that is newer than a dirty page of the SSD stays: it has to cover that page.
        marked.retain(|(name, _)| !self.log.as_ref().is_some_and(|log| log.cache.is_dirty(key, PageIndex(name.page.0))));
        for (name, _) in marked {
            if engine.pages.drop_range_without(name.file, name.page.0..name.page.0 + 1, Marks::DIRTY) == Leftover::Stuck {
                return Err(STALLED);
            }
        }
        let below = self.below_to_sync(engine, no, key)?;
        let stamp = || below.stamp().map_err(|error| errno_of(&error));
        let record = engine.records.get(no);
        match stamp()?.size {
            size if self.is_dirty(engine, no, key) => _ = record.size().fetch_max(size, Ordering::AcqRel),
            size => record.size().store(size, Ordering::Release),
        }
        // What that write left is visible from now on, and the process died before it could say that a sync has to flush it.
        record.flags().fetch_or(flag::UNSYNCED, Ordering::AcqRel);
        // The window belongs to the dead owner of the lock: the requester has the lock now.
        record.own().close(Writer::LockHolder, stamp)?;
        record.own().close(Writer::Leader, stamp)?;
        record.flags().fetch_and(!flag::PUNCHING, Ordering::AcqRel);
        Ok(())
    }

    /// Writes all dirty pages of a file to its backing file, durably.
    pub(super) fn clean(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::File(pagecache::FileNo(no.0)), usize::MAX, &mut marked);
        let cleaned = self.clean_each(engine, &marked, true);
        if let Some((_, errno)) = cleaned.failed.first() {
            return Err(*errno);
        }
        self.know(key).not_before = None;
        self.write_back_file(engine, key)?;
        self.over(engine, key);
        match engine.records.get(no).mode() {
            Mode::ReadOnly => Ok(()),
            _ => match self.below_to_sync(engine, no, key) {
                // The file is gone, or not all processes of the segment may reach it any more; and none of its pages is dirty.
                Err(Errno::ACCESS | Errno::NOENT) if self.is_all_below(engine, no, key) => self.give_up_cut(engine, no, key),
                below => {
                    below?.sync().map_err(|error| errno_of(&error))?;
                    self.synced_below(engine, key)?;
                    self.flush_settled(engine)
                }
            },
        }
    }

    /// Writes the dirty frames of a range back.
    fn write_back_range(&mut self, engine: &CacheEngine, no: FileNo, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::File(pagecache::FileNo(no.0)), usize::MAX, &mut marked);
        marked.retain(|(name, _)| pages.contains(&name.page.0));
        self.clean_each(engine, &marked, true).failed.first().map_or(Ok(()), |(_, errno)| Err(*errno))
    }

    fn is_all_below(&self, engine: &CacheEngine, no: FileNo, key: FileKey) -> bool {
        let on_ssd = self.log.as_ref().map_or(0, |log| log.cache.dirty_of(key));
        on_ssd == 0 && !engine.pages.marked_of(pagecache::FileNo(no.0))
    }

    /// Cleans some pages of all files; returns how many dirty pages are left. A failure is reported after everything else was tried.
    fn clean_all(&mut self, engine: &CacheEngine) -> Result<u32, Errno> {
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::All, usize::MAX, &mut marked);
        marked.sort_unstable_by_key(|(name, _)| (name.file.0, name.page.0));
        let mut result = Ok(());
        for some in marked.chunks(4 * STEP_PAGES) {
            let cleaned = self.clean_each(engine, some, true);
            if cleaned.count == 0 && cleaned.failed.is_empty() {
                // Marked pages cannot be found: another process overwrote the index.
                engine.pages.repair_all();
            }
            result = result.and(cleaned.failed.first().map_or(Ok(()), |(_, errno)| Err(*errno)));
            if cleaned.count > 0 {
                return Ok(self.left(engine).max(1));
            }
        }
        if let Some(log) = &mut self.log
            && engine.header.ssd_failed() == 0
        {
            log.flush().map_err(|stop| self.stopped(engine, stop))?;
        }
        self.known.values_mut().for_each(|known| known.not_before = None);
        match self.sweep(engine, 4 * STEP_PAGES) {
            Ok(0) => {}
            Ok(_) => return Ok(self.left(engine).max(1)),
            // All of these pages failed: each other file is tried.
            Err(errno) => {
                result = result.and(Err(errno));
                let keys = self.log.as_ref().map_or(Vec::new(), |log| log.cache.dirty_files());
                for key in keys.into_iter().filter(|key| *key != CATALOGUE) {
                    self.know(key).not_before = None;
                    let before = self.log.as_ref().map_or(0, |log| log.cache.dirty_of(key));
                    result = result.and(self.write_back_file(engine, key));
                    if self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) < before) {
                        return Ok(self.left(engine).max(1));
                    }
                }
            }
        }
        self.settle_all_again();
        self.settle_entries(engine, usize::MAX);
        result.map(|()| 0)
    }

    /// Returns whether all dirty pages wait for their owner's decision.
    fn is_all_stranded(&self, engine: &CacheEngine) -> bool {
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::All, usize::MAX, &mut marked);
        let keys = self.log.as_ref().map_or(Vec::new(), |log| log.cache.dirty_files());
        marked.iter().all(|(name, _)| engine.records.get(FileNo(name.file.0)).has(flag::STRANDED))
            && keys.into_iter().filter(|key| *key != CATALOGUE).all(|key| self.is_stranded(engine, key))
    }

    fn left(&self, engine: &CacheEngine) -> u32 {
        let on_ssd = self.log.as_ref().map_or(0, |log| log.cache.len().1.saturating_sub(u64::from(log.cache.dirty_of(CATALOGUE))));
        engine.pages.marked_count().saturating_add(u32::try_from(on_ssd).unwrap_or(u32::MAX)).min(i32::MAX as u32)
    }

    /// Records durably in the entry that the file is written through, before it is. The record follows last: from then on no process
    /// requests it again.
    fn through(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        self.end_cut(engine, key)?;
        if !self.has_log(engine) || self.log.as_ref().is_none_or(|log| log.cache.pages_of(key) == 0) {
            self.tell_reclaimed(engine)?;
        } else {
            self.note_through(engine, no)?;
            self.flush_log(engine)?;
        }
        engine.records.get(no).flags().fetch_or(flag::THROUGH, Ordering::AcqRel);
        Ok(())
    }

    /// Finishes the work of the dead owner of a file's lock.
    ///
    /// # Errors
    /// As [`CacheEngine::mend`].
    pub(super) fn mend(&mut self, engine: &CacheEngine, no: FileNo) -> Result<(), Errno> {
        let Some(key) = engine.records.get(no).key() else { return Ok(()) };
        engine.mend(no, &mut |kind, a, b| match kind {
            RequestKind::Truncate => self.truncate(engine, no, key, a),
            RequestKind::Stale => self.drop_stale(engine, no, key),
            _ => self.drop_range(engine, no, key, a..b),
        })
    }

    /// Makes whole pages read as zeroes. Clean SSD copies are dropped first, durably, then the backing file is punched, then dirty copies
    /// are dropped. After a crash each page has its old content or zeroes, in whichever tier it is read.
    fn punch(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, first: u64, last: u64) -> Result<(), Errno> {
        let below = self.below(engine, key)?;
        self.begin_writing(engine, key)?;
        let mut is_dropped = false;
        for _ in 0..super::frames::DROPS {
            // No write-back may come between the hole and the drop: it would fill the hole again.
            self.will_be_old(engine, key, &[first])?;
            if !self.drop_clean(engine, key, first..last)? {
                is_dropped = true;
                break;
            }
            self.flush_log(engine)?;
        }
        if !is_dropped {
            return Err(Errno::IO);
        }
        let window = self.open_window(engine, key, &*below)?;
        let size = self.end_below(engine, key);
        engine.records.get(no).flags().fetch_or(flag::PUNCHING, Ordering::AcqRel);
        let bytes = PAGE_BYTES as u64;
        // The file may owe its length to dirty pages that are dropped with the hole.
        let grown = if below.stamp().is_ok_and(|stamp| stamp.size < size) && size != u64::MAX { below.set_len(size) } else { Ok(()) };
        let punched = grown.and_then(|()| below.punch(first * bytes, (last - first) * bytes)).and_then(|()| below.sync());
        let punched = punched.map_err(|error| errno_of(&error));
        self.close_window(engine, window, &*below);
        if punched.is_err() {
            // Until that is done, frames may have what the hole removed.
            return self.drop_stale(engine, no, key).inspect_err(|_| self.unended.push_back((no, key))).and(punched);
        }
        let dropped = self.drop_range(engine, no, key, first..last).and_then(|()| self.synced_below(engine, key));
        // Until the hole is finished, frames may have pages of it.
        dropped.inspect_err(|_| self.unended.push_back((no, key)))?;
        engine.records.get(no).flags().fetch_and(!flag::PUNCHING, Ordering::AcqRel);
        Ok(())
    }

    /// Drops clean pages of a file from the SSD, durably. Other programs may change the file from then on.
    pub(super) fn drop_clean_for_good(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        if self.drop_clean(engine, key, 0..u64::MAX)? { self.flush_log(engine) } else { self.flush_settled(engine) }
    }

    /// Resolves a conflict for our version: newer pages here overwrite the current file, and it gets our length.
    fn force(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let record = engine.records.get(no);
        let Some(below) = self.found(engine, key)? else { return Ok(()) };
        let stamp = || below.stamp().map_err(|error| errno_of(&error));
        engine.drop_not_dirty(no, &mut |_| self.drop_clean_for_good(engine, key))?;
        record.own().open(Writer::Leader);
        record.own().close(Writer::Leader, stamp)?;
        record.flags().fetch_and(!flag::STRANDED, Ordering::AcqRel);
        self.know(key).not_before = None;
        self.clean(engine, no, key)?;
        let size = record.size().load(Ordering::Acquire);
        if stamp()?.size != size {
            let window = self.open_window(engine, key, &*below)?;
            let cut = below.set_len(size).and_then(|()| below.sync()).map_err(|error| errno_of(&error));
            self.close_window(engine, window, &*below);
            cut?;
        }
        Ok(())
    }

    /// Drops clean pages of a file from the SSD; returns whether there were any.
    fn drop_clean(&mut self, engine: &CacheEngine, key: FileKey, pages: std::ops::Range<u64>) -> Result<bool, Errno> {
        let mut clean = Vec::new();
        if let Some(log) = &self.log {
            log.cache.collect_clean(key, pages, &mut clean);
        }
        for run in ssdcache::runs(&clean) {
            let first = run[0].page.0;
            self.drop_pages(engine, key, first..first + run.len() as u64)?;
        }
        Ok(!clean.is_empty())
    }

    /// Makes room in memory: cleans some marked frames. Files that wait for their owner's decision are skipped, and do not affect others.
    fn room(&mut self, engine: &CacheEngine, no: FileNo) -> Result<(), Errno> {
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::All, usize::MAX, &mut marked);
        let has_log = self.has_log(engine);
        marked.retain(|(name, _)| {
            let record = engine.records.get(FileNo(name.file.0));
            !record.has(flag::MISSING) && (has_log || !record.has(flag::CONFLICT))
        });
        let is_empty = marked.is_empty();
        let (mut cleaned, mut failed) = (0, Vec::new());
        for some in marked.chunks(2 * STEP_PAGES) {
            let done = self.clean_each(engine, some, true);
            failed.extend(done.failed);
            cleaned = done.count;
            if cleaned > 0 {
                break;
            }
        }
        let low = (engine.layout.sizes.frames.frames / 64).max(1);
        // Others may take what is free at this moment: memory is full if nothing can be evicted either.
        let has_room = (0..3).any(|_| engine.pages.evict_ahead(low, 2 * low) > 0 || engine.pages.free() > 0);
        failed.retain(|(failed, _)| *failed == no || !engine.records.get(*failed).has(flag::STRANDED));
        let own = failed.iter().find(|(failed, _)| *failed == no).or(failed.first());
        match own {
            Some((_, errno)) if cleaned == 0 => Err(*errno),
            _ if cleaned == 0 && is_empty && !has_room => Err(Errno::NOMEM),
            _ => Ok(()),
        }
    }

    /// Changes the mode of the instance. Dirty pages are written to backing files before a mode that keeps none; pages that others may
    /// have changed since are dropped.
    fn mode_of_all(&mut self, engine: &CacheEngine, mode: Mode) -> Result<(), Errno> {
        let was = engine.mode();
        if mode == Mode::PassThrough && self.is_owed(engine) && engine.header.ssd_failed() != 0 {
            return Err(Errno::IO);
        }
        if !mode.keeps_dirty() && was.keeps_dirty() {
            engine.header.set_mode(Mode::WriteThrough);
            let mut done = Ok(1);
            let mut rounds = 16 * self.rounds(engine);
            while let Ok(1..) = done {
                done = if rounds == 0 { Err(Errno::IO) } else { self.clean_all(engine) };
                rounds = rounds.saturating_sub(1);
            }
            if let Err(errno) = done
                && !self.is_all_stranded(engine)
            {
                engine.header.set_mode(was);
                return Err(errno);
            }
        }
        if mode.keeps_dirty() && !was.keeps_dirty() {
            self.note_dirty(engine)?;
        }
        if was == Mode::PassThrough && mode != was {
            self.drop_open(engine)?;
            count_mode_change(engine);
        }
        engine.header.set_mode(mode);
        count_mode_change(engine);
        // Cleans pages of writers that were active during the change.
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::All, usize::MAX, &mut marked);
        let cleaned = self.clean_each(engine, &marked, true);
        let failed = cleaned.failed.iter().find(|(no, _)| !engine.records.get(*no).has(flag::STRANDED));
        failed.map_or(Ok(()), |(_, errno)| Err(*errno))
    }

    /// Drops cached pages of open files that calls past the cache may have changed.
    fn drop_open(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        let records: Vec<_> = engine.records.all().filter_map(|(no, record)| Some((no, record.key()?))).collect();
        for (no, key) in records {
            // Left for its owner's decision.
            if engine.pages.marked_of(pagecache::FileNo(no.0)) || self.is_dirty(engine, no, key) {
                continue;
            }
            let Ok(below) = self.below(engine, key) else { continue };
            let record = engine.records.get(no);
            let own = record.own();
            let (size, written) = (record.size().load(Ordering::Acquire), record.written().load(Ordering::Relaxed));
            // One that a dead leader left open stays open until that leader's write is taken up.
            let window = (!own.is_open_by(Writer::Leader)).then(|| own.open(Writer::Leader));
            // The holder of the lock may have stored a newer stamp until now, and stores none while our window is open.
            let known = own.get();
            let stamp = below.stamp();
            let dropped = self.drop_all_clean(engine, no, key);
            let is_clean = dropped == Ok(true);
            let closed = stamp.and_then(|stamp| {
                // A page that a process without notice of pass-through has made dirty is a conflict if the file was changed.
                if let Some(window) = window {
                    own.close_as_of(window, Writer::Leader, if is_clean { stamp } else { known }, || below.stamp())?;
                }
                Ok(stamp)
            });
            if closed.is_err() && window.is_some() {
                self.unended.push_back((no, key));
            }
            dropped?;
            if let Ok(stamp) = closed.as_ref()
                && is_clean
            {
                // A writer that came since keeps the length that it set. The times of the file count, as some may have been set past the
                // cache, unless it is dirty by now.
                let is_set = record.size().compare_exchange(size, stamp.size, Ordering::AcqRel, Ordering::Acquire).is_ok();
                if is_set && self.is_dirty(engine, no, key) {
                    // A page that a writer has made dirty since may lie behind the end that the file got past the cache.
                    record.size().fetch_max(size, Ordering::AcqRel);
                }
                record.times_were_set(written, || self.is_dirty(engine, no, key));
            }
        }
        Ok(())
    }
}
