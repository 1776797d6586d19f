//! What SQLite reports of transactions, batches and checkpoints.

use libsqlite3_sys as sys;

use super::Database;
use super::state::DatabaseState;
use crate::error::Outcome;

impl Database {
    /// A batch begins that is committed or taken back as a whole.
    pub fn begin_batch(&self) {
        let inner = &mut *self.inner.write();
        inner.before = Some(inner.pending.clone());
    }

    /// It is whole: it goes below with the sync that follows.
    pub fn end_batch(&self) -> Outcome<()> {
        self.inner.write().before = None;
        Ok(())
    }

    /// Discards the atomic batch write under way.
    pub fn undo_batch(&self) {
        let inner = &mut *self.inner.write();
        if let Some(before) = inner.before.take() {
            inner.pending = before;
        }
    }

    /// A commit is over: what nothing can undo goes below, in order with all else. That of a WAL is done already, and does not fail.
    pub fn is_committed(&self) -> Outcome<()> {
        let is_wal = {
            let wal = &mut *self.wal.lock();
            wal.is_committed();
            wal.is_open()
        };
        let inner = &mut *self.inner.write();
        if inner.journal.is_live_in_memory() || inner.before.is_some() {
            return Ok(());
        }
        if is_wal {
            self.try_to_apply(inner);
            return Ok(());
        }
        self.apply_or_forget(inner)?;
        inner.ends();
        Ok(())
    }

    /// A write lock is let go of: what was not committed by now was undone, or has failed.
    pub fn is_unlocked(&self) {
        self.forget_uncommitted(&mut self.inner.write());
        self.is_over();
    }

    /// A checkpoint is over: what can go below does; the rest is seen by all, and tried again.
    pub fn is_over(&self) {
        let inner = &mut *self.inner.write();
        if inner.journal.is_live_in_memory() || inner.before.is_some() || inner.failed {
            return;
        }
        self.try_to_apply(inner);
        inner.ends();
    }

    /// A checkpoint of the WAL begins: what it copies is in the file system's order before its copy.
    pub fn checkpoint_begins(&self) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        inner.before_checkpoint = Some(inner.pending.clone());
        self.image.fs.write_back().map_err(self.fault(sys::SQLITE_IOERR_WRITE, "the WAL"))
    }

    fn try_to_apply(&self, inner: &mut DatabaseState) {
        if let Err(fault) = self.apply(inner) {
            inner.pending.prune(&self.file);
            crate::api::log(fault.code, &fault.words);
        }
    }
}
