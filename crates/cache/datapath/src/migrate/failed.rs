//! Handles an SSD that fails or cannot be opened: it is not used any more, and no older data replaces what only it had.
//!
//! *The map in the segment is authoritative from then on*: its dirty pages exist only on the SSD. Readable ones are written to their
//! backing files. The others stay in the map until they are overwritten, truncated, or given up by their owner. Until then reads of them
//! return EIO, under any leader. Their files keep their records. If no map was ever published in this segment, the content of the SSD is
//! unknown. Then no file is opened, unless it is certain that the SSD had no dirty pages (docs/durability.md).

use std::sync::atomic::Ordering;
use std::time::Instant;

use block::Error;
use rustix::io::Errno;
use ssdcache::{Admission, FileKey, Item, PAGE_BYTES, Page};

use super::Worker;
use super::demote::is_newer_in_frame;
use crate::engine::layout::{FAILED, NEVER_OPENED, Word};
use crate::engine::log::Log;
use crate::engine::open::errno_of;
use crate::engine::own_stamp::Writer;
use crate::engine::record::Record;
use crate::engine::{CATALOGUE, CacheEngine, Entry, FileNo, flag};

/// Pages examined in one round.
const ROUND_PAGES: usize = 4096;
/// Lost ranges of a file that are reported one by one; of the others only the number is reported.
const REPORTED_MAX: usize = 16;

impl Worker {
    /// Takes over the content of the SSD, from its own log or from the map that the last leader published.
    pub(super) fn open_log(&mut self, engine: &CacheEngine) {
        let Some(shape) = engine.layout.sizes.ssd else { return };
        // Each of these files has a page on the SSD, or is open.
        let files = shape.slots().saturating_add(engine.records.count).min(crate::engine::FILES_MAX - 1);
        let begun = Instant::now();
        let held: Vec<_> = (engine.records.all()).filter_map(|(_, record)| Some((record.key()?, record.on_ssd()?))).collect();
        let published = (engine.header.region(), engine.layout.ssd);
        let opened = match &engine.plain {
            // Files were written without the SSD meanwhile.
            _ if engine.header.ssd_failed() == FAILED => Err("it failed before".to_owned()),
            None => Err("this process cannot open it".to_owned()),
            Some(device) => Log::open(&**device, engine.ssd_queues.as_ref(), files, published, &held, engine.counters.clone())
                .map_err(|error| error.to_string()),
        };
        match opened {
            Ok((log, found)) => {
                engine.header.wide(Word::SsdFound).store(log.cache.len().0, Ordering::Relaxed);
                engine.header.set(Word::RecoveryMs, begun.elapsed().as_millis().min(u32::MAX.into()) as u32);
                engine.header.set(Word::SsdFailed, 0);
                // The last leader may have died just before it marked the SSD as failed.
                engine.header.set(Word::Unknown, 0);
                self.admission = Some(Admission::new(engine.limits.admission, self.now()));
                self.log = Some(log);
                self.damaged(engine, &found);
            }
            Err(why) => match Log::of_failed(engine.plain.as_deref(), files, published, &held, engine.counters.clone()) {
                Ok((log, unknown)) => {
                    self.log = Some(log);
                    self.lead_without(engine, &why, unknown);
                }
                Err(_) if engine.header.ssd_failed() == FAILED => {}
                Err(_) if !engine.mode().keeps_dirty() && engine.world.is_clean() => self.fail(engine, Error::Gone, &why),
                Err(_) => {
                    engine.world.report(&format!("the SSD cache cannot be opened, and it is not known what is on it: {why}"));
                    engine.header.set(Word::SsdErrno, Errno::IO.raw_os_error() as u32);
                    engine.header.set(Word::SsdFailed, NEVER_OPENED);
                }
            },
        }
    }

    /// Handles durable data that recovery found missing.
    fn damaged(&mut self, engine: &CacheEngine, found: &ssdcache::RecoveryResult) {
        let (damaged, suspect) = (found.damaged, found.suspect.len());
        if damaged == 0 {
            return;
        }
        engine.world.report(&format!("the SSD cache is damaged: {damaged} segments incomplete, {suspect} dirty pages in doubt"));
        if suspect > 0 || found.unknown > 0 {
            // Otherwise only clean pages are gone, and the SSD has lost no data that it had promised to keep.
            engine.header.set(Word::Unknown, u32::try_from(found.unknown).unwrap_or(u32::MAX));
            self.fail(engine, Error::Media, "it has lost what it had written");
        }
    }

    fn lead_without(&mut self, engine: &CacheEngine, why: &str, unknown: u64) {
        if engine.header.ssd_failed() == FAILED {
            // The last leader may have died before it had done that. Then `Unknown` still counts the files that it had not named.
            self.name_debts(engine, &[]);
            return;
        }
        let unknown = u32::try_from(unknown).unwrap_or(u32::MAX);
        engine.header.set(Word::Unknown, unknown);
        self.fail(engine, Error::Gone, why);
        if unknown > 0 {
            engine.world.report(&format!("{unknown} pages that only the SSD has are of files that were not open: those answer EIO"));
        }
    }

    /// Marks the SSD as failed, and reports that.
    pub(super) fn fail(&mut self, engine: &CacheEngine, error: Error, why: &str) {
        if engine.header.ssd_failed() == FAILED {
            return;
        }
        // If the SSD is found again, its content will be older than the files.
        self.is_noted_clean = !self.is_owed(engine);
        if let Err(error) = engine.world.note_void(!self.is_noted_clean) {
            engine.world.report(&format!(
                "the failure of the SSD could not be recorded ({error}): do not use the SSD again with its present content"
            ));
        }
        engine.header.set(Word::SsdErrno, error.errno() as u32);
        let counted = self.stop_using(engine);
        self.name_debts(engine, &counted);
        engine.world.report(&format!("the SSD failed ({why}): from now on reads and writes go to the backing files"));
    }

    /// Makes all processes stop using the SSD. Files that may have dirty pages there and are not registered count as unknown, so that none
    /// of them is opened before [`Worker::name_debts`] is done, also if this leader dies before that. Returns them.
    fn stop_using(&mut self, engine: &CacheEngine) -> Vec<FileKey> {
        let is_registered = |key| engine.records.find(key).is_some_and(|no| engine.records.get(no).on_ssd().is_some());
        let unnamed: Vec<(FileKey, u32)> = self.debts().into_iter().filter(|(key, _)| !is_registered(*key)).collect();
        engine.header.word(Word::Unknown).fetch_add(unnamed.iter().map(|(_, dirty)| dirty).sum(), Ordering::AcqRel);
        engine.header.set(Word::SsdFailed, FAILED);
        unnamed.into_iter().map(|(key, _)| key).collect()
    }

    /// Gives files with dirty pages on the failed SSD a record that stays: opens of them report it, and status lists them. The pages of
    /// files for which there is no record are unknown. `counted`: the files that count as unknown so far.
    fn name_debts(&mut self, engine: &CacheEngine, counted: &[FileKey]) {
        let unknown = engine.header.word(Word::Unknown);
        for (key, dirty) in self.debts() {
            match (self.name_debt(engine, key), counted.contains(&key)) {
                (true, true) => _ = unknown.fetch_sub(dirty, Ordering::AcqRel),
                (false, false) => _ = unknown.fetch_add(dirty, Ordering::AcqRel),
                _ => {}
            }
        }
    }

    /// Returns the files with dirty pages on the SSD, and the number of these pages.
    fn debts(&self) -> Vec<(FileKey, u32)> {
        let Some(log) = &self.log else { return Vec::new() };
        log.cache.dirty_files().into_iter().map(|key| (key, log.cache.dirty_of(key))).collect()
    }

    fn name_debt(&mut self, engine: &CacheEngine, key: FileKey) -> bool {
        let is_named = |record: Record<'_>| record.has(flag::OWED) && record.on_ssd().is_some();
        if engine.records.find(key).is_some_and(|no| is_named(engine.records.get(no))) {
            // The last leader did it, and such a record stays. A process that keeps the lock of the table does not make it unknown.
            return true;
        }
        let entry = self.entry(key);
        let Some(log) = &mut self.log else { return true };
        let Some(number) = log.cache.hold(key) else { return false };
        let end = log.cache.last_dirty(key).map_or(0, |page| (page.0 + 1) * PAGE_BYTES as u64);
        let Ok(_held) = engine.lock_records() else { return false };
        let opens = engine.opens.lock();
        let found = engine.records.find(key);
        let Some(no) = found.or_else(|| engine.free_record(key, &opens)) else { return false };
        let record = engine.records.get(no);
        if found.is_none() {
            record.clear();
            record.set_mode(ssdcache::Mode::WriteBack);
            if let Some(entry) = &entry {
                record.set_path(&entry.path);
            }
        }
        let mut flags = flag::OWED;
        // A process that has just made the record waits for its comparison with the entry, or will find that there is none.
        if record.on_ssd().is_none() {
            let own = record.own();
            match &entry {
                Some(entry) => {
                    // A different stamp of the file is found when it is compared next.
                    own.begin(entry.stamp);
                    record.size().store(entry.size, Ordering::Release);
                }
                // The entry is lost too: the file's last stamp is unknown, and the next open sets its length.
                None => _ = record.size().fetch_max(end, Ordering::AcqRel),
            }
            if entry.as_ref().is_none_or(|entry| entry.writing) {
                own.open(Writer::Leader);
                self.unended.push_back((no, key));
            }
            if entry.as_ref().is_some_and(Entry::owes_cut) {
                // A power failure may have undone the truncation: it is repeated before anything is written to the file.
                flags |= flag::UNCOMPARED;
            }
        }
        if found.is_none() {
            record.set_key(Some(key));
        }
        record.flags().fetch_or(flags, Ordering::AcqRel);
        record.set_on_ssd(Some(number));
        true
    }

    /// Records outside the SSD, once, that nothing is dirty there: its loss then loses no data.
    pub(super) fn note_clean(&mut self, engine: &CacheEngine) {
        if self.is_noted_clean {
            return;
        }
        if engine.header.ssd_failed() == FAILED && self.log.is_some() && !self.is_owed(engine) {
            let _ = engine.world.note_void(false);
            self.is_noted_clean = true;
        }
        if engine.mode().keeps_dirty() || !self.has_log(engine) {
            return;
        }
        let is_clean = self.log.as_ref().is_some_and(|log| log.cache.len().1 == u64::from(log.cache.dirty_of(CATALOGUE)));
        if is_clean {
            // If that fails there is no note, and a missing SSD is reported as one that may have dirty pages.
            let _ = engine.world.note_clean(true);
            self.is_noted_clean = true;
        }
    }

    /// Returns whether only the SSD has some data.
    pub(super) fn is_owed(&self, engine: &CacheEngine) -> bool {
        let is_dirty = |log: &Log| log.cache.len().1 > u64::from(log.cache.dirty_of(CATALOGUE));
        engine.header.get(Word::Unknown) > 0 || self.log.as_ref().is_some_and(is_dirty)
    }

    /// Removes the note that the SSD is clean, before pages on it may become dirty.
    pub(super) fn note_dirty(&mut self, engine: &CacheEngine) -> Result<(), Errno> {
        self.is_noted_clean = false;
        engine.world.note_clean(false).map_err(|error| errno_of(&error))
    }

    /// Clears the failure state of a file if no dirty pages of it remain.
    pub(super) fn over(&mut self, engine: &CacheEngine, key: FileKey) {
        let Some(no) = engine.records.find(key) else { return };
        let record = engine.records.get(no);
        let is_owed = self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0);
        if is_owed {
            return;
        }
        record.flags().fetch_and(!(flag::OWED | flag::DIRTY_ON_SSD), Ordering::AcqRel);
        self.dirty_since.remove(&key);
        if !engine.pages.marked_of(pagecache::FileNo(no.0)) {
            record.succeeded();
        }
    }

    /// Writes the readable pages of a failed SSD to their backing files, and forgets them.
    pub(super) fn evacuate(&mut self, engine: &CacheEngine) -> bool {
        if engine.header.ssd_failed() != FAILED {
            return false;
        }
        let Some(log) = self.log.as_ref().filter(|log| log.cache.len().1 > 0) else { return false };
        let mut items = Vec::new();
        log.cache.collect_sweep(self.swept, ROUND_PAGES, &mut items);
        items.retain(|item| item.key != CATALOGUE);
        let Some(last) = items.last() else { return false };
        self.swept = (last.key, last.page);
        items.retain(|item| !self.lost.contains(&(item.key, item.page)) && !is_newer_in_frame(engine, *item));
        if items.is_empty() {
            return false;
        }
        let written = self.write_back(engine, &items).unwrap_or(0);
        written > 0 && self.log.as_ref().is_some_and(|log| log.cache.len().1 > 0)
    }

    /// Handles dirty pages that the SSD cannot return; returns their number. It reports them by file and range, and records a failure of
    /// the file. They stay in the map, so that the older backing file does not replace them. The SSD has failed.
    pub(super) fn lost(&mut self, engine: &CacheEngine, run: &[Item], whole: &[(Item, Box<Page>)]) -> usize {
        let no = run.first().and_then(|item| engine.records.find(item.key));
        let lost: Vec<Item> = (run.iter())
            .filter(|item| !whole.iter().any(|(other, _)| other == *item))
            .filter(|item| self.log.as_ref().is_some_and(|log| log.cache.is_dirty(item.key, item.page)))
            // A newer version is in a frame, and is written back from there.
            .filter(|item| !is_newer_in_frame(engine, **item))
            .copied()
            .collect();
        let new: Vec<Item> = lost.iter().filter(|item| self.lost.insert((item.key, item.page))).copied().collect();
        if !new.is_empty() {
            self.tell_lost(engine, &new, no);
        }
        if !lost.is_empty() {
            self.fail(engine, Error::Media, "it cannot read what it had written");
        }
        lost.len()
    }

    fn tell_lost(&mut self, engine: &CacheEngine, new: &[Item], no: Option<FileNo>) {
        let entry = self.entry(new[0].key).map(|entry| entry.path);
        let path = no.map(|no| engine.records.get(no).path()).or(entry).unwrap_or_default();
        let runs: Vec<&[Item]> = ssdcache::runs(new).collect();
        for run in runs.iter().take(REPORTED_MAX) {
            let (first, end) = (run[0].page.0 * PAGE_BYTES as u64, (run[run.len() - 1].page.0 + 1) * PAGE_BYTES as u64);
            engine.world.report(&format!("bytes {first} to {} of {} cannot be read: only the SSD had them", end - 1, path.display()));
        }
        if runs.len() > REPORTED_MAX {
            engine.world.report(&format!(
                "{} more pieces of {} cannot be read: status lists them",
                runs.len() - REPORTED_MAX,
                path.display()
            ));
        }
        engine.header.wide(Word::Lost).store(self.lost.len() as u64, Ordering::Relaxed);
        if let Some(no) = no {
            engine.records.get(no).failed(Errno::IO);
        }
    }

    /// Gives up the pages that only the SSD had, as their owner decided: the backing files are authoritative. Returns the number of
    /// pages.
    pub(super) fn accept(&mut self, engine: &CacheEngine) -> u32 {
        let mut count = engine.header.word(Word::Unknown).swap(0, Ordering::AcqRel);
        if engine.header.ssd_failed() == NEVER_OPENED {
            self.fail(engine, Error::Gone, "its owner gave up what it holds");
        }
        if engine.header.ssd_failed() != FAILED {
            return count;
        }
        self.accept_lengths(engine);
        let keys = self.log.as_ref().map_or(Vec::new(), |log| log.cache.dirty_files());
        for key in keys {
            if let Some(log) = &mut self.log {
                count = count.saturating_add(log.cache.dirty_of(key));
                log.cache.forget(key, 0..u64::MAX);
            }
            self.over(engine, key);
        }
        self.lost.clear();
        engine
            .world
            .report(&format!("{count} pages that only the SSD had were discarded on request: the backing files are valid from now on"));
        count
    }

    /// Makes the lengths of the backing files valid, too: no truncation that the SSD owes is repeated. This comes before the pages are
    /// forgotten: the next leader would find nothing left to give up.
    fn accept_lengths(&mut self, engine: &CacheEngine) {
        for (no, record) in engine.records.all().filter(|(_, record)| record.has(flag::UNCOMPARED)) {
            // Newer frames are written back, up to the length that their writers know.
            if let Some(key) = record.key().filter(|_| !engine.pages.marked_of(pagecache::FileNo(no.0)))
                && let Ok(stamp) = self.below(engine, key).and_then(|below| below.stamp().map_err(|error| errno_of(&error)))
            {
                record.size().store(stamp.size, Ordering::Release);
            }
            record.flags().fetch_and(!flag::UNCOMPARED, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod test {
    use std::path::Path;
    use std::sync::Arc;

    use ssdcache::Mode;

    use super::*;
    use crate::engine::{BackingFile, Open, OpenFileError, OpenOptions};
    use crate::test_engine::File;

    /// A process has just made the record of a file, and its request to compare the file with its entry waits while the SSD fails.
    #[test]
    fn a_file_that_is_being_opened_when_the_ssd_fails_has_the_length_of_its_entry() {
        for is_changed in [false, true] {
            let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
            *file.reports.lock() = Some(Vec::new());
            open.write(0, &[1; 20_000]).expect("written");
            open.sync().expect("on the SSD");
            engine.drop_frames(open.no(), 0..u64::MAX).expect("dropped");
            if is_changed {
                file.write_at(0, &[2; 10]).expect("changed by another program");
            }
            let (record, stamp) = (engine.records.get(open.no()), file.stamp().expect("a stamp"));
            record.set_on_ssd(None);
            record.own().begin(stamp);
            record.size().store(stamp.size, Ordering::Release);
            let mut worker = Worker::begin(&engine);
            worker.fail(&engine, Error::Media, "a test");
            assert_eq!(open.size(), 20_000);
            while worker.evacuate(&engine) {}
            let bytes = if is_changed { vec![2; 10] } else { vec![1; 20_000] };
            assert_eq!((&*file.bytes.lock(), record.has(flag::CONFLICT)), (&bytes, is_changed));
        }
    }

    /// Returns a file of 20,000 ones below and a process that leads. The log has a dirty page of it and its truncation to 5000 bytes, which
    /// a power failure undid. It has no record.
    fn with_truncation_undone() -> (Arc<File>, Arc<CacheEngine>) {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        *file.reports.lock() = Some(Vec::new());
        open.write(0, &[1; 20_000]).expect("written");
        open.clean().expect("below");
        open.write(0, &[2; 100]).expect("written");
        open.sync().expect("on the SSD");
        let no = open.no();
        let mut worker = Worker::begin(&engine);
        worker.note_cut(&engine, no, 5000).expect("noted");
        worker.flush_log(&engine).expect("durable");
        drop(open);
        engine.drop_frames(no, 0..u64::MAX).expect("dropped");
        engine.records.get(no).set_key(None);
        (file, engine)
    }

    fn open_again(engine: &Arc<CacheEngine>) -> Result<Open, OpenFileError> {
        let below = engine.world.open(FileKey(7), Path::new("/file"), &[], true).expect("there");
        let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
        engine.open(FileKey(7), Path::new("/file"), options, below)
    }

    fn is_truncated(file: &File) -> bool {
        let bytes = file.bytes.lock();
        bytes.len() == 5000 && bytes[..100] == [2; 100] && bytes[100..] == [1; 4900]
    }

    #[test]
    fn a_truncation_that_a_failed_ssd_owes_is_repeated_once() {
        for is_opened in [false, true] {
            let (file, engine) = with_truncation_undone();
            let mut worker = Worker::begin(&engine);
            worker.fail(&engine, Error::Media, "a test");
            let record = engine.records.get(engine.records.find(FileKey(7)).expect("a record"));
            assert!(record.has(flag::OWED));
            if is_opened {
                engine.lead_inline(worker);
                let open = open_again(&engine).expect("opened");
                assert_eq!((open.size(), file.bytes.lock().len()), (5000, 5000));
                engine.clean_all(&mut |_| {}).expect("below");
            } else {
                while worker.evacuate(&engine) {}
            }
            assert!(is_truncated(&file) && !record.has(flag::UNCOMPARED | flag::OWED), "opened: {is_opened}");
            let mut next = Worker::begin(&engine);
            assert_eq!(next.cut_again(&engine, FileKey(7)), Ok(()));
            file.bytes.lock().resize(9000, 3);
            assert_eq!(next.cut_again(&engine, FileKey(7)), Ok(()));
            assert_eq!(file.bytes.lock().len(), 9000);
        }
    }

    #[test]
    fn a_truncation_that_a_failed_ssd_owes_is_not_repeated_after_its_data_was_given_up() {
        let (file, engine) = with_truncation_undone();
        let mut worker = Worker::begin(&engine);
        worker.fail(&engine, Error::Media, "a test");
        assert_eq!(worker.accept(&engine), 1);
        engine.lead_inline(worker);
        let open = open_again(&engine).expect("opened");
        assert_eq!(*file.bytes.lock(), [1; 20_000]);
        assert_eq!(open.size(), 20_000, "the length of the backing file is valid");
    }

    /// A process was stopped while it held the lock of the table.
    #[test]
    fn a_file_that_is_named_already_does_not_become_unknown_while_the_table_is_locked() {
        let (_, engine) = with_truncation_undone();
        Worker::begin(&engine).fail(&engine, Error::Media, "a test");
        let held = engine.records.lock().lock();
        let worker = Worker::begin(&engine);
        drop(held);
        assert_eq!(engine.header.get(Word::Unknown), 0);
        engine.lead_inline(worker);
        assert!(open_again(&engine).is_ok());
    }

    /// The next leader does not use the SSD again, and no process reads older data instead of what that has.
    #[test]
    fn a_leader_that_dies_while_it_names_the_files_of_a_failed_ssd_leaves_them_unknown() {
        let (file, engine) = with_truncation_undone();
        let mut worker = Worker::begin(&engine);
        assert_eq!(worker.stop_using(&engine), [FileKey(7)]);
        drop(worker);
        engine.lead_inline(Worker::begin(&engine));
        assert!(!engine.has_ssd());
        assert_eq!(open_again(&engine).err(), Some(OpenFileError::Unsure));
        assert_eq!(*file.bytes.lock(), [1; 20_000]);
    }

    /// The process of such a file waits for the leader, which has named it by then.
    #[test]
    fn a_file_is_opened_after_the_leader_has_named_it() {
        let (file, engine) = with_truncation_undone();
        let mut worker = Worker::begin(&engine);
        let counted = worker.stop_using(&engine);
        let dirty = worker.debts()[0].1;
        assert_eq!(engine.header.get(Word::Unknown), dirty);
        worker.name_debts(&engine, &counted);
        assert_eq!(engine.header.get(Word::Unknown), 0);
        engine.lead_inline(worker);
        let open = open_again(&engine).expect("opened");
        assert_eq!(open.size(), 5000);
        open.clean().expect("below");
        assert!(is_truncated(&file));
    }
}
