// long: the life of one file in the leader, from its first handle to its removal.
//! The leader's state of files: their backing-file handles, names and records.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagecache::{MarkFilter, Marks};
use rustix::io::Errno;
use shm::OwnedLockGuard;
use ssdcache::{FileKey, Page, PageIndex, PageVersion};

use super::{RETRY_MS, Worker};
use crate::engine::log::Stop;
use crate::engine::open::errno_of;
use crate::engine::own_stamp::{Difference, Writer, difference};
use crate::engine::{BackingFile, CATALOGUE, CacheEngine, Entry, FileNo, PATH_MAX, Stamp, flag};

/// Files whose entries are kept in memory; more only while they are being written.
pub(super) const KNOWN_MAX: usize = 2048;
/// How often the leader checks for files that are no longer used, ms.
pub(super) const FILES_CHECK_MS: u32 = 1000;
/// Records of closed files that each check examines.
const WITHDRAWN: u32 = 32;
/// Entries settled in one step when there are too many.
const SETTLED: usize = 64;
/// Files whose names are compared in one second, and whose names in the segment are set under one lock.
const NAMED: usize = 64;
/// The time after which such a comparison ends, and goes on a second later: the search for a missing file may be slow. In ms.
pub(super) const NAMED_MS: u32 = 20;
/// Directories that are synced for one renamed file, at most.
const SYNCED_MAX: usize = 8;
/// The same for a stranded file.
pub(super) const STRANDED_MS: u32 = 60_000;

#[derive(Default)]
pub(super) struct Known {
    /// The backing file, open for reading and writing.
    pub(super) below: Option<Arc<dyn BackingFile>>,
    /// The time of the last use: the larger, the later.
    pub(super) used: u64,
    /// The entry that the log has; `None`: absent, or not read yet.
    pub(super) noted: Option<Entry>,
    pub(super) is_read: bool,
    /// Whether this leader has truncated the file to the length in its entry.
    pub(super) is_cut: bool,
    /// Whether this leader did or repeated a truncation of the backing file, and the SSD may still have bytes behind the end.
    pub(super) is_untrimmed: bool,
    /// The file is not tried again before this time.
    pub(super) not_before: Option<u32>,
    /// The flags of its record that made the file wait: without them it waits no longer.
    pub(super) waits_for: u32,
    /// The truncation in its entry is not settled before this time.
    pub(super) unsettled_until: Option<u32>,
    /// The file's stamp after our last change, while the entry says `writing`: used when the file has no record.
    pub(super) after: Option<Stamp>,
    /// Whether the clean pages of the SSD may be older than the backing file: they are dropped before a process reads them.
    pub(super) is_doubtful: bool,
}

impl Known {
    pub(super) fn noted(&self) -> Option<&Entry> {
        self.noted.as_ref()
    }

    /// Returns whether the entry still has to be settled; everything else can be read again.
    pub(super) fn is_needed(&self) -> bool {
        self.noted.as_ref().is_some_and(|entry| entry.writing || entry.through || entry.cut.is_some())
    }
}

impl Worker {
    /// Returns whether a file that failed recently should not be tried yet.
    pub(super) fn is_patient(&self, engine: &CacheEngine, key: FileKey) -> bool {
        let Some((known, until)) = self.known.get(&key).and_then(|known| Some((known, known.not_before?))) else { return false };
        let is_over = |no| known.waits_for != 0 && !engine.records.get(no).has(known.waits_for);
        (until.wrapping_sub(engine.world.now_ms()) as i32) > 0 && !engine.records.find(key).is_some_and(is_over)
    }

    /// Reports a failed write to all processes that have the file open.
    pub(super) fn failed(&mut self, engine: &CacheEngine, key: FileKey, errno: Errno) {
        if let Some(no) = engine.records.find(key) {
            engine.records.get(no).failed(errno);
        }
        self.wait_to_retry(engine, key, RETRY_MS, 0);
    }

    /// Makes the leader try the file again only after `ms`, or when none of the flags `waits_for` is set in its record any more: a process
    /// has opened the missing file, or resolved the conflict.
    pub(super) fn wait_to_retry(&mut self, engine: &CacheEngine, key: FileKey, ms: u32, waits_for: u32) {
        let until = engine.world.now_ms().wrapping_add(ms);
        let known = self.know(key);
        (known.not_before, known.waits_for) = (Some(until), waits_for);
    }

    pub(super) fn succeeded(&mut self, key: FileKey) {
        self.know(key).not_before = None;
    }

    pub(super) fn know(&mut self, key: FileKey) -> &mut Known {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&key) {
            // Forgotten state can be read again, except where a moved file is now.
            self.known.retain(|_, known| known.is_needed() || known.below.is_some());
        }
        self.known.entry(key).or_default()
    }

    /// Forgets everything about a file that has no dirty pages, also on the SSD, durably: another program has changed the file, and a later
    /// leader must not repeat a truncation of ours over that.
    pub(super) fn forget_for_good(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        if self.entry(key).is_some_and(|entry| entry.cut.is_some())
            && let Ok(below) = self.below(engine, key)
        {
            // The truncation may have been acknowledged as durable, because its entry was.
            below.sync().map_err(|error| errno_of(&error))?;
        }
        self.drop_entry(engine, key)?;
        self.flush_log(engine)?;
        self.forget(engine, key);
        self.dirty_since.remove(&key);
        Ok(())
    }

    /// Forgets everything about a file that was removed or changed.
    pub(super) fn forget(&mut self, engine: &CacheEngine, key: FileKey) {
        self.close_handle(engine, key);
        self.known.remove(&key);
    }

    /// Returns the backing file to flush it. A read-only file needs nothing else.
    pub(super) fn below_to_sync(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<Arc<dyn BackingFile>, Errno> {
        match self.below(engine, key) {
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) if !self.is_dirty(engine, no, key) => {
                let record = engine.records.get(no);
                let opened = engine.world.open(key, &record.path(), &self.pids(engine, no), false);
                opened.map_err(|error| errno_of(&error))
            }
            below => below,
        }
    }

    /// Returns the processes that have the file open.
    fn pids(&self, engine: &CacheEngine, no: FileNo) -> Vec<u32> {
        let processes = engine.records.get(no).open_by().load(Ordering::Acquire);
        (0..64_u8)
            .filter(|process| processes >> process & 1 == 1)
            .filter_map(|process| engine.processes.pid(shm::ProcessSlot(process)))
            .collect()
    }

    /// Returns the backing file, to write dirty pages to it. `None`: the file was removed, and its pages are dropped; or it is not found,
    /// and no page of it is dirty any more.
    ///
    /// # Errors
    /// ENOENT: its location is not known. Errors of the kernel.
    pub(super) fn found(&mut self, engine: &CacheEngine, key: FileKey) -> Result<Option<Arc<dyn BackingFile>>, Errno> {
        if self.dropping == Some(key) {
            return Err(Errno::BUSY);
        }
        let below = self.below(engine, key);
        if self.is_removed(engine, key) {
            match self.drop_removed(engine, key) {
                // A process opens it at this moment.
                Err(Errno::BUSY) if below.is_ok() => {}
                dropped => return dropped.map(|()| None),
            }
        }
        if below.as_ref().is_err_and(|errno| *errno == Errno::NOENT) {
            let is_dirty = match engine.records.find(key) {
                Some(no) => self.is_dirty(engine, no, key),
                None => self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0),
            };
            // The caller may have collected pages before this leader dropped them with the removed file.
            if !is_dirty && !self.is_stranded(engine, key) {
                return Ok(None);
            }
            self.strand(engine, key, flag::MISSING);
        }
        below.map(Some)
    }

    /// Returns whether its owner has to decide what becomes of the file's dirty pages.
    pub(super) fn is_stranded(&self, engine: &CacheEngine, key: FileKey) -> bool {
        engine.records.find(key).is_some_and(|no| engine.records.get(no).has(flag::STRANDED))
    }

    /// Returns whether pages of the file are newer than the file.
    pub(super) fn is_dirty(&self, engine: &CacheEngine, no: FileNo, key: FileKey) -> bool {
        engine.pages.has_marked(pagecache::FileNo(no.0), Marks::DIRTY) || self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0)
    }

    /// The file's dirty pages cannot be written until its owner decides (`CONFLICT`) or it is found again (`MISSING`). It gets a record,
    /// if it has none, which stays: status names it by that.
    pub(super) fn strand(&mut self, engine: &CacheEngine, key: FileKey, why: u32) {
        let path = self.path_of(engine, key);
        let is_new = match self.ensure_record(engine, key) {
            Some(no) => engine.records.get(no).flags().fetch_or(why, Ordering::AcqRel) & why == 0,
            None => self.know(key).not_before.is_none(),
        };
        if is_new {
            let what = if why == flag::CONFLICT {
                "was changed by another program while the cache held newer pages of it: nothing is written to it"
            } else {
                "was moved or removed by another program while the cache held newer pages of it: they are kept until it is found"
            };
            let then = "`hotshelf cache status` names the commands that save them or give them up";
            engine.world.report(&format!("{} {what}; {then}", path.display()));
        }
        self.wait_to_retry(engine, key, STRANDED_MS, why);
        // An entry that says `writing` would make a restart take the change for ours.
        let is_reported = |entry: &Entry| !entry.writing && entry.stamp == Stamp::NEVER;
        if why == flag::CONFLICT
            && self.has_log(engine)
            && let Some(entry) = self.entry(key).filter(|entry| !is_reported(entry))
        {
            // If that fails, a restart behaves as if the conflict had not been detected.
            let put = self.put_entry(engine, key, |worker| {
                let entry = worker.entry(key).unwrap_or_else(|| entry.clone());
                Entry { writing: false, stamp: Stamp::NEVER, ..entry }
            });
            let _ = put.and_then(|()| self.flush_log(engine));
        }
    }

    fn path_of(&mut self, engine: &CacheEngine, key: FileKey) -> std::path::PathBuf {
        match engine.records.find(key) {
            Some(no) => engine.records.get(no).path(),
            None => self.entry(key).map(|entry| entry.path).unwrap_or_default(),
        }
    }

    /// Returns the file's record, or makes one from its entry. `None`: no record is free.
    pub(super) fn ensure_record(&mut self, engine: &CacheEngine, key: FileKey) -> Option<FileNo> {
        let (entry, own) = (self.entry(key), self.own_stamp(key));
        if engine.records.find(key).is_none() {
            self.note_doubt(engine, key, None);
            self.drop_doubtful(engine, key).ok()?;
        }
        let _held = engine.lock_records_soon()?;
        let opens = engine.opens.lock();
        if let Some(no) = engine.records.find(key) {
            return Some(no);
        }
        let entry = entry?;
        let number = self.log.as_mut().and_then(|log| log.cache.hold(key))?;
        let no = engine.free_record(key, &opens)?;
        let record = engine.records.get(no);
        record.clear();
        record.set_path(&entry.path);
        record.set_mode(ssdcache::Mode::WriteBack);
        record.own().begin(own.unwrap_or(entry.stamp));
        if own.is_none() {
            // The stamp that the file has when it is found is ours.
            record.own().open(Writer::Leader);
            self.unended.push_back((no, key));
        }
        record.size().store(entry.size, Ordering::Release);
        record.flags().store(flag::UNSYNCED | flag::UNCOMPARED, Ordering::Release);
        record.set_on_ssd(Some(number));
        record.set_key(Some(key));
        self.keep_dirty_record(engine, key);
        Some(no)
    }

    /// Returns whether the file has no name and is not open: its data is not needed.
    pub(super) fn is_removed(&self, engine: &CacheEngine, key: FileKey) -> bool {
        let Some(record) = engine.records.find(key).map(|no| engine.records.get(no)) else {
            return self.known.get(&key).and_then(|known| known.below.as_ref()).is_some_and(|below| below.is_removed());
        };
        let open_by = record.open_by().load(Ordering::Acquire);
        let is_gone = |known: &Known| known.below.as_ref().is_some_and(|below| below.is_removed());
        // One that died has closed the file, also before its process slot is cleared.
        let is_open_by = |slot: u8| open_by & 1 << slot != 0 && engine.processes.is_alive(shm::ProcessSlot(slot));
        (record.has(flag::UNLINKED) || open_by == 0 && self.known.get(&key).is_some_and(is_gone)) && !(0..u64::BITS as u8).any(is_open_by)
    }

    /// Drops all that is cached of a file that was removed, dirty or not.
    ///
    /// # Errors
    /// EBUSY: a process has it open, or opens a file at this moment. No room on the SSD.
    pub(super) fn drop_removed(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        let Some(no) = engine.records.find(key) else { return self.drop_from_ssd(engine, key) };
        let record = engine.records.get(no);
        let number = record.on_ssd();
        let kept = {
            let _table = engine.lock_records_soon().ok_or(Errno::BUSY)?;
            // A process may have opened it since, and found that it has a name.
            if !self.is_removed(engine, key) || !engine.is_closed(no, key) {
                return Err(Errno::BUSY);
            }
            if self.has_log(engine) {
                // A process that opens it from now on waits for the leader, and finds none of the data.
                record.set_on_ssd(None);
                record.flags().fetch_or(flag::UNLINKED, Ordering::AcqRel);
                Some(engine.keep_record(no, key).ok_or(Errno::BUSY)?)
            } else if engine.free_removed(no, key) {
                None
            } else {
                return Err(Errno::BUSY);
            }
        };
        // The SSD comes first, durably: a new leader would find pages there, and not that the file was removed.
        self.dropping = Some(key);
        let dropped = self.drop_from_ssd(engine, key);
        self.dropping = None;
        dropped.inspect_err(|_| record.set_on_ssd(number))?;
        let Some(kept) = kept else { return Ok(()) };
        let _table = engine.lock_records_soon().ok_or(Errno::BUSY)?;
        drop(kept);
        if engine.free_removed(no, key) {
            return Ok(());
        }
        if !self.has_log(engine) {
            // The SSD has just failed, so that a process that opened the file did not wait, and may have written to it.
            return Err(Errno::BUSY);
        }
        engine.drop_frames(no, 0..u64::MAX)?;
        record.flags().fetch_and(!(flag::STRANDED | flag::OWED | flag::DIRTY_ON_SSD), Ordering::AcqRel);
        record.size().store(record.own().get().size, Ordering::Release);
        Ok(())
    }

    /// Drops all that the SSD has of a removed file.
    fn drop_from_ssd(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        self.drop_file(engine, key)?;
        self.flush_log(engine)?;
        self.forget(engine, key);
        self.dirty_since.remove(&key);
        if let Some(log) = &mut self.log {
            log.cache.release(key);
        }
        Ok(())
    }

    /// Holds a closed file with dirty pages: the leader keeps it open, so that another program may move it. With too many, the least
    /// recently used is found by its name until there is room for it again.
    pub(super) fn hold(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        if !self.is_dirty(engine, no, key) {
            return Ok(());
        }
        self.below(engine, key)?;
        engine.records.get(no).flags().fetch_or(flag::HELD, Ordering::AcqRel);
        self.is_crowded |= self.open_count() > engine.world.handles_max() / 2;
        Ok(())
    }

    /// Clears all `HELD` flags: a new leader has none of the last leader's handles.
    pub(super) fn forget_held(engine: &CacheEngine) {
        engine.records.all().for_each(|(_, record)| _ = record.flags().fetch_and(!flag::HELD, Ordering::AcqRel));
    }

    /// Holds closed files with dirty pages that are not held yet, as many as there is room for.
    pub(super) fn hold_others(&mut self, engine: &CacheEngine) {
        self.has_others = false;
        let mut marked = Vec::new();
        engine.pages.marked(MarkFilter::All, usize::MAX, &mut marked);
        let dirty: HashSet<u32> = marked.iter().map(|(name, _)| name.file.0).collect();
        for (no, record) in engine.records.all() {
            let is_wanted = !record.has(flag::HELD | flag::STRANDED) && record.written().load(Ordering::Relaxed) != 0;
            let Some(key) = record.key().filter(|_| is_wanted) else { continue };
            if !dirty.contains(&no.0) && self.log.as_ref().is_none_or(|log| log.cache.dirty_of(key) == 0) {
                continue;
            }
            if self.open_count() >= engine.world.handles_max() {
                self.has_others = true;
                break;
            }
            // A file that cannot be opened now is reported when it is to be written.
            let _ = self.hold(engine, no, key);
        }
    }

    /// Writes back the least recently used held files while many closed files have dirty pages: later ones need the handles. Returns
    /// whether there was work to do.
    pub(super) fn write_back_held(&mut self, engine: &CacheEngine) -> bool {
        if !self.is_crowded {
            return false;
        }
        let find =
            |key: FileKey| engine.records.find(key).map(|no| (no, engine.records.get(no))).filter(|(_, record)| record.has(flag::HELD));
        let mut held = 0;
        let mut closed: Option<(u64, FileNo, FileKey)> = None;
        for (key, known) in self.known.iter().filter(|(_, known)| known.below.is_some()) {
            let Some((no, record)) = find(*key) else { continue };
            held += 1;
            let is_closed = record.open_by().load(Ordering::Acquire) == 0 && !self.is_patient(engine, *key);
            if is_closed && closed.is_none_or(|(used, ..)| known.used < used) {
                closed = Some((known.used, no, *key));
            }
        }
        self.is_crowded = held > engine.world.handles_max() / 2;
        // One file in each step limits how long requests wait.
        let Some((_, no, key)) = closed.filter(|_| self.is_crowded) else { return false };
        match self.clean(engine, no, key) {
            Ok(()) => self.close_handle(engine, key),
            // The next flush reports it.
            Err(_) if self.is_patient(engine, key) => {}
            Err(_) => self.wait_to_retry(engine, key, RETRY_MS, 0),
        }
        true
    }

    /// Records the current names of files that the leader has open: in the segment, where the next leader finds them, and in their entries
    /// on the SSD, where they are found after a loss of power. `lock` takes the lock of the table of records; without it, the segment keeps
    /// the old names until the next time. Held files that lost the name by which they were opened, and have another one, are collected
    /// for [`Worker::clean_nameless`].
    pub(super) fn note_names<'a>(&mut self, engine: &'a CacheEngine, lock: impl FnOnce() -> Option<OwnedLockGuard<'a>>) {
        let mut renamed = Vec::new();
        self.nameless.clear();
        for (key, known) in &self.known {
            let Some(below) = &known.below else { continue };
            let Some(record) = engine.records.find(*key).map(|no| engine.records.get(no)).filter(|record| record.has(flag::HELD)) else {
                continue;
            };
            match below.path() {
                Some(path) if renamed.len() < NAMED && self.is_new_name(engine, *key, &record.path(), &path) => {
                    renamed.push((*key, Arc::clone(below), path));
                }
                None if below.has_lost_name() && !self.is_patient(engine, *key) => self.nameless.push_back(*key),
                _ => {}
            }
        }
        if !renamed.is_empty()
            && let Some(_held) = lock()
        {
            for (key, below, path) in renamed {
                let record = engine.records.find(key).map(|no| engine.records.get(no));
                // A process that renamed it meanwhile has recorded the newer name.
                if let Some(record) = record.filter(|_| below.path().as_ref() == Some(&path)) {
                    record.set_path(&path);
                }
            }
        }
        self.note_names_on_ssd(engine);
    }

    /// Writes back one file whose name is not known; returns whether there was one.
    pub(super) fn clean_nameless(&mut self, engine: &CacheEngine) -> bool {
        let Some(key) = self.nameless.pop_front() else { return false };
        if let Some(no) = engine.records.find(key).filter(|no| self.is_dirty(engine, *no, key)) {
            // The next flush reports an error.
            let _ = self.clean(engine, no, key);
        }
        true
    }

    fn is_new_name(&self, engine: &CacheEngine, key: FileKey, before: &Path, now: &Path) -> bool {
        !now.as_os_str().is_empty() && now.as_os_str().len() <= PATH_MAX && before != now && engine.world.may_keep(key, now)
    }

    /// Compares the entries of some files with dirty pages on the SSD with the names that the files have now, all files in turn. Files that
    /// are not open here are opened, as long as that leaves handles for others: a handle follows its file through renames of directories.
    fn note_names_on_ssd(&mut self, engine: &CacheEngine) {
        let Some(log) = self.log.as_ref().filter(|_| self.has_log(engine)) else { return };
        let mut dirty = log.cache.dirty_files();
        dirty.retain(|key| *key != CATALOGUE);
        dirty.sort_unstable();
        let first = dirty.partition_point(|key| *key <= self.named);
        dirty.rotate_left(first);
        dirty.truncate(NAMED);
        let begun = engine.world.now_ms();
        let mut renamed = Vec::new();
        for key in dirty {
            if engine.world.now_ms().wrapping_sub(begun) >= NAMED_MS {
                break;
            }
            self.named = key;
            if let Some(path) = self.present_path(engine, key)
                && let Some(entry) = self.entry(key).filter(|entry| self.is_new_name(engine, key, &entry.path, &path))
            {
                renamed.push((key, entry, path));
            }
        }
        if renamed.is_empty() {
            return;
        }
        // First the names themselves: a loss of power might otherwise bring back the old name, and keep the entry with the new one.
        let directories: BTreeSet<&Path> = renamed.iter().flat_map(|(_, entry, path)| changed_directories(&entry.path, path)).collect();
        for dir in directories {
            // If that fails, the file is found only when a process opens it.
            let _ = engine.world.sync_directory(dir);
        }
        for (key, entry, path) in &renamed {
            // If that fails, the next time tries again.
            let _ =
                self.put_entry(engine, *key, |worker| Entry { path: path.clone(), ..worker.entry(*key).unwrap_or_else(|| entry.clone()) });
        }
        let _ = self.flush_log(engine);
    }

    /// Returns where a file with dirty pages on the SSD is now. A closed file that is not found is stranded, and status names it.
    fn present_path(&mut self, engine: &CacheEngine, key: FileKey) -> Option<PathBuf> {
        if let Some(below) = self.known.get(&key).and_then(|known| known.below.as_ref()) {
            return below.path();
        }
        let record = engine.records.find(key).map(|no| engine.records.get(no));
        if record.is_some_and(|record| record.has(flag::STRANDED)) || self.is_patient(engine, key) {
            return None;
        }
        if self.open_count() >= engine.world.handles_max() / 2 {
            return record.map(|record| record.path());
        }
        let below = match record {
            Some(record) if record.open_by().load(Ordering::Acquire) != 0 => self.below(engine, key).ok(),
            _ => self.found(engine, key).ok().flatten(),
        };
        below?.path()
    }

    fn open_count(&self) -> usize {
        self.known.values().filter(|known| known.below.is_some()).count()
    }

    /// Returns how long a backing file may become: the smaller of its entry's length, if the log has pages of it, and the length its
    /// users know. During a truncation only the entry counts: the truncation may fail, and the data after it is still needed.
    pub(super) fn end_below(&mut self, engine: &CacheEngine, key: FileKey) -> u64 {
        let is_noted = self.has_log(engine) && self.log.as_ref().is_some_and(|log| log.cache.pages_of(key) > 0);
        let noted = self.entry(key).filter(|_| is_noted).map(|entry| entry.size);
        // A record that was not compared with the entry yet has the length of the backing file, without the dirty pages behind it.
        let is_compared = |no: &FileNo| engine.records.get(*no).on_ssd().is_some() && !self.is_being_cut(engine, *no);
        let no = engine.records.find(key).filter(|no| noted.is_none() || is_compared(no));
        let known = no.map(|no| engine.records.get(no).size().load(Ordering::Acquire));
        noted.into_iter().chain(known).min().or_else(|| self.entry(key).map(|entry| entry.size)).unwrap_or(u64::MAX)
    }

    /// Takes the file's lock if it is free: the leader never waits for it.
    pub(super) fn try_lock<'a>(&mut self, engine: &'a CacheEngine, no: FileNo) -> Option<shm::OwnedLockGuard<'a>> {
        let held = engine.records.lock_of(no).try_lock()?;
        let is_begun = held.was_abandoned() || engine.records.get(no).own().is_open_by(Writer::LockHolder);
        if is_begun && self.mend(engine, no).is_err() {
            held.abandon();
            return None;
        }
        Some(held)
    }

    /// Returns the backing file, open for writing.
    pub(super) fn below(&mut self, engine: &CacheEngine, key: FileKey) -> Result<Arc<dyn BackingFile>, Errno> {
        self.uses += 1;
        let uses = self.uses;
        let known = self.know(key);
        known.used = uses;
        if let Some(below) = &known.below {
            return Ok(Arc::clone(below));
        }
        let no = engine.records.find(key);
        let entry = self.entry(key);
        let (recorded, pids) = no.map_or_else(|| (PathBuf::new(), Vec::new()), |no| (engine.records.get(no).path(), self.pids(engine, no)));
        let is_known = no.is_some() || entry.is_some();
        let noted = entry.map(|entry| entry.path).filter(|noted| *noted != recorded);
        let mut paths = [Some(recorded), noted].into_iter().flatten().filter(|path| !path.as_os_str().is_empty() || !pids.is_empty());
        // Without a path the location is not known; the file may still exist.
        let mut path = paths.next().ok_or(if is_known { Errno::IO } else { Errno::NOENT })?;
        let below = loop {
            match engine.world.open(key, &path, &pids, true).map_err(|error: io::Error| errno_of(&error)) {
                // The leader process has few descriptors left.
                Err(Errno::MFILE | Errno::NFILE) if self.close_oldest(engine) => {}
                Err(Errno::NOENT) if let Some(other) = paths.next() => path = other,
                opened => break opened?,
            }
        };
        while self.open_count() >= engine.world.handles_max() && self.close_oldest(engine) {}
        if let Some(no) = engine.records.find(key) {
            engine.records.get(no).flags().fetch_and(!flag::MISSING, Ordering::AcqRel);
        }
        self.know(key).below = Some(Arc::clone(&below));
        Ok(below)
    }

    /// Closes the least recently used handle; current users of it keep their reference. Returns whether there was one.
    fn close_oldest(&mut self, engine: &CacheEngine) -> bool {
        let open = self.known.iter().filter(|(_, known)| known.below.is_some());
        // A file that can be found without its handle is closed first.
        let is_held = |key: FileKey| engine.records.find(key).is_some_and(|no| engine.records.get(no).has(flag::HELD));
        let Some(key) = open.min_by_key(|(key, known)| (is_held(**key), known.used)).map(|(key, _)| *key) else { return false };
        self.has_others |= is_held(key);
        self.close_handle(engine, key);
        true
    }

    fn close_handle(&mut self, engine: &CacheEngine, key: FileKey) {
        if let Some(no) = engine.records.find(key) {
            engine.records.get(no).flags().fetch_and(!flag::HELD, Ordering::AcqRel);
        }
        if let Some(known) = self.known.get_mut(&key) {
            known.below = None;
        }
    }

    /// Keeps the state of files within its bounds; returns whether there was work to do.
    pub(super) fn bound_files(&mut self, engine: &CacheEngine, now: u32) -> bool {
        if now.wrapping_sub(self.last_files_check) >= FILES_CHECK_MS {
            self.last_files_check = now;
            self.close_idle(engine);
            self.release_clean_records(engine);
            self.read_entries(engine);
            // A process that holds the lock is not waited for: the names are as good a second later.
            self.note_names(engine, || engine.records.lock().try_lock());
            self.withdraw_closed(engine);
            if self.has_others {
                self.hold_others(engine);
            }
        }
        if self.known.len() <= KNOWN_MAX {
            return false;
        }
        let before = self.known.len();
        self.settle_entries(engine, SETTLED);
        self.known.retain(|_, known| known.is_needed() || known.below.is_some());
        self.known.len() < before
    }

    /// Closes handles of files that are not open and have no dirty pages. Drops removed files.
    pub(super) fn close_idle(&mut self, engine: &CacheEngine) {
        let removed: Vec<FileKey> = self.known.keys().filter(|key| self.is_removed(engine, **key)).copied().collect();
        for key in removed {
            // If that fails, the next check tries again. A process that keeps the lock of the table is waited for once.
            if self.drop_removed(engine, key) == Err(Errno::BUSY) {
                break;
            }
        }
        let is_used = |key: FileKey, worker: &Worker| {
            let no = engine.records.find(key);
            let is_open = no.is_some_and(|no| engine.records.get(no).open_by().load(Ordering::Acquire) != 0);
            let is_marked = no.is_some_and(|no| engine.pages.marked_of(pagecache::FileNo(no.0)));
            is_open || is_marked || worker.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0)
        };
        let idle: Vec<FileKey> = self.known.keys().filter(|key| !is_used(**key, self)).copied().collect();
        for key in idle {
            self.close_handle(engine, key);
            if self.known.get(&key).is_some_and(|known| !known.is_needed()) {
                self.known.remove(&key);
            }
        }
    }

    /// Drops closed files, some at a time, that not all processes of the segment may see any more. (The users of an open file detect that
    /// themselves.)
    pub(crate) fn withdraw_closed(&mut self, engine: &CacheEngine) {
        let count = engine.records.count;
        for _ in 0..WITHDRAWN.min(count) {
            self.looked_at = (self.looked_at + 1) % count;
            let no = FileNo(self.looked_at);
            let record = engine.records.get(no);
            let Some(key) = record.key() else { continue };
            let (path, is_open) = (record.path(), record.open_by().load(Ordering::Acquire) != 0);
            if is_open || record.has(flag::OWED | flag::STRANDED) || path.as_os_str().is_empty() || engine.world.may_keep(key, &path) {
                continue;
            }
            if self.is_removed(engine, key) {
                let _ = self.drop_removed(engine, key);
            }
            let Some(kept) = engine.lock_records_soon().and_then(|_table| engine.keep_record(no, key)) else { continue };
            // It mends what a dead owner of the lock left. If that is not possible, what may be stale is dropped, too.
            drop(self.try_lock(engine, no));
            // Pages that cannot be written stay; a flush reports them.
            let dropped = self.clean_and_drop(engine, no, key);
            // The record stays, and is tried again, as long as free frames have bytes of the file.
            let is_wiped = dropped.is_ok() && engine.pages.wipe_free();
            let Some(_table) = engine.lock_records_soon() else { return };
            drop(kept);
            if is_wiped && !engine.pages.has_pages(pagecache::FileNo(no.0)) && !self.is_dirty(engine, no, key) {
                engine.free_closed(no, key);
            }
        }
    }

    /// Puts a page into the log; makes room if necessary.
    pub(super) fn put(
        &mut self,
        engine: &CacheEngine,
        key: FileKey,
        page: PageIndex,
        version: PageVersion,
        bytes: &Page,
    ) -> Result<(), Errno> {
        self.room_ahead(engine)?;
        for _ in 0..3 {
            let Some(log) = &mut self.log else { return Err(Errno::IO) };
            match log.put(key, page, version, bytes) {
                Ok(()) => return Ok(()),
                Err(Stop::Room) => self.make_room(engine)?,
                Err(stop) => return Err(self.stopped(engine, stop)),
            }
        }
        Err(Errno::NOSPC)
    }

    /// Drops all pages of a file from the log, and then its entry: a truncation in it would be repeated after a restart. The next flush
    /// makes that durable.
    pub(super) fn drop_file(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        self.drop_pages(engine, key, 0..u64::MAX)?;
        self.drop_entry(engine, key)
    }

    /// Drops pages from the log; makes room if necessary.
    pub(super) fn drop_pages(&mut self, engine: &CacheEngine, key: FileKey, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        if engine.header.ssd_failed() != 0 {
            if let Some(log) = &mut self.log {
                log.cache.forget(key, pages);
            }
            return Ok(());
        }
        for _ in 0..3 {
            let Some(log) = &mut self.log else { return Ok(()) };
            match log.drop_pages(key, pages.clone()) {
                Ok(()) => return Ok(()),
                Err(Stop::Room) => self.make_room(engine)?,
                Err(stop) => {
                    self.stopped(engine, stop);
                    return self.drop_pages(engine, key, pages);
                }
            }
        }
        Err(Errno::NOSPC)
    }
}

/// Returns the directories whose entries lead from the root to `now`, and may be others than those that led to `before`: from where the
/// two paths part.
fn changed_directories<'a>(before: &Path, now: &'a Path) -> impl Iterator<Item = &'a Path> + use<'a> {
    let shared = before.components().zip(now.components()).take_while(|(before, now)| before == now).count();
    let levels = now.components().count();
    now.ancestors().skip(1).take(levels.saturating_sub(shared).min(SYNCED_MAX))
}

/// Returns whether two stamps have the same content. Change time alone does not show that: a new name or mode changes it too.
pub(super) fn is_same(a: Stamp, b: Stamp) -> bool {
    difference(a, b) != Difference::Content
}

#[cfg(test)]
mod test {
    use ssdcache::Mode;

    use super::*;
    use crate::engine::OpenOptions;
    use crate::test_engine::restart;

    /// The lock of the table is held by a process that does not go on, and several held files have lost their names.
    #[test]
    fn names_are_noted_without_waiting_and_nameless_files_are_written_one_in_a_step() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
        let mut opens = vec![open];
        for key in (8..12).map(FileKey) {
            let below = engine.world.open(key, Path::new("/file"), &[], true).expect("there");
            opens.push(engine.open(key, Path::new("/file"), options, below).expect("opened"));
        }
        let mut worker = Worker::begin(&engine);
        for open in &opens {
            open.write(0, &[1; 100]).expect("written");
            worker.hold(&engine, open.no(), open.key()).expect("held");
        }
        let path_of = |open: &crate::engine::Open| engine.records.get(open.no()).path();
        *file.name.lock() = Some("/renamed".into());
        let held = engine.records.lock().lock();
        worker.note_names(&engine, || engine.records.lock().try_lock());
        assert_eq!(path_of(&opens[0]), Path::new("/file"), "the lock is not free");
        drop(held);
        worker.note_names(&engine, || engine.records.lock().try_lock());
        assert!(opens.iter().all(|open| path_of(open) == Path::new("/renamed")));
        *file.name.lock() = None;
        worker.note_names(&engine, || engine.records.lock().try_lock());
        let dirty = || opens.iter().filter(|open| engine.pages.marked_of(pagecache::FileNo(open.no().0))).count();
        for left in (0..opens.len()).rev() {
            assert!(worker.clean_nameless(&engine));
            assert_eq!(dirty(), left);
        }
        assert!(!worker.clean_nameless(&engine));
    }

    /// A missing file is opened where it is now, or the owner of a file in conflict has decided: its next write-back does not wait.
    #[test]
    fn a_file_that_is_not_stranded_any_more_is_written_back_at_once() {
        for why in [flag::MISSING, flag::CONFLICT] {
            let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
            *file.reports.lock() = Some(Vec::new());
            open.write(0, &[1; 100]).expect("written");
            let mut worker = Worker::begin(&engine);
            worker.strand(&engine, open.key(), why);
            let marked = [(engine.name(open.no(), 0), 0)];
            assert_eq!(worker.clean_frames(&engine, &marked).0, 0, "it waits");
            let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
            if why == flag::CONFLICT {
                open.discard_conflict().expect("given up");
            } else {
                let below = engine.world.open(open.key(), Path::new("/moved"), &[], true).expect("there");
                engine.open(open.key(), Path::new("/moved"), options, below).expect("opened");
            }
            open.write(0, &[2; 100]).expect("written");
            assert_eq!(worker.clean_frames(&engine, &marked), (1, Ok(())));
            assert_eq!(file.bytes.lock()[..100], [2; 100]);
        }
    }

    /// The leader was stopped after it had taken the request of an open; the process gave up, and another file got the record.
    #[test]
    fn an_open_that_was_given_up_changes_no_record_of_another_file() {
        let (_, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.sync().expect("on the SSD");
        let no = open.no();
        drop(open);
        restart(&engine, no);
        let below = engine.world.open(FileKey(8), Path::new("/file"), &[], true).expect("there");
        let open = engine.open(FileKey(8), Path::new("/file"), OpenOptions::default(), below).expect("opened");
        assert_eq!(open.no(), no, "it has the record");
        engine.records.get(no).set_on_ssd(None);
        let mut worker = Worker::begin(&engine);
        assert_eq!((worker.open(&engine, no, FileKey(7)), open.size()), (Err(Errno::BADF), 0));
        assert_eq!(engine.records.get(no).on_ssd(), None);
    }

    #[test]
    fn an_unlinked_file_that_is_closed_while_the_leader_opens_it_keeps_no_pages() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.clean().expect("below");
        open.write(0, &[2; 100]).expect("written");
        open.sync().expect("on the SSD");
        open.unlinked();
        let (no, key) = (open.no(), open.key());
        engine.records.get(no).set_on_ssd(None);
        let mut worker = Worker::begin(&engine);
        let (mut open, removed) = (Some(open), Arc::clone(&file));
        let hook = move || {
            removed.is_gone.store(true, Ordering::Relaxed);
            drop(open.take());
            false
        };
        *file.at_stamp.lock() = Some(Box::new(hook));
        let _ = worker.open(&engine, no, key);
        assert!(file.at_stamp.lock().is_none(), "it was closed meanwhile");
        let pages = worker.log.as_ref().map_or(0, |log| log.cache.pages_of(key));
        assert_eq!((pages, engine.pages.has_pages(pagecache::FileNo(no.0))), (0, false));
    }

    #[test]
    fn directories_from_where_two_paths_part_are_synced() {
        let of = |before: &str, now: &'static str| changed_directories(Path::new(before), Path::new(now)).collect::<Vec<_>>();
        assert_eq!(of("/a/one/sub/f", "/a/two/sub/f"), [Path::new("/a/two/sub"), Path::new("/a/two"), Path::new("/a")]);
        assert_eq!(of("/a/f", "/a/g"), [Path::new("/a")]);
        assert_eq!(of("/a/f", "/a/b/f"), [Path::new("/a/b"), Path::new("/a")]);
        assert!(of("", "/a").contains(&Path::new("/")));
    }
}
