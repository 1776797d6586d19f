//! Opening files of the slow side in the cache.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use cachedfs::{File, Mode, Options};
use directoryfs::Node;
use fusedev::Caller;
use fuser::FopenFlags;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::CachedShared;
use crate::cached::data::errno;
use crate::cached::kernel_pages::OpenFilePages;
use crate::cached::open_handle::{OpenHandle, PromisedOpen};

/// The bits of the flags of open(2) that say whether a file is read or written.
pub const O_ACCMODE: i32 = 0o3;
/// The access of a file that is only written.
pub const O_WRONLY: i32 = 0o1;
/// The flag of open(2) that a file must be new.
pub const O_EXCL: i32 = 0o200;
/// The flag of open(2) that each write is at the end.
pub const O_APPEND: i32 = 0o2000;
/// The flag of open(2) that written data are durable.
pub const O_DSYNC: i32 = 0o10_000;

/// An open file as the kernel knows it.
pub struct OpenCachedFile {
    /// The file in the cache.
    pub file: Arc<File>,
    /// The inode that the kernel knows the file by.
    pub node: Node,
    /// Whether a program may write it.
    pub is_written: bool,
    /// Whether it was opened so that each write is durable when it returns.
    pub is_synchronous: bool,
    /// The process that opened it, who pays for what is written.
    pub opener: Caller,
    /// What the kernel may have cached of the file.
    pub pages: OpenFilePages,
    /// An error that no program has got yet: of a flush whose reply came too late, or of writes before a restart of the daemon.
    pub late_error: Mutex<Option<Errno>>,
}

impl OpenCachedFile {
    /// Tells the error that no program has got yet, once.
    pub fn take_late_error(&self) -> Result<(), Errno> {
        self.late_error.lock().take().map_or(Ok(()), Err)
    }
}

/// Returns the flags that the file on the slow side is opened with. The kernel has created and truncated the file before it sends the open,
/// and passes the offset of each appending write itself. Direct access ends at the cache: the kernel's requests are not aligned.
pub fn open_flags(flags: i32) -> OFlags {
    const KEPT: OFlags = OFlags::RWMODE.union(OFlags::SYNC).union(OFlags::DSYNC);
    // A lease of the file's owner would make the open wait, and this thread with it (`F_SETLEASE` in fcntl(2)): EAGAIN instead.
    (OFlags::from_bits_retain(flags as u32) & KEPT) | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
}

impl CachedShared {
    /// Opens a file of the slow side in the cache. What the cache reads of it is no access by a user: also a write reads pages.
    pub fn open_file(&self, caller: Caller, file: impl AsFd, flags: OFlags) -> Result<File, Errno> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        // A file system that is mounted below may be a user's, who could forge the numbers by which the cache knows files.
        let is_uncached = rustix::fs::fstat(file.as_fd())?.st_dev != self.device;
        let options = Options { mode: Some(self.mode), is_uncached, ..Options::default() };
        let open = |flags: OFlags| {
            let opened = self.instance.open_file(rustix::fs::CWD, Path::new(&path), flags, rustix::fs::Mode::empty(), &options);
            opened.map_err(|error| errno(&error))
        };
        let mut is_refused = false;
        let mut open = || {
            let opened = match open(flags | OFlags::NOATIME) {
                // Only the owner may ask for that.
                Err(Errno::PERM) => open(flags),
                opened => opened,
            };
            is_refused |= matches!(opened, Err(Errno::ACCESS | Errno::PERM));
            opened
        };
        let opened = self.fs.with_descriptors(|| self.fs.also_as_caller(caller, &mut open))?;
        if !is_refused && self.fs.remembers_names() && flags & OFlags::RWMODE != OFlags::WRONLY {
            // Without it, the next open sends requests to the slow side.
            let _ = cachedfs::data_key(opened.fd()).map(|key| self.fs.remember_readable(opened.fd(), key));
        }
        let is_written_later = self.mode == Mode::WriteBack && flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        if is_written_later && (is_refused || opened.prepare_to_write().is_err()) {
            // The daemon's user may not write the file, as root may not on NFS: after the last close the data would stay in the cache for
            // ever.
            opened.set_mode(Mode::WriteThrough).map_err(|error| errno(&error))?;
        }
        Ok(opened)
    }

    /// Opens a file that was just created. Its mode may not allow what the call that created it may do, and the file system may not find
    /// it again. The call must not fail for that: the file is there.
    pub fn open_created(&self, caller: Caller, file: OwnedFd, flags: OFlags) -> Result<File, Errno> {
        self.open_file(caller, &file, flags).or_else(|_| {
            let is_uncached = rustix::fs::fstat(&file)?.st_dev != self.device;
            let options = Options { mode: Some(Mode::WriteThrough), is_uncached, ..Options::default() };
            // Without the flags that make the cache open it again.
            let flags = (flags - OFlags::NONBLOCK - OFlags::RWMODE) | OFlags::RDWR;
            self.fs.with_descriptors(|| {
                let file = rustix::io::fcntl_dupfd_cloexec(&file, 0)?;
                self.instance.open_descriptor(file, flags, &options).map_err(|error| errno(&error))
            })
        })
    }

    /// Adds a file that was opened just now. Returns the number by which the kernel shall know it, and whether it was changed meanwhile.
    pub fn add(&self, opener: Caller, file: File, node: Node, flags: i32) -> (u64, bool) {
        let opened = self.note_open(opener, file, node, flags);
        let file = Arc::clone(&opened.file);
        let handle = self.opened.add(OpenHandle::of(opened));
        // A change that came before it was in the table was not found there.
        (handle, self.look_for_change(&file))
    }

    /// Returns whether a file was changed before the kernel's handle of it was known to the thread that listens, which looks again.
    pub fn look_for_change(&self, file: &File) -> bool {
        let is_changed = file.has_change();
        if is_changed {
            self.instance.wake_listener();
        }
        is_changed
    }

    /// Opens a file whose open(2) was replied to already.
    pub fn keep_promise(&self, open: &PromisedOpen) -> Result<OpenCachedFile, Errno> {
        let PromisedOpen { caller, number, flags, ref stat, .. } = *open;
        let node = self.fs.node(caller, number)?;
        self.fs.may_open(caller, &node, true, false)?;
        let file = self.open_file(caller, &node, open_flags(flags))?;
        let now = self.fs.stat_of(&node)?;
        if (now.size, now.mtime, now.ctime) != (stat.size, stat.mtime, stat.ctime) {
            // The kernel may have pages of the older version: until they are gone, none are kept at another open.
            node.forget_cached();
            let (node, length) = (node.clone(), stat.size.max(now.size) as usize);
            self.direct_writes.later(move |changed| {
                changed.drop_pages(number, 0, length);
                node.set_cached(&now);
            });
        }
        Ok(self.note_open(caller, file, node, flags))
    }

    fn note_open(&self, opener: Caller, file: File, node: Node, flags: i32) -> OpenCachedFile {
        let is_written = flags & O_ACCMODE != 0;
        if is_written {
            self.fs.add_writer(node.number());
        }
        let pages = self.pages.open(node.number(), &self.direct_writes);
        self.fs.keep_reserve(file.fd());
        let is_synchronous = flags & O_DSYNC != 0;
        let late_error = Mutex::default();
        OpenCachedFile { file: Arc::new(file), node, is_written, is_synchronous, opener, pages, late_error }
    }

    /// Closes a handle. Returns the open file, which is closed when it is dropped; none if nothing has needed it.
    pub fn take_handle(&self, fh: u64) -> Option<Arc<OpenCachedFile>> {
        let opened = self.opened.remove(fh)?.get()?;
        if opened.is_written {
            self.fs.remove_writer(opened.node.number());
        }
        Some(opened)
    }

    /// Returns the flags of a reply to an open(2).
    pub fn fopen_flags(&self, flags: i32) -> FopenFlags {
        let access = flags & O_ACCMODE;
        // The kernel passes the data on without a copy in the page cache that nobody may read.
        let direct = if access == O_WRONLY { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
        let has_late_errors = access != 0 && (self.is_remote || self.mode == Mode::WriteBack);
        if has_late_errors { direct } else { direct | FopenFlags::FOPEN_NOFLUSH }
    }
}
