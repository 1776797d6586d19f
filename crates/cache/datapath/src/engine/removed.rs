//! The end of files that were removed: what is cached of them goes with their last close.

use std::path::Path;
use std::sync::atomic::Ordering;

use pagecache::Leftover;
use ssdcache::FileKey;

use super::record::{FileNo, flag};
use super::request::RequestKind;
use super::{CacheEngine, Open};

impl CacheEngine {
    /// Returns whether a removed file has this record, and no process has it open or holds its lock. The lock of the table is held, so that
    /// nobody opens the file meanwhile.
    pub(crate) fn is_closed(&self, no: FileNo, key: FileKey) -> bool {
        let record = self.records.get(no);
        let is_open_by = |slot: u8| {
            let is_noted = record.open_by().load(Ordering::Acquire) & 1 << slot != 0;
            // One that died has closed the file, also before its process slot is cleared.
            is_noted && self.processes.is_alive(shm::ProcessSlot(slot))
        };
        let is_open = (0..u64::BITS as u8).any(is_open_by) || self.opens.lock().contains_key(&no);
        record.key() == Some(key) && !is_open && self.records.lock_of(no).owner().is_none()
    }

    /// Frees the record of a removed and closed file, with its frames. The lock of the table is held. The SSD has no pages of the file any
    /// more: a new leader would find them, and not that the file was removed. Returns false if the record has to stay.
    pub(crate) fn free_removed(&self, no: FileNo, key: FileKey) -> bool {
        if !self.is_closed(no, key) || self.pages.invalidate(pagecache::FileNo(no.0), 0..u64::MAX) != Leftover::None {
            return false;
        }
        let record = self.records.get(no);
        record.set_path(Path::new(""));
        record.set_key(None);
        true
    }
}

impl Open {
    /// Returns whether the file was removed, so that nobody needs its data after the last close.
    pub(super) fn is_removed(&self) -> bool {
        let record = self.record();
        if !record.has(flag::UNLINKED) || record.key() != Some(self.key) {
            return false;
        }
        let is_removed = self.below.is_removed();
        if !is_removed {
            // It got a name again.
            record.flags().fetch_and(!flag::UNLINKED, Ordering::AcqRel);
        }
        is_removed
    }

    /// Drops the data of a removed file that no process has open now. A process that opens it at this moment, by a descriptor that cannot
    /// read or write, either keeps the data or finds none of it.
    pub(super) fn drop_removed(&self) {
        let engine = &self.engine;
        let is_stopping = engine.stopping.load(Ordering::Acquire);
        if engine.view.is_some() && !is_stopping {
            let _ = engine.ask(RequestKind::DropRemoved, self.no, self.key.0, 0);
        } else if let Ok(_table) = engine.lock_records()
            && engine.is_closed(self.no, self.key)
        {
            // The next leader drops what the SSD has. The record stays: a leader may be writing a frame of it.
            let _ = engine.drop_frames(self.no, 0..u64::MAX);
            if let Ok(stamp) = self.below.stamp() {
                self.record().size().store(stamp.size, Ordering::Release);
            }
        }
    }
}
