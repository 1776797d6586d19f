//! A database's WAL: a file as any other, of which two things are known here.
//!
//! - Each page in it will go into the database with a checkpoint: blocks for those that make it longer are promised before the frame is
//!   taken, so that a checkpoint never lacks room, and rows can always be removed.
//! - A transaction is committed by one frame. If the sync behind it fails, SQLite says that the statement failed, and leaves the frame,
//!   which the next opening would take for a commit: it is cut off.

use libsqlite3_sys as sys;
use rawfs::fs::{Error, File};
use rustix::io::Errno;

use super::Database;
use crate::error::{Outcome, VfsError};
use crate::wal_state::{FRAME, HEADER, NO_FRAME, WalState, number};

impl Database {
    /// A connection opens the WAL.
    pub fn open_wal(&self, file: &File) -> Outcome<()> {
        if !self.wal.lock().is_open() {
            self.promise_what_is_there(file)?;
        }
        self.wal.lock().opened += 1;
        Ok(())
    }

    /// After a crash there may be frames: their pages need room as those that are written.
    fn promise_what_is_there(&self, file: &File) -> Outcome<()> {
        let fault = || self.file_fault(sys::SQLITE_IOERR_READ);
        let len = file.node().stat().map_err(fault())?.size;
        let page = self.page_of(file).map_err(fault())?;
        let mut end = 0;
        if page > 0 {
            let mut head = NO_FRAME;
            let mut at = HEADER as u64;
            while at + FRAME as u64 + page <= len && file.read_at(&mut head, at).map_err(fault())? == FRAME {
                end = end.max(number(&head[..4]).saturating_mul(page));
                at += FRAME as u64 + page;
            }
        }
        // What is not valid there may say anything; then there is no such room, and no need of it.
        if end > 0 {
            let _ = self.promise_wal(end.min(rawfs::fs::SIZE_MAX), true);
        }
        Ok(())
    }

    /// Closes the write-ahead log for one connection.
    pub fn close_wal(&self) {
        let mut wal = self.wal.lock();
        wal.opened -= 1;
        if wal.opened == 0 {
            *wal = WalState::default();
            drop(wal);
            self.wal_ends();
        }
    }

    fn page_of(&self, file: &File) -> rawfs::fs::Result<u64> {
        let mut header = [0; HEADER];
        let known = self.wal.lock().page;
        if known > 0 || file.read_at(&mut header, 0)? < HEADER {
            return Ok(known);
        }
        // 1 is 65536.
        let page = if number(&header[8..12]) == 1 { 1 << 16 } else { number(&header[8..12]) };
        Ok(if page.is_power_of_two() && (512..=1 << 16).contains(&page) { page } else { 0 })
    }

    /// Writes to the write-ahead log.
    pub fn write_wal(&self, who: u64, file: &File, from: &[u8], at: u64) -> Outcome<()> {
        self.cut_what_failed(file)?;
        if at == 0 {
            self.begin_wal(from);
        } else if from.len() == FRAME {
            self.begin_frame(who, file, from, at)?;
        }
        let fault = || self.file_fault(sys::SQLITE_IOERR_WRITE);
        let mut done = file.write_at(from, at);
        if !self.wal.lock().grows && !matches!(done, Ok(done) if done == from.len()) && is_full(&done) {
            // What does not make the database longer may use some of the room that is kept.
            self.promise_wal(0, false)?;
            done = file.write_at(from, at);
        }
        let outcome = match done {
            Ok(done) if done == from.len() => return Ok(()),
            Ok(_) => Err(fault()(Error::Refused(Errno::NOSPC))),
            Err(error) => Err(fault()(error)),
        };
        // Copies of the frame that commits may follow it.
        self.take_back(who, file);
        outcome
    }

    fn begin_wal(&self, from: &[u8]) {
        {
            let mut wal = self.wal.lock();
            wal.is_committed();
            wal.page = if from.len() == HEADER { number(&from[8..12]) } else { 0 };
        }
        self.wal_begins();
    }

    fn begin_frame(&self, who: u64, file: &File, from: &[u8], at: u64) -> Outcome<()> {
        let page = self.page_of(file).map_err(self.file_fault(sys::SQLITE_IOERR_READ))?;
        if page == 0 || !(at - HEADER as u64).is_multiple_of(page + FRAME as u64) {
            return Ok(());
        }
        let end = number(&from[..4]).saturating_mul(page);
        let longer = end > self.len();
        let grows = {
            let mut wal = self.wal.lock();
            wal.page = page;
            wal.grows |= longer;
            if number(&from[4..8]) > 0 {
                // In exclusive locking mode nothing says that the one before was taken back by SQLite, whose place this transaction has.
                (wal.commit_at, wal.writer) = (Some(wal.commit_at.map_or(at, |known| known.min(at))), Some(who));
            }
            wal.grows
        };
        if longer { self.promise_wal(end.min(rawfs::fs::SIZE_MAX), grows) } else { Ok(()) }
    }

    /// Makes it durable; if that fails, the transaction under way has not happened.
    pub fn sync_wal(&self, who: u64, file: &File) -> Outcome<()> {
        self.cut_what_failed(file)?;
        let synced = file.sync().map_err(self.file_fault(sys::SQLITE_IOERR_FSYNC));
        if synced.is_err() {
            self.take_back(who, file);
        }
        synced
    }

    /// The write lock of a WAL is let go of: no transaction is under way.
    pub fn wal_is_unlocked(&self) {
        self.wal.lock().is_committed();
    }

    fn take_back(&self, who: u64, file: &File) {
        let at = {
            let wal = &mut *self.wal.lock();
            // Another connection that copies the WAL leaves a transaction alone that it does not know.
            let commit_at = if wal.writer == Some(who) { wal.commit_at.take() } else { None };
            wal.to_cut = wal.to_cut.or(commit_at);
            wal.to_cut
        };
        if at.is_some()
            && let Err(fault) = self.cut_what_failed(file)
        {
            crate::api::log(fault.code, &fault.words);
        }
    }

    fn cut_what_failed(&self, file: &File) -> Outcome<()> {
        // With the lock: another connection may cut it too, and write there.
        let wal = &mut *self.wal.lock();
        let Some(at) = wal.to_cut else { return Ok(()) };
        // In memory it is gone, whatever the device does.
        let _ = file.write_at(&NO_FRAME, at);
        file.set_len(at).map_err(self.file_fault(sys::SQLITE_IOERR_TRUNCATE))?;
        // The failures so far were errors of statements. All that the WAL still has is in memory or on the device, and the next sync
        // tries all of it again: it does not fail for what has failed before.
        let _ = file.take_error();
        wal.to_cut = None;
        Ok(())
    }

    /// Has blocks promised for pages that are in the WAL: up to a place in the file. `grows`: the transaction makes the database longer;
    /// if not, it may have some of those that are promised for other things.
    fn promise_wal(&self, end: u64, grows: bool) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        let grown = inner.grown(end);
        let wanted = grown + if grows { self.reserve } else { self.reserve / 4 };
        self.file.reserve(wanted).map_err(self.fault(sys::SQLITE_FULL, "writing the WAL"))?;
        inner.wal_end = inner.wal_end.max(end);
        Ok(())
    }

    /// The last connection has closed the WAL.
    fn wal_ends(&self) {
        self.wal_begins();
        self.inner.write().before_checkpoint = None;
    }

    /// The WAL begins anew: its pages are in the file.
    fn wal_begins(&self) {
        let inner = &mut *self.inner.write();
        inner.wal_end = 0;
        let _ = self.file.reserve(inner.grown(0) + self.reserve);
    }

    fn file_fault(&self, code: i32) -> impl Fn(Error) -> VfsError {
        self.fault(code, "the WAL")
    }
}

fn is_full(done: &rawfs::fs::Result<usize>) -> bool {
    done.as_ref().map_or_else(|error| error.errno() == Errno::NOSPC, |_| true)
}

#[cfg(test)]
mod test {
    use super::*;

    fn frame(page: u32, pages: u32) -> [u8; FRAME] {
        let mut head = [1; FRAME];
        head[..4].copy_from_slice(&page.to_be_bytes());
        head[4..8].copy_from_slice(&pages.to_be_bytes());
        head
    }

    fn len(file: &File) -> u64 {
        file.node().stat().expect("there").size
    }

    #[test]
    fn a_failure_takes_back_what_its_own_connection_commits() {
        let database = crate::database::test::memory("/memory-wal");
        let fs = &database.image().fs;
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE;
        let wal = fs.open_at(fs.root(), b"/db-wal", flags, 0o600, &database.image().creds).expect("made");
        assert_eq!(database.open_wal(&wal), Ok(()));
        let mut header = [0; HEADER];
        header[8..12].copy_from_slice(&512u32.to_be_bytes());
        assert_eq!(database.write_wal(1, &wal, &header, 0), Ok(()));
        let mut at = HEADER as u64;
        for pages in [0, 2] {
            assert_eq!(database.write_wal(1, &wal, &frame(2, pages), at), Ok(()));
            assert_eq!(database.write_wal(1, &wal, &[1; 512], at + FRAME as u64), Ok(()));
            at += FRAME as u64 + 512;
        }
        // A checkpoint of another connection fails before the first learns that it has committed.
        database.take_back(2, &wal);
        assert_eq!(len(&wal), at);
        // SQLite goes on at the place of one that it took back itself.
        assert_eq!(database.write_wal(1, &wal, &frame(1, 2), HEADER as u64), Ok(()));
        database.take_back(1, &wal);
        assert_eq!(len(&wal), HEADER as u64);
        database.close_wal();
    }
}
