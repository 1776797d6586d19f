//! Truncations: of a file and its cached pages on request; repeated after a crash that undid them; and bytes that the SSD has behind the
//! new end.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use ssdcache::{FileKey, Mode, PAGE_BYTES, PageIndex};

use super::Worker;
use crate::engine::open::errno_of;
use crate::engine::{BackingFile, CUT_BELOW, CacheEngine, Entry, FileNo, STALLED, flag};

impl Worker {
    /// Returns the entry and the length of a truncation that a power failure may have undone: the file was not opened since.
    pub(super) fn owes_cut(&mut self, engine: &CacheEngine, key: FileKey) -> Option<(Entry, u64)> {
        let entry = self.entry(key)?;
        let is_compared = |no| engine.records.get(no).on_ssd().is_some() && !engine.records.get(no).has(flag::UNCOMPARED);
        let is_open = engine.records.find(key).is_some_and(is_compared);
        let is_done = is_open || self.know(key).is_cut || self.cutting.is_some_and(|(cutting, _)| cutting == key);
        let cut = entry.cut.filter(|cut| *cut != CUT_BELOW && !is_done)?;
        Some((entry, cut))
    }

    /// Removes a truncation, durably, from the entry of a file in pass-through that the leader may not open. From now on other programs
    /// and users of the cache change the file unseen, and a later leader must not repeat the truncation over that. Other files keep it.
    ///
    /// # Errors
    /// The log has no room for that, or the SSD failed just now.
    pub(super) fn give_up_cut(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let is_past = engine.records.get(no).mode() == Mode::PassThrough && self.has_log(engine);
        let Some(entry) = self.entry(key).filter(|entry| is_past && entry.owes_cut()) else { return Ok(()) };
        // One that was not repeated yet may not have reached the SSD's pages either.
        let cut = self.owes_cut(engine, key).map(|_| CUT_BELOW);
        self.put_entry(engine, key, |worker| Entry { cut, ..worker.entry(key).unwrap_or_else(|| entry.clone()) })?;
        self.flush_log(engine)
    }

    /// Repeats a truncation that may have been lost in a crash before it was durable, before any other change to the file. Data after the
    /// new length was written later, and is dirty here.
    pub(super) fn cut_again(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        let Some((entry, cut)) = self.owes_cut(engine, key) else { return Ok(()) };
        let below = self.below(engine, key)?;
        let size = below.stamp().map_err(|error| errno_of(&error))?.size;
        let window = self.open_window(engine, key, &*below)?;
        let mut done = if size > cut { below.set_len(cut) } else { Ok(()) };
        if entry.size > cut.min(size) {
            done = done.and_then(|()| below.set_len(entry.size));
        }
        self.close_window(engine, window, &*below);
        done.map_err(|error| errno_of(&error))?;
        let known = self.know(key);
        (known.is_cut, known.is_untrimmed) = (true, true);
        if !self.has_log(engine)
            && let Some(no) = engine.records.find(key)
        {
            // The entry cannot say that this is done, and the next leader must not repeat it: the file is written through from now on.
            engine.records.get(no).flags().fetch_and(!flag::UNCOMPARED, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Drops what the SSD has behind the end that the file's entry says. A crash may have interrupted a truncation before these pages were
    /// dropped, and their bytes would be back when the file grows. The next flush of the log makes that durable.
    pub(super) fn trim(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        let Some(size) = self.entry(key).map(|entry| entry.size) else { return Ok(()) };
        if self.has_log(engine) {
            self.cut_tail(engine, key, size)?;
        }
        self.drop_pages(engine, key, size.div_ceil(PAGE_BYTES as u64)..u64::MAX)?;
        self.know(key).is_untrimmed = false;
        Ok(())
    }

    /// Does the same durably, before a process uses the file. An entry that says [`CUT_BELOW`] has nothing left to do then.
    pub(super) fn trim_for_good(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        self.trim(engine, key)?;
        self.note_trimmed(engine, key)?;
        self.flush_log(engine)
    }

    pub(super) fn note_trimmed(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        match self.entry(key).filter(|entry| entry.cut == Some(CUT_BELOW) && self.has_log(engine)) {
            Some(entry) => self.put_entry(engine, key, |worker| Entry { cut: None, ..worker.entry(key).unwrap_or_else(|| entry.clone()) }),
            None => Ok(()),
        }
    }

    /// Finishes on the SSD a truncation that this leader repeated in the backing file, and that is durable there. If that is not possible
    /// now, the entry keeps [`CUT_BELOW`].
    pub(super) fn end_trim(&mut self, engine: &CacheEngine, key: FileKey) {
        // Callers that make room have collected dirty pages by their places: none of these pages may be put again.
        if self.making_room || !self.has_log(engine) {
            return;
        }
        let Some(entry) = self.entry(key).filter(|entry| entry.cut == Some(CUT_BELOW)) else { return };
        let end = PageIndex(entry.size / PAGE_BYTES as u64);
        if !self.log.as_ref().is_none_or(|log| log.cache.is_dirty(key, end)) {
            let _ = self.trim(engine, key).and_then(|()| self.note_trimmed(engine, key));
        }
    }

    /// Does for the first open of a file, whose record was made when it was stranded, what remains of a comparison with its entry: a
    /// truncation that a crash may have undone.
    pub(super) fn open_found(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> Result<(), Errno> {
        let record = engine.records.get(no);
        // In a conflict nothing is written until the owner decides.
        if !record.has(flag::UNCOMPARED) || record.has(flag::CONFLICT) {
            return Ok(());
        }
        if let Some(entry) = self.entry(key).filter(|entry| entry.cut.is_some()) {
            match self.cut_again(engine, key) {
                // Another program changed the file meanwhile: the caller finds the flag.
                Err(Errno::STALE) if record.has(flag::CONFLICT) => return Ok(()),
                cut => cut?,
            }
            record.size().store(entry.size, Ordering::Release);
            self.trim_for_good(engine, key)?;
        }
        record.flags().fetch_and(!flag::UNCOMPARED, Ordering::AcqRel);
        Ok(())
    }

    /// Returns whether a truncation was requested or its process died: a durable backing file does not finish it.
    pub(super) fn is_being_cut(&self, engine: &CacheEngine, no: FileNo) -> bool {
        engine.records.get(no).truncations().load(Ordering::Acquire) % 2 == 1
    }

    /// Zeroes the last page of a truncated file on the SSD, after the new end. A clean copy is dropped instead: the backing file is
    /// truncated.
    pub(super) fn cut_tail(&mut self, engine: &CacheEngine, key: FileKey, len: u64) -> Result<(), Errno> {
        let (page, offset) = (PageIndex(len / PAGE_BYTES as u64), (len % PAGE_BYTES as u64) as usize);
        let Some(log) = &mut self.log else { return Ok(()) };
        if offset == 0 || log.cache.lookup(key, page) == ssdcache::LookupResult::Miss {
            return Ok(());
        }
        if !log.cache.is_dirty(key, page) {
            return self.drop_pages(engine, key, page.0..page.0 + 1);
        }
        let mut bytes = log.read(key, page).ok_or(Errno::IO)?;
        bytes[offset..].fill(0);
        self.put(engine, key, page, ssdcache::PageVersion::Dirty, &bytes)
    }

    /// Truncates a file. The entry records it first, durably: a process that finds the file not truncated knows that it was ours, and
    /// finishes it.
    pub(super) fn truncate(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, len: u64) -> Result<(), Errno> {
        let cut = self.cut(engine, no, key, len);
        self.cutting = None;
        let record = engine.records.get(no);
        if cut.is_ok() && (record.has(flag::THROUGH) || !record.mode().within(engine.mode()).keeps_dirty()) {
            self.end_cut(engine, key)?;
        }
        cut
    }

    /// Finishes a truncation durably. Data that is written to the backing file from now on is not dirty here, and repeating the
    /// truncation would remove it.
    pub(super) fn end_cut(&mut self, engine: &CacheEngine, key: FileKey) -> Result<(), Errno> {
        if self.has_log(engine) && self.entry(key).is_some_and(|entry| entry.cut.is_some()) {
            self.below(engine, key)?.sync().map_err(|error| errno_of(&error))?;
            self.synced_below(engine, key)?;
            self.flush_log(engine)?;
        }
        Ok(())
    }

    pub(super) fn cut(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, len: u64) -> Result<(), Errno> {
        let below = self.below(engine, key)?;
        self.may_cut(engine, no, key, &*below)?;
        let before = self.entry(key);
        let has_pages = self.log.as_ref().is_some_and(|log| log.cache.pages_of(key) > 0);
        // An entry without pages only matters for an earlier truncation.
        let is_noted = has_pages || before.as_ref().is_some_and(|entry| entry.cut.is_some());
        if let Err(errno) = self.cut_below(engine, no, key, len, is_noted, &*below) {
            self.take_cut_back(engine, key, before)?;
            return Err(errno);
        }
        let was_untrimmed = self.know(key).is_untrimmed;
        self.know(key).is_untrimmed |= is_noted;
        // The backing file is truncated: the lock's next owner has to do the rest, and until then no process uses the file.
        self.drop_cut(engine, no, key, len, is_noted).map_err(|_| STALLED)?;
        self.know(key).is_untrimmed = was_untrimmed;
        Ok(())
    }

    /// Notes the truncation in the file's entry if `is_noted`, durably, and truncates the backing file. No cached page changes: the
    /// truncation may fail.
    pub(super) fn cut_below(
        &mut self,
        engine: &CacheEngine,
        no: FileNo,
        key: FileKey,
        len: u64,
        is_noted: bool,
        below: &dyn BackingFile,
    ) -> Result<(), Errno> {
        if is_noted && self.has_log(engine) {
            self.check_tail(key, len)?;
            self.note_cut(engine, no, len)?;
            self.cutting = Some((key, len));
            self.flush_log(engine)?;
        }
        self.tell_reclaimed(engine)?;
        let window = self.open_window(engine, key, below)?;
        let cut = below.set_len(len).map_err(|error| errno_of(&error));
        self.know(key).is_cut = cut.is_ok();
        self.close_window(engine, window, below);
        cut
    }

    /// Takes a truncation that failed back from the file's entry, durably: a loss of power would repeat it. `before`: the entry before it.
    pub(super) fn take_cut_back(&mut self, engine: &CacheEngine, key: FileKey, before: Option<Entry>) -> Result<(), Errno> {
        if !self.has_log(engine) {
            return Ok(());
        }
        // Without making room for it: until it is done, a write-back of the file would end at the new length.
        let was_making_room = std::mem::replace(&mut self.making_room, true);
        let taken = match before {
            None => self.drop_entry(engine, key),
            Some(before) => self.put_entry(engine, key, |worker| {
                // A conflict found meanwhile stays in the entry.
                let now = worker.entry(key).unwrap_or_else(|| before.clone());
                Entry { size: before.size, cut: before.cut, ..now }
            }),
        };
        self.making_room = was_making_room;
        taken?;
        self.flush_log(engine)
    }

    /// Drops the pages behind the new end of a file, after its backing file was truncated. If a crash comes before that, [`Worker::trim`]
    /// or the next owner of the file's lock does it.
    pub(super) fn drop_cut(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, len: u64, is_noted: bool) -> Result<(), Errno> {
        engine.cut_tail(no, len)?;
        if !is_noted {
            return Ok(());
        }
        if self.has_log(engine) {
            self.cut_tail(engine, key, len)?;
        }
        self.drop_pages(engine, key, len.div_ceil(PAGE_BYTES as u64)..u64::MAX)?;
        self.flush_log(engine)
    }

    /// Checks that the page on the SSD in which the file will end can be read, if it is dirty.
    pub(super) fn check_tail(&mut self, key: FileKey, len: u64) -> Result<(), Errno> {
        let page = PageIndex(len / PAGE_BYTES as u64);
        let Some(log) = &mut self.log else { return Ok(()) };
        let is_changed = !len.is_multiple_of(PAGE_BYTES as u64) && log.cache.is_dirty(key, page);
        if is_changed && log.read(key, page).is_none() { Err(Errno::IO) } else { Ok(()) }
    }

    /// Checks before any page is dropped that the file may be truncated: not if another program changed it. On failure nothing has
    /// changed.
    pub(super) fn may_cut(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey, below: &dyn BackingFile) -> Result<(), Errno> {
        if !self.is_dirty(engine, no, key) {
            return Ok(());
        }
        // Setting the current length changes the times: after a crash that must not look like another program's change.
        self.begin_writing(engine, key)?;
        let window = self.open_window(engine, key, below)?;
        let may = below.stamp().and_then(|now| below.set_len(now.size)).map_err(|error| errno_of(&error));
        self.close_window(engine, window, below);
        may
    }
}

#[cfg(test)]
mod test {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::files::FILES_CHECK_MS;
    use super::*;
    use crate::engine::{OpenOptions, Stamp};
    use crate::test_engine::{opened, restart};

    /// Returns a file of five pages of ones, which the SSD has too, after a power failure: the truncation to 5000 bytes was noted, and
    /// nothing else of it happened. Page 1 is dirty on the SSD if `is_dirty`, and page 0 always. No process has the file open.
    fn truncation_cut_off(is_dirty: bool) -> (Arc<crate::test_engine::File>, Arc<CacheEngine>) {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.sync().expect("on the SSD");
        open.clean().expect("below");
        open.write(0, &[2; 100]).expect("written");
        if is_dirty {
            open.write(PAGE_BYTES as u64, &[1; PAGE_BYTES]).expect("written");
        }
        open.sync().expect("on the SSD");
        let no = open.no();
        let mut worker = Worker::begin(&engine);
        worker.note_cut(&engine, no, 5000).expect("noted");
        worker.flush_log(&engine).expect("durable");
        drop(open);
        restart(&engine, no);
        (file, engine)
    }

    /// A crash undid a truncation, and the file is missing when the next leader looks for it. It is opened later.
    #[test]
    fn a_truncation_of_a_file_that_was_missing_is_repeated_when_it_is_opened() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        let (no, key, world) = (open.no(), open.key(), Arc::clone(&engine.world));
        open.write(0, &[1; 20_000]).expect("written");
        open.clean().expect("below");
        open.write(0, &[2; 100]).expect("written");
        open.sync().expect("on the SSD");
        let mut worker = Worker::begin(&engine);
        worker.note_cut(&engine, no, 5000).expect("noted");
        worker.flush_log(&engine).expect("durable");
        drop(open);
        engine.drop_frames(no, 0..u64::MAX).expect("dropped");
        engine.records.get(no).set_key(None);
        let mut worker = Worker::begin(&engine);
        let made = worker.ensure_record(&engine, key).expect("a record");
        engine.records.get(made).flags().fetch_or(flag::MISSING, Ordering::AcqRel);
        worker.synced_below(&engine, key).expect("nothing is forgotten");
        engine.lead_inline(worker);
        let below = world.open(key, Path::new("/file"), &[], true).expect("found");
        let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
        let open = engine.open(key, Path::new("/file"), options, below).expect("opened");
        assert_eq!((open.size(), file.bytes.lock().len()), (5000, 5000));
        assert!(!engine.records.get(made).has(flag::UNCOMPARED));
        let mut bytes = vec![9; 20_000];
        assert_eq!(open.read(0, &mut bytes), Ok(5000));
        assert!(bytes[..100] == [2; 100] && bytes[100..5000] == [1; 4900]);
    }

    #[test]
    fn bytes_behind_a_truncation_that_was_cut_off_do_not_return_when_the_file_grows() {
        for (is_dirty, is_written_back) in [(false, false), (true, false), (false, true), (true, true)] {
            let (file, engine) = truncation_cut_off(is_dirty);
            if is_written_back {
                // No process has opened the file.
                engine.clean_all(&mut |_| {}).expect("below");
                assert_eq!(file.bytes.lock().len(), 5000);
            }
            let open = opened(&engine);
            assert_eq!(open.size(), 5000);
            open.set_len(20_000).expect("grown");
            let mut bytes = vec![9; 20_000];
            assert_eq!(open.read(0, &mut bytes), Ok(20_000));
            assert!(bytes[..100] == [2; 100] && bytes[100..5000] == [1; 4900]);
            let old = bytes[5000..].iter().position(|byte| *byte != 0);
            assert_eq!(old, None, "dirty {is_dirty}, written back {is_written_back}");
        }
    }

    #[test]
    fn a_truncation_that_was_given_up_with_a_missing_file_is_not_repeated() {
        let (file, engine) = truncation_cut_off(false);
        let mut worker = Worker::begin(&engine);
        let no = worker.ensure_record(&engine, FileKey(7)).expect("a record");
        engine.records.get(no).flags().fetch_or(flag::MISSING, Ordering::AcqRel);
        engine.lead_inline(worker);
        let seen = engine.status().expect("whole").files().into_iter().find(|seen| seen.key == FileKey(7)).expect("one");
        engine.open_stranded(&seen, None).expect("there").discard_missing().expect("given up");
        restart(&engine, no);
        let open = opened(&engine);
        assert_eq!((open.size(), file.bytes.lock().len()), (20_000, 20_000));
        let mut bytes = vec![9; 20_000];
        assert_eq!(open.read(0, &mut bytes), Ok(20_000));
        assert_eq!(bytes, [1; 20_000]);
    }

    /// Another program changes a closed file that we have truncated, before the entry of that is settled.
    #[test]
    fn a_truncation_before_a_change_by_another_program_is_not_repeated() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.sync().expect("on the SSD");
        open.clean().expect("below");
        let (no, mut worker) = (open.no(), Worker::begin(&engine));
        worker.truncate(&engine, no, FileKey(7), 0).expect("truncated");
        assert_eq!(worker.entry(FileKey(7)).expect("an entry").cut, Some(0));
        drop(open);
        // Another file gets the record.
        engine.drop_frames(no, 0..u64::MAX).expect("dropped");
        engine.records.get(no).set_key(None);
        engine.lead_inline(worker);
        file.write_at(0, &[3; 9000]).expect("written");
        drop(opened(&engine));
        restart(&engine, no);
        let open = opened(&engine);
        assert_eq!((open.size(), file.bytes.lock().len()), (9000, 9000));
    }

    #[test]
    fn a_truncation_that_failed_is_not_repeated_after_a_loss_of_power() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.sync().expect("on the SSD");
        open.clean().expect("below");
        let (mut fails, mut failed) = (vec![true], 0);
        loop {
            *file.stamps_fail.lock() = fails.clone();
            if open.set_len(5000).is_ok() {
                break;
            }
            failed += 1;
            // What another leader finds on the SSD.
            let entry = Worker::begin(&engine).entry(FileKey(7)).expect("an entry");
            assert_eq!((entry.cut, entry.size), (None, 20_000), "after {} readings of the stamp", fails.len() - 1);
            fails.push(false);
        }
        assert!(failed > 0);
    }

    #[test]
    fn a_truncation_that_failed_has_dropped_nothing() {
        let mut failed = 0;
        for readings in 0..16 {
            let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
            open.write(0, &[1; 20_000]).expect("written");
            open.sync().expect("on the SSD");
            engine.drop_frames(open.no(), 0..u64::MAX).expect("dropped");
            open.write(4096, &[2; 4096]).expect("written");
            *file.stamps_fail.lock() = [vec![true], vec![false; readings]].concat();
            let cut = open.set_len(5000);
            file.stamps_fail.lock().clear();
            if cut.is_ok() {
                continue;
            }
            failed += 1;
            let mut bytes = vec![9; 20_000];
            assert_eq!(open.read(0, &mut bytes), Ok(20_000));
            let ours = [vec![1; 4096], vec![2; 4096], vec![1; 20_000 - 8192]].concat();
            assert!(bytes == ours, "after {readings} readings of the stamp");
            open.clean().expect("below");
            assert!(*file.bytes.lock() == ours);
        }
        assert!(failed > 1);
    }

    #[test]
    fn a_truncation_that_failed_leaves_no_entry_where_none_was() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.sync().expect("on the SSD");
        open.clean().expect("below");
        let mut worker = Worker::begin(&engine);
        worker.drop_entry(&engine, FileKey(7)).expect("dropped");
        worker.flush_log(&engine).expect("durable");
        file.lengths_fail.store(true, Ordering::Relaxed);
        worker.truncate(&engine, open.no(), FileKey(7), 5000).expect_err("refused");
        assert_eq!(worker.entry(FileKey(7)), None);
        assert_eq!(Worker::begin(&engine).entry(FileKey(7)), None);
    }

    /// After it, another program writes to the file durably, and the power is cut.
    #[test]
    fn a_truncation_that_is_durable_is_not_repeated() {
        for ends_by in ["settling", "a new leader", "settling again", "cleaning", "withdrawing", "withdrawing without access"] {
            let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
            let (no, key) = (open.no(), open.key());
            open.write(0, &[1; 20_000]).expect("written");
            open.sync().expect("on the SSD");
            open.clean().expect("below");
            open.set_len(0).expect("truncated");
            match ends_by {
                "settling" => {
                    drop(open);
                    let mut worker = Worker::begin(&engine);
                    assert!(worker.entry(key).is_some_and(|entry| entry.cut == Some(0) && entry.writing), "the truncation is noted");
                    assert!(worker.settle_entries(&engine, usize::MAX));
                }
                "a new leader" => {
                    drop(open);
                    let mut worker = Worker::begin(&engine);
                    worker.bound_files(&engine, FILES_CHECK_MS);
                    worker.settle_entries(&engine, usize::MAX);
                }
                "settling again" => {
                    drop(open);
                    let mut worker = Worker::begin(&engine);
                    worker.entry(key).expect("an entry");
                    file.is_refused.store(true, Ordering::Relaxed);
                    assert!(worker.settle_entries(&engine, usize::MAX));
                    assert!(!worker.settle_entries(&engine, usize::MAX), "it waits");
                    file.is_refused.store(false, Ordering::Relaxed);
                    engine.lead_inline(worker);
                    engine.clean_all(&mut |_| {}).expect("settled");
                }
                "cleaning" => open.clean().expect("below"),
                "withdrawing without access" => {
                    drop(open);
                    engine.lead_inline(Worker::begin(&engine));
                    file.is_refused.store(true, Ordering::Relaxed);
                    engine.withdraw(key).expect("withdrawn");
                    file.is_refused.store(false, Ordering::Relaxed);
                }
                _ => engine.withdraw(key).expect("withdrawn"),
            }
            restart(&engine, no);
            file.write_at(0, &[3; 10_000]).expect("written by another program");
            let open = opened(&engine);
            let is_theirs = *file.bytes.lock() == [3; 10_000];
            assert!(open.size() == 10_000 && is_theirs, "{ends_by}: {} bytes", open.size());
        }
    }

    /// Makes a record of file 7 as an open does whose process dies before the leader compares the file with its entry.
    fn open_cut_off(engine: &Arc<CacheEngine>, file: &crate::test_engine::File) -> FileNo {
        let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
        let made = engine.record_for(FileKey(7), Path::new("/file"), options, file);
        let (no, is_new) = made.unwrap_or_else(|_| panic!("no record"));
        assert!(is_new);
        engine.records.get(no).open_by().store(0, Ordering::Release);
        engine.opens.lock().remove(&no);
        no
    }

    #[test]
    fn another_programs_change_is_found_though_an_open_was_cut_off_before_the_comparison() {
        for is_changed_again in [false, true] {
            let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
            open.write(16_384, &[2; 8000]).expect("written");
            open.sync().expect("on the SSD");
            let no = open.no();
            drop(open);
            *file.reports.lock() = Some(Vec::new());
            restart(&engine, no);
            file.write_at(0, &[3; 18_000]).expect("another program's");
            let no = open_cut_off(&engine, &file);
            if is_changed_again {
                file.write_at(0, &[3; 18_000]).expect("another program's");
            }
            assert_eq!(engine.clean_all(&mut |_| {}), Err(Errno::STALE));
            assert!(*file.bytes.lock() == [3; 18_000] && engine.records.get(no).has(flag::CONFLICT));
            let record = engine.records.get(no);
            assert!(record.on_ssd().is_some(), "reads find the pages of the SSD");
            assert_eq!(record.size().load(Ordering::Acquire), 24_384);
            let seen = engine.status().expect("whole").files().into_iter().find(|seen| seen.key == FileKey(7)).expect("one");
            let below = Some(Arc::clone(&file) as Arc<dyn BackingFile>);
            engine.open_stranded(&seen, below).expect("there").force().expect("written over");
            let ours = [vec![3; 16_384], vec![2; 8000]].concat();
            assert!(*file.bytes.lock() == ours, "pages that are not newer are the other program's");
        }
    }

    #[test]
    fn a_conflict_outlives_an_open_that_was_cut_off_before_the_comparison() {
        for is_swept in [false, true] {
            let (file, engine) = truncation_cut_off(false);
            *file.reports.lock() = Some(Vec::new());
            file.write_at(0, &[3; 10_000]).expect("another program's");
            let mut worker = Worker::begin(&engine);
            worker.strand(&engine, FileKey(7), flag::CONFLICT);
            let no = engine.records.find(FileKey(7)).expect("a record");
            restart(&engine, no);
            open_cut_off(&engine, &file);
            let mut worker = Worker::begin(&engine);
            worker.entry(FileKey(7)).expect("an entry");
            if is_swept {
                assert_eq!(worker.sweep(&engine, 64), Err(Errno::STALE));
            } else {
                worker.settle_entries(&engine, 16);
            }
            let entry = worker.entry(FileKey(7)).expect("an entry");
            assert_eq!((entry.stamp, entry.cut, file.bytes.lock().len()), (Stamp::NEVER, Some(5000), 20_000));
        }
    }
}
