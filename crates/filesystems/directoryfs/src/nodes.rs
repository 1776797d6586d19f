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
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::descriptors::{Descriptor, Descriptors, HeldFile};
use crate::identity::{EARLIER_MOUNT, InodeId};
use crate::last_stat::LastStat;
use crate::remembered::Remembered;
use crate::{Result, Stat};

/// As many directories as a path can have.
pub(crate) const DEPTH_MAX: usize = 2048;
/// The number of the top directory in the protocol.
pub const ROOT: u64 = 1;
/// Numbers of files that mounts below lead to, and those that would be given twice.
const COMPUTED: u64 = 1 << 63;

/// The size and the times of a file when the kernel's cached pages of it were right.
pub type Version = (u64, (i64, u32), (i64, u32));

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
    pub id: Mutex<InodeId>,
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
    /// The attributes that were read last, for when the file system does not reply.
    pub last_stat: Mutex<LastStat>,
    /// Whether a call of the kernel has removed the last name: the kernel forgets the file as soon as no program uses it.
    pub is_removed_by_call: AtomicBool,
    /// What keeps the data of a removed file until the kernel forgets the file.
    pub kept: Mutex<Option<KeptData>>,
    /// The attributes that the kernel was given from memory, as long as the file was not opened.
    pub remembered: Mutex<Option<Box<Stat>>>,
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
    fn new(number: u64, id: InodeId, stat: &Stat, parent: u64, name: &OsStr) -> NodeRecord {
        NodeRecord {
            number,
            id: Mutex::new(id),
            kind: stat.kind(),
            has_link_count: stat.nlink > 0,
            descriptor: Mutex::default(),
            location: Mutex::new(Location { parent, name: name.to_owned() }),
            is_used: AtomicBool::new(false),
            cached: Mutex::default(),
            compared: Mutex::default(),
            last_stat: Mutex::default(),
            is_removed_by_call: AtomicBool::new(false),
            kept: Mutex::default(),
            remembered: Mutex::default(),
        }
    }

    /// Returns the identity of the file on its file system.
    pub fn id(&self) -> InodeId {
        *self.id.lock()
    }

    /// Remembers the version of the file that the kernel's pages are of.
    pub fn set_cached(&self, stat: &Stat) {
        *self.cached.lock() = Some((stat.size, stat.mtime, stat.ctime));
    }

    /// Returns whether the kernel's pages are of this version of the file.
    pub fn is_cached(&self, stat: &Stat) -> bool {
        *self.cached.lock() == Some((stat.size, stat.mtime, stat.ctime))
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
    pub(crate) record: Arc<NodeRecord>,
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
        self.record.set_cached(stat);
    }

    /// Forgets which version of the file the kernel's pages are of.
    pub fn forget_cached(&self) {
        *self.record.cached.lock() = None;
    }

    /// Returns whether the kernel's pages are of this version of the file.
    pub fn is_cached(&self, stat: &Stat) -> bool {
        self.record.is_cached(stat)
    }
}

impl Node {
    /// Returns the identity of the file on its file system.
    pub(crate) fn id(&self) -> InodeId {
        self.record.id()
    }

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
    /// What is remembered of names, if the mount remembers them.
    pub(crate) remembered: Option<Arc<Remembered>>,
    pub(crate) descriptors: Descriptors,
    /// Read by calls that remove names, until what they removed is noted.
    pub(crate) removals: RwLock<()>,
}

impl Nodes {
    /// Creates a table with the top directory alone.
    pub(crate) fn new(root: OwnedFd, stat: &Stat, descriptors: Descriptors) -> Nodes {
        let record = NodeRecord::new(ROOT, InodeId::of(stat), stat, ROOT, OsStr::new(""));
        let root = Node { record: Arc::new(record), file: Arc::new(HeldFile::uncounted(root)) };
        Nodes { root, table: RwLock::default(), remembered: None, descriptors, removals: RwLock::default() }
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

    /// Returns the node of a number if its descriptor is open.
    pub(crate) fn held(&self, number: u64) -> Option<Node> {
        let record = self.record(number)?;
        let file = record.descriptor.lock().held()?;
        Some(Node { record, file })
    }

    pub(crate) fn root_id(&self) -> InodeId {
        self.root.record.id()
    }

    /// Returns the path of a file below the top directory, as it was last seen. None: a directory above it is not known any more.
    pub(crate) fn path_of(&self, record: &NodeRecord) -> Option<PathBuf> {
        let mut location = record.location.lock().clone();
        let mut names = vec![location.name];
        while location.parent != ROOT {
            if names.len() > DEPTH_MAX {
                return None;
            }
            location = self.record(location.parent)?.location.lock().clone();
            names.push(location.name);
        }
        Some(names.into_iter().rev().collect())
    }

    /// Returns the record of a number that the kernel knows, the top directory's too.
    pub(crate) fn known(&self, number: u64) -> Option<Arc<NodeRecord>> {
        if number == ROOT { Some(Arc::clone(&self.root.record)) } else { self.record(number) }
    }

    /// Returns the number of an inode, if the kernel knows it.
    pub(crate) fn number_of_id(&self, id: InodeId) -> Option<u64> {
        if id == self.root_id() { Some(ROOT) } else { self.table.read().numbers.get(&id).copied() }
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
        if id == self.root_id() {
            return self.root.clone();
        }
        let replaced = self.replaced(file.as_fd(), stat);
        let record = {
            let mut table = self.table.write();
            let Table { by_number, numbers } = &mut *table;
            if replaced.is_some() && numbers.get(&id).copied() == replaced {
                numbers.remove(&id);
            }
            let number = *numbers.entry(id).or_insert_with(|| self.free_number(id, by_number));
            let new = || Known { record: Arc::new(NodeRecord::new(number, id, stat, parent, name)), lookups: 0 };
            let known = by_number.entry(number).or_insert_with(new);
            known.lookups += 1;
            Arc::clone(&known.record)
        };
        record.set_location(parent, name);
        record.remembered.lock().take();
        let file = self.hold(&record, file);
        Node { record, file }
    }

    /// Adds one lookup by the kernel to a file that was seen under this name before, and returns its number. The file is opened when
    /// something needs it.
    pub(crate) fn remember_unopened(&self, id: InodeId, stat: &Stat, parent: u64, name: &OsStr) -> u64 {
        if id == self.root_id() {
            return ROOT;
        }
        let mut table = self.table.write();
        let Table { by_number, numbers } = &mut *table;
        let number = *numbers.entry(id).or_insert_with(|| self.free_number(id, by_number));
        let known = by_number.entry(number).or_insert_with(|| {
            let record = NodeRecord::new(number, id, stat, parent, name);
            *record.remembered.lock() = Some(Box::new(*stat));
            Known { record: Arc::new(record), lookups: 0 }
        });
        known.lookups += 1;
        let record = Arc::clone(&known.record);
        drop(table);
        record.set_location(parent, name);
        number
    }

    /// Gives a number to the inode that its name turned out to stand for. Returns the identity that it had, or ESTALE if the kernel knows
    /// that inode by another number.
    pub(crate) fn set_identity(&self, record: &NodeRecord, new: InodeId) -> Result<InodeId> {
        let mut table = self.table.write();
        let mut id = record.id.lock();
        let old = *id;
        if old != new {
            match table.numbers.entry(new) {
                Entry::Occupied(number) if *number.get() != record.number => return Err(Errno::STALE),
                number => drop(number.or_insert(record.number)),
            }
            if table.numbers.get(&old) == Some(&record.number) {
                table.numbers.remove(&old);
            }
            *id = new;
        }
        Ok(old)
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
                old.is_ok_and(|old| InodeId::of(&old) == record.id() && (old.nlink > 0 || stat.nlink == 0))
            }
            None => record.descriptor.lock().has_handle_of(new),
        };
        (!is_same).then_some(number)
    }

    /// Returns a number that no other known file has.
    fn free_number(&self, id: InodeId, taken: &HashMap<u64, Known>) -> u64 {
        let root = self.root_id();
        let is_on_top = id.dev == root.dev && (id.mount == root.mount || id.mount == EARLIER_MOUNT);
        if is_on_top && id.ino > ROOT && id.ino & COMPUTED == 0 && !taken.contains_key(&id.ino) {
            return id.ino;
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut number = hasher.finish() | COMPUTED;
        while taken.contains_key(&number) {
            number = number.wrapping_add(1) | COMPUTED;
        }
        number
    }

    /// Returns the number that a file of the top directory's file system has in a listing.
    pub fn listed_number(&self, ino: u64) -> u64 {
        if ino == self.root_id().ino { ROOT } else { ino.max(ROOT + 1) }
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
        let id = gone.record.id();
        if table.numbers.get(&id) == Some(&number) {
            table.numbers.remove(&id);
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
