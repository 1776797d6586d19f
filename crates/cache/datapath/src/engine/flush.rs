//! The path of a flush: a request to the leader. Each handle reports each failure once.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::open::Open;
use super::record::{FileNo, flag};
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
}
