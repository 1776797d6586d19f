//! Stranded files: their dirty pages cannot be written until somebody decides. There is a conflict, or the file's location is unknown.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use ssdcache::Mode;

use super::not_open::NotOpen;
use super::open::Open;
use super::record::flag;
use super::status::FileStatus;
use super::stream::Stream;
use super::{BackingFile, CacheEngine, RequestKind};

impl CacheEngine {
    /// Opens a stranded file for reading: cached data over the backing file's content. None: the number belongs to another file now.
    pub fn open_stranded(self: &Arc<Self>, seen: &FileStatus, below: Option<Arc<dyn BackingFile>>) -> Option<Open> {
        let _held = self.lock_records().ok()?;
        let record = self.records.get(seen.no);
        if record.key() != Some(seen.key) {
            return None;
        }
        let below = below.unwrap_or_else(|| Arc::new(NotOpen { stamp: record.own().get(), error: Errno::NOENT }));
        record.set_open_by(self.me);
        self.opens.lock().entry(seen.no).or_default().add(below.is_open());
        let kept = self.records.kept(seen.no);
        Some(Open { engine: Arc::clone(self), no: seen.no, key: seen.key, record: kept, below, stream: Stream::default() })
    }
}

impl Open {
    /// Gives up the cached data of a file that cannot be found.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn discard_missing(&self) -> Result<(), Errno> {
        self.engine.give_up_stranded(self.no, flag::MISSING, None)
    }

    /// Resolves a conflict for the backing file: gives up all cached data of it.
    ///
    /// # Errors
    /// ENOENT: another process has decided meanwhile. Else the error of the leader.
    pub fn discard_conflict(&self) -> Result<(), Errno> {
        self.engine.give_up_stranded(self.no, flag::CONFLICT, Some(&*self.below))
    }

    /// Returns whether the file still waits for its owner's decision.
    pub fn is_stranded(&self) -> bool {
        self.record().key() == Some(self.key) && self.record().has(flag::STRANDED)
    }

    /// Resolves a conflict for the cache: writes the newer cached pages over the backing file, and sets its length to the cached one.
    ///
    /// # Errors
    /// ENOENT: another process has decided meanwhile. Else the error of the backing file.
    pub fn force(&self) -> Result<(), Errno> {
        let _held = self.engine.lock_file(self.no)?;
        if !self.record().has(flag::CONFLICT) {
            return Err(Errno::NOENT);
        }
        self.engine.ask(RequestKind::Force, self.no, 0, 0).map(drop)
    }

    /// Prepares the file for a mapping by a program. From now on all processes write through, as long as the record lives. If the program
    /// writes through the mapping, nothing of the file is cached.
    ///
    /// # Errors
    /// Returns an error if dirty data could not be written.
    pub fn map(&self, is_written: bool) -> Result<(), Errno> {
        let mode = if is_written { Mode::PassThrough } else { Mode::WriteThrough };
        self.record().flags().fetch_or(flag::MAPPED, Ordering::AcqRel);
        if mode > self.record().mode() {
            self.engine.ask(RequestKind::Mode, self.no, mode as u64, 0)?;
        }
        self.clean()
    }
}
