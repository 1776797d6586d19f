//! Names and attributes that are remembered, so that the kernel's questions are answered without the slow side.
//!
//! Everything here was read from the file system below at some time. What is not older than the time to live is *fresh*. Older names and
//! attributes are answered, too, and then read again in the background (`check.rs`). A change that this mount makes itself is in the
//! table before the call returns.
//!
//! A read of the file system and a change by this mount may overlap. So each reader takes a [`Moment`] first, and what it has read is
//! dropped if this mount has changed the same file or directory since.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FileType;

use crate::Stat;
use crate::checks::Checks;
use crate::identity::InodeId;

/// How many files and names are remembered at most by default: each takes some 350 bytes of memory.
pub(crate) const RECORDS_MAX: usize = 2_000_000;
/// Changes are counted by a hash of the inode. Two inodes with one hash only cost a read that is not remembered.
const CLOCKS: usize = 1024;

/// A point in the order of the changes that this mount makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(u64);

/// Something remembered, and whether it is fresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known<T> {
    /// What was read and remembered.
    pub what: T,
    /// Whether it was read not longer ago than the time to live.
    pub is_fresh: bool,
}

/// A name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedName {
    /// The name in its directory.
    pub name: OsString,
    /// The inode number as the file system lists it.
    pub ino: u64,
    /// The type as the file system lists it.
    pub kind: FileType,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing: there is no such name.
    Absent,
    /// This inode.
    Inode(InodeId),
    /// A file of which a listing told the inode number and the type only.
    Listed {
        /// The inode number.
        ino: u64,
        /// The type.
        kind: FileType,
    },
    /// A file that this mount has just made, and nobody has looked at yet.
    Unread,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRecord {
    /// What the name stands for.
    pub target: Target,
    /// When it was read; none if by an earlier mount.
    pub checked: Option<Instant>,
}

/// The names of a directory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryRecord {
    /// The names that are known.
    pub names: BTreeMap<OsString, NameRecord>,
    /// Whether `names` has all of them, since when.
    pub is_complete: bool,
    /// When all names were read.
    pub checked: Option<Instant>,
    /// When the attributes of all names that are known were read.
    pub attributes_checked: Option<Instant>,
    /// Whether there are too many names to remember them all.
    pub is_large: bool,
    /// All names as a listing, until one changes.
    pub listing: Option<Arc<[ListedName]>>,
}

/// The attributes of an inode, and what else is known of it.
#[derive(Clone, Debug)]
pub(crate) struct FileRecord {
    /// The attributes of the file.
    pub stat: Stat,
    /// When they were read; none if by an earlier mount.
    pub checked: Option<Instant>,
    /// The target of a symbolic link.
    pub link: Option<Box<[u8]>>,
    /// The extended attributes that the file does not have.
    pub absent_xattrs: XattrSet,
    /// Those that its file system cannot have.
    pub unsupported_xattrs: XattrSet,
    /// The number by which the cache knows the data of the file ([`crate::FileCache::data_key`]).
    pub data_key: Option<u64>,
}

/// Some of the questions for extended attributes that are asked most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct XattrSet(pub u8);

impl XattrSet {
    /// The access control list of the file.
    pub const ACCESS_LIST: XattrSet = XattrSet(1);
    /// The access control list for new files of a directory.
    pub const DEFAULT_LIST: XattrSet = XattrSet(2);
    /// The names of all attributes.
    pub const NAMES: XattrSet = XattrSet(4);

    /// Returns whether it has all of `other`.
    pub fn contains(self, other: XattrSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Adds all questions of `other`.
    pub fn add(&mut self, other: XattrSet) {
        self.0 |= other.0;
    }
}

impl FileRecord {
    /// Creates a record of attributes alone.
    pub fn new(stat: Stat, checked: Option<Instant>) -> FileRecord {
        let (absent_xattrs, unsupported_xattrs) = (XattrSet::default(), XattrSet::default());
        FileRecord { stat, checked, link: None, absent_xattrs, unsupported_xattrs, data_key: None }
    }
}

#[derive(Default)]
pub(crate) struct Table {
    /// The names of directories by identity.
    pub directories: HashMap<InodeId, DirectoryRecord>,
    /// The attributes of all kinds of files by identity.
    pub files: HashMap<InodeId, FileRecord>,
    /// Number of names in all directories.
    names: usize,
    /// Number of changes that this mount has made.
    clock: u64,
    /// The last change, by hash of the inode.
    changed: Vec<u64>,
}

impl Table {
    /// Adds a directory that an earlier mount has remembered.
    pub fn add_loaded(&mut self, id: InodeId, directory: DirectoryRecord) {
        self.names += directory.names.len();
        if let Some(replaced) = self.directories.insert(id, directory) {
            self.names -= replaced.names.len();
        }
    }
}

/// All names and attributes that are remembered of a directory and its descendants.
pub(crate) struct Remembered {
    /// What is remembered; no call to the file system is made while it is locked.
    pub table: Mutex<Table>,
    hasher: RandomState,
    /// How long something is fresh.
    pub ttl: Duration,
    records_max: usize,
    /// The directories that are to be read again.
    pub checks: Checks,
}

impl Remembered {
    /// Creates an empty table of at most `records_max` files and names.
    pub fn new(ttl: Duration, records_max: usize) -> Remembered {
        let table = Table { changed: vec![0; CLOCKS], ..Table::default() };
        Remembered { table: Mutex::new(table), hasher: RandomState::new(), ttl, records_max, checks: Checks::default() }
    }

    /// Returns the present moment, to be taken before the file system is read.
    pub fn moment(&self) -> Moment {
        Moment(self.table.lock().clock)
    }

    fn shard(&self, id: InodeId) -> usize {
        self.hasher.hash_one(id) as usize % CLOCKS
    }

    fn is_fresh(&self, checked: Option<Instant>) -> bool {
        checked.is_some_and(|checked| checked.elapsed() <= self.ttl)
    }

    fn is_unchanged(&self, table: &Table, id: InodeId, since: Moment) -> bool {
        table.changed[self.shard(id)] <= since.0
    }

    fn count_change(&self, table: &mut Table, id: InodeId) {
        table.clock += 1;
        let clock = table.clock;
        table.changed[self.shard(id)] = clock;
    }

    /// Returns what a name of a directory stands for: a file with its attributes, or nothing. Unknown is none.
    pub fn name(&self, dir: InodeId, name: &OsStr) -> Option<Known<Option<(InodeId, Stat)>>> {
        let table = self.table.lock();
        let directory = table.directories.get(&dir)?;
        let all_are_fresh = directory.is_complete && self.is_fresh(directory.checked);
        let Some(record) = directory.names.get(name) else {
            return directory.is_complete.then_some(Known { what: None, is_fresh: all_are_fresh });
        };
        let is_fresh = all_are_fresh || self.is_fresh(record.checked);
        match record.target {
            Target::Absent => Some(Known { what: None, is_fresh }),
            Target::Listed { .. } | Target::Unread => None,
            Target::Inode(id) => {
                let file = table.files.get(&id)?;
                Some(Known { what: Some((id, file.stat)), is_fresh: is_fresh && self.is_fresh(file.checked) })
            }
        }
    }

    /// Returns the attributes of an inode.
    pub fn attributes(&self, id: InodeId) -> Option<Known<Stat>> {
        let table = self.table.lock();
        let file = table.files.get(&id)?;
        Some(Known { what: file.stat, is_fresh: self.is_fresh(file.checked) })
    }

    /// Remembers attributes that were read after `since`. Returns whether they differ from those that were known.
    pub fn set_attributes(&self, id: InodeId, stat: &Stat, since: Moment) -> bool {
        let mut table = self.table.lock();
        if !self.is_unchanged(&table, id, since) {
            return false;
        }
        self.make_room(&mut table);
        let checked = Some(Instant::now());
        let Some(file) = table.files.get_mut(&id) else {
            table.files.insert(id, FileRecord::new(*stat, checked));
            return false;
        };
        file.checked = checked;
        // A read of the file changes nothing but its access time.
        let differs = Stat { atime: stat.atime, ..file.stat } != *stat;
        file.stat = *stat;
        if differs {
            *file = FileRecord::new(*stat, checked);
        }
        differs
    }

    /// Remembers what a name stands for, read after `since`. Returns whether something else was known.
    pub fn set_name(&self, dir: InodeId, name: &OsStr, target: Target, since: Moment) -> bool {
        let mut table = self.table.lock();
        if !self.is_unchanged(&table, dir, since) {
            return false;
        }
        self.make_room(&mut table);
        put_name(&mut table, dir, name, target)
    }

    /// Remembers all names of a directory, read after `since`. Returns the names that are gone or new, if names were known before.
    pub fn set_listing(&self, dir: InodeId, listed: &[ListedName], since: Moment) -> Vec<OsString> {
        let mut table = self.table.lock();
        if !self.is_unchanged(&table, dir, since) {
            return Vec::new();
        }
        self.make_room(&mut table);
        let mut known = table.directories.remove(&dir).unwrap_or_default();
        let was_complete = known.is_complete;
        let old_names = known.names.len();
        let mut old = std::mem::take(&mut known.names);
        let (mut names, mut changed) = (BTreeMap::new(), Vec::new());
        for ListedName { name, ino, kind } in listed {
            let record = match old.remove(name) {
                Some(record) if record.target.is_still(*ino, *kind) => record,
                other => {
                    let is_ours = other.is_some_and(|record| record.target == Target::Unread);
                    if !is_ours && (was_complete || other.is_some()) {
                        changed.push(name.clone());
                    }
                    NameRecord { target: Target::Listed { ino: *ino, kind: *kind }, checked: None }
                }
            };
            names.insert(name.clone(), record);
        }
        changed.extend(old.into_iter().filter(|(_, record)| record.target != Target::Absent).map(|(name, _)| name));
        table.names = table.names + names.len() - old_names;
        let record = DirectoryRecord { names, is_complete: true, checked: Some(Instant::now()), listing: None, is_large: false, ..known };
        table.directories.insert(dir, record);
        changed
    }

    /// Returns all names of a directory, if they are known.
    pub fn listing(&self, dir: InodeId) -> Option<Known<Arc<[ListedName]>>> {
        let mut table = self.table.lock();
        let directory = table.directories.get(&dir).filter(|directory| directory.is_complete)?;
        let is_fresh = self.is_fresh(directory.checked);
        if let Some(listing) = &directory.listing {
            return Some(Known { what: Arc::clone(listing), is_fresh });
        }
        let mut listed = Vec::with_capacity(directory.names.len());
        for (name, record) in &directory.names {
            let (ino, kind) = match record.target {
                Target::Absent => continue,
                Target::Unread => return None,
                Target::Listed { ino, kind } => (ino, kind),
                Target::Inode(id) => (id.ino, table.files.get(&id).map_or(FileType::Unknown, |file| file.stat.kind())),
            };
            listed.push(ListedName { name: name.clone(), ino, kind });
        }
        let listing: Arc<[ListedName]> = listed.into();
        table.directories.get_mut(&dir)?.listing = Some(Arc::clone(&listing));
        Some(Known { what: listing, is_fresh })
    }

    /// Returns the names of a directory that are to be read again, and whether they are all names.
    pub fn names_to_check(&self, dir: InodeId) -> (Vec<OsString>, bool) {
        let table = self.table.lock();
        let Some(directory) = table.directories.get(&dir) else { return (Vec::new(), false) };
        (directory.names.keys().cloned().collect(), directory.is_complete)
    }

    /// Returns whether a directory and its names were read within the time to live.
    pub fn is_checked(&self, dir: InodeId) -> bool {
        self.table.lock().directories.get(&dir).is_some_and(|directory| self.is_fresh(directory.attributes_checked))
    }

    /// Notes that the names of a directory that are known were read again.
    pub fn set_checked(&self, dir: InodeId) {
        if let Some(directory) = self.table.lock().directories.get_mut(&dir) {
            directory.attributes_checked = Some(Instant::now());
        }
    }

    /// Notes that a directory has too many names to remember them all.
    pub fn set_large(&self, dir: InodeId) {
        let directory = &mut *self.table.lock();
        let directory = directory.directories.entry(dir).or_default();
        (directory.is_large, directory.is_complete, directory.listing) = (true, false, None);
    }

    /// Returns whether a directory had too many names to remember them all.
    pub fn is_large(&self, dir: InodeId) -> bool {
        self.table.lock().directories.get(&dir).is_some_and(|directory| directory.is_large)
    }

    /// Forgets all of an inode.
    pub fn forget(&self, id: InodeId) {
        let mut table = self.table.lock();
        self.count_change(&mut table, id);
        table.files.remove(&id);
        if let Some(directory) = table.directories.remove(&id) {
            table.names -= directory.names.len();
        }
    }

    /// Notes that this mount has changed an inode: its attributes are unknown.
    pub fn forget_attributes(&self, id: InodeId) {
        let mut table = self.table.lock();
        self.count_change(&mut table, id);
        table.files.remove(&id);
    }

    /// Notes that this mount has changed a name of a directory. `target`: what it stands for now, if that is known. Returns what it stood
    /// for.
    pub fn change_name(&self, dir: InodeId, name: &OsStr, target: Option<Target>) -> Option<InodeId> {
        let mut table = self.table.lock();
        self.count_change(&mut table, dir);
        table.files.remove(&dir);
        let old = table.directories.get(&dir).and_then(|directory| directory.names.get(name)).map(|record| record.target);
        match target {
            Some(target) => drop(put_name(&mut table, dir, name, target)),
            None => forget_name(&mut table, dir, name),
        }
        match old {
            Some(Target::Inode(id)) => Some(id),
            _ => None,
        }
    }

    /// Returns whether an inode surely has one name only.
    pub fn has_one_name(&self, id: InodeId) -> bool {
        self.table.lock().files.get(&id).is_some_and(|file| file.stat.is_dir() || file.stat.nlink == 1)
    }

    /// Returns the inode that a name of a directory stands for.
    pub fn target(&self, dir: InodeId, name: &OsStr) -> Option<InodeId> {
        match self.table.lock().directories.get(&dir)?.names.get(name)?.target {
            Target::Inode(id) => Some(id),
            _ => None,
        }
    }

    /// Changes what is remembered of an inode beside its attributes, if that was read after `since`.
    pub fn add_to(&self, id: InodeId, since: Moment, add: impl FnOnce(&mut FileRecord)) {
        let mut table = self.table.lock();
        if self.is_unchanged(&table, id, since)
            && let Some(file) = table.files.get_mut(&id)
        {
            add(file);
        }
    }

    /// Returns a part of what is remembered of an inode.
    pub fn of_file<T>(&self, id: InodeId, part: impl FnOnce(&FileRecord) -> Option<T>) -> Option<T> {
        part(self.table.lock().files.get(&id)?)
    }

    /// Forgets what a name stands for, as the file system has shown it to be wrong.
    pub fn forget_name(&self, dir: InodeId, name: &OsStr) {
        forget_name(&mut self.table.lock(), dir, name);
    }

    /// Gives what is known of an inode to another identity: the file system has numbered the same file anew.
    pub fn set_identity(&self, old: InodeId, new: InodeId) {
        let mut table = self.table.lock();
        if let Some(directory) = table.directories.remove(&old) {
            let replaced = table.directories.insert(new, directory);
            table.names -= replaced.map_or(0, |replaced| replaced.names.len());
        }
        table.files.remove(&old);
    }

    /// Forgets the directories that come first while there are too many records.
    pub fn make_room(&self, table: &mut Table) {
        while table.files.len() + table.names > self.records_max {
            let Some(dir) = table.directories.keys().next().copied() else {
                table.files.clear();
                return;
            };
            let Some(directory) = table.directories.remove(&dir) else { return };
            table.names -= directory.names.len();
            table.files.remove(&dir);
            for record in directory.names.into_values() {
                if let Target::Inode(id) = record.target {
                    table.files.remove(&id);
                }
            }
        }
    }
}

impl Target {
    /// Returns whether a listing says the same.
    fn is_still(self, listed: u64, as_kind: FileType) -> bool {
        match self {
            Target::Absent | Target::Unread => false,
            // Where files have no time of birth, the same file may have another number by now.
            Target::Inode(id) => id.ino == listed || !id.is_unique(),
            Target::Listed { ino, kind } => (ino, kind) == (listed, as_kind),
        }
    }
}

/// Returns whether the name stood for something else.
fn put_name(table: &mut Table, dir: InodeId, name: &OsStr, target: Target) -> bool {
    let directory = table.directories.entry(dir).or_default();
    let record = NameRecord { target, checked: Some(Instant::now()) };
    let Some(known) = directory.names.get_mut(name) else {
        if directory.is_complete && target == Target::Absent {
            return false;
        }
        directory.listing = None;
        directory.names.insert(name.to_owned(), record);
        table.names += 1;
        return directory.is_complete;
    };
    let differs = match (known.target, target) {
        (Target::Listed { ino, .. }, Target::Inode(id)) => ino != id.ino,
        (old, new) => old != new,
    };
    if known.target != target {
        directory.listing = None;
    }
    *known = record;
    differs
}

fn forget_name(table: &mut Table, dir: InodeId, name: &OsStr) {
    let Some(directory) = table.directories.get_mut(&dir) else { return };
    (directory.is_complete, directory.listing) = (false, None);
    if directory.names.remove(name).is_some() {
        table.names -= 1;
    }
}
