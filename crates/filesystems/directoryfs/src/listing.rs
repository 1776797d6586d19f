//! Listings of directories.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use fusedev::Caller;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};

use crate::cache::FileCache;
use crate::directory::DirectoryFs;
use crate::nodes::Node;
use crate::{Result, Stat};

/// An open directory. Positions are those of the file system below, so they hold over seeks and in other descriptors as far as there.
#[derive(Debug)]
pub struct Listing {
    pub(crate) node: Node,
    /// One reader at a time: the descriptor has one position.
    pub(crate) dir: Mutex<OwnedFd>,
}

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name of the entry, without its directory.
    pub name: OsString,
    /// The inode number that users see.
    pub number: u64,
    /// The type, if the file system tells it in listings.
    pub kind: FileType,
    /// The position of the entry after this one.
    pub next: u64,
}

impl Entry {
    /// Returns whether the entry is `.` or `..`.
    pub fn is_dots(&self) -> bool {
        matches!(self.name.as_bytes(), b"." | b"..")
    }
}

impl Listing {
    /// Makes the names of the directory durable.
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync(&self) -> Result<()> {
        // By the descriptor that the caller opened: the daemon may not be allowed to open the directory.
        rustix::fs::fsync(&*self.dir.lock())
    }
}

impl<C: FileCache> DirectoryFs<C> {
    /// Opens a directory for listing.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open_listing(&self, caller: Caller, number: u64) -> Result<Listing> {
        let node = self.node(caller, number)?;
        self.may_open(caller, &node, true, false)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || self.nodes.with_descriptors(|| rustix::fs::openat(node.as_fd(), c".", flags, Mode::empty()));
        let dir = self.also_as_caller(caller, open)?;
        Ok(Listing { node, dir: Mutex::new(dir) })
    }

    /// Gives the entries from a position on to `each`, until it returns false: it had no room.
    ///
    /// # Errors
    /// As getdents64(2).
    pub fn list(&self, listing: &Listing, from: u64, each: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
        let dir = listing.dir.lock();
        rustix::fs::seek(&*dir, SeekFrom::Start(from))?;
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(&*dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            let number = if name == "." { listing.node.number() } else { self.nodes.listed_number(entry.ino()) };
            if !each(Entry { name, number, kind: entry.file_type(), next: entry.next_entry_cookie() }) {
                break;
            }
        }
        Ok(())
    }

    /// Looks up an entry of a listing, and adds one reference of the kernel.
    ///
    /// # Errors
    /// ENOENT: the name has gone meanwhile. Otherwise as openat(2).
    pub fn entry(&self, caller: Caller, listing: &Listing, name: &OsStr) -> Result<(Node, Stat)> {
        self.also_as_caller(caller, || self.find(&listing.node, name))
    }
}
