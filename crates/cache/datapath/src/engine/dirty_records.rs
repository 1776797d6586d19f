//! Files that need a record because the SSD has dirty pages of them.
//!
//! A file of which the SSD has dirty pages has a record, so that each call on the file knows of them: the leader marks such records, and
//! they are not given to other files. After a restart of the instance, or a loss of power, files do not have records yet; the leader makes
//! one when a process asks about such a file.

use std::path::Path;

use rustix::io::Errno;
use ssdcache::FileKey;

use super::layout::{NEVER_OPENED, Word};
use super::open::{OpenFileError, OpenOptions};
use super::record::FileNo;
use super::request::RequestKind;
use super::{BackingFile, CacheEngine};

/// Stands for the file of requests about a file without a record.
pub(super) const NO_RECORD: FileNo = FileNo(u32::MAX);
/// How often the leader is asked for a free record. Other processes may take those that it frees.
const ROOM_TRIES: usize = 3;

impl CacheEngine {
    /// Returns whether a file has a record, which it gets now if the SSD has dirty pages of it.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub(crate) fn has_record(&self, key: FileKey) -> Result<bool, Errno> {
        let found = self.records.find(key);
        // One that the leader has not compared with the SSD yet does not have the length of the file.
        let is_registered = found.is_some_and(|no| self.records.get(no).on_ssd().is_some());
        if is_registered || !self.has_unrecorded() {
            return Ok(found.is_some());
        }
        self.ask(RequestKind::Record, NO_RECORD, key.0, 0).map(|answer| answer == 1)
    }

    /// Returns whether the SSD may have dirty pages of files without records.
    fn has_unrecorded(&self) -> bool {
        self.view.is_some() && self.header.get(Word::Unrecorded) != 0
    }

    /// Returns whether an SSD that cannot be read may have dirty pages of any file.
    pub(super) fn may_owe_any_file(&self) -> bool {
        self.header.ssd_failed() == NEVER_OPENED || self.header.get(Word::Unknown) != 0
    }

    /// Returns the record of a file as [`CacheEngine::record_for`] does. If no record of its set is free, the leader writes the data of a
    /// closed file back, and frees its record.
    ///
    /// # Errors
    /// `NoRecord`: all files of the set are open, or cannot be written back. The SSD has no dirty pages of this file.
    pub(super) fn record_or_room_for(
        &self,
        key: FileKey,
        path: &Path,
        how: OpenOptions,
        below: &dyn BackingFile,
    ) -> Result<(FileNo, bool), OpenFileError> {
        for _ in 0..ROOM_TRIES {
            match self.record_for(key, path, how, below) {
                Err(OpenFileError::NoRecord) => {}
                found => return found,
            }
            match self.ask(RequestKind::Record, NO_RECORD, key.0, 1) {
                Ok(_) => {}
                Err(_) if self.may_owe_any_file() => return Err(OpenFileError::Unsure),
                Err(errno) if self.has_unrecorded() => return Err(OpenFileError::Failed(errno)),
                Err(_) => return Err(OpenFileError::NoRecord),
            }
        }
        self.record_for(key, path, how, below)
    }
}
