//! What changes of a database, behind one lock.

use libsqlite3_sys as sys;

use crate::error::VfsError;
use crate::journal::Journal;
use crate::pending::Pending;

/// What the lock of a database guards.
pub struct DatabaseState {
    /// Pages that are written and not in the file yet.
    pub(super) pending: Pending,
    /// The rollback journal.
    pub(super) journal: Journal,
    /// SQLite has asked that what is pending be durable when it is committed.
    pub(super) durable: bool,
    /// As it was when a batch began that SQLite may take back.
    pub(super) before: Option<Pending>,
    /// As it was when a checkpoint of the WAL began, which may fail.
    pub(super) before_checkpoint: Option<Pending>,
    /// A commit has failed, and SQLite undoes it by the journal, whose end that is.
    pub(super) failed: bool,
    /// A transaction has written pages.
    pub(super) writing: bool,
    /// Pages that could not be written before it, and are newer than the database file.
    pub(super) before_it: Option<Pending>,
    /// A part of it is in the database file.
    pub(super) touched: bool,
    /// The journal on the device was undone in memory alone: it stays, for the next opening, and nothing can be written before.
    pub(super) stays: bool,
    /// Where the pages of the WAL end that are not in the file yet.
    pub(super) wal_end: u64,
}

impl DatabaseState {
    /// Makes the state of a database file with this length, outside a transaction.
    pub(super) fn new(len: u64) -> DatabaseState {
        DatabaseState {
            pending: Pending::new(len),
            journal: Journal::No,
            durable: false,
            before: None,
            before_checkpoint: None,
            failed: false,
            writing: false,
            before_it: None,
            touched: false,
            stays: false,
            wal_end: 0,
        }
    }

    /// The device has failed a transaction whose journal is there: SQLite undoes it, and is not held up. Room may be made by undoing.
    pub(super) fn fails_by(&mut self, fault: &VfsError) {
        self.failed |= matches!(self.journal, Journal::Device(_)) && fault.code & 0xff != sys::SQLITE_FULL;
    }

    /// A transaction begins with the first page it writes.
    pub(super) fn begins(&mut self) {
        if !self.writing {
            self.writing = true;
            self.before_it = (!self.pending.is_empty()).then(|| self.pending.clone());
        }
    }

    /// It is over.
    pub(super) fn ends(&mut self) {
        (self.writing, self.touched, self.before_it) = (false, false, None);
    }

    /// Undoes it: nothing of it is in the database file.
    pub(super) fn restore(&mut self) {
        match self.before_it.take() {
            Some(before) => self.pending.back_to(before),
            None => self.pending.forget(),
        }
        self.writing = false;
    }

    /// Blocks that the database file gains by a write up to a place.
    pub(super) fn grown(&self, end: u64) -> u64 {
        blocks_between(self.pending.below(), end.max(self.pending.len()).max(self.wal_end))
    }
}

/// Returns the number of blocks between two lengths of a file.
pub(super) fn blocks_between(below: u64, end: u64) -> u64 {
    let block = rawfs::BLOCK_BYTES as u64;
    end.div_ceil(block).saturating_sub(below.div_ceil(block))
}
