//! Records that stay with their file without an open file, for work on a file that is closed or may be closed meanwhile.

use std::sync::atomic::Ordering;

use ssdcache::FileKey;

use super::CacheEngine;
use super::record::FileNo;

/// How many users in this process a file's record has.
#[derive(Clone, Copy, Default)]
pub(crate) struct RecordUsers {
    /// Number of open files.
    pub(super) opens: u32,
    /// Number of [`KeptRecord`]s, and of files that are read without being open.
    kept: u32,
}

impl RecordUsers {
    /// Adds a user: a file that is open, or one of which cached data is read without opening it.
    pub(super) fn add(&mut self, is_open: bool) {
        if is_open { self.opens += 1 } else { self.kept += 1 }
    }
}

/// Keeps a record from being given to another file, as an open file does. A record that another file gets is cleared, with the file's lock
/// in it.
pub(crate) struct KeptRecord<'a> {
    engine: &'a CacheEngine,
    no: FileNo,
}

impl CacheEngine {
    /// Keeps the record of a file until the result is dropped. `None`: the record is another file's. The lock of the table is held.
    pub(crate) fn keep_record(&self, no: FileNo, key: FileKey) -> Option<KeptRecord<'_>> {
        let record = self.records.get(no);
        if record.key() != Some(key) {
            return None;
        }
        let mut opens = self.opens.lock();
        record.set_open_by(self.me);
        opens.entry(no).or_default().kept += 1;
        Some(KeptRecord { engine: self, no })
    }

    /// Closes a file once in this process. Returns whether no process has it open now.
    pub(super) fn close_record(&self, no: FileNo) -> bool {
        self.release_record(no, |users| &mut users.opens)
    }

    /// Ends the use of a record by a file that is read without being open.
    pub(super) fn close_unopened(&self, no: FileNo) {
        self.release_record(no, |users| &mut users.kept);
    }

    /// Takes one user of this kind away. Returns whether no process uses the record now.
    fn release_record(&self, no: FileNo, of: impl FnOnce(&mut RecordUsers) -> &mut u32) -> bool {
        let mut opens = self.opens.lock();
        let Some(users) = opens.get_mut(&no) else { return false };
        let count = of(users);
        // Detaching has closed all files.
        let Some(left) = count.checked_sub(1) else { return false };
        *count = left;
        if users.opens > 0 || users.kept > 0 {
            return false;
        }
        opens.remove(&no);
        // Under the lock: an open in another thread sets the bit after us.
        self.records.get(no).open_by().fetch_and(!(1 << self.me.0), Ordering::AcqRel) == 1 << self.me.0
    }
}

impl CacheEngine {
    /// Closes all files of this process. A record that is kept stays until its user, such as the leader's thread, releases it.
    pub(super) fn close_all_records(&self) {
        self.opens.lock().retain(|no, users| {
            users.opens = 0;
            if users.kept == 0 {
                self.records.get(*no).open_by().fetch_and(!(1 << self.me.0), Ordering::AcqRel);
            }
            users.kept > 0
        });
    }
}

impl Drop for KeptRecord<'_> {
    fn drop(&mut self) {
        self.engine.release_record(self.no, |users| &mut users.kept);
    }
}

#[cfg(test)]
mod test {
    use ssdcache::Mode;

    use super::super::flag;
    use super::*;

    #[test]
    fn a_file_that_is_closed_while_its_record_is_kept_is_held() {
        let (_, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        let (no, key) = (open.no(), open.key());
        let kept = engine.keep_record(no, key).expect("kept");
        drop(open);
        assert!(engine.records.get(no).has(flag::HELD));
        assert_ne!(engine.records.get(no).open_by().load(Ordering::Acquire), 0);
        drop(kept);
        assert_eq!(engine.records.get(no).open_by().load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_record_that_is_kept_stays_when_the_process_detaches() {
        let (_, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        let (no, key) = (open.no(), open.key());
        let kept = engine.keep_record(no, key).expect("kept");
        engine.detach();
        assert_ne!(engine.records.get(no).open_by().load(Ordering::Acquire), 0);
        assert!(!engine.free_closed(no, key));
        drop(open);
        assert_ne!(engine.records.get(no).open_by().load(Ordering::Acquire), 0);
        drop(kept);
        assert_eq!(engine.records.get(no).open_by().load(Ordering::Acquire), 0);
    }
}
