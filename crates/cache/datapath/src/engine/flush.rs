//! The path of a flush: a request to the leader. Each handle reports each failure once.

use std::sync::atomic::Ordering;

use pagecache::Marks;
use rustix::io::Errno;
use shm::OwnedLockGuard;

use super::open::Open;
use super::own_stamp::{TRIES_MAX, Writer};
use super::record::{FileNo, flag};
use super::stall::STALLED;
use super::{CacheEngine, RequestKind};

impl Open {
    /// Makes every acknowledged byte of the file durable.
    ///
    /// # Errors
    /// Returns the error that prevented it. Returns EIO or another error once if an earlier write-back failed and this handle has not
    /// reported it; ESTALE while the file is in conflict with a change from outside.
    pub fn sync(&self) -> Result<(), Errno> {
        self.check()?;
        let record = self.record();
        if record.has(flag::CONFLICT) {
            return Err(Errno::STALE);
        }
        self.engine.counters.add(super::Count::Syncs, 1);
        let result = self.engine.ask(RequestKind::Sync, self.no, 0, 0).map(drop);
        let (failures, errno) = record.failures();
        let seen = self.stream.seen.swap(failures, Ordering::AcqRel);
        match (result, errno) {
            (Ok(()), Some(errno)) if seen != failures => Err(errno),
            (result, _) => result,
        }
    }

    /// Writes all dirty data of the file to the backing file, durably.
    ///
    /// # Errors
    /// Returns the error of the backing file.
    pub fn clean(&self) -> Result<(), Errno> {
        self.check()?;
        self.engine.ask(RequestKind::Clean, self.no, 0, 0).map(drop)
    }

    /// Writes the dirty frames of these pages back, durably.
    ///
    /// # Errors
    /// Returns the error of the SSD or of the backing file.
    pub fn write_back_range(&self, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        self.check()?;
        self.engine.ask(RequestKind::WriteBack, self.no, pages.start, pages.end).map(drop)
    }
}

impl CacheEngine {
    /// Writes all dirty data to the backing files, durably, step by step. `progress` gets the number of dirty pages left after each step.
    ///
    /// # Errors
    /// Returns the error of a backing file; all data that could be written was.
    pub fn clean_all(&self, progress: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        loop {
            let left = self.ask(RequestKind::Clean, FileNo(u32::MAX), 0, 0)?;
            progress(u64::from(left));
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Writes the dirty pages of a file back, and drops all of its pages. A page that a writer makes dirty meanwhile is not dropped, but
    /// written back, too. `lock` takes the file's lock, which stops writers that extend the file; without it they may delay the end.
    /// `is_wanted` is called with the lock held. `ask` sends a request and its argument to the leader, or is the leader. The caller has the
    /// file open, or keeps its record ([`CacheEngine::keep_record`]). Returns false if the drop is not wanted any more.
    ///
    /// # Errors
    /// Returns what kept pages from being written or dropped; [`STALLED`]: a process makes pages dirty all the time.
    pub(crate) fn clean_and_drop<'a>(
        &'a self,
        no: FileNo,
        lock: &dyn Fn() -> Result<Option<OwnedLockGuard<'a>>, Errno>,
        is_wanted: &mut dyn FnMut() -> bool,
        ask: &mut dyn FnMut(RequestKind, u64) -> Result<u32, Errno>,
    ) -> Result<bool, Errno> {
        let record = self.records.get(no);
        for _ in 0..TRIES_MAX {
            ask(RequestKind::Clean, 0)?;
            let _held = lock()?;
            if !is_wanted() {
                return Ok(false);
            }
            if self.is_dirty_by(no, ask)? {
                continue;
            }
            self.drop_not_dirty(no, &mut |kind| ask(kind, 0).map(drop))?;
            // The lock does not stop a writer that changes pages in place.
            if !self.is_dirty_by(no, ask)? {
                record.flags().fetch_and(!flag::STRANDED, Ordering::AcqRel);
                record.succeeded();
                return Ok(true);
            }
        }
        Err(STALLED)
    }

    pub(super) fn is_dirty_by(&self, no: FileNo, ask: &mut dyn FnMut(RequestKind, u64) -> Result<u32, Errno>) -> Result<bool, Errno> {
        let is_marked = self.pages.has_marked(pagecache::FileNo(no.0), Marks::DIRTY);
        Ok(is_marked || self.view.is_some() && ask(RequestKind::Open, 1)? > 0)
    }

    /// Takes the file's lock if it is free and its last owner left nothing unfinished. The leader, which never waits for a lock, calls it.
    ///
    /// # Errors
    /// EBUSY: the lock is not free, or its last owner died.
    pub(crate) fn try_lock_file(&self, no: FileNo) -> Result<OwnedLockGuard<'_>, Errno> {
        let held = self.records.lock_of(no).try_lock().ok_or(Errno::BUSY)?;
        if held.was_abandoned() || self.records.get(no).own().is_open_by(Writer::LockHolder) {
            held.abandon();
            return Err(Errno::BUSY);
        }
        Ok(held)
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use ssdcache::Mode;

    use super::*;
    use crate::Worker;
    use crate::engine::BackingFile;
    use crate::test_engine::{File, write_late};

    /// Makes a late writer write 2, 3, 4 and 5 at the next four syncs of the file.
    fn write_at_syncs(file: &File, engine: &Arc<CacheEngine>, no: FileNo) {
        let (engine, mut byte) = (Arc::clone(engine), 1);
        let hook = move || {
            byte += 1;
            write_late(&engine, no, byte);
            byte < 5
        };
        *file.at_sync.lock() = Some(Box::new(hook));
    }

    #[test]
    fn a_page_that_is_written_while_its_file_is_withdrawn_is_not_lost() {
        for (file, engine, open) in [crate::test_engine::lead(Mode::WriteBack), crate::test_engine::lead_with_ssd(Mode::WriteBack)] {
            open.write(0, &[1; 100]).expect("written");
            write_at_syncs(&file, &engine, open.no());
            engine.withdraw(open.key()).expect("withdrawn");
            assert!(file.at_sync.lock().is_none(), "all were written");
            assert_eq!((&file.bytes.lock()[..11], open.is_dirty()), (&[5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 1][..], Ok(false)));
        }
    }

    #[test]
    fn a_page_that_is_written_while_its_closed_file_is_withdrawn_is_not_lost() {
        for (file, engine, open) in [crate::test_engine::lead(Mode::WriteBack), crate::test_engine::lead_with_ssd(Mode::WriteBack)] {
            let (no, key) = (open.no(), open.key());
            open.write(0, &[1; 100]).expect("written");
            drop(open);
            file.is_private.store(true, Ordering::Relaxed);
            write_at_syncs(&file, &engine, no);
            Worker::begin(&engine).withdraw_closed(&engine);
            assert!(file.at_sync.lock().is_none(), "all were written");
            assert_eq!(file.bytes.lock()[..11], [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 1]);
            assert_eq!(engine.knows(key), Ok(false));
        }
    }

    /// All users but the withdrawing process close the file meanwhile, and other files need records.
    #[test]
    fn the_record_of_a_file_that_is_withdrawn_is_not_given_to_another_file() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let (no, key, late, opens) = (open.no(), open.key(), Arc::clone(&engine), Arc::new(parking_lot::Mutex::new(Vec::new())));
        let (taken, mut open) = (Arc::clone(&opens), Some(open));
        let hook = move || {
            drop(open.take());
            let (path, how) = (std::path::Path::new("/file"), crate::engine::OpenOptions::default());
            let below = |other| late.world.open(other, path, &[], true).expect("there");
            taken.lock().extend((8..23).map(ssdcache::FileKey).filter_map(|other| late.open(other, path, how, below(other)).ok()));
            let other = ssdcache::FileKey(23);
            assert_eq!(late.record_for(other, path, how, &*below(other)), Err(crate::engine::OpenFileError::NoRecord));
            false
        };
        *file.at_sync.lock() = Some(Box::new(hook));
        engine.withdraw(key).expect("withdrawn");
        assert!(file.at_sync.lock().is_none(), "it was closed meanwhile");
        assert_eq!((opens.lock().len(), engine.knows(key)), (15, Ok(false)));
        assert!(opens.lock().iter().all(|open| open.no() != no));
    }

    /// A process died while it wrote the file through, and the leader may not open the file.
    #[test]
    fn a_file_that_the_leader_cannot_open_is_withdrawn_after_a_death() {
        for is_closed in [false, true] {
            let (file, engine, open) = crate::test_engine::lead_with_ssd(Mode::WriteThrough);
            *file.bytes.lock() = vec![1; 9000];
            open.look_below().expect("no conflict");
            assert_eq!(open.read(0, &mut [0; 9000]), Ok(9000));
            let (no, key) = (open.no(), open.key());
            engine.records.get(no).own().open(Writer::LockHolder);
            file.is_private.store(true, Ordering::Relaxed);
            file.is_refused.store(true, Ordering::Relaxed);
            if is_closed {
                drop(open);
                Worker::begin(&engine).withdraw_closed(&engine);
                assert_eq!(engine.knows(key), Ok(false));
            } else {
                engine.withdraw(key).expect("withdrawn");
                assert_eq!(engine.known_path(key), Some(std::path::PathBuf::new()));
                assert!(!engine.records.get(no).own().is_open());
            }
            assert!(!engine.pages.has_pages(pagecache::FileNo(no.0)));
        }
    }

    /// Ends pass-through while a writer changes the first page in place, and checks that its bytes reach the file.
    fn end_pass_through_beside_a_late_write(file: &File, engine: &Arc<CacheEngine>, open: &Open) {
        let (late, no) = (Arc::clone(engine), open.no());
        let hook = move || {
            write_late(&late, no, 2);
            false
        };
        *file.at_stamp.lock() = Some(Box::new(hook));
        engine.set_mode(Mode::WriteBack).expect("switched");
        assert!(file.at_stamp.lock().is_none(), "it was written");
        open.sync().expect("no conflict");
        open.clean().expect("no conflict");
        assert_eq!(file.bytes.lock()[..11], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    }

    /// The writer has not noticed pass-through, which ends, or it has noticed its end already.
    #[test]
    fn a_page_that_is_written_at_the_end_of_pass_through_is_not_lost() {
        for (file, engine, open) in [crate::test_engine::lead(Mode::WriteBack), crate::test_engine::lead_with_ssd(Mode::WriteBack)] {
            open.write(0, &[1; 100]).expect("written");
            engine.set_mode(Mode::PassThrough).expect("switched");
            end_pass_through_beside_a_late_write(&file, &engine, &open);
            assert!(!open.is_changed(file.stamp().expect("a stamp")));
        }
    }

    /// The same after a leader died while it wrote to the file: its write is not taken for one by another program.
    #[test]
    fn a_write_that_a_leader_left_unfinished_in_pass_through_is_no_conflict() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        engine.set_mode(Mode::PassThrough).expect("switched");
        engine.records.get(open.no()).own().open(Writer::Leader);
        file.write_at(50, &[3; 10]).expect("written");
        end_pass_through_beside_a_late_write(&file, &engine, &open);
    }
}
