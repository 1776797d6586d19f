//! What the kernel knows of the directory, in a form from which another process goes on: numbers, references and descriptors.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::FileType;
use rustix::io::Errno;
use shm::FileHandle;

use crate::cache::FileCache;
use crate::descriptors::Descriptor;
use crate::directory::DirectoryFs;
use crate::identity::InodeId;
use crate::listing::{HeldNames, Names};
use crate::nodes::{Known, Location, Node, NodeRecord, Nodes, Table, Version};
use crate::remembered::ListedName;
use crate::{Listing, Result, Stat};

/// A directory and the inodes that the kernel knows of it.
#[derive(Debug)]
pub struct HandedDirectory {
    /// The top directory, as a name only.
    pub root: OwnedFd,
    /// The inodes that the kernel knows.
    pub nodes: Vec<HandedNode>,
    /// Files whose capabilities the kernel has just removed, and for which process: see `set_id.rs`.
    pub capabilities_removed: Vec<(u64, u32)>,
}

/// Attributes by which a file is recognized that nobody has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedAttributes {
    /// Mode, user and group of the file.
    pub access: (u32, u32, u32),
    /// The version of the file: size, and times of the last changes.
    pub version: Version,
}

impl HandedAttributes {
    fn of(stat: &Stat) -> HandedAttributes {
        HandedAttributes { access: (stat.mode, stat.uid, stat.gid), version: (stat.size, stat.mtime, stat.ctime) }
    }

    fn into_stat(self) -> Stat {
        let ((mode, uid, gid), (size, mtime, ctime)) = (self.access, self.version);
        Stat { mode, uid, gid, size, mtime, ctime, ..Stat::default() }
    }
}

/// An inode that the kernel knows.
#[derive(Debug)]
pub struct HandedNode {
    /// The inode number that users see.
    pub number: u64,
    /// Lookups that the kernel has not forgotten.
    pub lookups: u64,
    /// Device number, mount, inode number and time of birth of the file.
    pub identity: (u64, u64, u64, (i64, u32)),
    /// Whether the number is that of the file with this identity: a later file may have it where there are no times of birth.
    pub is_current: bool,
    /// The type of the file, as in its mode.
    pub kind: u32,
    /// Whether the file system counts links.
    pub has_link_count: bool,
    /// Whether a call of the kernel has removed the last name.
    pub is_removed_by_call: bool,
    /// Number of the directory where the file was seen last.
    pub parent: u64,
    /// The name of the file in that directory.
    pub name: OsString,
    /// The version that the kernel's pages are of: size, and times of the last changes.
    pub cached: Option<Version>,
    /// The version that the cache of file data compared its pages with.
    pub compared: Option<Version>,
    /// The attributes that are remembered of a file that nobody has opened.
    pub remembered: Option<HandedAttributes>,
    /// The descriptor, if it is open.
    pub file: Option<OwnedFd>,
    /// What finds the file again if it is not.
    pub handle: Option<FileHandle>,
}

impl HandedNode {
    fn of(number: u64, known: Known, is_current: bool) -> HandedNode {
        let Known { record, lookups } = known;
        let (file, handle) = {
            let mut descriptor = record.descriptor.lock();
            (descriptor.file.take(), descriptor.handle.as_deref().copied())
        };
        // Mostly nobody else has it; a duplicate could be one too many. Without a descriptor, the file is found by its name.
        let file = file.and_then(|file| match Arc::try_unwrap(file) {
            Ok(file) => Some(file.into_file()),
            Err(shared) => rustix::io::fcntl_dupfd_cloexec(&*shared, 0).ok(),
        });
        let Location { parent, name } = record.location.lock().clone();
        let InodeId { dev, mount, ino, birth } = record.id();
        let version = |of: &Mutex<Option<Version>>| *of.lock();
        HandedNode {
            number,
            lookups,
            identity: (dev, mount, ino, birth),
            is_current,
            kind: record.kind.as_raw_mode(),
            has_link_count: record.has_link_count,
            is_removed_by_call: record.is_removed_by_call.load(Ordering::Relaxed),
            parent,
            name,
            cached: version(&record.cached),
            compared: version(&record.compared),
            remembered: record.remembered.lock().as_deref().map(HandedAttributes::of),
            file,
            handle,
        }
    }

    fn into_record(self) -> (NodeRecord, u64, Option<OwnedFd>) {
        let (dev, mount, ino, birth) = self.identity;
        let record = NodeRecord {
            number: self.number,
            id: Mutex::new(InodeId { dev, mount, ino, birth }),
            kind: FileType::from_raw_mode(self.kind),
            has_link_count: self.has_link_count,
            descriptor: Mutex::new(Descriptor { file: None, handle: self.handle.map(Box::new) }),
            location: Mutex::new(Location { parent: self.parent, name: self.name }),
            is_used: AtomicBool::new(false),
            cached: Mutex::new(self.cached),
            compared: Mutex::new(self.compared),
            is_removed_by_call: AtomicBool::new(self.is_removed_by_call),
            last_stat: Mutex::default(),
            kept: Mutex::default(),
            remembered: Mutex::new(self.remembered.map(|handed| Box::new(handed.into_stat()))),
        };
        (record, self.lookups, self.file)
    }
}

impl Nodes {
    /// Returns whether the kernel knows the number.
    fn is_known(&self, number: u64) -> bool {
        number == crate::ROOT || self.table.read().by_number.contains_key(&number)
    }

    fn insert(&self, node: HandedNode) {
        let is_current = node.is_current;
        let (record, lookups, file) = node.into_record();
        let record = Arc::new(record);
        {
            let mut table = self.table.write();
            if is_current {
                table.numbers.insert(record.id(), record.number);
            }
            table.by_number.insert(record.number, Known { record: Arc::clone(&record), lookups });
        }
        if let Some(file) = file {
            self.hold(&record, file);
        }
    }
}

impl<C: FileCache> DirectoryFs<C> {
    /// Returns whether the kernel knows the number.
    pub fn is_known(&self, number: u64) -> bool {
        self.nodes.is_known(number)
    }

    /// Writes data of removed files that only the cache has to the files, so that nothing needs to keep them.
    ///
    /// # Errors
    /// The first error; the data stay.
    pub fn write_back_removed(&self) -> Result<()> {
        let records: Vec<Arc<NodeRecord>> = self.nodes.table.read().by_number.values().map(|known| Arc::clone(&known.record)).collect();
        records.iter().try_for_each(|record| record.kept.lock().as_ref().map_or(Ok(()), |kept| kept.write_back()))
    }

    /// Takes everything out that the kernel knows; this value serves no more requests. No request is under way, no file is open, and data
    /// of removed files are written back.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn hand_over(&self) -> Result<HandedDirectory> {
        let root = rustix::io::fcntl_dupfd_cloexec(&self.nodes.root, 0)?;
        let Table { by_number, numbers } = std::mem::take(&mut *self.nodes.table.write());
        let to_handed = |(number, known): (u64, Known)| {
            let is_current = numbers.get(&known.record.id()) == Some(&number);
            HandedNode::of(number, known, is_current)
        };
        let nodes = by_number.into_iter().map(to_handed).collect();
        let capabilities_removed = self.set_id.lock().capabilities_removed.drain().collect();
        Ok(HandedDirectory { root, nodes, capabilities_removed })
    }

    /// Goes on from what another process has handed over.
    ///
    /// # Errors
    /// The attributes of the top directory cannot be read.
    pub fn take_over(handed: HandedDirectory, cache: C, honours_set_id: bool) -> Result<DirectoryFs<C>> {
        let HandedDirectory { root, nodes, capabilities_removed } = handed;
        let stat = Stat::of(root.as_fd())?;
        let fs = DirectoryFs::with_root(root, &stat, cache, honours_set_id);
        nodes.into_iter().for_each(|node| fs.nodes.insert(node));
        fs.set_id.lock().capabilities_removed.extend(capabilities_removed);
        Ok(fs)
    }

    /// Returns what is remembered of names, for [`DirectoryFs::take_over_names`] in the same process.
    pub fn hand_over_names(&self) -> Option<Vec<u8>> {
        self.remembered.as_ref()?.to_bytes(self.nodes.root_id(), "")
    }

    /// Goes on with the names that another program of this process has remembered.
    pub fn take_over_names(&self, names: &[u8]) {
        if let Some(remembered) = &self.remembered {
            remembered.load_again(names, self.nodes.root_id());
        }
    }

    /// Returns a listing of a directory that another process has opened.
    ///
    /// # Errors
    /// ESTALE: the kernel does not know the number.
    pub fn take_over_listing(&self, number: u64, listing: HandedNames) -> Result<Listing> {
        let names = match listing {
            HandedNames::Read(dir) => Names::Read(self.take_over_node(number)?, Mutex::new(dir)),
            HandedNames::Remembered(names) => {
                let listed = |(name, ino, mode)| ListedName { name, ino, kind: FileType::from_raw_mode(mode) };
                let room = HeldNames::count(names.len()).ok_or(Errno::NOMEM)?;
                Names::Remembered(Mutex::new(names.into_iter().map(listed).collect()), room)
            }
        };
        Ok(Listing { number, names })
    }

    /// Returns the node of an open file or directory.
    ///
    /// # Errors
    /// ESTALE: the kernel does not know the number, or the file cannot be found again.
    pub fn take_over_node(&self, number: u64) -> Result<Node> {
        self.nodes.get(number)
    }
}

/// Where the names of an open directory come from.
#[derive(Debug)]
pub enum HandedNames {
    /// A descriptor of the directory on the slow side.
    Read(OwnedFd),
    /// Names with their inode numbers and types, as in a mode.
    Remembered(Vec<(OsString, u64, u32)>),
}

impl Listing {
    /// Returns the number of the directory, and its names.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn hand_over(&self) -> std::result::Result<(u64, HandedNames), Errno> {
        let names = match &self.names {
            Names::Read(_, dir) => HandedNames::Read(rustix::io::fcntl_dupfd_cloexec(&*dir.lock(), 0)?),
            Names::Remembered(names, _) => {
                let to_handed = |listed: &ListedName| (listed.name.clone(), listed.ino, listed.kind.as_raw_mode());
                HandedNames::Remembered(names.lock().iter().map(to_handed).collect())
            }
        };
        Ok((self.number, names))
    }
}
