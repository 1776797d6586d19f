//! The inodes that the kernel knows.
//!
//! Each is held by an `O_PATH` descriptor while the kernel has a reference. So a number always stands for the file that it was given for:
//! the file system cannot give the inode to another file meanwhile, and a rename or removal by another program changes nothing. A
//! presented number is the inode number of the file system where possible.
//!
//! Descriptors are limited. Beyond a number of them, those that no request and no open file uses are closed: `reopen.rs`.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::descriptors::{Descriptor, Descriptors, HeldFile};
use crate::{Result, Stat};

/// The number of the top directory in the protocol.
pub const ROOT: u64 = 1;
/// Numbers of files that mounts below lead to, and those that would be given twice.
const COMPUTED: u64 = 1 << 63;

/// The size and the times of a file when the kernel's cached pages of it were right.
pub type Version = (u64, (i64, u32), (i64, u32));

/// What distinguishes a file from all others that exist at the same time. A file that two mounts lead to (a bind mount below) is two: one
/// of them may be read-only, or give no power to set-ID bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InodeId {
    /// The device number of the file system.
    pub dev: u64,
    /// The mount that the file was reached by.
    pub mount: u64,
    /// The inode number on the file system.
    pub ino: u64,
    /// The time when the file was created; zero where the file system does not tell.
    pub birth: (i64, u32),
}

impl InodeId {
    /// Returns the identity of the file with these attributes.
    pub fn of(stat: &Stat) -> InodeId {
        InodeId { dev: stat.dev, mount: stat.mount, ino: stat.ino, birth: stat.birth }
    }

    /// Returns whether a later file with the same inode number has another identity.
    pub fn is_unique(&self) -> bool {
        self.birth != (0, 0)
    }
}

/// Where a file was last seen: the number of its directory, and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The inode number of the directory.
    pub parent: u64,
    /// The name in the directory.
    pub name: OsString,
}

/// What is known of a file while the kernel knows it.
#[derive(Debug)]
pub(crate) struct NodeRecord {
    /// The inode number that users see.
    pub number: u64,
    /// The identity of the file on its file system.
    pub id: InodeId,
    /// The type of the file.
    pub kind: FileType,
    /// Whether the file system counts links: one that never does says 0 of each file.
    pub has_link_count: bool,
    /// The open descriptor, or what finds the file again.
    pub descriptor: Mutex<Descriptor>,
    /// The name under which the file was seen last.
    pub location: Mutex<Location>,
    /// Whether a request has used the node since the last search for descriptors to close.
    pub is_used: AtomicBool,
    /// The version of the file that the kernel's pages are of.
    pub cached: Mutex<Option<Version>>,
    /// The version that the cache of file data compared its pages with.
    pub compared: Mutex<Option<Version>>,
    /// Whether a call of the kernel has removed the last name: the kernel forgets the file as soon as no program uses it.
    pub is_removed_by_call: AtomicBool,
    /// What keeps the data of a removed file until the kernel forgets the file.
    pub kept: Mutex<Option<KeptData>>,
}

/// Something whose existence keeps data of a removed file that the file does not have.
pub trait DataKeeper: Send {
    /// Writes the data to the file, so that nothing has to keep them.
    ///
    /// # Errors
    /// As pwrite(2).
    fn write_back(&self) -> Result<()>;
}

/// Something that keeps the data of a removed file, which ends when this is dropped.
pub struct KeptData(Box<dyn DataKeeper>);

impl KeptData {
    /// Keeps the data as long as `user` lives.
    pub fn new(user: impl DataKeeper + 'static) -> KeptData {
        KeptData(Box::new(user))
    }

    /// Writes the data to the file.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_back(&self) -> Result<()> {
        self.0.write_back()
    }
}

impl std::fmt::Debug for KeptData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeptData")
    }
}

impl NodeRecord {
    fn new(number: u64, stat: &Stat, parent: u64, name: &OsStr) -> NodeRecord {
        NodeRecord {
            number,
            id: InodeId::of(stat),
            kind: stat.kind(),
            has_link_count: stat.nlink > 0,
            descriptor: Mutex::default(),
            location: Mutex::new(Location { parent, name: name.to_owned() }),
            is_used: AtomicBool::new(false),
            cached: Mutex::default(),
            compared: Mutex::default(),
            is_removed_by_call: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    /// Records where the file was seen.
    fn set_location(&self, parent: u64, name: &OsStr) {
        let mut location = self.location.lock();
        if location.parent != parent || location.name != name {
            *location = Location { parent, name: name.to_owned() };
        }
    }
}

/// A file, directory or link that the kernel knows. Its descriptor stays open while a `Node` of it exists.
#[derive(Clone, Debug)]
pub struct Node {
    record: Arc<NodeRecord>,
    file: Arc<HeldFile>,
}

impl Node {
    /// Returns the inode number that users see.
    pub fn number(&self) -> u64 {
        self.record.number
    }

    /// Returns whether the node is a directory.
    pub fn is_dir(&self) -> bool {
        self.record.kind == FileType::Directory
    }

    /// Returns whether the node is a regular file.
    pub fn is_file(&self) -> bool {
        self.record.kind == FileType::RegularFile
    }

    /// Keeps the data of the file, which was removed, until the kernel forgets it: a program may have it by an `O_PATH` descriptor, and
    /// open it again. `data` is called if nothing keeps it yet. A file that another program removed is not kept: the
    /// kernel may know its name for hours.
    pub fn keep(&self, data: impl FnOnce() -> KeptData) {
        if self.record.is_removed_by_call.load(Ordering::Relaxed) {
            self.record.kept.lock().get_or_insert_with(data);
        }
    }

    /// Reads the attributes from the file system.
    pub fn stat(&self) -> Result<Stat> {
        Stat::of(self.as_fd())
    }

    /// Remembers the version that the cache of file data compared its pages with.
    pub fn set_compared(&self, stat: &Stat) {
        *self.record.compared.lock() = Some((stat.size, stat.mtime, stat.ctime));
    }

    /// Returns whether the cache of file data compared its pages with this version.
    pub fn is_compared(&self, stat: &Stat) -> bool {
        *self.record.compared.lock() == Some((stat.size, stat.mtime, stat.ctime))
    }

    /// Remembers the version of the file that the kernel's pages are of.
    pub fn set_cached(&self, stat: &Stat) {
        *self.record.cached.lock() = Some((stat.size, stat.mtime, stat.ctime));
    }

    /// Returns whether the kernel's pages are of this version of the file.
    pub fn is_cached(&self, stat: &Stat) -> bool {
        *self.record.cached.lock() == Some((stat.size, stat.mtime, stat.ctime))
    }
}

impl Node {
    pub(crate) fn into_file(self) -> Arc<HeldFile> {
        self.file
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A file that the kernel knows.
pub(crate) struct Known {
    /// What is known of the file.
    pub record: Arc<NodeRecord>,
    /// Lookups that the kernel has not forgotten.
    pub lookups: u64,
}

/// The files that the kernel knows.
#[derive(Default)]
pub(crate) struct Table {
    /// The files by the numbers that users see.
    pub by_number: HashMap<u64, Known>,
    /// The numbers by the identities of the files.
    pub numbers: HashMap<InodeId, u64>,
}

/// Maps the numbers that the kernel knows to files.
pub struct Nodes {
    pub(crate) root: Node,
    pub(crate) table: RwLock<Table>,
    pub(crate) descriptors: Descriptors,
    /// Read by calls that remove names, until what they removed is noted.
    pub(crate) removals: RwLock<()>,
}

impl Nodes {
    /// Creates a table with the top directory alone.
    pub(crate) fn new(root: OwnedFd, stat: &Stat, descriptors: Descriptors) -> Nodes {
        let record = NodeRecord::new(ROOT, stat, ROOT, OsStr::new(""));
        let root = Node { record: Arc::new(record), file: Arc::new(HeldFile::uncounted(root)) };
        Nodes { root, table: RwLock::default(), descriptors, removals: RwLock::default() }
    }

    /// Returns the node of a number, opened again if its descriptor was closed.
    ///
    /// # Errors
    /// ESTALE: the kernel does not know the number, or the file cannot be found again. EMFILE, or as openat(2).
    pub fn get(&self, number: u64) -> Result<Node> {
        if number == ROOT {
            return Ok(self.root.clone());
        }
        let record = self.record(number).ok_or(Errno::STALE)?;
        record.is_used.store(true, Ordering::Relaxed);
        let held = record.descriptor.lock().held();
        let file = match held {
            Some(file) => file,
            None => self.with_descriptors(|| self.reopen(&record))?,
        };
        Ok(Node { record, file })
    }

    pub(crate) fn root_id(&self) -> InodeId {
        self.root.record.id
    }

    pub(crate) fn record(&self, number: u64) -> Option<Arc<NodeRecord>> {
        self.table.read().by_number.get(&number).map(|known| Arc::clone(&known.record))
    }

    /// Returns the number of a file, if the kernel knows the file.
    fn number_of(&self, stat: &Stat) -> Option<u64> {
        self.table.read().numbers.get(&InodeId::of(stat)).copied()
    }

    /// Records a new name of a file, and returns its number, if the kernel knows the file.
    pub fn set_location(&self, stat: &Stat, parent: u64, name: &OsStr) -> Option<u64> {
        let record = self.record(self.number_of(stat)?)?;
        record.set_location(parent, name);
        Some(record.number)
    }

    /// Notes that a call of the kernel has removed the last name of a file, and keeps its data until the kernel forgets it.
    pub fn removed(&self, stat: &Stat, data: Option<KeptData>) {
        let Some(record) = self.number_of(stat).and_then(|number| self.record(number)) else { return };
        record.is_removed_by_call.store(true, Ordering::Relaxed);
        let mut kept = record.kept.lock();
        if kept.is_none() {
            *kept = data;
        }
    }

    /// Adds one lookup by the kernel to a file that has this name, and returns its node.
    pub fn remember(&self, file: OwnedFd, stat: &Stat, parent: u64, name: &OsStr) -> Node {
        let id = InodeId::of(stat);
        if id == self.root.record.id {
            return self.root.clone();
        }
        let replaced = self.replaced(file.as_fd(), stat);
        let record = {
            let mut table = self.table.write();
            let Table { by_number, numbers } = &mut *table;
            if replaced.is_some() && numbers.get(&id).copied() == replaced {
                numbers.remove(&id);
            }
            let number = *numbers.entry(id).or_insert_with(|| self.free_number(stat, by_number));
            let new = || Known { record: Arc::new(NodeRecord::new(number, stat, parent, name)), lookups: 0 };
            let known = by_number.entry(number).or_insert_with(new);
            known.lookups += 1;
            Arc::clone(&known.record)
        };
        record.set_location(parent, name);
        let file = self.hold(&record, file);
        Node { record, file }
    }

    /// Adds one lookup by the kernel to a file that it knows already.
    pub fn add_lookup(&self, node: &Node) {
        let mut table = self.table.write();
        let new = || Known { record: Arc::clone(&node.record), lookups: 0 };
        table.by_number.entry(node.number()).or_insert_with(new).lookups += 1;
    }

    /// Returns the number of a removed file whose inode number a new one has. Without birth times both look the same, and a server does not
    /// know which of its files we hold. Makes system calls, so the table is not locked.
    fn replaced(&self, new: BorrowedFd<'_>, stat: &Stat) -> Option<u64> {
        if InodeId::of(stat).is_unique() {
            return None;
        }
        let number = self.number_of(stat)?;
        let record = self.record(number)?;
        let held = record.descriptor.lock().held();
        let is_same = match held {
            Some(old) => {
                let old = Stat::of(old.as_fd());
                old.is_ok_and(|old| InodeId::of(&old) == record.id && (old.nlink > 0 || stat.nlink == 0))
            }
            None => record.descriptor.lock().has_handle_of(new),
        };
        (!is_same).then_some(number)
    }

    /// Returns a number that no other known file has.
    fn free_number(&self, stat: &Stat, taken: &HashMap<u64, Known>) -> u64 {
        let root = &self.root.record.id;
        let natural = (stat.dev, stat.mount) == (root.dev, root.mount) && stat.ino > ROOT && stat.ino & COMPUTED == 0;
        if natural && !taken.contains_key(&stat.ino) {
            return stat.ino;
        }
        let mut hasher = DefaultHasher::new();
        InodeId::of(stat).hash(&mut hasher);
        let mut number = hasher.finish() | COMPUTED;
        while taken.contains_key(&number) {
            number = number.wrapping_add(1) | COMPUTED;
        }
        number
    }

    /// Returns the number that a file of the top directory's file system has in a listing.
    pub fn listed_number(&self, ino: u64) -> u64 {
        if ino == self.root.record.id.ino { ROOT } else { ino.max(ROOT + 1) }
    }

    /// Subtracts `times` from the kernel's lookups of a number. Returns what has kept the data of the file.
    pub fn forget(&self, number: u64, times: u64) -> Option<KeptData> {
        let mut table = self.table.write();
        let Entry::Occupied(mut known) = table.by_number.entry(number) else { return None };
        known.get_mut().lookups = known.get().lookups.saturating_sub(times);
        if known.get().lookups > 0 {
            return None;
        }
        let gone = known.remove();
        if table.numbers.get(&gone.record.id) == Some(&number) {
            table.numbers.remove(&gone.record.id);
        }
        drop(table);
        // Closing a file that has no name frees its blocks: not while the table is locked.
        gone.record.kept.lock().take()
    }

    /// Drops all nodes when the mount ends.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.table.write());
        drop(all);
    }
}
