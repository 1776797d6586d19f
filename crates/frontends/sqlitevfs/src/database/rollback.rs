//! The rollback journal of a database, and commits by its end.

use libsqlite3_sys as sys;
use rawfs::fs::{Creds, Error, File};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::state::DatabaseState;
use super::{Database, JOURNAL_MAX};
use crate::error::Outcome;
use crate::journal::Journal;

impl Database {
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

    /// What was undone in memory alone is undone on the device, if that works again.
    pub(super) fn undo_on_device(&self, inner: &mut DatabaseState) -> Outcome<()> {
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

    /// The journal goes to the device, then the pages: the way of large transactions.
    pub(super) fn spill(&self, inner: &mut DatabaseState) -> Outcome<()> {
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
    pub(super) fn put_journal(&self, bytes: &[u8]) -> Outcome<File> {
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
}
