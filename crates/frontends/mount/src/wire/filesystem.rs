//! What a file system does for the kernel: a method for each request.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use fuser::{AccessFlags, KernelConfig, OpenFlags, WriteFlags};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::decode::{AttrChanges, RequestHeader};
use super::encode::Attr;
use super::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr,
};
use super::watchdog::Watchdog;

/// Work that may wait for a slow disk.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs such work so that other requests are served meanwhile.
pub trait BlockingExecutor {
    /// Runs the work on this thread or on another.
    fn run(&self, job: Job);

    /// Returns whether the reply to this request may wait for other replies. Called at most once for a request.
    fn may_wait(&self) -> bool;
}

/// Describes the process that made a request.
pub struct Request<'a> {
    pub(super) head: RequestHeader,
    pub(super) executor: &'a dyn BlockingExecutor,
}

impl Request<'_> {
    /// Returns the user ID that owns files which the caller creates.
    pub fn uid(&self) -> u32 {
        self.head.uid
    }

    /// Returns the group ID for files that the caller creates.
    pub fn gid(&self) -> u32 {
        self.head.gid
    }

    /// The process, as far as we can see it.
    pub fn pid(&self) -> u32 {
        self.head.pid
    }

    /// Goes on with something that may wait for a slow disk; others are served meanwhile.
    pub fn run_blocking(&self, job: impl FnOnce() + Send + 'static) {
        self.executor.run(Box::new(job));
    }

    /// Returns whether the reply may wait until the kernel has dropped pages, which may itself wait for other replies.
    pub fn may_wait(&self) -> bool {
        self.executor.may_wait()
    }
}

/// Holds the permissions of a new file or directory.
#[derive(Clone, Copy, Debug)]
pub struct NewMode {
    /// Requested file type and permissions.
    pub mode: u32,
    /// The bits to clear in `mode`, unless the parent has a default ACL.
    pub umask: u32,
}

/// A file system. Each request is answered once, by its reply, now or later, from this thread or from another.
#[expect(unused_variables, reason = "what is not done needs no arguments")]
pub trait FileSystem: Send + Sync + 'static {
    /// Requests features of the kernel during the handshake.
    fn init(&self, config: &mut KernelConfig);

    /// Returns what bounds how long requests take. None: each takes as long as it takes.
    fn watchdog(&self) -> Option<&Arc<Watchdog>> {
        None
    }

    /// Returns whether a request of this kind can be served while the slow side is away. Such a one may wait for the SSD.
    fn serves_away(&self, opcode: u32) -> bool {
        true
    }

    /// Called in each round of the watchdog, to report changes of the slow side's state. Must not wait.
    fn side_changed(&self) {}

    /// Returns attributes that are known without the slow side, and how long the kernel may use them. Must not wait.
    fn known_attributes(&self, ino: u64) -> Option<(Duration, Attr)> {
        None
    }

    /// Looks up a name; a reply with an inode adds one to the kernel's lookup count of it.
    fn lookup(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry);

    /// Subtracts `times` from the kernel's lookup count of an inode.
    fn forget(&self, ino: u64, times: u64);

    /// Reads the attributes of an inode.
    fn getattr(&self, req: &Request<'_>, ino: u64, fh: Option<u64>, reply: ReplyAttr);

    /// Changes attributes.
    fn setattr(&self, req: &Request<'_>, ino: u64, changes: &AttrChanges, reply: ReplyAttr);

    /// Reads the target of a symbolic link.
    fn readlink(&self, req: &Request<'_>, ino: u64, reply: ReplyData);

    /// Makes a file or device.
    fn mknod(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, rdev: u32, reply: ReplyEntry);

    /// Makes a directory.
    fn mkdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, reply: ReplyEntry);

    /// Makes a symbolic link.
    fn symlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, target: &OsStr, reply: ReplyEntry);

    /// Removes a name of a file.
    fn unlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty);

    /// Removes an empty directory.
    fn rmdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty);

    /// Renames a file or directory; `from` and `to` are each a directory and a name in it.
    fn rename(&self, req: &Request<'_>, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags, reply: ReplyEmpty);

    /// Adds another name to a file.
    fn link(&self, req: &Request<'_>, ino: u64, parent: u64, name: &OsStr, reply: ReplyEntry);

    /// Opens a file.
    fn open(&self, req: &Request<'_>, ino: u64, flags: OpenFlags, reply: ReplyOpen);

    /// Reads from a place in an open file; `direct`: not for the page cache.
    fn read(&self, req: &Request<'_>, from: (u64, u64), size: u32, direct: bool, reply: ReplyData);

    /// Writes to a place in an open file; `how` is how the kernel came to it, `flags` is what the file was opened with.
    fn write(&self, req: &Request<'_>, to: (u64, u64), data: &[u8], how: WriteFlags, flags: OpenFlags, reply: ReplyWrite);

    /// The last user of an open file has gone.
    fn release(&self, req: &Request<'_>, ino: u64, fh: u64, reply: ReplyEmpty);

    /// Reports an error of earlier writes at a close(2). Sent only for files that were not opened with `FOPEN_NOFLUSH`.
    fn flush(&self, _req: &Request<'_>, _fh: u64, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes what was written durable.
    fn fsync(&self, req: &Request<'_>, fh: u64, datasync: bool, reply: ReplyEmpty);

    /// Opens a directory.
    fn opendir(&self, req: &Request<'_>, ino: u64, reply: ReplyOpen);

    /// Names in a directory, from a place on.
    fn readdir(&self, req: &Request<'_>, ino: u64, fh: u64, offset: u64, reply: ReplyDirectory);

    /// The same and what they stand for, which counts as lookups.
    fn readdirplus(&self, req: &Request<'_>, ino: u64, fh: u64, offset: u64, reply: ReplyDirectoryPlus);

    /// The last user of an open directory has gone.
    fn releasedir(&self, req: &Request<'_>, fh: u64, reply: ReplyEmpty);

    /// Makes the names of a directory durable.
    fn fsyncdir(&self, req: &Request<'_>, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty);

    /// How full it is.
    fn statfs(&self, req: &Request<'_>, reply: ReplyStatfs);

    /// Whether somebody may; asked only when the kernel does not know itself.
    fn access(&self, req: &Request<'_>, ino: u64, mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Sets an extended attribute.
    fn setxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, value: &[u8], flags: u32, reply: ReplyEmpty);

    /// An extended attribute, or how long it is if `size` is 0.
    fn getxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, size: u32, reply: ReplyXattr);

    /// Names of extended attributes, or how long they are if `size` is 0.
    fn listxattr(&self, req: &Request<'_>, ino: u64, size: u32, reply: ReplyXattr);

    /// Takes an extended attribute away.
    fn removexattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, reply: ReplyEmpty);

    /// Makes a file (or opens the one that came first) and opens it.
    fn create(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, flags: i32, reply: ReplyCreate);

    /// Something of a device.
    fn ioctl(&self, req: &Request<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Takes or frees room.
    fn fallocate(&self, req: &Request<'_>, fh: u64, offset: u64, length: u64, mode: i32, reply: ReplyEmpty);

    /// Finds data or a hole.
    fn lseek(&self, req: &Request<'_>, fh: u64, offset: i64, whence: i32, reply: ReplyLseek);

    /// Copies from one open file and place to another.
    fn copy_file_range(&self, req: &Request<'_>, from: (u64, u64), to: (u64, u64), len: u64, reply: ReplyWrite) {
        reply.error(Errno::NOSYS);
    }
}
