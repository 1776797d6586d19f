//! A database, as the connections of this process share it.
//!
//! ```text
//!  written pages  --->  pending, in memory  --(one transaction of the file system, one flush)-->  the image
//!  rollback journal --->  in memory         --(its end is the moment of the above)
//! ```
//!
//! SQLite writes a rollback journal so that a transaction is whole. Here the file system sees to that: the journal and the changed
//! pages stay in memory until SQLite ends the journal (removes, truncates or clears it), which is its commit; then all pages go to
//! the image at once. A crash before that leaves the database as it was. What is too large for memory goes the way of every file:
//! journal on the device, synced, then pages (`spill`).
//!
//! A transaction over several databases has a super-journal, whose removal commits all of them: those in one image go down in one
//! transaction of the file system ([`commit_together`]).
//!
//! Without a journal (WAL, or `journal_mode` MEMORY and OFF) pages go down when SQLite syncs the file, or says that a checkpoint or a
//! commit is over.
//!
//! A statement that fails has not happened, and reading works after it (decisions/33):
//! - Blocks are promised to the file before a page is taken, so a full image is an error of xWrite, which SQLite can still undo.
//! - A commit that fails leaves the journal, and SQLite undoes it. Up to the journal's end nothing that fails is an error again: the
//!   the database file is unchanged, or is covered by pages in memory.
//! - Without a journal, pages that cannot be written are discarded as long as the database file is unchanged.
//! - The frame of a WAL that commits is taken back if its sync fails (`database/wal.rs`).

mod events;
mod rollback;
mod state;
#[cfg(test)]
pub(crate) mod test;
mod together;
mod wal;

use libsqlite3_sys as sys;
use parking_lot::{Mutex, RwLock};
use rawfs::fs::{Error, File};
use rustix::io::Errno;

use crate::error::{Outcome, VfsError};
use crate::gate::Gate;
use crate::image::OpenImage;
use crate::journal::Journal;
use crate::shm::Shm;
use crate::wal_state::WalState;
use state::{DatabaseState, blocks_between};

pub use together::commit_together;

/// Blocks in memory that are not committed, at most; a journal may have about as many bytes.
const BLOCKS_MAX: usize = 2048;
const JOURNAL_MAX: u64 = 16 << 20;
/// Blocks that are always promised to a database, at most: what undoes a large transaction needs them, and transactions by which a
/// database does not grow may have them: what removes rows writes pages too, to new places.
const RESERVE: u64 = 256;

/// A database that the connections of this process share.
pub struct Database {
    path: Vec<u8>,
    file: File,
    inner: RwLock<DatabaseState>,
    /// The SQLite locks of all connections.
    pub locks: Gate,
    /// The index of the write-ahead log.
    pub shm: Mutex<Shm>,
    /// What is known of the WAL.
    wal: Mutex<WalState>,
    /// Blocks that are promised to it whatever it does.
    reserve: u64,
    /// Behind the file, which it has to outlive.
    image: OpenImage,
}

impl Database {
    /// Makes a database over an open file.
    pub fn new(image: OpenImage, path: Vec<u8>, file: File) -> Outcome<Database> {
        let len = file.node().stat().map_err(VfsError::of(sys::SQLITE_IOERR_FSTAT, "the database's size"))?.size;
        let reserve = RESERVE.min(image.fs.stat_fs().blocks / 64).max(1);
        // If there is no room now, there may be when something is written.
        let _ = file.reserve(reserve);
        let (locks, shm, wal) = (Gate::default(), Mutex::default(), Mutex::default());
        Ok(Database { path, file, inner: RwLock::new(DatabaseState::new(len)), locks, shm, wal, reserve, image })
    }

    /// Returns the inode number of the file.
    pub fn ino(&self) -> u64 {
        self.file.node().ino()
    }

    /// The image it is in.
    pub fn image(&self) -> &OpenImage {
        &self.image
    }

    /// Reads, and returns the number of bytes.
    pub fn read(&self, to: &mut [u8], at: u64) -> Outcome<usize> {
        self.inner.read().pending.read(&self.file, to, at).map_err(self.fault(sys::SQLITE_IOERR_READ, "reading"))
    }

    /// Writes to the database in memory.
    pub fn write(&self, from: &[u8], at: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        // SQLite goes on with no transaction of which a write has failed, and has not always what undoes it.
        self.write_pages(inner, from, at).inspect_err(|fault| {
            self.forget_uncommitted(inner);
            inner.fails_by(fault);
        })
    }

    /// Without a journal: what was not committed is discarded if the database file is unchanged.
    fn forget_uncommitted(&self, inner: &mut DatabaseState) {
        let undoable = inner.journal.is_live_in_memory() || matches!(inner.journal, Journal::Device(_));
        if inner.writing && !undoable && !inner.touched && inner.before.is_none() && !self.wal.lock().is_open() {
            inner.restore();
        }
    }

    fn write_pages(&self, inner: &mut DatabaseState, from: &[u8], at: u64) -> Outcome<()> {
        self.begins(inner)?;
        self.keep_bounded(inner)?;
        if let Err(error) = self.promise(inner, at, from.len()) {
            // What is undone is there already, or becomes what the file is below.
            if inner.pending.has(&self.file, from, at) {
                return Ok(());
            }
            if !inner.failed {
                return Err(self.fault(sys::SQLITE_FULL, "writing")(error));
            }
        }
        inner.pending.write(&self.file, from, at).map_err(self.fault(sys::SQLITE_IOERR_WRITE, "writing"))
    }

    /// A transaction begins with the first page it writes. What the journal that stays would undo is undone before: not every
    /// transaction opens a journal (MEMORY, OFF, and where the last one is still open), and that one would undo what it commits.
    fn begins(&self, inner: &mut DatabaseState) -> Outcome<()> {
        if inner.stays && !inner.writing && !inner.journal.is_live_in_memory() {
            self.undo_on_device(inner)?;
        }
        inner.begins();
        Ok(())
    }

    /// Has blocks promised for what is in memory and for a write, so that it can go down. FULL is said while SQLite can still take the
    /// transaction back at ease.
    fn promise(&self, inner: &DatabaseState, at: u64, len: usize) -> rawfs::fs::Result<()> {
        let added = inner.pending.added_by(at, len);
        if added == 0 {
            return Ok(());
        }
        let grown = inner.grown(at + len as u64);
        let pieces = matches!(inner.journal, Journal::Device(_)) || inner.touched || self.wal.lock().is_open();
        let wanted = if pieces {
            grown + self.reserve
        } else {
            let all = inner.pending.blocks() as u64 + added;
            if grown > 0 { all + self.reserve } else { all.max(self.reserve) }
        };
        self.file.reserve(wanted)
    }

    fn keep_bounded(&self, inner: &mut DatabaseState) -> Outcome<()> {
        if inner.failed {
            return Ok(());
        }
        let full = inner.pending.blocks() >= BLOCKS_MAX;
        if inner.journal.is_live_in_memory() {
            let large = inner.journal.len().is_ok_and(|len| len > JOURNAL_MAX);
            return if full || large { self.spill(inner) } else { Ok(()) };
        }
        // Within a batch that may be taken back nothing goes down.
        if full && inner.before.is_none() { self.apply(inner) } else { Ok(()) }
    }

    /// Sets the length of the database.
    pub fn set_len(&self, len: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        self.begins(inner)?;
        inner.pending.set_len(&self.file, len).map_err(self.fault(sys::SQLITE_IOERR_TRUNCATE, "truncating"))?;
        // What is undone by a journal on the device makes room for the undoing.
        if matches!(inner.journal, Journal::Device(_)) && !inner.pending.grows() {
            inner.pending.cut(&self.file);
        }
        Ok(())
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.inner.read().pending.len()
    }

    /// All that was written is durable when this returns, or when the journal ends that could undo it.
    pub fn sync(&self) -> Outcome<()> {
        {
            let inner = &mut *self.inner.write();
            inner.durable = true;
            // A rollback does not wait: the end of the journal puts the file right.
            if inner.journal.is_live_in_memory() || inner.failed {
                return Ok(());
            }
            self.apply_or_forget(inner)?;
        }
        // Others read meanwhile.
        let synced = self.sync_file();
        let inner = &mut *self.inner.write();
        let on_device = matches!(inner.journal, Journal::Device(_));
        if synced.is_err() {
            inner.failed |= on_device;
        } else {
            inner.durable = on_device;
            inner.before_checkpoint = None;
        }
        synced
    }

    fn sync_file(&self) -> Outcome<()> {
        self.file.sync().map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "making it durable"))
    }

    /// What is pending goes below, as one if that can be.
    fn apply(&self, inner: &mut DatabaseState) -> Outcome<()> {
        if inner.pending.is_empty() {
            return Ok(());
        }
        let fs = &self.image.fs;
        if let Journal::Device(journal) = &inner.journal {
            journal.sync().map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "the journal"))?;
            return self.apply_in_pieces(inner).map_err(self.fault(sys::SQLITE_IOERR_WRITE, "writing"));
        }
        let outcome = match inner.pending.apply(fs, &self.file) {
            Err(Error::Store(rawfs::Error::TooLarge(_))) if inner.journal.is_live_in_memory() => return self.spill(inner),
            Err(Error::Store(rawfs::Error::TooLarge(_))) => self.apply_in_pieces(inner),
            // What it replaces makes room for the next piece.
            Err(error) if error.errno() == Errno::NOSPC && (inner.touched || self.wal.lock().is_open()) => self.apply_in_pieces(inner),
            outcome => outcome,
        };
        inner.touched |= outcome.is_ok();
        self.keep_reserve(inner);
        outcome.map_err(self.fault(sys::SQLITE_IOERR_WRITE, "writing"))
    }

    fn apply_in_pieces(&self, inner: &mut DatabaseState) -> rawfs::fs::Result<()> {
        inner.touched = true;
        let end = inner.pending.len().max(inner.wal_end);
        let piece = usize::try_from(self.reserve).unwrap_or(usize::MAX);
        let mut next = |below| {
            let _ = self.file.reserve(blocks_between(below, end) + self.reserve);
        };
        next(inner.pending.below());
        inner.pending.apply_in_pieces(&self.image.fs, &self.file, piece, &mut next)
    }

    /// What was promised was used up; it is there again, as what it replaced is free.
    fn keep_reserve(&self, inner: &DatabaseState) {
        let _ = self.file.reserve(inner.grown(0) + self.reserve + inner.pending.blocks() as u64);
    }

    /// As [`Database::apply`], without a journal: what cannot be written is discarded if the file is unchanged, since SQLite learns
    /// that it has not happened.
    fn apply_or_forget(&self, inner: &mut DatabaseState) -> Outcome<()> {
        let Err(fault) = self.apply(inner) else { return Ok(()) };
        if matches!(inner.journal, Journal::Device(_)) {
            inner.failed = true;
            return Err(fault);
        }
        if let Some(before) = inner.before_checkpoint.take() {
            // The WAL has what the checkpoint wrote.
            inner.pending.back_to(before);
            return Err(fault);
        }
        inner.pending.prune(&self.file);
        if inner.pending.is_empty() {
            return Ok(());
        }
        self.forget_uncommitted(inner);
        Err(fault)
    }

    fn fault(&self, code: i32, what: &str) -> impl Fn(Error) -> VfsError {
        move |error| {
            let named = format_args!("{}/{}: {what}", self.image.name.display(), String::from_utf8_lossy(&self.path));
            VfsError::of(code, named)(error)
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        if let Journal::Memory(bytes) = &inner.journal
            && inner.journal.is_live_in_memory()
            && inner.touched
        {
            // A commit failed and was not undone: the next opening does that.
            let bytes = bytes.clone();
            if let Err(fault) = self.put_journal(&bytes) {
                crate::api::log(fault.code, &fault.words);
            }
            return;
        }
        self.is_over();
    }
}
