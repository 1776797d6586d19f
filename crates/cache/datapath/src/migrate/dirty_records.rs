//! The records of files of which the SSD has dirty pages: the leader keeps them while the pages are dirty.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use ssdcache::FileKey;

use super::Worker;
use crate::engine::layout::Word;
use crate::engine::open::errno_of;
use crate::engine::{CATALOGUE, CacheEngine, flag};

/// How many closed files are written back for one free record, at most: the write-back of some may fail.
const FREED_TRIES: usize = 3;

impl Worker {
    fn is_dirty_on_ssd(&self, key: FileKey) -> bool {
        self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0)
    }

    /// Keeps the record of a file if the SSD has dirty pages of it. It is called while a frame of such a page is still marked as dirty:
    /// the record cannot be given to another file before.
    pub(super) fn keep_dirty_record(&mut self, engine: &CacheEngine, key: FileKey) {
        if key != CATALOGUE
            && self.is_dirty_on_ssd(key)
            && let Some(no) = engine.records.find(key)
        {
            engine.records.get(no).flags().fetch_or(flag::DIRTY_ON_SSD, Ordering::AcqRel);
            self.dirty_records.insert(no, key);
        }
    }

    /// Takes over the files of which the SSD has dirty pages, for a new leader: sets the flags of all records, and notes whether files
    /// have none.
    pub(super) fn take_over_dirty_files(&mut self, engine: &CacheEngine) {
        let now = engine.world.now_ms();
        let dirty = self.log.as_ref().map_or(Vec::new(), |log| log.cache.dirty_files());
        self.dirty_since = dirty.into_iter().filter(|key| *key != CATALOGUE).map(|key| (key, now)).collect();
        for (no, record) in engine.records.all() {
            match record.key() {
                Some(key) if self.is_dirty_on_ssd(key) => {
                    record.flags().fetch_or(flag::DIRTY_ON_SSD, Ordering::AcqRel);
                    self.dirty_records.insert(no, key);
                }
                _ => _ = record.flags().fetch_and(!flag::DIRTY_ON_SSD, Ordering::AcqRel),
            }
        }
        self.note_unrecorded(engine);
    }

    /// Releases the records of files that have no dirty pages on the SSD any more.
    pub(super) fn release_clean_records(&mut self, engine: &CacheEngine) {
        let log = self.log.as_ref();
        self.dirty_records.retain(|no, key| {
            let record = engine.records.get(*no);
            if record.key() != Some(*key) {
                return false;
            }
            let is_dirty = log.is_some_and(|log| log.cache.dirty_of(*key) > 0);
            match is_dirty {
                // Also if another process has cleared it.
                true => record.flags().fetch_or(flag::DIRTY_ON_SSD, Ordering::AcqRel),
                false => record.flags().fetch_and(!flag::DIRTY_ON_SSD, Ordering::AcqRel),
            };
            is_dirty
        });
        self.note_unrecorded(engine);
    }

    /// Notes whether the SSD has dirty pages of files that have no record, or one that was not compared with the SSD yet. Only a recovery
    /// finds such files.
    fn note_unrecorded(&self, engine: &CacheEngine) {
        let is_recorded = |key: FileKey| {
            let record = engine.records.find(key).map(|no| engine.records.get(no));
            record.is_some_and(|record| record.on_ssd().is_some() && record.has(flag::DIRTY_ON_SSD))
        };
        let dirty = self.log.as_ref().map_or(Vec::new(), |log| log.cache.dirty_files());
        let is_any = dirty.into_iter().any(|key| key != CATALOGUE && !is_recorded(key));
        engine.header.set(Word::Unrecorded, u32::from(is_any));
    }

    /// Makes a record for a file that has none, if the SSD has dirty pages of it. With `wants_room` it frees one for the file otherwise.
    /// Returns whether the file has a record.
    ///
    /// # Errors
    /// There is no room for a record, and the dirty pages could not be written back either: a caller must not use the backing file.
    pub(super) fn record_of(&mut self, engine: &CacheEngine, key: FileKey, wants_room: bool) -> Result<bool, Errno> {
        if key == CATALOGUE || key.0 == 0 {
            return Err(Errno::INVAL);
        }
        // A process that keeps the lock of the table does not make another file be written back.
        drop(self.lock_table(engine)?);
        if let Some(no) = engine.records.find(key) {
            // A process that opened the file may have died before it was compared with the SSD.
            return self.open(engine, no, key).map(|()| true);
        }
        if self.is_dirty_on_ssd(key) && self.make_record(engine, key) {
            return Ok(true);
        }
        if wants_room || self.is_dirty_on_ssd(key) {
            self.free_record_in_set(engine, key);
        }
        if self.is_dirty_on_ssd(key) {
            if self.make_record(engine, key) {
                return Ok(true);
            }
            self.know(key).not_before = None;
            self.write_back_file(engine, key)?;
        }
        Ok(false)
    }

    /// Makes a record for a file from its entry on the SSD. Returns false if none is free.
    fn make_record(&mut self, engine: &CacheEngine, key: FileKey) -> bool {
        let Some(no) = self.ensure_record(engine, key) else { return false };
        if self.entry(key).is_some_and(|entry| entry.through)
            && let Ok(stamp) = self.below(engine, key).and_then(|below| below.stamp().map_err(|error| errno_of(&error)))
        {
            // Writes past the SSD may have extended it since.
            engine.records.get(no).size().fetch_max(stamp.size, Ordering::AcqRel);
        }
        true
    }

    /// Makes sure that a record in the set of this key can be given to another file, if files of the set are closed: it writes back the
    /// dirty pages of the least recently used one.
    fn free_record_in_set(&mut self, engine: &CacheEngine, key: FileKey) {
        self.release_clean_records(engine);
        let now = engine.world.now_ms();
        let mut closed = Vec::new();
        for (no, record) in engine.records.set_of(key) {
            let is_open = record.open_by().load(Ordering::Acquire) != 0;
            if record.is_free() && !is_open {
                return;
            }
            let Some(key) = record.key() else { continue };
            if is_open || record.has(flag::OWED | flag::STRANDED) {
                continue;
            }
            if !record.has(flag::DIRTY_ON_SSD) && !engine.pages.marked_of(pagecache::FileNo(no.0)) {
                return;
            }
            if !self.is_patient(engine, key) {
                closed.push((now.wrapping_sub(record.used().load(Ordering::Relaxed)), no, key));
            }
        }
        closed.sort_unstable_by(|a, b| b.cmp(a));
        for (_, no, key) in closed.into_iter().take(FREED_TRIES) {
            match self.clean(engine, no, key) {
                Ok(()) => {
                    self.release_clean_records(engine);
                    return;
                }
                // A file that cannot be written does not keep each open waiting for it.
                Err(_) if self.is_patient(engine, key) => {}
                Err(_) => self.wait_to_retry(engine, key, super::RETRY_MS, 0),
            }
        }
    }
}

#[cfg(test)]
mod test {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use ssdcache::Mode;

    use super::*;
    use crate::engine::{Open, OpenOptions};
    use crate::test_engine::{lead_with_ssd, opened, restart};

    const OPTIONS: OpenOptions = OpenOptions { mode: Mode::WriteBack, rule: ssdcache::AdmissionRule::Normal, keeps_mode: false };

    fn open_other(engine: &Arc<CacheEngine>, key: u64) -> Open {
        let below = engine.world.open(FileKey(key), Path::new("/file"), &[], true).expect("there");
        engine.open(FileKey(key), Path::new("/file"), OPTIONS, below).expect("opened")
    }

    /// The records of the engine are one set of sixteen.
    #[test]
    fn a_closed_file_that_is_dirty_only_on_the_ssd_keeps_its_record_until_it_is_written_back() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        let (no, key) = (open.no(), open.key());
        drop(open);
        let opens: Vec<Open> = (8..23).map(|key| open_other(&engine, key)).collect();
        assert!(engine.records.get(no).has(flag::DIRTY_ON_SSD) && file.bytes.lock().is_empty());
        assert_eq!(opened(&engine).size(), 100);
        // The sixteenth other file takes the record, after the data was written to the file.
        let last = open_other(&engine, 23);
        assert_eq!((last.no(), &file.bytes.lock()[..]), (no, &[1; 100][..]));
        assert_eq!(engine.knows(key), Ok(false));
        drop(opens);
    }

    #[test]
    fn a_file_is_opened_without_a_record_only_if_the_ssd_has_no_dirty_pages_of_it() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        let (no, key) = (open.no(), open.key());
        drop(open);
        restart(&engine, no);
        // They get all records, as the restart has forgotten that of the file.
        let mut worker = Worker::begin(&engine);
        for other in 8..24 {
            let below = engine.world.open(FileKey(other), Path::new("/file"), &[], true).expect("there");
            engine.record_for(FileKey(other), Path::new("/file"), OPTIONS, &*below).expect("a record");
        }
        assert_eq!(engine.header.get(Word::Unrecorded), 1);
        assert_eq!(worker.record_of(&engine, key, true), Ok(false));
        assert_eq!(&file.bytes.lock()[..], &[1; 100]);
        worker.release_clean_records(&engine);
        assert_eq!(engine.header.get(Word::Unrecorded), 0);
    }

    #[test]
    fn after_a_restart_calls_know_of_data_that_only_the_ssd_has() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        let (no, key) = (open.no(), open.key());
        drop(open);
        restart(&engine, no);
        assert!(engine.records.find(key).is_none() && !engine.knows(FileKey(99)).expect("known"));
        assert!(engine.knows(key).expect("known"), "it has a record now");
        let stamp = crate::engine::BackingFile::stamp(&*file).expect("a stamp");
        assert_eq!(engine.peek(key, stamp).map(|(size, _)| size), Some(100));
        let open = opened(&engine);
        assert_eq!((open.size(), open.read(0, &mut [0; 100])), (100, Ok(100)));
        open.clean().expect("below");
        assert_eq!(&file.bytes.lock()[..], &[1; 100]);
    }

    #[test]
    fn after_a_restart_a_change_by_another_program_is_a_conflict_also_if_the_file_was_looked_at() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        *file.reports.lock() = Some(Vec::new());
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        let (no, key) = (open.no(), open.key());
        drop(open);
        crate::engine::BackingFile::write_at(&*file, 0, &[2; 50]).expect("by another program");
        restart(&engine, no);
        assert_eq!(engine.knows(key), Ok(true));
        let below = engine.world.open(key, Path::new("/file"), &[], true).expect("there");
        let opened = engine.open(key, Path::new("/file"), OPTIONS, below);
        assert_eq!(opened.err(), Some(crate::engine::OpenFileError::Conflict));
        assert_eq!(&file.bytes.lock()[..], &[2; 50], "nothing is written to it");
    }

    /// A file that was removed is opened by a descriptor without access at the moment of its last close.
    #[test]
    fn a_removed_file_keeps_its_data_while_a_process_has_it_open() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        file.is_gone.store(true, Ordering::Relaxed);
        open.unlinked();
        let (key, record) = (open.key(), open.no());
        let below = Arc::clone(&file) as Arc<dyn crate::engine::BackingFile>;
        let second = engine.open(key, Path::new("/file"), OPTIONS, below).expect("opened");
        drop(open);
        let mut worker = Worker::begin(&engine);
        assert_eq!(worker.drop_removed(&engine, key), Err(Errno::BUSY), "it is open");
        assert_eq!((second.size(), second.no()), (100, record));
        engine.lead_inline(worker);
        drop(second);
        assert_eq!(engine.knows(key), Ok(false));
        let worker = Worker::begin(&engine);
        assert_eq!(worker.log.as_ref().map(|log| log.cache.pages_of(key)), Some(0));
    }

    #[test]
    fn a_file_that_gets_a_name_again_keeps_its_data() {
        let (file, engine, open) = lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        open.sync().expect("on the SSD");
        open.unlinked();
        file.is_gone.store(false, Ordering::Relaxed);
        drop(open);
        let open = opened(&engine);
        assert_eq!(open.size(), 100);
        open.unlinked();
        open.renamed();
        drop(open);
        assert_eq!(opened(&engine).size(), 100);
    }
}
