//! The leader's windows: the leader changes a backing file only between opening and closing one (`own_stamp.rs` says why).
//!
//! A window that a dead leader left open is closed by the next one. A hole that it was punching is finished, because frames may still have
//! pages of it.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use ssdcache::FileKey;

use super::files::STRANDED_MS;
use super::{RETRY_MS, Worker};
use crate::engine::open::errno_of;
use crate::engine::own_stamp::{Difference, Moment, StampCheck, Writer, difference};
use crate::engine::record::Record;
use crate::engine::{BackingFile, CacheEngine, Entry, FileNo, RequestKind, Stamp, flag};

/// Attempts to read the state of a file that keeps changing.
const CHECKS_MAX: usize = 1000;

/// The leader's open window of a file. Without one the leader changes nothing of a file, not even its times.
#[must_use = "a window that is not closed hides changes by other programs"]
pub(super) struct LeaderWindow {
    key: FileKey,
}

impl Worker {
    /// Opens a window for the leader's change to a file. It first detects a change by another program, which ours would hide, and
    /// silently drops the pages of that change that are not dirty.
    ///
    /// # Errors
    /// ESTALE: another program changed its bytes, and there are dirty pages of it.
    pub(super) fn open_window(&mut self, engine: &CacheEngine, key: FileKey, below: &dyn BackingFile) -> Result<LeaderWindow, Errno> {
        for _ in 0..CHECKS_MAX {
            let moment = self.look_first(engine, key, below)?;
            let Some(no) = engine.records.find(key) else { return Ok(LeaderWindow { key }) };
            let own = engine.records.get(no).own();
            match moment {
                Some(moment) if !own.open_at(moment, Writer::Leader) => {}
                Some(_) => return Ok(LeaderWindow { key }),
                None => {
                    own.open(Writer::Leader);
                    return Ok(LeaderWindow { key });
                }
            }
        }
        // Another process keeps overwriting the record.
        Err(Errno::IO)
    }

    /// Detects a change by another program as `open_window` does, and opens no window. `None`: a process of the instance is changing the
    /// file, or it has no record.
    pub(super) fn look_first(&mut self, engine: &CacheEngine, key: FileKey, below: &dyn BackingFile) -> Result<Option<Moment>, Errno> {
        let stamp = || below.stamp().map_err(|error| errno_of(&error));
        let Some(no) = engine.records.find(key) else {
            let now = stamp()?;
            self.note_doubt(engine, key, Some(now));
            if self.entry(key).is_some() && self.own_stamp(key).is_none_or(|left| difference(left, now) != Difference::Content) {
                return Ok(None);
            }
            self.strand(engine, key, flag::CONFLICT);
            return Err(Errno::STALE);
        };
        let record = engine.records.get(no);
        'looks: for _ in 0..CHECKS_MAX {
            if record.has(flag::CONFLICT) {
                return Err(Errno::STALE);
            }
            match record.own().look(stamp)? {
                StampCheck::Ours(moment) => {
                    let now = record.own().get();
                    self.note_doubt(engine, key, Some(now));
                    if let Some(entry) = self.left_otherwise(record, key, now) {
                        self.strand_uncompared(engine, no, &entry)?;
                        return Err(Errno::STALE);
                    }
                    return Ok(Some(moment));
                }
                StampCheck::Busy => {
                    self.note_doubt(engine, key, None);
                    return Ok(None);
                }
                StampCheck::Changed(change) => {
                    let is_content = difference(change.known, change.now) == Difference::Content;
                    let is_unknown = self.is_origin_unknown(record, key);
                    // The change is recorded last: another check before that finds it too, and so does a new leader.
                    for is_dropped in [false, true] {
                        // This includes pages that equalled the backing file and were written since: they have bytes from before the
                        // change.
                        if is_content && !is_unknown && self.is_dirty(engine, no, key) {
                            // The page may have been written after another process had found the change.
                            if record.own().is_open() || record.own().get() != change.known {
                                continue 'looks;
                            }
                            match self.uncompared(record, key) {
                                Some((_, entry)) => self.strand_uncompared(engine, no, &entry)?,
                                None => self.strand(engine, key, flag::CONFLICT),
                            }
                            return Err(Errno::STALE);
                        }
                        if !is_dropped {
                            engine.drop_not_dirty(no, &mut |_: RequestKind| self.drop_clean_for_good(engine, key))?;
                        }
                    }
                    let size = record.size().load(Ordering::Acquire);
                    if is_content && size == change.known.size {
                        let _ = record.size().compare_exchange(size, change.now.size, Ordering::AcqRel, Ordering::Acquire);
                    }
                    record.own().adopt(&change, Writer::Leader, stamp)?;
                }
            }
        }
        // Another process keeps overwriting the record.
        Err(Errno::IO)
    }

    /// Returns whether a change since the record was made may be ours: a leader that died was writing to the file, which had no record
    /// then, and the new record has not been compared with the file's entry yet.
    fn is_origin_unknown(&mut self, record: Record<'_>, key: FileKey) -> bool {
        record.on_ssd().is_none() && self.entry(key).is_some() && self.own_stamp(key).is_none()
    }

    /// Returns the entry of a file with dirty pages on the SSD, and the stamp that we left, if its record was made from the backing file
    /// and has not been compared with that entry.
    fn uncompared(&mut self, record: Record<'_>, key: FileKey) -> Option<(Stamp, Entry)> {
        let is_dirty = self.log.as_ref().is_some_and(|log| log.cache.dirty_of(key) > 0);
        if record.on_ssd().is_some() || !is_dirty {
            return None;
        }
        self.own_stamp(key).zip(self.entry(key))
    }

    /// Returns the entry of such a file if the two differ: another program changed the file while it had no record.
    fn left_otherwise(&mut self, record: Record<'_>, key: FileKey, now: Stamp) -> Option<Entry> {
        let (left, entry) = self.uncompared(record, key)?;
        (difference(left, now) == Difference::Content).then_some(entry)
    }

    /// Marks such a file as a conflict. Its record becomes as if it was made from the entry: with the length that the dirty pages need.
    fn strand_uncompared(&mut self, engine: &CacheEngine, no: FileNo, entry: &Entry) -> Result<(), Errno> {
        let record = engine.records.get(no);
        let number = self.log.as_mut().and_then(|log| log.cache.hold(entry.key));
        {
            let _held = engine.lock_records()?;
            if record.key() != Some(entry.key) {
                return Ok(());
            }
            record.size().store(entry.size, Ordering::Release);
            record.flags().fetch_or(flag::UNCOMPARED, Ordering::AcqRel);
        }
        self.strand(engine, entry.key, flag::CONFLICT);
        // Last: from now on an open does not wait for the leader, and finds the conflict.
        let _held = engine.lock_records()?;
        if record.key() == Some(entry.key) {
            record.set_on_ssd(number);
        }
        Ok(())
    }

    /// Closes a window: the file's stamp becomes ours. Its entry follows when the leader is idle.
    pub(super) fn close_window(&mut self, engine: &CacheEngine, window: LeaderWindow, below: &dyn BackingFile) {
        let LeaderWindow { key } = window;
        let Some(no) = engine.records.find(key) else {
            self.know(key).after = below.stamp().ok();
            return;
        };
        let record = engine.records.get(no);
        let (own, first) = (record.own(), record.own().get());
        let is_new = !own.is_open_by(Writer::Leader);
        if is_new {
            // The record was made while the file was changed: its stamp and its length may be from before that.
            own.open(Writer::Leader);
        }
        // Other programs see the time of the write, not the time of the write-back.
        let written = record.written().load(Ordering::Relaxed);
        if written != 0 && !record.has(flag::CONFLICT) && record.mode().within(engine.mode()).keeps_dirty() {
            let _ = below.set_mtime(written);
        }
        if own.close(Writer::Leader, || below.stamp()).is_err() {
            // The window stays open for now, so the change is not mistaken for another program's.
            self.unended.push_back((no, key));
        } else if is_new || record.on_ssd().is_none() {
            // Until the record is compared with the file's entry, its length is that of the backing file when the record was made.
            let _ = record.size().compare_exchange(first.size, own.get().size, Ordering::AcqRel, Ordering::Acquire);
        }
        self.know(key).after = (!own.is_open()).then(|| own.get());
    }

    /// Returns the window that the last leader left open.
    fn left_window(engine: &CacheEngine, no: FileNo, key: FileKey) -> Option<LeaderWindow> {
        engine.records.get(no).own().is_open_by(Writer::Leader).then_some(LeaderWindow { key })
    }

    /// Takes over the writes to backing files that the last leader had not finished when it died. They are visible, but may not be
    /// durable: the next sync flushes them. They are finished file by file, after requests; holes are finished now, if nobody has the
    /// file's lock.
    pub(super) fn take_up_writing(&mut self, engine: &CacheEngine) {
        for (no, record) in engine.records.all() {
            // A sync of any file may have cleared the flag before the leader died, and not have flushed the file.
            record.flags().fetch_or(flag::UNSYNCED, Ordering::AcqRel);
            let Some(key) = record.key().filter(|_| is_unfinished(record)) else { continue };
            if record.has(flag::PUNCHING) {
                self.end_other(engine, no, key);
            }
            if is_unfinished(record) {
                self.unended.push_back((no, key));
            }
        }
    }

    /// Finishes one of these writes; returns whether there was one. A failed one is queued again: changes by other programs go undetected
    /// while its window is open. One whose file is missing is tried when the file is searched for again, and delays no other.
    pub(super) fn end_others_writing(&mut self, engine: &CacheEngine) -> bool {
        let now = engine.world.now_ms();
        if self.unended_failed.is_some_and(|failed| now.wrapping_sub(failed) < RETRY_MS) {
            return false;
        }
        self.unended_failed = None;
        let is_missing = |no: FileNo| engine.records.get(no).has(flag::MISSING);
        let next = self.unended.iter().position(|(no, key)| !is_missing(*no) || !self.is_patient(engine, *key));
        let Some((no, key)) = next.and_then(|next| self.unended.remove(next)) else { return false };
        let record = engine.records.get(no);
        let is_left = || record.key() == Some(key) && is_unfinished(record);
        if is_left() {
            self.end_other(engine, no, key);
        }
        if is_left() {
            if is_missing(no) {
                self.wait_to_retry(engine, key, STRANDED_MS, flag::MISSING);
            } else {
                self.unended_failed = Some(now);
            }
            self.unended.push_back((no, key));
        }
        true
    }

    fn end_other(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) {
        // The holder of the lock is writing through, and finishes that itself.
        let Some(held) = self.try_lock(engine, no) else { return };
        let below = match self.below(engine, key) {
            Ok(below) => below,
            Err(Errno::NOENT) if self.is_removed(engine, key) => {
                // The lock is a part of the record. If this fails, it is tried again.
                drop(held);
                let _ = self.drop_removed(engine, key);
                return;
            }
            Err(Errno::NOENT) => {
                let is_over = self.end_not_found(engine, no, key);
                // The lock is a part of the record.
                drop(held);
                if is_over && let Some(_table) = engine.lock_records_soon() {
                    // The next open takes the present stamp.
                    engine.free_closed(no, key);
                }
                return;
            }
            Err(_) => return,
        };
        if below.sync().is_err() {
            return;
        }
        if self.is_being_cut(engine, no) || self.synced_below(engine, key).is_ok() {
            // A later change may have closed the window of a hole: then nothing of the file may be changed here.
            if let Some(window) = Worker::left_window(engine, no, key) {
                self.close_window(engine, window, &*below);
            }
        }
        if engine.records.get(no).has(flag::PUNCHING) {
            // If that fails, it is tried again.
            let _ = self.drop_stale(engine, no, key);
        }
    }

    /// Finishes a write to a file that cannot be found, so that it is not searched for each second. Dirty pages of it wait until it is
    /// found. Without dirty pages, a closed file is forgotten: the caller frees its record if this returns true.
    /// What fails is tried again.
    fn end_not_found(&mut self, engine: &CacheEngine, no: FileNo, key: FileKey) -> bool {
        if self.is_dirty(engine, no, key) {
            self.strand(engine, key, flag::MISSING);
            return false;
        }
        engine.records.get(no).open_by().load(Ordering::Acquire) == 0 && self.drop_all_clean(engine, no, key) == Ok(true)
    }
}

/// Returns whether a leader died while it changed the file.
fn is_unfinished(record: Record<'_>) -> bool {
    record.own().is_open_by(Writer::Leader) || record.has(flag::PUNCHING)
}

#[cfg(test)]
mod test {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use ssdcache::Mode;

    use super::*;
    use crate::engine::{Open, OpenOptions};
    use crate::test_engine::File;

    /// Returns a process that leads, and a file with a dirty page that was written after the last change to the backing file.
    fn with_dirty_page() -> (Arc<File>, Arc<CacheEngine>, Open) {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.clean().expect("below");
        open.write(0, &[2; 100]).expect("written");
        (file, engine, open)
    }

    fn is_known(engine: &CacheEngine, file: &File, open: &Open) {
        let record = engine.records.get(open.no());
        assert!(!is_unfinished(record), "the hole is finished");
        assert_eq!(record.own().get(), file.stamp().expect("a stamp"));
        assert_eq!(open.look_below(), Ok(()));
        open.sync().expect("no conflict");
        assert_eq!(file.bytes.lock()[..100], [2; 100]);
    }

    /// A leader died before it had finished a hole, and a later change of the file closed its window.
    #[test]
    fn a_hole_that_the_next_leader_finishes_was_punched_by_us() {
        for is_open in [false, true] {
            let (file, engine, open) = with_dirty_page();
            let record = engine.records.get(open.no());
            record.flags().fetch_or(flag::PUNCHING, Ordering::AcqRel);
            if is_open {
                record.own().open(Writer::Leader);
                file.punch(8192, 4096).expect("punched");
            }
            engine.lead_inline(Worker::begin(&engine));
            is_known(&engine, &file, &open);
        }
    }

    /// The same, while another process has the file's lock.
    #[test]
    fn a_hole_of_a_locked_file_is_finished_later() {
        for is_open in [false, true] {
            let (file, engine, open) = with_dirty_page();
            let record = engine.records.get(open.no());
            record.flags().fetch_or(flag::PUNCHING, Ordering::AcqRel);
            if is_open {
                record.own().open(Writer::Leader);
                file.punch(8192, 4096).expect("punched");
            }
            let held = engine.records.lock_of(open.no()).lock();
            let worker = Worker::begin(&engine);
            drop(held);
            engine.lead_inline(worker);
            engine.step_inline();
            is_known(&engine, &file, &open);
        }
    }

    /// A dead leader was writing to two files, and one of them is missing.
    #[test]
    fn a_missing_file_does_not_delay_the_end_of_writes_to_others() {
        let (_file, engine, open) = with_dirty_page();
        let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
        let below = engine.world.open(FileKey(8), Path::new("/file"), &[], true).expect("there");
        let other = engine.open(FileKey(8), Path::new("/file"), options, below).expect("opened");
        let records = [&open, &other].map(|open| engine.records.get(open.no()));
        let mut worker = Worker::begin(&engine);
        for (record, open) in records.iter().zip([&open, &other]) {
            record.own().open(Writer::Leader);
            worker.unended.push_back((open.no(), open.key()));
        }
        records[0].flags().fetch_or(flag::MISSING, Ordering::AcqRel);
        worker.know(open.key()).not_before = Some(1);
        assert!(worker.end_others_writing(&engine));
        assert!(!is_unfinished(records[1]) && is_unfinished(records[0]));
        assert!(!worker.end_others_writing(&engine), "the missing one is not tried all the time");
        worker.know(open.key()).not_before = None;
        assert!(worker.end_others_writing(&engine));
        assert!(!is_unfinished(records[0]));
    }

    /// A dead leader was writing to a file, or punching a hole, and the file has no name any more.
    #[test]
    fn the_end_of_a_write_to_a_file_that_is_not_found_is_not_tried_for_ever() {
        for (is_removed, is_dirty) in [(true, true), (true, false), (false, true), (false, false)] {
            let (file, engine, open) = with_dirty_page();
            let (no, key) = (open.no(), open.key());
            let record = engine.records.get(no);
            *file.reports.lock() = Some(Vec::new());
            if !is_dirty {
                open.clean().expect("below");
            }
            drop(open);
            file.is_gone.store(true, Ordering::Relaxed);
            record.own().open(Writer::Leader);
            record.flags().fetch_or(flag::PUNCHING | if is_removed { flag::UNLINKED } else { 0 }, Ordering::AcqRel);
            let mut worker = Worker::begin(&engine);
            worker.unended_failed = None;
            worker.end_others_writing(&engine);
            assert_eq!(worker.unended_failed, None, "it is not tried each second");
            let reports = file.reports.lock().take().expect("reports");
            if is_removed {
                assert!(engine.knows(key) == Ok(false) && !worker.is_dirty(&engine, no, key) && reports.is_empty());
            } else if is_dirty {
                assert!(record.has(flag::MISSING) && worker.is_dirty(&engine, no, key) && reports.len() == 1);
                assert!(worker.is_patient(&engine, key));
            } else {
                assert!(engine.knows(key) == Ok(false) && reports.is_empty());
            }
        }
    }

    /// Makes a page dirty on the SSD, and syncs the file. Returns whether that flushes the backing file.
    fn is_flushed(file: &File, open: &Open) -> bool {
        open.write(0, &[2; 100]).expect("written");
        *file.at_sync.lock() = Some(Box::new(|| false));
        open.sync().expect("durable");
        file.at_sync.lock().take().is_none()
    }

    #[test]
    fn the_sync_after_one_in_which_the_leader_died_flushes_the_backing_file() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        assert!(is_flushed(&file, &open) && !is_flushed(&file, &open), "the first one after the open");
        Open::ours_of(&[&open], || file.write_at(50, &[3; 10]).map_err(|error| errno_of(&error))).expect("written");
        open.write(0, &[1; 100]).expect("written");
        *file.at_sync.lock() = Some(Box::new(|| std::panic::resume_unwind(Box::new("dead"))));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open.sync())).expect_err("it died");
        engine.lead_inline(Worker::begin(&engine));
        assert!(is_flushed(&file, &open));
    }

    #[test]
    fn the_sync_after_a_death_between_a_write_to_the_backing_file_and_its_frames_flushes_it() {
        let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteBack);
        assert!(is_flushed(&file, &open) && !is_flushed(&file, &open), "the first one after the open");
        engine.records.get(open.no()).own().open(Writer::LockHolder);
        file.write_at(5000, &[3; 10]).expect("written");
        drop(engine.lock_file(open.no()).expect("mended"));
        assert!(is_flushed(&file, &open));
    }

    /// The record of a file was made while the leader wrote to it, as it had none.
    #[test]
    fn a_record_that_was_made_during_a_change_gets_the_stamp_after_it() {
        let (file, engine, open) = with_dirty_page();
        let mut worker = Worker::begin(&engine);
        let record = engine.records.get(open.no());
        file.set_len(30_000).expect("longer");
        worker.close_window(&engine, LeaderWindow { key: FileKey(7) }, &*file);
        assert_eq!((record.own().get(), open.size()), (file.stamp().expect("a stamp"), 30_000));
    }
}
