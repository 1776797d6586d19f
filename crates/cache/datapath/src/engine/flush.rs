//! The path of a flush: the leader is asked, and what he says is told to each handle once.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::open::Open;
use super::record::{FileNo, flag};
use super::{CacheEngine, RequestKind};

impl Open {
    /// Every acknowledged byte of the file survives anything when this returns well.
    ///
    /// # Errors
    /// What kept it from that; EIO and others once more if an earlier write-back failed and this handle was not told; ESTALE
    /// while the file is in conflict with a change from outside.
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

    /// Writes everything of the file below, durable there.
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
    /// What the SSD or the backing file says.
    pub fn write_back_range(&self, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        self.check()?;
        self.engine.ask(RequestKind::WriteBack, self.no, pages.start, pages.end).map(drop)
    }
}

impl CacheEngine {
    /// Writes everything below, durable there, step by step; `progress` hears how many dirty pages are left.
    ///
    /// # Errors
    /// What the files below say; what could be written was.
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
