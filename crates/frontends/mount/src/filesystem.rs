//! The kernel's requests, one method each.

mod convert;
mod handles;

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fuser::{AccessFlags, FopenFlags, InitFlags, KernelConfig, OpenFlags, WriteFlags};
use hybridfs::{Attr, MoveOutcome, MoveReason, NewNode, TieredFs, WriteOutcome};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::direct_writes::DirectWrites;
use crate::handles::{Handles, OpenFile};
use crate::kernel_notifier::KernelNotifier;
use crate::late_errors::close_and_report;
use crate::modes::BypassModes;
use crate::wire::{
    AttrChanges, FileSystem, NewMode, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};
pub(crate) use convert::{caller, fuse_rdev, kind, rdev_from_fuse, set_request_sizes};
use convert::{sync_flags, to_wire_attr};

const O_ACCMODE: i32 = 0o3;
pub(crate) const O_WRONLY: i32 = 0o1;
pub(crate) const O_EXCL: i32 = 0o200;
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;
/// The open flags of a write-only open. The kernel passes its data on unchanged, without a copy in the page cache that nobody may
/// read. It also skips the query for file capabilities before the first write; the write to the backing file removes them. Cached
/// pages of other opens stay right: the kernel drops the pages that such a write covers.
const WRITE_ONLY: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;
/// Short, so that files somebody puts into the directories below us are seen soon.
const ABSENT_TTL: Duration = Duration::from_secs(1);
/// How long the kernel may cache a directory's attributes: not long. If a request for them overlaps a change of its names, the kernel
/// keeps the old ones: such a change does not raise the version that it compares (attr_version, in fs/fuse/dir.c).
pub(crate) const DIRECTORY_TTL: Duration = Duration::from_secs(1);

/// The front end; cheap to clone for requests that go on on another thread.
#[derive(Clone)]
pub struct FuseFilesystem {
    pub(crate) inner: Arc<MountShared>,
}

pub(crate) struct MountShared {
    /// The tiered file system behind the mount.
    pub fs: Arc<TieredFs>,
    /// The files and directories that the kernel has open.
    pub handles: Handles,
    /// Which open inodes bypass the daemon.
    pub modes: BypassModes,
    /// Whether the kernel caches writes (FUSE_WRITEBACK_CACHE).
    pub gathers: bool,
    /// How long the kernel may use names and attributes.
    pub ttl: Duration,
    /// Whether a side's file system may tell an error of a write not before the file is closed.
    pub is_remote: bool,
    /// The kernel checks permissions by mode and ACL.
    pub checked: bool,
    /// Tells the kernel which cached attributes are stale.
    pub changed: Arc<KernelNotifier>,
    /// Keeps the kernel's cache coherent with direct writes.
    pub direct_writes: DirectWrites,
}

impl FuseFilesystem {
    /// access(2) and chdir(2) of root, when the kernel leaves them to us: all but executing what nobody may execute.
    fn root_may(&self, ino: u64, mask: AccessFlags) -> Result<(), Errno> {
        if !mask.contains(AccessFlags::X_OK) {
            return Ok(());
        }
        let stat = self.inner.fs.getattr(ino)?.stat;
        if stat.is_file() && stat.mode & 0o111 == 0 { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// How long the kernel may believe attributes: not while data changes without us.
    fn attr_ttl(&self, attr: &Attr) -> Duration {
        if attr.unsettled && self.inner.modes.bypasses(attr.ino) || !self.survives_direct_writes(attr.ino) {
            Duration::ZERO
        } else if attr.stat.is_dir() {
            self.inner.ttl.min(DIRECTORY_TTL)
        } else {
            self.inner.ttl
        }
    }

    /// Whether attributes that were read just now stay right until they are invalidated.
    fn survives_direct_writes(&self, ino: u64) -> bool {
        !self.inner.direct_writes.are_under_way() || self.inner.modes.cached(ino).is_none_or(|cached| cached.give_attributes())
    }

    fn entry(&self, reply: ReplyEntry, made: Result<Attr, Errno>) {
        match made {
            Ok(attr) => reply.entry(self.attr_ttl(&attr), self.inner.ttl, &to_wire_attr(&attr)),
            Err(error) => reply.error(error),
        }
    }

    fn attr(&self, reply: ReplyAttr, attr: Result<Attr, Errno>) {
        match attr {
            Ok(attr) => reply.attr(self.attr_ttl(&attr), &to_wire_attr(&attr)),
            Err(error) => reply.error(error),
        }
    }

    fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn file(&self, fh: u64) -> Result<Arc<OpenFile>, Errno> {
        self.inner.handles.files.get(fh)
    }
}

impl FileSystem for FuseFilesystem {
    fn init(&self, config: &mut KernelConfig) {
        let mut want = |flags: InitFlags| config.add_capabilities(flags).is_ok();
        if self.inner.checked {
            want(InitFlags::FUSE_POSIX_ACL);
        }
        want(InitFlags::FUSE_DONT_MASK);
        want(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        want(InitFlags::FUSE_DO_READDIRPLUS);
        want(InitFlags::FUSE_READDIRPLUS_AUTO);
        want(InitFlags::FUSE_PARALLEL_DIROPS);
        want(InitFlags::FUSE_ASYNC_DIO);
        want(InitFlags::FUSE_CACHE_SYMLINKS);
        want(InitFlags::FUSE_EXPORT_SUPPORT);
        if self.inner.gathers {
            want(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        let passthrough = !self.inner.gathers && want(InitFlags::FUSE_PASSTHROUGH);
        if !passthrough || config.set_max_stack_depth(1).is_err() {
            self.inner.modes.disable("this kernel has no FUSE passthrough: Linux 6.9 or later has".into());
        }
        set_request_sizes(config);
    }

    fn lookup(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let fs = &self.inner.fs;
        // An NFS server looks up these names by inode number.
        let number = match name.as_bytes() {
            b"." => Some(parent),
            b".." => Some(fs.parent_of(parent)),
            _ => None,
        };
        let found = match number {
            // Where it is may have to be looked for.
            Some(number) if !fs.is_known(number) => {
                let filesystem = self.clone();
                return req.run_blocking(move || {
                    let found = filesystem.inner.fs.lookup_again(number);
                    filesystem.entry(reply, found);
                });
            }
            Some(number) => fs.lookup_again(number),
            None => fs.lookup(parent, name),
        };
        match found {
            // Compilers and shells look up many missing names.
            Err(Errno::NOENT) => reply.absent(self.inner.ttl.min(ABSENT_TTL)),
            found => self.entry(reply, found),
        }
    }

    fn forget(&self, ino: u64, times: u64) {
        self.inner.fs.forget(ino, times);
    }

    fn getattr(&self, _req: &Request<'_>, ino: u64, fh: Option<u64>, reply: ReplyAttr) {
        let open = fh.and_then(|fh| self.file(fh).ok());
        let attr = match open {
            Some(file) => self.inner.fs.handle_attr(&file.handle),
            None => self.inner.fs.getattr(ino),
        };
        self.attr(reply, attr);
    }

    fn setattr(&self, req: &Request<'_>, ino: u64, changes: &AttrChanges, reply: ReplyAttr) {
        let set = &changes.set;
        let open = changes.fh.and_then(|fh| self.file(fh).ok());
        // Of a write that it took, or of a cut: the kernel's own note of when.
        let noted = self.inner.gathers && changes.noted && [set.mode, set.uid, set.gid].iter().all(Option::is_none);
        let attr = match self.inner.fs.setattr(caller(req), ino, set, open.as_ref().map(|file| &file.handle)) {
            // A caller that is not the owner may write but not set times; the times are those of the write.
            Err(error @ (Errno::PERM | Errno::ACCESS)) if noted && set.atime.is_none() => {
                self.inner.fs.getattr(ino).and_then(|attr| if attr.stat.fixed { Err(error) } else { Ok(attr) })
            }
            attr => attr,
        };
        self.attr(reply, attr);
    }

    fn readlink(&self, _req: &Request<'_>, ino: u64, reply: ReplyData) {
        match self.inner.fs.readlink(ino) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, rdev: u32, reply: ReplyEntry) {
        let made = self.inner.fs.make(caller(req), parent, name, NewNode::Node(new.mode, rdev_from_fuse(rdev)), new.umask);
        self.entry(reply, made);
    }

    fn mkdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, reply: ReplyEntry) {
        let made = self.inner.fs.make(caller(req), parent, name, NewNode::Directory(new.mode), new.umask);
        self.entry(reply, made);
    }

    fn symlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, target: &OsStr, reply: ReplyEntry) {
        let made = self.inner.fs.make(caller(req), parent, name, NewNode::Symlink(target), 0);
        self.entry(reply, made);
    }

    fn unlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        Self::empty(reply, self.inner.fs.unlink(caller(req), parent, name));
    }

    fn rmdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        Self::empty(reply, self.inner.fs.rmdir(caller(req), parent, name));
    }

    fn rename(&self, req: &Request<'_>, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags, reply: ReplyEmpty) {
        Self::empty(reply, self.inner.fs.rename(caller(req), from.0, from.1, to.0, to.1, flags));
    }

    fn link(&self, _req: &Request<'_>, ino: u64, parent: u64, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, self.inner.fs.link(ino, parent, name));
    }

    fn open(&self, req: &Request<'_>, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(req);
        if !self.inner.fs.promotes_on_open(ino) {
            return self.open_now(caller, ino, flags, reply);
        }
        // The paper's way: the open waits until the file is on the SSD, or cannot be.
        let filesystem = self.clone();
        req.run_blocking(move || {
            let tier = hybridfs::report::TierName::Ssd;
            while filesystem.inner.fs.move_file(ino, tier, MoveReason::OnOpen, &mut |_, _| true) == MoveOutcome::Busy
                && filesystem.inner.fs.wait_for_move()
            {}
            filesystem.open_now(caller, ino, flags, reply);
        });
    }

    fn create(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, flags: i32, reply: ReplyCreate) {
        let fs = &self.inner.fs;
        match fs.create(caller(req), parent, name, new.mode, new.umask, flags & O_EXCL != 0) {
            Ok((attr, handle)) => {
                // A newcomer may outgrow the SSD: it goes through us.
                let inode = handle.inode.clone();
                let register = |file: &OwnedFd| fs.as_bypassing(&handle, || reply.open_backing(file))?;
                let new = || self.inner.direct_writes.cached();
                let (backing, cached) = self.inner.modes.enter(&inode, || false, register, new);
                let no_flush = self.no_flush(&handle, backing.is_some());
                let fopen = no_flush | self.write_only(&handle, flags & O_ACCMODE);
                let fh = self.inner.handles.files.add(OpenFile { handle, bypass: backing.is_some(), cached });
                match backing {
                    None => reply.created(self.inner.ttl, self.inner.ttl, &to_wire_attr(&attr), fh, fopen, None),
                    Some(backing) => {
                        reply.created(Duration::ZERO, Duration::ZERO, &to_wire_attr(&attr), fh, no_flush, Some(&backing));
                    }
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(&self, req: &Request<'_>, (fh, offset): (u64, u64), size: u32, direct: bool, mut reply: ReplyData) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        if !direct {
            file.cached.has_pages();
        }
        let size = size as usize;
        match self.inner.fs.read(&file.handle, offset, reply.room(size), false) {
            Ok(n) => reply.filled(n),
            Err(Errno::AGAIN) => {
                let fs = self.inner.fs.clone();
                req.run_blocking(move || match fs.read(&file.handle, offset, reply.room(size), true) {
                    Ok(n) => reply.filled(n),
                    Err(error) => reply.error(error),
                });
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(&self, req: &Request<'_>, (fh, offset): (u64, u64), data: &[u8], how: WriteFlags, flags: OpenFlags, reply: ReplyWrite) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        let kill = how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID).then(|| caller(req));
        let sync = sync_flags(flags);
        let direct = how.contains(WriteFlags::FUSE_WRITE_LOCKOWNER);
        if !direct {
            file.cached.has_pages();
        }
        match self.inner.fs.write(&file.handle, offset, data, sync, kill) {
            Ok(WriteOutcome::Done(n)) => {
                self.written(&file, direct, (offset, n), || req.may_wait(), reply);
                self.write_done(&file, how);
            }
            Ok(WriteOutcome::Full) => {
                let (filesystem, data) = (self.clone(), data.to_vec());
                let may_wait = direct && req.may_wait();
                req.run_blocking(move || {
                    match filesystem.inner.fs.write_waiting(&file.handle, offset, &data, sync, kill) {
                        Ok(n) => filesystem.written(&file, direct, (offset, n), || may_wait, reply),
                        Err(error) => reply.error(error),
                    }
                    filesystem.write_done(&file, how);
                });
            }
            Err(error) => reply.error(error),
        }
    }

    fn release(&self, _req: &Request<'_>, ino: u64, fh: u64, reply: ReplyEmpty) {
        if let Some(file) = self.inner.handles.files.remove(fh) {
            let stat = if file.bypass { None } else { self.inner.fs.handle_attr(&file.handle).ok().map(|attr| attr.stat) };
            if let Some(stat) = &stat {
                self.inner.fs.stamp_cache(ino, Some(stat));
            }
            self.inner.modes.leave(&file.handle.inode);
            self.inner.fs.release(&file.handle, stat.as_ref());
        }
        reply.ok();
    }

    fn flush(&self, req: &Request<'_>, fh: u64, reply: ReplyEmpty) {
        match self.file(fh) {
            // The kernel asks for each file while it caches writes.
            Ok(file) if self.no_flush(&file.handle, file.bypass).contains(FopenFlags::FOPEN_NOFLUSH) => reply.ok(),
            Ok(file) => {
                let fs = self.inner.fs.clone();
                let close = |file: BorrowedFd<'_>| close_and_report(rustix::io::fcntl_dupfd_cloexec(file, 0)?);
                req.run_blocking(move || Self::empty(reply, fs.close_errors(&file.handle, close)));
            }
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, req: &Request<'_>, fh: u64, datasync: bool, reply: ReplyEmpty) {
        match self.file(fh) {
            Ok(file) => {
                let fs = self.inner.fs.clone();
                req.run_blocking(move || Self::empty(reply, fs.fsync(&file.handle, datasync)));
            }
            Err(error) => reply.error(error),
        }
    }

    fn opendir(&self, _req: &Request<'_>, ino: u64, reply: ReplyOpen) {
        match self.inner.fs.open_listing(ino) {
            Ok(dir) => reply.opened(self.inner.handles.dirs.add(dir), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _req: &Request<'_>, ino: u64, fh: u64, offset: u64, mut reply: ReplyDirectory) {
        match self.inner.handles.dirs.get(fh).and_then(|listing| self.list(&listing, ino, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(&self, _req: &Request<'_>, ino: u64, fh: u64, offset: u64, mut reply: ReplyDirectoryPlus) {
        match self.inner.handles.dirs.get(fh).and_then(|listing| self.list_with_attributes(&listing, ino, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(&self, _req: &Request<'_>, fh: u64, reply: ReplyEmpty) {
        self.inner.handles.dirs.remove(fh);
        reply.ok();
    }

    fn fsyncdir(&self, req: &Request<'_>, ino: u64, _fh: u64, _datasync: bool, reply: ReplyEmpty) {
        let fs = self.inner.fs.clone();
        req.run_blocking(move || Self::empty(reply, fs.fsync_dir(ino)));
    }

    fn statfs(&self, _req: &Request<'_>, reply: ReplyStatfs) {
        match self.inner.fs.statfs() {
            Ok(st) => {
                let (bsize, frsize) = (st.f_bsize as u32, st.f_frsize as u32);
                reply.statfs([st.f_blocks, st.f_bfree, st.f_bavail], [st.f_files, st.f_ffree], bsize, st.f_namemax as u32, frsize);
            }
            Err(error) => reply.error(error),
        }
    }

    fn access(&self, _req: &Request<'_>, ino: u64, mask: AccessFlags, reply: ReplyEmpty) {
        Self::empty(reply, self.root_may(ino, mask));
    }

    fn setxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, value: &[u8], flags: u32, reply: ReplyEmpty) {
        Self::empty(reply, self.inner.fs.setxattr(caller(req), ino, name, value, flags));
    }

    fn getxattr(&self, _req: &Request<'_>, ino: u64, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr_reply(reply, size, label_or_unsupported(name, self.inner.fs.getxattr(ino, name)));
    }

    fn listxattr(&self, req: &Request<'_>, ino: u64, size: u32, reply: ReplyXattr) {
        xattr_reply(reply, size, self.inner.fs.listxattr(caller(req), ino));
    }

    fn removexattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, reply: ReplyEmpty) {
        Self::empty(reply, self.inner.fs.removexattr(caller(req), ino, name));
    }

    fn ioctl(&self, _req: &Request<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOTTY);
    }

    fn fallocate(&self, req: &Request<'_>, fh: u64, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        match self.file(fh) {
            Ok(file) => {
                let (fs, caller) = (self.inner.fs.clone(), caller(req));
                req.run_blocking(move || Self::empty(reply, fs.fallocate(caller, &file.handle, mode as u32, offset, length)));
            }
            Err(error) => reply.error(error),
        }
    }

    fn lseek(&self, _req: &Request<'_>, fh: u64, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let found = match (u64::try_from(offset), whence) {
            // Data cached by the kernel would seem to be a hole. With ENOSYS it takes all for data.
            (_, SEEK_DATA | SEEK_HOLE) if self.inner.gathers => Err(Errno::NOSYS),
            (Ok(at), SEEK_DATA | SEEK_HOLE) => self.file(fh).and_then(|file| self.inner.fs.seek(&file.handle, at, whence == SEEK_HOLE)),
            (Err(_), SEEK_DATA | SEEK_HOLE) => Err(Errno::NXIO),
            _ => Err(Errno::INVAL),
        };
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(&self, req: &Request<'_>, from: (u64, u64), to: (u64, u64), len: u64, reply: ReplyWrite) {
        let (source, target) = match (self.file(from.0), self.file(to.0)) {
            (Ok(source), Ok(target)) => (source, target),
            (Err(error), _) | (_, Err(error)) => return reply.error(error),
        };
        let (offset_in, offset_out) = (from.1, to.1);
        let (fs, caller) = (self.inner.fs.clone(), caller(req));
        req.run_blocking(move || {
            let len = len.min(64 << 20) as usize;
            match fs.copy_range(caller, &source.handle, offset_in, &target.handle, offset_out, len) {
                Ok(n) => reply.written(n as u32),
                Err(error) => reply.error(error),
            }
        });
    }
}

/// A label of SELinux that is not there is not supported, if the kernel is without SELinux; what was labelled elsewhere keeps its label.
/// `ls -l` reads it for each file, one request each, until it gets EOPNOTSUPP.
pub(crate) fn label_or_unsupported(name: &OsStr, value: Result<Vec<u8>, Errno>) -> Result<Vec<u8>, Errno> {
    static HAS_SELINUX: LazyLock<bool> = LazyLock::new(|| Path::new("/sys/fs/selinux").exists());
    match value {
        Err(Errno::NODATA) if name == "security.selinux" && !*HAS_SELINUX => Err(Errno::OPNOTSUPP),
        value => value,
    }
}

pub(crate) fn xattr_reply(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::RANGE),
        Err(error) => reply.error(error),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn device_numbers_go_both_ways() {
        for (major, minor) in [(1, 3), (8, 17), (259, 300), (4095, 1 << 19)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(rdev_from_fuse(fuse_rdev(rdev)), rdev, "{major}:{minor}");
        }
    }
}
