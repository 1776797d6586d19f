//! New files, directories and links. The caller creates them: nothing belongs to root first.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fusedev::{Caller, SET_GID};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::cache::FileCache;
use crate::directory::{DirectoryFs, proc_path};
use crate::identity::InodeId;
use crate::names::check_name;
use crate::nodes::Node;
use crate::remembered::Target;
use crate::{Result, Stat, xattrs};

/// The file, directory or link to create.
#[derive(Clone, Copy, Debug)]
pub enum NewNode<'a> {
    /// A directory with these permission bits.
    Directory(u32),
    /// A file, pipe, socket or device: type and permission bits, device number.
    Node(u32, u64),
    /// A symbolic link to this target.
    Symlink(&'a OsStr),
}

impl<C: FileCache> DirectoryFs<C> {
    /// Returns the mode of a new file: a default access control list of the directory replaces the umask.
    fn masked(&self, caller: Caller, dir: BorrowedFd<'_>, mode: u32, umask: u32) -> u32 {
        let is_unmasked = umask == 0 || mode & umask & 0o777 == 0 || self.has_xattr(caller, dir, xattrs::DEFAULT_LIST);
        if is_unmasked { mode } else { mode & !umask }
    }

    /// Creates a directory, special file or symbolic link, and adds one reference of the kernel.
    ///
    /// # Errors
    /// As mkdirat(2), mknodat(2), symlinkat(2).
    pub fn make(&self, caller: Caller, parent: u64, name: &OsStr, what: NewNode<'_>, umask: u32) -> Result<(Node, Stat)> {
        check_name(name)?;
        let dir = self.node(caller, parent)?;
        let at = dir.as_fd();
        let made = match what {
            NewNode::Directory(mode) => {
                let mode = Mode::from_raw_mode(self.masked(caller, at, mode & 0o7777, umask));
                self.as_caller(caller, || rustix::fs::mkdirat(at, name, mode))
            }
            NewNode::Node(mode, rdev) => {
                let bits = self.masked(caller, at, self.without_foreign_set_gid(caller, at, mode & 0o7777)?, umask);
                let kind = match FileType::from_raw_mode(mode) {
                    FileType::Unknown => FileType::RegularFile,
                    kind => kind,
                };
                self.as_caller(caller, || rustix::fs::mknodat(at, name, kind, Mode::from_raw_mode(bits), rdev))
            }
            NewNode::Symlink(target) => self.as_caller(caller, || rustix::fs::symlinkat(target, at, name)),
        };
        self.note_name_made(&dir, name, &made);
        made?;
        let (node, stat) = self.read_as(caller, |_| self.find(&dir, name, None))?;
        // The number may be that of a removed file.
        self.note_new(node.id());
        Ok((node, stat))
    }

    /// Creates and opens a regular file, and adds one reference of the kernel. The descriptor is for reading and writing.
    ///
    /// # Errors
    /// EEXIST: the file exists, and `is_exclusive`. ESTALE: the file exists, and the caller has to look it up and check whether it may be
    /// opened. Otherwise as openat(2).
    pub fn create(&self, caller: Caller, parent: u64, name: &OsStr, mode: (u32, u32), is_exclusive: bool) -> Result<(Node, Stat, OwnedFd)> {
        check_name(name)?;
        let dir = self.node(caller, parent)?;
        let at = dir.as_fd();
        let bits = self.without_foreign_set_gid(caller, at, self.masked(caller, at, mode.0, mode.1) & 0o7777)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let open = || rustix::fs::openat(at, name, flags, Mode::from_raw_mode(bits));
        let made = self.as_caller(caller, || self.nodes.with_descriptors(open));
        self.note_name_made(&dir, name, &made);
        let moment = self.moment();
        let file = match made {
            // The kernel checked no permission, as it took the name for free.
            Err(Errno::EXIST) if !is_exclusive => return Err(Errno::STALE),
            made => made?,
        };
        let stat = Stat::of(file.as_fd())?;
        // The name may be another file's by now: the node is of the descriptor.
        let open = || rustix::fs::open(&*proc_path(file.as_fd()), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let name_only = self.nodes.with_descriptors(open)?;
        self.note_new(InodeId::of(&stat));
        self.remember_name(dir.id(), name, Target::Inode(InodeId::of(&stat)), moment);
        Ok((self.nodes.remember(name_only, &stat, parent, name), stat, file))
    }

    /// Takes the set-group-ID bit from a new program of a directory's group whose creator is not a member. The daemon has capabilities
    /// that keep the kernel below from doing it.
    fn without_foreign_set_gid(&self, caller: Caller, dir: BorrowedFd<'_>, mode: u32) -> Result<u32> {
        const RUNS_AS_GROUP: u32 = SET_GID | 0o010;
        if mode & RUNS_AS_GROUP != RUNS_AS_GROUP || !self.is_privileged || caller.is_root() {
            return Ok(mode);
        }
        let stat = rustix::fs::fstat(dir)?;
        let is_foreign = stat.st_mode & SET_GID != 0 && !caller.in_group(stat.st_gid);
        Ok(if is_foreign { mode & !SET_GID } else { mode })
    }
}
