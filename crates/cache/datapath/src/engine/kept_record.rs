//! Records that stay with their file without an open file, for work on a file that is closed or may be closed meanwhile.

use std::sync::atomic::Ordering;

use ssdcache::FileKey;

use super::CacheEngine;
use super::record::FileNo;

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
        *opens.entry(no).or_default() += 1;
        Some(KeptRecord { engine: self, no })
    }

    /// Closes a file once in this process. Returns whether no process has it open now.
    pub(super) fn close_record(&self, no: FileNo) -> bool {
        let mut opens = self.opens.lock();
        let Some(count) = opens.get_mut(&no) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        opens.remove(&no);
        // Under the lock: an open in another thread sets the bit after us.
        self.records.get(no).open_by().fetch_and(!(1 << self.me.0), Ordering::AcqRel) == 1 << self.me.0
    }
}

impl Drop for KeptRecord<'_> {
    fn drop(&mut self) {
        self.engine.close_record(self.no);
    }
}
