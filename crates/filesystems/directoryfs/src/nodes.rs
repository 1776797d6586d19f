//! The inodes that the kernel knows.
//!
//! Each is held by an `O_PATH` descriptor for as long as the kernel has a reference. So a number always stands for the file that it was
//! given for: the file system cannot give the inode to another file meanwhile, and a rename or removal by another program changes
//! nothing. A presented number is the inode number of the file system where possible.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::{Result, Stat};

/// The number of the top directory in the protocol.
pub const ROOT: u64 = 1;
/// Numbers of files on file systems that are mounted below, and those that would be given twice.
const COMPUTED: u64 = 1 << 63;

/// What distinguishes a file from all others that exist at the same time.
type InodeId = (u64, u64, (i64, u32));

/// The size and the times of a file when the kernel's cached pages of it were right.
type Version = (u64, (i64, u32), (i64, u32));

/// A file, directory or link that the kernel knows.
#[derive(Debug)]
pub struct Node {
    number: u64,
    file: OwnedFd,
    kind: FileType,
    /// The version of the file that the kernel's pages are of.
    cached: Mutex<Option<Version>>,
    /// The version that the cache of file data compared its pages with.
    compared: Mutex<Option<Version>>,
    /// The latest time of a change that the kernel got.
    shown_time: Mutex<(i64, u32)>,
}

impl Node {
    /// Returns the inode number that users see.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether the node is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Returns whether the node is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Reads the attributes from the file system.
    pub fn stat(&self) -> Result<Stat> {
        Stat::of(self.file.as_fd())
    }

    /// Remembers the version that the cache of file data compared its pages with.
    pub fn set_compared(&self, stat: &Stat) {
        *self.compared.lock() = Some((stat.size, stat.mtime, stat.ctime));
    }

    /// Returns whether the cache of file data compared its pages with this version.
    pub fn is_compared(&self, stat: &Stat) -> bool {
        *self.compared.lock() == Some((stat.size, stat.mtime, stat.ctime))
    }

    /// Remembers that the kernel gets the times of these attributes.
    pub fn set_shown_time(&self, stat: &Stat) {
        *self.shown_time.lock() = stat.mtime.max(stat.ctime);
    }

    /// Returns the time of the last change that the kernel got.
    pub fn shown_time(&self) -> (i64, u32) {
        *self.shown_time.lock()
    }

    /// Remembers the version of the file that the kernel's pages are of.
    pub fn set_cached(&self, stat: &Stat) {
        *self.cached.lock() = Some((stat.size, stat.mtime, stat.ctime));
    }

    /// Returns whether the kernel's pages are of this version of the file.
    pub fn is_cached(&self, stat: &Stat) -> bool {
        *self.cached.lock() == Some((stat.size, stat.mtime, stat.ctime))
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

struct Known {
    node: Arc<Node>,
    id: InodeId,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
}

#[derive(Default)]
struct Table {
    by_number: HashMap<u64, Known>,
    numbers: HashMap<InodeId, u64>,
}

/// Maps the numbers that the kernel knows to files.
pub struct Nodes {
    root: Arc<Node>,
    root_id: InodeId,
    table: RwLock<Table>,
}

fn id_of(stat: &Stat) -> InodeId {
    (stat.dev, stat.ino, stat.birth)
}

impl Nodes {
    /// Creates a table with the top directory alone.
    pub fn new(root: OwnedFd, stat: &Stat) -> Nodes {
        let node = Node {
            number: ROOT,
            file: root,
            kind: FileType::Directory,
            cached: Mutex::default(),
            compared: Mutex::default(),
            shown_time: Mutex::default(),
        };
        Nodes { root: Arc::new(node), root_id: id_of(stat), table: RwLock::default() }
    }

    /// Returns the node of a number; ESTALE if the kernel does not know the number.
    pub fn get(&self, number: u64) -> Result<Arc<Node>> {
        if number == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.table.read().by_number.get(&number).map(|known| Arc::clone(&known.node)).ok_or(Errno::STALE)
    }

    /// Returns the number of a file that the kernel knows.
    pub fn number_of(&self, stat: &Stat) -> Option<u64> {
        self.table.read().numbers.get(&id_of(stat)).copied()
    }

    /// Adds one lookup by the kernel to a file, and returns its node.
    pub fn remember(&self, file: OwnedFd, stat: &Stat) -> Arc<Node> {
        let id = id_of(stat);
        if id == self.root_id {
            return Arc::clone(&self.root);
        }
        let replaced = self.replaced(stat);
        let mut table = self.table.write();
        let Table { by_number, numbers } = &mut *table;
        if replaced.is_some() && numbers.get(&id).copied() == replaced {
            numbers.remove(&id);
        }
        let number = *numbers.entry(id).or_insert_with(|| self.free_number(stat, by_number));
        let known = match by_number.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let node = Node {
                    number,
                    file,
                    kind: stat.kind(),
                    cached: Mutex::default(),
                    compared: Mutex::default(),
                    shown_time: Mutex::default(),
                };
                vacant.insert(Known { node: Arc::new(node), id, lookups: 0 })
            }
        };
        known.lookups += 1;
        Arc::clone(&known.node)
    }

    /// Returns the number of a removed file whose inode number a new one has. Without birth times both look the same, and a server does not
    /// know which of its files we hold. Asks the file system, so the table is not locked.
    fn replaced(&self, stat: &Stat) -> Option<u64> {
        if stat.birth != (0, 0) {
            return None;
        }
        let old = self.get(self.number_of(stat)?).ok()?;
        let is_same = old.stat().is_ok_and(|old| id_of(&old) == id_of(stat) && (old.nlink > 0 || stat.nlink == 0));
        (!is_same).then_some(old.number)
    }

    /// Returns a number that no other known file has.
    fn free_number(&self, stat: &Stat, taken: &HashMap<u64, Known>) -> u64 {
        let natural = stat.dev == self.root_id.0 && stat.ino > ROOT && stat.ino & COMPUTED == 0;
        if natural && !taken.contains_key(&stat.ino) {
            return stat.ino;
        }
        let mut hasher = DefaultHasher::new();
        id_of(stat).hash(&mut hasher);
        let mut number = hasher.finish() | COMPUTED;
        while taken.contains_key(&number) {
            number = number.wrapping_add(1) | COMPUTED;
        }
        number
    }

    /// Returns the number that a file of the top directory's file system has in a listing.
    pub fn listed_number(&self, ino: u64) -> u64 {
        if ino == self.root_id.1 { ROOT } else { ino.max(ROOT + 1) }
    }

    /// Subtracts `times` from the kernel's lookups of a number.
    pub fn forget(&self, number: u64, times: u64) {
        let mut table = self.table.write();
        let Entry::Occupied(mut known) = table.by_number.entry(number) else { return };
        known.get_mut().lookups = known.get().lookups.saturating_sub(times);
        if known.get().lookups > 0 {
            return;
        }
        let gone = known.remove();
        if table.numbers.get(&gone.id) == Some(&number) {
            table.numbers.remove(&gone.id);
        }
        drop(table);
        // Closing a file that has no name frees its blocks: not while the table is locked.
        drop(gone);
    }

    /// Drops all nodes when the mount ends.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.table.write());
        drop(all);
    }
}
