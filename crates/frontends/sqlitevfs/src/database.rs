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
//! - The frame of a WAL that commits is taken back if its sync fails (`wal.rs`).

use std::sync::Arc;

use libsqlite3_sys as sys;
use parking_lot::{Mutex, RwLock};
use rawfs::fs::{Creds, Error, File};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{Outcome, VfsError};
use crate::gate::Gate;
use crate::image::{Image, OpenImage};
use crate::journal::Journal;
use crate::pending::Pending;
use crate::shm::Shm;
use crate::wal::Wal;

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
    pub(crate) wal: Mutex<Wal>,
    /// Blocks that are promised to it whatever it does.
    reserve: u64,
    /// Behind the file, which it has to outlive.
    image: OpenImage,
}

struct DatabaseState {
    pending: Pending,
    journal: Journal,
    /// SQLite has asked that what is pending be durable when it is committed.
    durable: bool,
    /// As it was when a batch began that SQLite may take back.
    before: Option<Pending>,
    /// As it was when a checkpoint of the WAL began, which may fail.
    before_checkpoint: Option<Pending>,
    /// A commit has failed, and SQLite undoes it by the journal, whose end that is.
    failed: bool,
    /// A transaction has written pages.
    writing: bool,
    /// Pages that could not be written before it, and are newer than the database file.
    before_it: Option<Pending>,
    /// A part of it is in the database file.
    touched: bool,
    /// The journal on the device was undone in memory alone: it stays, for the next opening, and nothing can be written before.
    stays: bool,
    /// Where the pages of the WAL end that are not in the file yet.
    wal_end: u64,
}

impl Database {
    /// Makes a database over an open file.
    pub fn new(image: OpenImage, path: Vec<u8>, file: File) -> Outcome<Database> {
        let len = file.node().stat().map_err(VfsError::of(sys::SQLITE_IOERR_FSTAT, "the database's size"))?.size;
        let inner = DatabaseState {
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
        };
        let reserve = RESERVE.min(image.fs.stat_fs().blocks / 64).max(1);
        // If there is no room now, there may be when something is written.
        let _ = file.reserve(reserve);
        let (locks, shm, wal) = (Gate::default(), Mutex::default(), Mutex::default());
        Ok(Database { path, file, inner: RwLock::new(inner), locks, shm, wal, reserve, image })
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

    /// Has blocks promised for pages that are in the WAL: up to a place in the file. `grows`: the transaction makes the database longer;
    /// if not, it may have some of those that are promised for other things.
    pub(crate) fn promise_wal(&self, end: u64, grows: bool) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        let grown = inner.grown(end);
        let wanted = grown + if grows { self.reserve } else { self.reserve / 4 };
        self.file.reserve(wanted).map_err(self.fault(sys::SQLITE_FULL, "writing the WAL"))?;
        inner.wal_end = inner.wal_end.max(end);
        Ok(())
    }

    /// The last connection has closed the WAL.
    pub(crate) fn wal_ends(&self) {
        self.wal_begins();
        self.inner.write().before_checkpoint = None;
    }

    /// The WAL begins anew: its pages are in the file.
    pub(crate) fn wal_begins(&self) {
        let inner = &mut *self.inner.write();
        inner.wal_end = 0;
        let _ = self.file.reserve(inner.grown(0) + self.reserve);
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

    /// The journal goes to the device, then the pages: the way of large transactions.
    fn spill(&self, inner: &mut DatabaseState) -> Outcome<()> {
        let Journal::Memory(bytes) = &inner.journal else { return Ok(()) };
        // What undoes it needs room, beside what it adds.
        self.file.reserve(inner.grown(0) + self.reserve).map_err(self.fault(sys::SQLITE_FULL, "writing the journal"))?;
        let file = self.put_journal(bytes).inspect_err(|_| {
            // A part of a journal would undo what is committed later.
            inner.stays |= self.unlink_journal().is_err();
        })?;
        (inner.journal, inner.stays) = (Journal::Device(file), false);
        self.apply(inner)
    }

    /// Writes a journal that is in memory to the device.
    fn put_journal(&self, bytes: &[u8]) -> Outcome<File> {
        let fault = || self.fault(sys::SQLITE_IOERR_WRITE, "writing the journal");
        let file = self.open_journal(OFlags::CREATE | OFlags::TRUNC).map_err(fault())?;
        let bytes = Journal::stripped(bytes);
        let written = file.write_at(bytes, 0).map_err(fault())?;
        if written < bytes.len() { Err(fault()(Error::Refused(Errno::NOSPC))) } else { Ok(file) }
    }

    /// Removes the journal from the device; `false`: there is none.
    fn unlink_journal(&self) -> rawfs::fs::Result<bool> {
        let (fs, path) = (&self.image.fs, [&self.path[..], b"-journal"].concat());
        match fs.unlink(fs.root(), &path, &self.image.creds) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Errno::NOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn open_journal(&self, more: OFlags) -> rawfs::fs::Result<File> {
        let (fs, path) = (&self.image.fs, [&self.path[..], b"-journal"].concat());
        fs.open_at(fs.root(), &path, OFlags::RDWR | more, 0o644, &Creds { umask: 0, ..self.image.creds.clone() })
    }

    // ---- the journal

    /// Opens it; `make`: if there is none. `false`: there is none.
    pub fn open_the_journal(&self, make: bool) -> Outcome<bool> {
        let inner = &mut *self.inner.write();
        if inner.stays {
            if !make {
                return Ok(false);
            }
            self.undo_on_device(inner)?;
        }
        if !inner.journal.exists() {
            match self.open_journal(OFlags::empty()) {
                Ok(file) => inner.journal = Journal::Device(file),
                Err(error) if error.errno() == Errno::NOENT && make => inner.journal = Journal::Memory(Vec::new()),
                Err(error) if error.errno() == Errno::NOENT => return Ok(false),
                Err(error) => return Err(self.fault(sys::SQLITE_CANTOPEN, "the journal")(error)),
            }
        }
        Ok(true)
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

    /// What was undone in memory alone is undone on the device, if that works again.
    fn undo_on_device(&self, inner: &mut DatabaseState) -> Outcome<()> {
        let fault = || self.fault(sys::SQLITE_IOERR_WRITE, "undoing");
        self.apply_in_pieces(inner).map_err(fault())?;
        self.sync_file()?;
        self.unlink_journal().map_err(fault())?;
        inner.stays = false;
        inner.ends();
        Ok(())
    }

    /// Whether one is known here, and there is something in it; `None`: what the device has counts.
    pub fn has_journal(&self) -> Option<bool> {
        let inner = self.inner.read();
        if inner.journal.exists() && inner.journal.len().is_ok_and(|len| len > 0) {
            return Some(true);
        }
        inner.stays.then_some(false)
    }

    /// Returns the journal's length as SQLite sees it.
    pub fn journal_len(&self) -> Outcome<u64> {
        self.inner.read().journal.len().map_err(self.fault(sys::SQLITE_IOERR_FSTAT, "the journal's size"))
    }

    /// Reads from the journal, and returns the number of bytes.
    pub fn read_journal(&self, to: &mut [u8], at: u64) -> Outcome<usize> {
        self.inner.read().journal.read(to, at).map_err(self.fault(sys::SQLITE_IOERR_READ, "reading the journal"))
    }

    /// Writes; if that ends the journal, what is pending is committed before.
    pub fn write_journal(&self, from: &[u8], at: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        if inner.journal.is_ended_by(from, at) {
            return self.end_journal_by_name(inner, sys::SQLITE_IOERR_WRITE);
        }
        let fault = || self.fault(sys::SQLITE_IOERR_WRITE, "writing the journal");
        // SQLite writes a little at a time; this is more than memory is for.
        if matches!(inner.journal, Journal::Memory(_)) && at + from.len() as u64 > 2 * JOURNAL_MAX {
            self.spill(inner)?;
        }
        let written = inner.journal.write(from, at).map_err(fault())?;
        if written < from.len() {
            return Err(fault()(Error::Refused(Errno::NOSPC)));
        }
        inner.journal.forget_super(from, at).map_err(fault())
    }

    /// Truncates; to nothing: it ends.
    pub fn set_journal_len(&self, len: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        if len > 0 {
            return inner.journal.set_len(len).map_err(self.fault(sys::SQLITE_IOERR_TRUNCATE, "truncating the journal"));
        }
        self.end_journal_by_name(inner, sys::SQLITE_IOERR_TRUNCATE)
    }

    /// Ends a journal that SQLite truncates or clears. One on the device is removed instead: if that cannot be made durable it still has
    /// what undoes the commit.
    fn end_journal_by_name(&self, inner: &mut DatabaseState, code: i32) -> Outcome<()> {
        self.end_journal(inner, |database, inner| match inner.journal {
            Journal::Device(_) => database.unlink_journal().map(drop).map_err(database.fault(code, "ending the journal")),
            Journal::Memory(_) | Journal::No => Ok(()),
        })?;
        if matches!(inner.journal, Journal::Device(_)) {
            inner.journal = Journal::Memory(Vec::new());
        }
        Ok(())
    }

    /// What it can undo is to be durable when it ends; on the device it is, now.
    pub fn sync_journal(&self) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        match &inner.journal {
            Journal::Device(file) if !inner.failed => {
                inner.durable = true;
                let synced = file.sync().map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "the journal"));
                synced.inspect_err(|fault| inner.fails_by(fault))
            }
            journal => {
                inner.durable |= journal.exists();
                Ok(())
            }
        }
    }

    /// Removes it, which ends it; `false`: there was none.
    pub fn remove_journal(&self) -> Outcome<bool> {
        let inner = &mut *self.inner.write();
        if inner.stays && !inner.journal.exists() {
            return Ok(true);
        }
        let mut was = inner.journal.exists();
        self.end_journal(inner, |database, _| {
            was |= database.unlink_journal().map_err(database.fault(sys::SQLITE_IOERR_DELETE, "removing the journal"))?;
            Ok(())
        })?;
        inner.journal = Journal::No;
        Ok(was)
    }

    /// The moment of a commit: what is pending goes below, then `end` ends a journal on the device, and all of it is durable if that was
    /// asked for. What fails leaves the journal, and SQLite undoes by it; that ends here, too, and does not fail.
    fn end_journal(&self, inner: &mut DatabaseState, end: impl FnOnce(&Database, &mut DatabaseState) -> Outcome<()>) -> Outcome<()> {
        if inner.failed && inner.writing && !inner.touched {
            // The database file is what the rollback made it.
            inner.restore();
        }
        let changed = !inner.pending.is_empty();
        let outcome = self.remove_what_stays(inner).and_then(|()| self.apply(inner)).and_then(|()| match inner.journal {
            // What was in memory may be on the device by now.
            Journal::Memory(_) if changed && inner.durable => self.sync_file(),
            Journal::Memory(_) => Ok(()),
            Journal::Device(_) | Journal::No => end(self, inner).and_then(|()| self.settle(inner)),
        });
        if let Err(fault) = outcome {
            if !inner.failed {
                inner.failed = inner.journal.exists();
                return Err(fault);
            }
            crate::api::log(fault.code, &fault.words);
            if matches!(inner.journal, Journal::Device(_)) {
                (inner.stays, inner.journal) = (true, Journal::No);
            }
        }
        if let Journal::Memory(bytes) = &mut inner.journal {
            bytes.clear();
        }
        (inner.failed, inner.durable) = (false, false);
        inner.ends();
        self.keep_reserve(inner);
        Ok(())
    }

    /// A part of a journal, which a spill has left on the device, would undo what is committed now. Nothing of this transaction is in
    /// the file yet.
    fn remove_what_stays(&self, inner: &mut DatabaseState) -> Outcome<()> {
        if inner.stays && inner.journal.exists() {
            self.unlink_journal().map_err(self.fault(sys::SQLITE_IOERR_DELETE, "removing the journal"))?;
            inner.stays = false;
        }
        Ok(())
    }

    /// A journal on the device has ended: that is durable too, as the commit it stands for.
    fn settle(&self, inner: &DatabaseState) -> Outcome<()> {
        if !inner.durable {
            return Ok(());
        }
        let fs = &self.image.fs;
        let outcome = fs.store().sync(fs.store().applied()).map_err(Error::from);
        outcome.map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "ending the journal"))
    }

    // ---- what SQLite tells

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

    fn try_to_apply(&self, inner: &mut DatabaseState) {
        if let Err(fault) = self.apply(inner) {
            inner.pending.prune(&self.file);
            crate::api::log(fault.code, &fault.words);
        }
    }

    /// A checkpoint of the WAL begins: what it copies is in the file system's order before its copy.
    pub fn checkpoint_begins(&self) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        inner.before_checkpoint = Some(inner.pending.clone());
        self.image.fs.write_back().map_err(self.fault(sys::SQLITE_IOERR_WRITE, "the WAL"))
    }

    pub(crate) fn file_fault(&self, code: i32) -> impl Fn(Error) -> VfsError {
        self.fault(code, "the WAL")
    }

    fn fault(&self, code: i32, what: &str) -> impl Fn(Error) -> VfsError {
        move |error| {
            let named = format_args!("{}/{}: {what}", self.image.name.display(), String::from_utf8_lossy(&self.path));
            VfsError::of(code, named)(error)
        }
    }
}

/// Commits databases of one image together, as far as what they changed is in memory; the others follow each by itself.
pub fn commit_together(image: &Image, databases: &[Arc<Database>]) -> Outcome<()> {
    let fault = || VfsError::of(sys::SQLITE_IOERR_WRITE, format!("{}: committing several databases", image.name.display()));
    let mut all = image.fs.begin();
    let mut parts: Vec<_> = databases.iter().map(|database| (database, database.inner.write())).collect();
    parts.retain(|(_, inner)| inner.journal.is_live_in_memory());
    for (database, inner) in &parts {
        inner.pending.gather(&database.file, &mut all).map_err(fault())?;
    }
    match image.fs.apply(&all) {
        // Too much for one transaction of the file system.
        Err(Error::Store(rawfs::Error::TooLarge(_))) => return Ok(()),
        outcome => outcome.map_err(fault())?,
    };
    let mut durable = false;
    for (database, inner) in &mut parts {
        inner.pending.applied(&database.file);
        inner.touched = true;
        database.keep_reserve(inner);
        durable |= inner.durable;
    }
    let store = image.fs.store();
    let synced = if durable { store.sync(store.applied()).map_err(Error::from).map_err(fault()) } else { Ok(()) };
    for (_, inner) in &mut parts {
        if synced.is_err() {
            // SQLite undoes each by its journal.
            inner.failed = true;
        } else {
            inner.durable = false;
            inner.ends();
            inner.journal.set_len(0).map_err(fault())?;
        }
    }
    synced
}

/// Blocks of a file beyond so many bytes, up to so many.
fn blocks_between(below: u64, end: u64) -> u64 {
    let block = rawfs::BLOCK_BYTES as u64;
    end.div_ceil(block).saturating_sub(below.div_ceil(block))
}

impl DatabaseState {
    /// The device has failed a transaction whose journal is there: SQLite undoes it, and is not held up. Room may be made by undoing.
    fn fails_by(&mut self, fault: &VfsError) {
        self.failed |= matches!(self.journal, Journal::Device(_)) && fault.code & 0xff != sys::SQLITE_FULL;
    }

    /// A transaction begins with the first page it writes.
    fn begins(&mut self) {
        if !self.writing {
            self.writing = true;
            self.before_it = (!self.pending.is_empty()).then(|| self.pending.clone());
        }
    }

    /// It is over.
    fn ends(&mut self) {
        (self.writing, self.touched, self.before_it) = (false, false, None);
    }

    /// Undoes it: nothing of it is in the database file.
    fn restore(&mut self) {
        match self.before_it.take() {
            Some(before) => self.pending.back_to(before),
            None => self.pending.forget(),
        }
        self.writing = false;
    }

    /// Blocks that the database file gains by a write up to a place.
    fn grown(&self, end: u64) -> u64 {
        blocks_between(self.pending.below(), end.max(self.pending.len()).max(self.wal_end))
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

#[cfg(test)]
pub(crate) mod test {
    use std::path::Path;

    use block::driver::MemoryDevice;
    use rawfs::fs::{Fs, FsSettings, Timestamp};
    use rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};

    use super::*;
    use crate::image;

    pub(crate) fn memory(name: &str) -> Database {
        let device = MemoryDevice::new(512, 32 << 20).expect("memory");
        let disk = || Disk::open(&device, &DiskSettings { buffer_bytes: 1 << 20, ..DiskSettings::default() }).expect("queues");
        Store::format(&disk(), &FormatOptions::default()).expect("formatted");
        let (store, _) = Store::open(disk(), &Settings::default()).expect("opened");
        Fs::format(&store, Timestamp::default()).expect("made");
        let (fs, _) = Fs::open(store, FsSettings::default()).expect("opened");
        image::mount(Path::new(name), fs).expect("mounted");
        let image = image::hold(Path::new(name), None).expect("held");
        let file = image.fs.open_at(image.fs.root(), b"/db", OFlags::RDWR | OFlags::CREATE, 0o644, &image.creds).expect("made");
        Database::new(image, b"/db".to_vec(), file).expect("a database")
    }

    fn below(database: &Database) -> Vec<u8> {
        let mut bytes = vec![0; database.file.node().stat().expect("there").size as usize];
        let done = database.file.read_at(&mut bytes, 0).expect("read");
        bytes.truncate(done);
        bytes
    }

    fn seen(database: &Database) -> Vec<u8> {
        let mut bytes = vec![0; database.len() as usize];
        assert_eq!(database.read(&mut bytes, 0), Ok(bytes.len()));
        bytes
    }

    /// Against a plain vector: readers see what was written, and the file has what was committed.
    #[test]
    fn it_is_a_file_that_changes_below_at_commits() {
        let database = memory("/memory-random");
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut model, mut committed) = (Vec::new(), Vec::new());
        let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
        for step in 0..1500 {
            if rng.u8(..8) == 0 {
                assert_eq!(database.write_journal(&[0; 28], 0), Ok(()));
                committed.clone_from(&model);
            }
            if database.journal_len() == Ok(0) {
                assert_eq!(database.write_journal(&magic, 0), Ok(()));
            }
            if rng.u8(..6) == 0 {
                let len = rng.usize(..60_000);
                assert_eq!(database.set_len(len as u64), Ok(()));
                model.resize(len, 0);
            } else {
                let (at, bytes) = (rng.usize(..50_000), vec![step as u8; rng.usize(1..9000)]);
                assert_eq!(database.write(&bytes, at as u64), Ok(()));
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(database.sync(), Ok(()));
            assert!(seen(&database) == model && below(&database) == committed, "step {step}");
        }
    }

    #[test]
    fn a_batch_is_whole_or_taken_back() {
        let database = memory("/memory-batch");
        assert_eq!((database.write(b"one", 0), database.sync()), (Ok(()), Ok(())));
        database.begin_batch();
        assert_eq!((database.write(b"two", 0), database.set_len(2)), (Ok(()), Ok(())));
        database.is_over();
        assert_eq!((seen(&database), below(&database)), (b"tw".to_vec(), b"one".to_vec()));
        database.undo_batch();
        assert_eq!(seen(&database), b"one");
        database.begin_batch();
        assert_eq!((database.write(b"2", 1), database.end_batch(), database.sync()), (Ok(()), Ok(()), Ok(())));
        assert_eq!(below(&database), b"o2e");
    }

    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

    fn is_on_device(database: &Database) -> bool {
        database.image.fs.stat(database.image.fs.root(), b"/db-journal", true, &database.image.creds).is_ok()
    }

    /// With `journal_mode` MEMORY or OFF, or in exclusive locking mode, no journal is opened before the next transaction.
    #[test]
    fn a_journal_that_stays_does_not_undo_what_is_committed_later() {
        let database = memory("/memory-stays");
        assert_eq!((database.write(&[1; 4096], 0), database.sync()), (Ok(()), Ok(())));
        database.is_over();
        drop(database.put_journal(&MAGIC).expect("written"));
        database.inner.write().stays = true;
        assert_eq!((database.has_journal(), seen(&database)), (Some(false), vec![1; 4096]));
        assert!(is_on_device(&database));
        assert_eq!((database.write(&[2; 4096], 0), database.sync()), (Ok(()), Ok(())));
        assert!(below(&database) == [2; 4096] && !is_on_device(&database));
    }

    #[test]
    fn what_is_in_memory_is_committed_beside_a_part_of_a_journal() {
        let database = memory("/memory-part");
        assert_eq!((database.write(&[1; 4096], 0), database.sync()), (Ok(()), Ok(())));
        assert_eq!(database.open_the_journal(true), Ok(true));
        assert_eq!((database.write_journal(&MAGIC, 0), database.write(&[2; 4096], 0)), (Ok(()), Ok(())));
        // A spill has failed, as has the removal of what it wrote.
        drop(database.put_journal(&MAGIC).expect("written"));
        database.inner.write().stays = true;
        assert_eq!((database.sync(), database.remove_journal()), (Ok(()), Ok(true)));
        assert_eq!((database.has_journal(), is_on_device(&database)), (None, false));
        assert!(below(&database) == [2; 4096]);
    }

    #[test]
    fn what_is_too_large_goes_by_a_journal_on_the_device() {
        let database = memory("/memory-large");
        assert_eq!((database.write(&[1; 4096], 0), database.sync()), (Ok(()), Ok(())));
        assert_eq!(database.open_the_journal(true), Ok(true));
        let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
        assert_eq!(database.write_journal(&magic, 0), Ok(()));
        let on_device = || database.image.fs.stat(database.image.fs.root(), b"/db-journal", true, &database.image.creds).is_ok();
        for block in 0..=BLOCKS_MAX as u64 {
            assert!(!on_device(), "before it is large");
            assert_eq!(database.write(&[2; 4096], block * 4096), Ok(()));
        }
        assert!(on_device());
        assert_eq!((database.sync(), database.remove_journal()), (Ok(()), Ok(true)));
        assert!(!on_device() && below(&database).iter().all(|byte| *byte == 2));
        assert_eq!(database.open_the_journal(false), Ok(false));
    }
}
