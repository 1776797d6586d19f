//! What all calls share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::cache::BlockCache;
use super::dir_window::CachedWindow;
use super::error::{Error, Result};
use super::key::{self, FileItem};
use super::locks::Locks;
use super::name::Name;
use super::number_hints::NumberHints;
use super::recent::RecentDirs;
use super::record::{FileKind, INO_END, NameValue, Record};
use super::settings::FsSettings;
use super::table::{Inode, InodeState, InodeTable, RecordLocation};
use super::time::Timestamp;
use super::trial_context::{TrialContext, TrialEffect};
use super::write_back_signal::WriteBackSignal;
use crate::{Batch, Lsn, Store, TreeId};

/// The number of the top directory.
pub const ROOT: u64 = 1;
/// Numbers set aside at once, so that making a file does not write that one was taken.
const NUMBERS: u64 = 1024;

/// The state that all calls of a file system share.
pub struct FsCore {
    /// The metadata store of the file system.
    pub store: Store,
    /// The settings it was opened with.
    pub settings: FsSettings,
    /// The locks of the name space.
    pub locks: Locks,
    /// The table of inodes in use.
    pub table: Arc<InodeTable>,
    /// The name of the root directory.
    pub root: Arc<Name>,
    /// The cache of file blocks.
    pub cache: Arc<BlockCache>,
    /// The directories that paths recently led to.
    pub recent: RecentDirs,
    /// The file system refuses all changes.
    pub read_only: bool,
    /// What is to be written back, by number; one hold each.
    pub dirty: Mutex<BTreeMap<u64, Arc<Inode>>>,
    /// Blocks in memory that are not written yet.
    pub dirty_pages: AtomicU64,
    /// Blocks promised to files beside those.
    pub reserved: AtomicU64,
    /// Bytes of the files that are to be written back, beside those.
    pub dirty_files: AtomicU64,
    /// Where to go on writing back when memory is full.
    pub room_from: Mutex<u64>,
    /// Of the thread that writes back, if there is one.
    pub bell: Arc<WriteBackSignal>,
    /// This one tries what a transaction does to names; nobody else sees it.
    pub trial: Option<TrialContext>,
    /// The number of files that are open.
    pub opened: AtomicUsize,
    /// Counted up before names of a directory change, with its lock.
    pub names_changed: AtomicU64,
    /// Where files are that were looked for by their numbers.
    pub hints: NumberHints,
    /// Entries of directories, as they were read last.
    pub windows: Mutex<VecDeque<CachedWindow>>,
    numbers: Mutex<InodeNumbers>,
    last: AtomicU64,
}

/// Bytes of a value that may be longer than an item, and of its pieces.
pub const LONG_MAX: usize = 4096;
const PIECE: usize = 2048;

const OTHER_KIND: &str = "a name says that it is of another kind than its record";

struct InodeNumbers {
    next: u64,
    /// From here on they are not set aside.
    end: u64,
}

/// A file in use, held by a call.
pub struct HeldInode<'a> {
    /// The file system that has the inode.
    pub core: &'a FsCore,
    /// The inode that is held.
    pub inode: Arc<Inode>,
}

impl Drop for HeldInode<'_> {
    fn drop(&mut self) {
        self.core.release(&self.inode);
    }
}

impl std::ops::Deref for HeldInode<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl<'a> HeldInode<'a> {
    /// Keeps it held, for a handle; to be given to [`FsCore::release`].
    pub fn keep(self) -> Arc<Inode> {
        self.core.table.hold_again(&self.inode);
        Arc::clone(&self.inode)
    }
}

impl FsCore {
    /// Makes the shared state of an opened store.
    pub fn new(store: Store, settings: FsSettings) -> Result<FsCore> {
        let budget = store.budget().cloned();
        let cache = Arc::new(BlockCache::new(settings.cache_bytes, budget.clone()));
        if let Some(budget) = budget {
            let cache = Arc::downgrade(&cache);
            budget.on_growth(move || {
                if let Some(cache) = cache.upgrade() {
                    cache.evict_excess();
                }
            });
        }
        let core = FsCore::with(store, settings, cache);
        let next = core
            .get(TreeId::Files, &key::file(0, FileItem::Numbers, 0))?
            .ok_or(Error::Malformed { ino: 0, what: "no numbers for files" })?;
        let next = u64::from_le_bytes(next.try_into().map_err(|_| Error::Malformed { ino: 0, what: "numbers of a wrong length" })?);
        if next >= INO_END {
            return Err(Error::Malformed { ino: 0, what: "numbers for files that there are not" });
        }
        *core.numbers.lock() = InodeNumbers { next, end: next };
        Ok(core)
    }

    /// One to try changes on, over a store made for it, with so many numbers for new files.
    pub fn try_out(&self, numbers: u64) -> Result<FsCore> {
        let first = self.numbers(numbers)?;
        let cache = Arc::new(BlockCache::new(0, None));
        Ok(FsCore {
            read_only: false,
            trial: Some(TrialContext::beside(&self.table)),
            numbers: Mutex::new(InodeNumbers { next: first, end: first + numbers }),
            last: AtomicU64::new(self.last().0),
            ..FsCore::with(self.store.try_out()?, self.settings.clone(), cache)
        })
    }

    /// Makes the state of a file system of which nothing is in use.
    fn with(store: Store, settings: FsSettings, cache: Arc<BlockCache>) -> FsCore {
        FsCore {
            read_only: store.is_read_only(),
            store,
            settings,
            locks: Locks::default(),
            table: Arc::default(),
            root: Name::root(),
            cache,
            recent: RecentDirs::default(),
            dirty: Mutex::default(),
            dirty_pages: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            dirty_files: AtomicU64::new(0),
            room_from: Mutex::new(0),
            bell: Arc::default(),
            trial: None,
            opened: AtomicUsize::new(0),
            names_changed: AtomicU64::new(0),
            hints: NumberHints::default(),
            windows: Mutex::default(),
            numbers: Mutex::new(InodeNumbers { next: 0, end: 0 }),
            last: AtomicU64::new(0),
        }
    }

    /// EROFS where nothing can be changed.
    pub fn may_change(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Returns the current time of the clock in use.
    pub fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    /// A value of the store.
    pub fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.store.get(tree, key, &mut value)?.then_some(value))
    }

    /// Does a batch, and remembers how far the log is.
    pub fn apply(&self, batch: Batch) -> Result<Lsn> {
        let lsn = self.store.apply(batch)?;
        self.last.fetch_max(lsn.0, Ordering::SeqCst);
        Ok(lsn)
    }

    /// The last batch of all.
    pub fn last(&self) -> Lsn {
        Lsn(self.last.load(Ordering::SeqCst))
    }

    /// A number that no file has or had.
    pub fn number(&self) -> Result<u64> {
        self.numbers(1)
    }

    /// From here on, no number was given to a file.
    pub fn numbers_end(&self) -> u64 {
        self.numbers.lock().next
    }

    /// So many in a row, of which this is the first.
    fn numbers(&self, count: u64) -> Result<u64> {
        let mut numbers = self.numbers.lock();
        if numbers.next + count > numbers.end {
            let end = numbers.end + count.next_multiple_of(NUMBERS);
            let mut batch = Batch::new();
            batch.put(TreeId::Files, &key::file(0, FileItem::Numbers, 0), &end.to_le_bytes());
            self.apply(batch)?;
            numbers.end = end;
        }
        numbers.next += count;
        Ok(numbers.next - count)
    }

    // ---- values that may be too long for one item

    /// Puts what belongs to a file, at most [`LONG_MAX`] bytes, in as many pieces as it needs.
    pub fn put_long(&self, batch: &mut Batch, ino: u64, item: FileItem, bytes: &[u8]) {
        self.delete_long(batch, ino, item);
        for (n, piece) in (0..).zip(bytes.chunks(PIECE)) {
            batch.put(TreeId::Files, &key::file(ino, item, n), piece);
        }
    }

    /// Removes a value that was put by `put_long`.
    pub fn delete_long(&self, batch: &mut Batch, ino: u64, item: FileItem) {
        (0..LONG_MAX.div_ceil(PIECE) as u64).for_each(|n| batch.delete(TreeId::Files, &key::file(ino, item, n)));
    }

    /// Returns a value that was put by `put_long`.
    pub fn get_long(&self, ino: u64, item: FileItem) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for n in 0..LONG_MAX.div_ceil(PIECE) as u64 {
            match self.get(TreeId::Files, &key::file(ino, item, n))? {
                Some(piece) => all.extend_from_slice(&piece),
                None => break,
            }
        }
        Ok(all)
    }

    // ---- entries

    /// What a name in a directory leads to.
    pub fn entry(&self, dir: &Name, name: &[u8]) -> Result<Option<NameValue>> {
        self.entry_at(&dir.entry(name))
    }

    /// Returns the value that a name has.
    pub fn entry_at(&self, key: &[u8]) -> Result<Option<NameValue>> {
        self.store.get_with(TreeId::Names, key, NameValue::parse)?.transpose().map_err(Error::malformed(0))
    }

    /// Returns the record of a file in the Files tree.
    pub fn record_of(&self, ino: u64) -> Result<Record> {
        let bytes = self.get(TreeId::Files, &key::file(ino, FileItem::Record, 0))?;
        let record =
            Record::parse(&bytes.ok_or(Error::Malformed { ino, what: "a name without a record" })?).map_err(Error::malformed(ino))?;
        if record.ino != ino {
            return Err(Error::Malformed { ino, what: "the record of another file" });
        }
        Ok(record)
    }

    /// The record as the store has it; the file may be in use and have a newer one.
    pub fn stored(&self, value: NameValue) -> Result<Record> {
        match value {
            NameValue::Here(record) => Ok(record),
            NameValue::Link { ino, kind } => {
                let record = self.record_of(ino)?;
                if record.kind == kind { Ok(record) } else { Err(Error::Malformed { ino, what: OTHER_KIND }) }
            }
        }
    }

    /// The present record of what a name leads to: of a file in use the store may have another owner yet.
    pub fn newest(&self, value: &NameValue) -> Result<Record> {
        if value.kind() != FileKind::Dir
            && let Some(held) = self.in_use(value.ino())
        {
            let state = held.state.read();
            if state.at.is_some() {
                return Ok(state.record.clone());
            }
        }
        self.stored(value.clone())
    }

    /// The record of a directory.
    pub fn dir_record(&self, dir: &Name) -> Result<Record> {
        if dir.is_gone() {
            return Err(Errno::NOENT.into());
        }
        let Some(key) = dir.key() else { return self.record_of(ROOT) };
        match self.entry_at(&key)? {
            Some(NameValue::Here(record)) if record.kind == FileKind::Dir => Ok(record),
            Some(_) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// The record of a directory, or the last one of a directory that was removed.
    pub fn dir_or_gone(&self, dir: &Name) -> Result<Record> {
        dir.last().map_or_else(|| self.dir_record(dir), Ok)
    }

    /// Where the record of a directory is.
    pub fn dir_key(&self, dir: &Name) -> (TreeId, Vec<u8>) {
        dir.key().map_or_else(|| (TreeId::Files, key::file(ROOT, FileItem::Record, 0).to_vec()), |key| (TreeId::Names, key))
    }

    /// Returns the key under which a record is stored.
    pub fn key(&self, ino: u64, at: &RecordLocation) -> (TreeId, Vec<u8>) {
        match at {
            RecordLocation::Name(name) => self.dir_key(name),
            RecordLocation::Files => (TreeId::Files, key::file(ino, FileItem::Record, 0).to_vec()),
        }
    }

    // ---- files in use

    /// Holds what a name in a directory leads to. The directory's lock is held, so the name stays what it is.
    pub fn hold(&self, dir: &Arc<Name>, name: &[u8]) -> Result<Option<HeldInode<'_>>> {
        let epoch = self.table.epoch();
        let Some(value) = self.entry(dir, name)? else { return Ok(None) };
        self.hold_value(dir, name, &value, epoch).map(Some)
    }

    /// As [`FsCore::hold`], of what was just read there; `epoch` is of before that.
    pub fn hold_value(&self, dir: &Arc<Name>, name: &[u8], value: &NameValue, epoch: u64) -> Result<HeldInode<'_>> {
        let (ino, at) = match value {
            NameValue::Here(record) => {
                let zone = record.zone.then_some(record.ino);
                (record.ino, RecordLocation::Name(dir.child(name, zone)))
            }
            NameValue::Link { ino, .. } => (*ino, RecordLocation::Files),
        };
        if let Some(inode) = self.table.hold(ino) {
            let held = HeldInode { core: self, inode };
            self.load(&held, &at)?;
            if held.state.read().record.kind != value.kind() {
                return Err(Error::Malformed { ino, what: OTHER_KIND });
            }
            return Ok(held);
        }
        let record = self.stored(value.clone())?;
        let held = HeldInode { core: self, inode: self.table.enter(&record, None) };
        let mut state = held.state.write();
        if state.at.is_none() && self.table.epoch() == epoch {
            (state.record, state.lsn, state.at) = (record, self.last(), Some(at));
        } else {
            drop(state);
            self.load(&held, &at)?;
            return Ok(held);
        }
        drop(state);
        Ok(held)
    }

    /// Reads the record of a file that was put into the table, unless somebody did.
    fn load(&self, held: &HeldInode<'_>, at: &RecordLocation) -> Result<()> {
        if held.state.read().at.is_some() {
            return Ok(());
        }
        let mut state = held.state.write();
        if state.at.is_some() {
            return Ok(());
        }
        let (tree, key) = self.key(held.ino, at);
        let bytes = self.get(tree, &key)?.ok_or(Error::Malformed { ino: held.ino, what: "its record is gone" })?;
        state.record = Record::parse(&bytes).map_err(Error::malformed(held.ino))?;
        (state.lsn, state.at) = (self.last(), Some(at.clone()));
        Ok(())
    }

    /// Holds a directory so that it stays in the table.
    pub fn hold_dir(&self, dir: &Arc<Name>) -> Result<HeldInode<'_>> {
        let record = self.dir_or_gone(dir)?;
        Ok(HeldInode { core: self, inode: self.table.enter(&record, Some(&RecordLocation::Name(Arc::clone(dir)))) })
    }

    /// Holds a file that was just made.
    pub fn hold_new(&self, record: &Record, at: &RecordLocation, lsn: Lsn) -> HeldInode<'_> {
        let held = HeldInode { core: self, inode: self.table.enter(record, Some(at)) };
        held.state.write().lsn = lsn;
        held
    }

    /// A file in use that has this number, if there is one.
    pub fn in_use(&self, ino: u64) -> Option<HeldInode<'_>> {
        self.table.hold(ino).map(|inode| HeldInode { core: self, inode })
    }

    /// Lets go of a file; the last to do so removes one that has no name.
    pub fn release(&self, inode: &Arc<Inode>) {
        match self.table.release(inode) {
            0 => self.leave(inode),
            1 if self.forget_removed(inode) => self.release(inode),
            _ => {}
        }
    }

    /// What a removed file has in memory need not be written, once only the list of what is to be written holds it.
    fn forget_removed(&self, inode: &Arc<Inode>) -> bool {
        let removed = |state: &InodeState| state.listed && state.record.nlink == 0;
        if !removed(&inode.state.read()) {
            return false;
        }
        let mut state = inode.state.write();
        if !removed(&state) || self.table.holds(inode) != 1 {
            return false;
        }
        self.forget_pages(&mut state, ..);
        (state.changed, state.listed) = (false, false);
        self.weigh(&mut state);
        self.dirty.lock().remove(&inode.ino);
        true
    }

    /// Nobody holds it any more.
    fn leave(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.write();
        self.reserved.fetch_sub(std::mem::take(&mut state.reserved), Ordering::SeqCst);
        if state.at.is_none() || state.record.nlink > 0 || state.record.kind == FileKind::Dir {
            return;
        }
        if let Some(trial) = &self.trial {
            return trial.note(TrialEffect::Left(state.record.clone()));
        }
        self.forget_pages(&mut state, ..);
        if let Err(error) = self.purge(&state.record) {
            // It is among the orphans, which the next open of the image removes.
            tracing::warn!(ino = inode.ino, %error, "a removed file could not be freed");
        }
    }

    /// Remembers that a file is to be written back. Its lock is held.
    pub fn list(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if !state.listed {
            if state.is_clean() {
                return;
            }
            state.listed = true;
            self.table.hold_again(inode);
            self.dirty.lock().insert(inode.ino, Arc::clone(inode));
        }
        self.weigh(state);
    }
}
