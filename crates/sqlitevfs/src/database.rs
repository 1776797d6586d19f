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

use std::sync::Arc;

use libsqlite3_sys as sys;
use parking_lot::{Mutex, RwLock};
use rawfs::fs::{Creds, Error, File};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::fault::{Fault, Outcome};
use crate::gate::Gate;
use crate::image::{Held, Image};
use crate::journal::Journal;
use crate::pending::Pending;
use crate::shm::Shm;

/// Blocks in memory that are not committed, at most; a journal may have about as many bytes.
const BLOCKS_MAX: usize = 2048;
const JOURNAL_MAX: u64 = 16 << 20;
/// Blocks that only transactions may have by which a database does not grow: what removes rows writes pages too, to new places.
const RESERVE: u64 = 256;

/// See the module.
pub struct Database {
    path: Vec<u8>,
    file: File,
    inner: RwLock<Inner>,
    /// Who may do what.
    pub locks: Gate,
    /// The WAL's index.
    pub shm: Mutex<Shm>,
    /// Behind the file, which it has to outlive.
    image: Held,
}

struct Inner {
    pending: Pending,
    journal: Journal,
    /// SQLite has asked that what is pending be durable when it is committed.
    durable: bool,
    /// As it was when a batch began that SQLite may take back.
    before: Option<Pending>,
}

impl Database {
    /// Over an open file.
    pub fn new(image: Held, path: Vec<u8>, file: File) -> Outcome<Database> {
        let len = file.node().stat().map_err(Fault::of(sys::SQLITE_IOERR_FSTAT, "the database's size"))?.size;
        let inner = Inner { pending: Pending::new(len), journal: Journal::No, durable: false, before: None };
        Ok(Database { path, file, inner: RwLock::new(inner), locks: Gate::default(), shm: Mutex::default(), image })
    }

    /// The file's number.
    pub fn ino(&self) -> u64 {
        self.file.node().ino()
    }

    /// The image it is in.
    pub fn image(&self) -> &Held {
        &self.image
    }

    /// Reads; returns how much.
    pub fn read(&self, to: &mut [u8], at: u64) -> Outcome<usize> {
        self.inner.read().pending.read(&self.file, to, at).map_err(self.fault(sys::SQLITE_IOERR_READ, "reading"))
    }

    /// Writes.
    pub fn write(&self, from: &[u8], at: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        self.keep_bounded(inner)?;
        inner.pending.write(&self.file, from, at).map_err(self.fault(sys::SQLITE_IOERR_WRITE, "writing"))
    }

    fn keep_bounded(&self, inner: &mut Inner) -> Outcome<()> {
        let full = inner.pending.blocks() >= BLOCKS_MAX;
        if inner.journal.is_live_in_memory() {
            let large = inner.journal.len().is_ok_and(|len| len > JOURNAL_MAX);
            return if full || large { self.spill(inner) } else { Ok(()) };
        }
        // Within a batch that may be taken back nothing goes down.
        if full && inner.before.is_none() { self.apply(inner) } else { Ok(()) }
    }

    /// Sets the length.
    pub fn set_len(&self, len: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        inner.pending.set_len(&self.file, len).map_err(self.fault(sys::SQLITE_IOERR_TRUNCATE, "truncating"))?;
        // What is undone by a journal on the device makes room for the undoing.
        if matches!(inner.journal, Journal::Device(_)) && !inner.pending.grows() {
            inner.pending.cut(&self.file);
        }
        Ok(())
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.inner.read().pending.len()
    }

    /// All that was written is durable when this returns, or when the journal ends that could undo it.
    pub fn sync(&self) -> Outcome<()> {
        {
            let inner = &mut *self.inner.write();
            inner.durable = true;
            if inner.journal.is_live_in_memory() {
                return self.expect_room(inner, 0);
            }
            self.apply(inner)?;
        }
        // Others read meanwhile.
        self.sync_file()?;
        let inner = &mut *self.inner.write();
        inner.durable = matches!(inner.journal, Journal::Device(_));
        Ok(())
    }

    fn sync_file(&self) -> Outcome<()> {
        self.file.sync().map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "making it durable"))
    }

    /// FULL is said while SQLite can still take the transaction back at ease. `more`: blocks needed beside the pages.
    fn expect_room(&self, inner: &Inner, more: u64) -> Outcome<()> {
        let space = self.image.fs.stat_fs();
        let reserve = if inner.pending.grows() { RESERVE.min(space.blocks / 64) } else { 0 };
        if space.free >= inner.pending.blocks() as u64 + more + reserve {
            return Ok(());
        }
        Err(self.fault(sys::SQLITE_FULL, "committing")(Error::Refused(Errno::NOSPC)))
    }

    /// What is pending goes below, as one if that can be.
    fn apply(&self, inner: &mut Inner) -> Outcome<()> {
        if inner.pending.is_empty() {
            return Ok(());
        }
        let fs = &self.image.fs;
        if let Journal::Device(journal) = &inner.journal {
            self.expect_room(inner, 0)?;
            journal.sync().map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "the journal"))?;
            return inner.pending.apply_in_pieces(fs, &self.file).map_err(self.fault(sys::SQLITE_IOERR_WRITE, "writing"));
        }
        let outcome = match inner.pending.apply(fs, &self.file) {
            Err(Error::Store(rawfs::Error::TooLarge(_))) if inner.journal.is_live_in_memory() => return self.spill(inner),
            Err(Error::Store(rawfs::Error::TooLarge(_))) => inner.pending.apply_in_pieces(fs, &self.file),
            outcome => outcome,
        };
        outcome.map_err(self.fault(sys::SQLITE_IOERR_WRITE, "writing"))
    }

    /// The journal goes to the device, then the pages: the way of large transactions.
    fn spill(&self, inner: &mut Inner) -> Outcome<()> {
        let fault = || self.fault(sys::SQLITE_IOERR_WRITE, "writing the journal");
        let Journal::Memory(bytes) = &inner.journal else { return Ok(()) };
        self.expect_room(inner, bytes.len().div_ceil(rawfs::BLOCK_BYTES) as u64)?;
        let file = self.open_journal(OFlags::CREATE | OFlags::TRUNC).map_err(fault())?;
        let bytes = Journal::stripped(bytes);
        let written = file.write_at(bytes, 0).map_err(fault())?;
        if written < bytes.len() {
            return Err(fault()(Error::Refused(Errno::NOSPC)));
        }
        inner.journal = Journal::Device(file);
        self.apply(inner)
    }

    fn open_journal(&self, more: OFlags) -> rawfs::fs::Result<File> {
        let (fs, path) = (&self.image.fs, [&self.path[..], b"-journal"].concat());
        fs.open_at(fs.root(), &path, OFlags::RDWR | more, 0o644, &Creds { umask: 0, ..self.image.creds.clone() })
    }

    // ---- the journal

    /// Opens it; `make`: if there is none. `false`: there is none.
    pub fn open_the_journal(&self, make: bool) -> Outcome<bool> {
        let inner = &mut *self.inner.write();
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

    /// Whether one is known here, and there is something in it.
    pub fn has_journal(&self) -> bool {
        let inner = self.inner.read();
        inner.journal.exists() && inner.journal.len().is_ok_and(|len| len > 0)
    }

    /// As SQLite finds it.
    pub fn journal_len(&self) -> Outcome<u64> {
        self.inner.read().journal.len().map_err(self.fault(sys::SQLITE_IOERR_FSTAT, "the journal's size"))
    }

    /// Reads; returns how much.
    pub fn read_journal(&self, to: &mut [u8], at: u64) -> Outcome<usize> {
        self.inner.read().journal.read(to, at).map_err(self.fault(sys::SQLITE_IOERR_READ, "reading the journal"))
    }

    /// Writes; if that ends the journal, what is pending is committed before.
    pub fn write_journal(&self, from: &[u8], at: u64) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        if inner.journal.is_ended_by(from, at) {
            self.commit(inner)?;
            if let Journal::Memory(bytes) = &mut inner.journal {
                bytes.clear();
                return Ok(());
            }
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
        if len == 0 {
            self.commit(inner)?;
        }
        inner.journal.set_len(len).map_err(self.fault(sys::SQLITE_IOERR_TRUNCATE, "truncating the journal"))?;
        if len == 0 { self.settle(inner) } else { Ok(()) }
    }

    /// What it can undo is to be durable when it ends; on the device it is, now.
    pub fn sync_journal(&self) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        match &inner.journal {
            Journal::Device(file) => {
                inner.durable = true;
                file.sync().map_err(self.fault(sys::SQLITE_IOERR_FSYNC, "the journal"))
            }
            journal => {
                inner.durable |= journal.is_live_in_memory();
                Ok(())
            }
        }
    }

    /// Removes it, which ends it; `false`: there was none.
    pub fn remove_journal(&self) -> Outcome<bool> {
        let inner = &mut *self.inner.write();
        self.commit(inner)?;
        match &inner.journal {
            Journal::Memory(_) => {
                inner.journal = Journal::No;
                return Ok(true);
            }
            Journal::Device(_) | Journal::No => {}
        }
        let (fs, path) = (&self.image.fs, [&self.path[..], b"-journal"].concat());
        match fs.unlink(fs.root(), &path, &self.image.creds) {
            Ok(()) => {}
            Err(error) if error.errno() == Errno::NOENT => return Ok(false),
            Err(error) => return Err(self.fault(sys::SQLITE_IOERR_DELETE, "removing the journal")(error)),
        }
        inner.journal = Journal::No;
        self.settle(inner)?;
        Ok(true)
    }

    /// The moment of a commit: what is pending goes below, and is durable if that was asked for.
    fn commit(&self, inner: &mut Inner) -> Outcome<()> {
        let changed = !inner.pending.is_empty();
        self.apply(inner)?;
        if matches!(inner.journal, Journal::Device(_)) {
            return Ok(());
        }
        if changed && inner.durable {
            self.sync_file()?;
        }
        inner.durable = false;
        Ok(())
    }

    /// A journal on the device has ended: that is durable too, as the commit it stands for.
    fn settle(&self, inner: &mut Inner) -> Outcome<()> {
        let asked = std::mem::take(&mut inner.durable);
        if !asked {
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
        let inner = &mut *self.inner.write();
        self.expect_room(inner, 0)?;
        inner.before = None;
        Ok(())
    }

    /// It is taken back.
    pub fn undo_batch(&self) {
        let inner = &mut *self.inner.write();
        if let Some(before) = inner.before.take() {
            inner.pending = before;
        }
    }

    /// A commit, a checkpoint or a write lock is over: what nothing can undo goes below, in order with all else.
    pub fn is_over(&self) -> Outcome<()> {
        let inner = &mut *self.inner.write();
        if inner.journal.is_live_in_memory() || inner.before.is_some() { Ok(()) } else { self.apply(inner) }
    }

    /// A checkpoint of the WAL begins: what it copies is in the file system's order before its copy.
    pub fn checkpoint_begins(&self) -> Outcome<()> {
        self.image.fs.write_back().map_err(self.fault(sys::SQLITE_IOERR_WRITE, "the WAL"))
    }

    fn fault(&self, code: i32, what: &str) -> impl Fn(Error) -> Fault {
        move |error| {
            let named = format_args!("{}/{}: {what}", self.image.name.display(), String::from_utf8_lossy(&self.path));
            Fault::of(code, named)(error)
        }
    }
}

/// Commits databases of one image together, as far as what they changed is in memory; the others follow each by itself.
pub fn commit_together(image: &Image, databases: &[Arc<Database>]) -> Outcome<()> {
    let fault = || Fault::of(sys::SQLITE_IOERR_WRITE, format!("{}: committing several databases", image.name.display()));
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
        durable |= std::mem::take(&mut inner.durable);
        inner.journal.set_len(0).map_err(fault())?;
    }
    let store = image.fs.store();
    if durable { store.sync(store.applied()).map_err(Error::from).map_err(fault()) } else { Ok(()) }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Err(fault) = self.is_over() {
            crate::api::log(fault.code, &fault.words);
        }
    }
}

#[cfg(test)]
mod test {
    use std::path::Path;

    use block::driver::MemoryDevice;
    use rawfs::fs::{Fs, FsSettings, Stamp};
    use rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};

    use super::*;
    use crate::image;

    fn memory(name: &str) -> Database {
        let device = MemoryDevice::new(512, 32 << 20).expect("memory");
        let disk = || Disk::open(&device, &DiskSettings { buffer_bytes: 1 << 20, ..DiskSettings::default() }).expect("queues");
        Store::format(&disk(), &FormatOptions::default()).expect("formatted");
        let (store, _) = Store::open(disk(), &Settings::default()).expect("opened");
        Fs::format(&store, Stamp::default()).expect("made");
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

    /// Against a plain vector: what is seen is what was written, and what is below is what was committed.
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
        assert_eq!(database.is_over(), Ok(()));
        assert_eq!((seen(&database), below(&database)), (b"tw".to_vec(), b"one".to_vec()));
        database.undo_batch();
        assert_eq!(seen(&database), b"one");
        database.begin_batch();
        assert_eq!((database.write(b"2", 1), database.end_batch(), database.sync()), (Ok(()), Ok(()), Ok(())));
        assert_eq!(below(&database), b"o2e");
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
