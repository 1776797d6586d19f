//! Listings of directories.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fusedev::Caller;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::cache::FileCache;
use crate::directory::DirectoryFs;
use crate::identity::InodeId;
use crate::names::Found;
use crate::nodes::Node;
use crate::remembered::ListedName;
use crate::{Result, Stat};

/// An open directory, which can be listed.
#[derive(Debug)]
pub struct Listing {
    pub(crate) number: u64,
    pub(crate) names: Names,
}

/// Where the names of an open directory come from.
#[derive(Debug)]
pub(crate) enum Names {
    /// The file system. Positions are its own, so they hold over seeks and in other descriptors as far as there. One reader at a time: the
    /// descriptor has one position.
    Read(Node, Mutex<OwnedFd>),
    /// What is remembered. A position is the number of entries before it; a reader that begins again gets the names of that time.
    Remembered(Mutex<Arc<[ListedName]>>, #[expect(dead_code, reason = "counts while it exists")] HeldNames),
}

/// The most names of one directory that are remembered. A longer one is read in parts, as a program asks for them.
const NAMES_MAX: usize = 100_000;
/// The most names that all open directories together hold: some hundred megabytes.
const HELD_MAX: usize = 4_000_000;
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Counts the names that an open directory holds.
#[derive(Debug)]
pub(crate) struct HeldNames(usize);

impl HeldNames {
    /// Counts this many names, unless that is too many.
    pub fn count(count: usize) -> Option<HeldNames> {
        let held = HeldNames(count);
        let before = HELD.fetch_add(count, Ordering::Relaxed);
        (before + count <= HELD_MAX).then_some(held)
    }
}

impl Drop for HeldNames {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
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
        is_dots(&self.name)
    }
}

/// How a directory is opened to be listed.
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The entries `.` and `..`, which are not remembered.
const DOTS: [&str; 2] = [".", ".."];

/// Reads all names of a directory but `.` and `..`; none if there are too many. That is no access by a user.
pub(crate) fn read_names_unseen(dir: &Node) -> Result<Option<Vec<ListedName>>> {
    match rustix::fs::openat(dir.as_fd(), c".", LIST | OFlags::NOATIME, Mode::empty()) {
        // Only the owner may ask for that.
        Err(Errno::PERM) => read_opened(&open_to_read(dir)?),
        opened => read_opened(&opened?),
    }
}

fn open_to_read(dir: &Node) -> Result<OwnedFd> {
    rustix::fs::openat(dir.as_fd(), c".", LIST, Mode::empty())
}

fn read_opened(dir: &OwnedFd) -> Result<Option<Vec<ListedName>>> {
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
        if names.len() == NAMES_MAX {
            return Ok(None);
        }
        if !is_dots(&name) {
            names.push(ListedName { name, ino: entry.ino(), kind: entry.file_type() });
        }
    }
    Ok(Some(names))
}

fn is_dots(name: &OsStr) -> bool {
    matches!(name.as_bytes(), b"." | b"..")
}

impl<C: FileCache> DirectoryFs<C> {
    /// Opens a directory for listing.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open_listing(&self, caller: Caller, number: u64) -> Result<Listing> {
        if let Some(names) = self.remembered_names(caller, number, true)? {
            let held = HeldNames::count(names.len());
            if let Some(held) = held {
                return Ok(Listing { number, names: Names::Remembered(Mutex::new(names), held) });
            }
        }
        let node = self.node(caller, number)?;
        self.may_open(caller, &node, true, false)?;
        let dir = self.also_as_caller(caller, || self.nodes.with_descriptors(|| open_to_read(&node)))?;
        Ok(Listing { number, names: Names::Read(node, Mutex::new(dir)) })
    }

    /// Returns all names of a directory, as they are remembered or else read now; none if they are not to be remembered. `is_opened`: by an
    /// open(2), which is compared with the present mode.
    fn remembered_names(&self, caller: Caller, number: u64, is_opened: bool) -> Result<Option<Arc<[ListedName]>>> {
        let Some(remembered) = &self.remembered else { return Ok(None) };
        let is_remembered = |id: InodeId| self.is_on_top(id) && !remembered.is_large(id);
        let Some(record) = self.nodes.known(number).filter(|record| is_remembered(record.id())) else { return Ok(None) };
        let may_open = |stat: &Stat| if is_opened { self.may_open_with(caller, stat, true, false) } else { Ok(()) };
        if let Some(listing) = remembered.listing(record.id())
            && let Some(stat) = self.known_attributes(caller, number)
        {
            may_open(&stat)?;
            if !listing.is_fresh {
                self.check_later(caller, number);
            }
            return Ok(Some(listing.what));
        }
        let node = self.node(caller, number)?;
        may_open(&self.stat_of(&node)?)?;
        self.read_as(caller, |moment| {
            let names = self.nodes.with_descriptors(|| read_opened(&open_to_read(&node)?))?;
            match (&names, moment) {
                (Some(names), Some(moment)) => drop(remembered.set_listing(node.id(), names, moment)),
                (None, Some(_)) => remembered.set_large(node.id()),
                _ => {}
            }
            Ok(names.map(Into::into))
        })
    }

    /// Gives the entries from a position on to `each`, until it returns false: it had no room.
    ///
    /// # Errors
    /// As getdents64(2).
    pub fn list(&self, caller: Caller, listing: &Listing, from: u64, each: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
        match &listing.names {
            Names::Read(node, dir) => self.list_read(node, &dir.lock(), from, each),
            Names::Remembered(names, _) => self.list_remembered(caller, listing.number, names, from, each),
        }
    }

    fn list_read(&self, node: &Node, dir: &OwnedFd, from: u64, each: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
        rustix::fs::seek(dir, SeekFrom::Start(from))?;
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            let number = if name == "." { node.number() } else { self.nodes.listed_number(entry.ino()) };
            if !each(Entry { name, number, kind: entry.file_type(), next: entry.next_entry_cookie() }) {
                break;
            }
        }
        Ok(())
    }

    fn list_remembered(
        &self,
        caller: Caller,
        number: u64,
        open: &Mutex<Arc<[ListedName]>>,
        from: u64,
        each: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<()> {
        let names = {
            let mut open = open.lock();
            // rewinddir(3) shows what has changed.
            if from == 0
                && let Some(names) = self.remembered_names(caller, number, false)?
            {
                *open = names;
            }
            Arc::clone(&open)
        };
        let parent = self.nodes.known(number).map_or(number, |record| record.location.lock().parent);
        for at in from..DOTS.len() as u64 + names.len() as u64 {
            let index = at as usize;
            let entry = match DOTS.get(index) {
                Some(name) => {
                    let number = if index == 0 { number } else { parent };
                    Entry { name: name.into(), number, kind: FileType::Directory, next: at + 1 }
                }
                None => {
                    let ListedName { name, ino, kind } = &names[index - DOTS.len()];
                    Entry { name: name.clone(), number: self.nodes.listed_number(*ino), kind: *kind, next: at + 1 }
                }
            };
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    /// Makes the names of a directory durable.
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync_listing(&self, caller: Caller, listing: &Listing) -> Result<()> {
        match &listing.names {
            // By the descriptor that the caller opened: the daemon may not be allowed to open the directory.
            Names::Read(_, dir) => rustix::fs::fsync(&*dir.lock()),
            Names::Remembered(..) => {
                let node = self.node(caller, listing.number)?;
                rustix::fs::fsync(self.also_as_caller(caller, || self.nodes.with_descriptors(|| open_to_read(&node)))?)
            }
        }
    }

    /// Looks up an entry of a listing, and adds one reference of the kernel.
    ///
    /// # Errors
    /// ENOENT: the name has gone meanwhile. Otherwise as openat(2).
    pub fn entry(&self, caller: Caller, listing: &Listing, name: &OsStr) -> Result<Found> {
        match &listing.names {
            Names::Read(node, _) => self.read_as(caller, |moment| self.find(node, name, moment)).map(Found::from),
            Names::Remembered(..) => self.lookup(caller, listing.number, name),
        }
    }
}
