//! The descriptors of known files, and how many are open.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shm::FileHandle;

/// The minimum number of descriptors that may stay open.
const HELD_MIN: usize = 64;
/// The maximum number of descriptors that are kept free for what opens files without closing others: the cache's leader, among others.
const RESERVED_MAX: usize = 64;

/// An open descriptor, which counts while it is open.
#[derive(Debug)]
pub(crate) struct HeldFile {
    file: OwnedFd,
    _counted: Option<Counted>,
}

/// Counts one descriptor.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl HeldFile {
    /// Returns a descriptor that counts.
    fn counted(file: OwnedFd, open: &Arc<AtomicUsize>) -> HeldFile {
        open.fetch_add(1, Ordering::Relaxed);
        HeldFile { file, _counted: Some(Counted(Arc::clone(open))) }
    }

    /// Returns a descriptor outside of the limit: that of the top directory.
    pub fn uncounted(file: OwnedFd) -> HeldFile {
        HeldFile { file, _counted: None }
    }

    /// Returns the descriptor alone, which counts no longer.
    pub fn into_file(self) -> OwnedFd {
        self.file
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The descriptor of a node, or what finds the file again.
#[derive(Debug, Default)]
pub(crate) struct Descriptor {
    /// The descriptor, if it is open.
    pub file: Option<Arc<HeldFile>>,
    /// Set when the descriptor is closed, where the file system has handles.
    pub handle: Option<Box<FileHandle>>,
}

impl Descriptor {
    /// Returns the descriptor if it is open.
    pub fn held(&self) -> Option<Arc<HeldFile>> {
        self.file.clone()
    }

    /// Stores an open descriptor, and returns it.
    pub fn set(&mut self, file: OwnedFd, all: &Descriptors) -> Arc<HeldFile> {
        let file = Arc::new(HeldFile::counted(file, &all.open));
        self.file = Some(Arc::clone(&file));
        file
    }

    /// Returns whether the handle of the node is that of an open file.
    pub fn has_handle_of(&self, file: BorrowedFd<'_>) -> bool {
        self.handle.as_deref().is_some_and(|handle| FileHandle::of(file).as_ref() == Ok(handle))
    }

    /// Returns the descriptor if only the table has it: no request and no open file.
    pub fn unused(&self) -> Option<&HeldFile> {
        self.file.as_ref().filter(|file| Arc::strong_count(file) == 1).map(|file| &**file)
    }
}

/// Limits the open descriptors.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// Number of open descriptors beyond which unused ones are closed.
    pub max: usize,
    /// The number of a descriptor from which on the process has few left.
    pub reserved_from: usize,
    /// The number of open descriptors.
    open: Arc<AtomicUsize>,
    /// The numbers of all nodes that have a descriptor, and of some that have none any more. Those at the front are closed first.
    pub queue: Mutex<VecDeque<u64>>,
    /// The place in the queue where the search for removed files goes on.
    pub searched: Mutex<usize>,
    /// The top directory, opened for reading: open_by_handle_at(2) needs a file of the file system.
    pub by_handle: Option<OwnedFd>,
}

impl Descriptors {
    /// Takes half of the process's limit: open files of programs and the cache's backing files need the rest. `by_handle`: the top
    /// directory, opened for reading, if the process may open files by handle.
    pub fn new(by_handle: Option<OwnedFd>) -> Descriptors {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let (max, reserved_from) = ((limit / 2).max(HELD_MIN), limit - (limit / 16).min(RESERVED_MAX));
        Descriptors { max, reserved_from, open: Arc::default(), queue: Mutex::default(), searched: Mutex::default(), by_handle }
    }

    /// Returns the number of open descriptors.
    pub fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A file that was removed below, by the name under which the kernel knew it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedName {
    /// The inode number of the directory.
    pub parent: u64,
    /// The name in the directory.
    pub name: std::ffi::OsString,
    /// The inode number of the removed file.
    pub number: u64,
}
