//! The kernel's requests to a raw image, one method each.

mod convert;
mod set_id;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{FopenFlags, InitFlags, KernelConfig, OpenFlags, WriteFlags};
use parking_lot::Mutex;
use rawfs::fs::{Creds, Error, File, FileKind, Fs, Node, SetAttr};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

use super::nodes::{Nodes, ROOT};
use crate::direct_writes::{CompletedDirectWrite, DirectWrites, KernelCacheState};
use crate::filesystem::{DIRECTORY_TTL, label_or_unsupported, rdev_from_fuse, set_request_sizes, xattr_reply};
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::wire::{
    Attr, AttrChanges, FileSystem, NewMode, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};
use convert::{attr, kind, kind_of, open_flags, set_time};

/// Nobody else changes the image: names and attributes hold until we say otherwise.
const TTL: Duration = Duration::from_secs(3600);

const O_ACCMODE: i32 = 0o3;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const SET_ID: u32 = SET_UID | SET_GID;
const GROUP_EXEC: u32 = 0o010;

/// An open file or directory.
pub struct OpenImageFile {
    file: File,
    cached: Option<Arc<KernelCacheState>>,
    /// It may be written through this.
    writes: bool,
    /// A directory is read from where its last reader was.
    place: Mutex<()>,
}

/// Holds the state that all serving threads share.
pub struct ImageShared {
    /// The file system in the image.
    pub fs: Fs,
    /// The inodes that the kernel knows.
    pub nodes: Nodes,
    /// The files and directories that the kernel has open.
    pub opened: HandleTable<OpenImageFile>,
    /// Tells the kernel which cached attributes are stale.
    pub changed: Arc<KernelNotifier>,
    /// Keeps the kernel's cache coherent with direct writes.
    pub direct_writes: DirectWrites,
    /// State that decides when set-ID bits are cleared.
    pub set_id: SetId,
}

/// What decides about set-id bits beside the files themselves.
#[derive(Default)]
pub struct SetId {
    /// How many open files may be written, by number.
    writers: Mutex<HashMap<u64, u32>>,
    /// File capabilities that the kernel has just removed in the name of a process of root: a write follows, or a change of the owner.
    capabilities_removed: Mutex<HashMap<u64, u32>>,
}

/// Serves the kernel's requests from a file system in an image.
#[derive(Clone)]
pub struct ImageFilesystem {
    /// The state that all serving threads share.
    pub inner: Arc<ImageShared>,
}

fn code(error: &Error) -> Errno {
    error.errno()
}

/// Whether the caller is in a group. The kernel checks permissions.
fn is_of_group(req: &Request<'_>, gid: u32) -> bool {
    hybridfs::Caller { uid: req.uid(), gid: req.gid(), pid: req.pid() }.in_group(gid)
}

fn creds(req: &Request<'_>, umask: u32) -> Creds {
    Creds { uid: req.uid(), gid: req.gid(), groups: Vec::new(), umask: (umask & 0o777) as u16, check: false }
}

fn empty(reply: ReplyEmpty, outcome: Result<(), Error>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(code(&error)),
    }
}

impl ImageFilesystem {
    fn node(&self, ino: u64) -> Result<Node, Error> {
        if ino == ROOT { Ok(self.inner.fs.root().clone()) } else { Ok(self.inner.nodes.get(ino)?) }
    }

    /// A node that the kernel may have forgotten. Numbers are never given twice, so each has generation 0.
    fn by_number(&self, ino: u64) -> Result<Node, Error> {
        self.node(ino).or_else(|_| self.inner.fs.by_number(ino))
    }

    fn opened(&self, fh: u64) -> Result<Arc<OpenImageFile>, Error> {
        Ok(self.inner.opened.get(fh)?)
    }

    /// How long the kernel may believe attributes that were read just now; of directories not for long (see [`DIRECTORY_TTL`]).
    fn attr_ttl(&self, attr: &Attr) -> Duration {
        let writes = &self.inner.direct_writes;
        if attr.mode & 0o170_000 == FileKind::Dir.bits() {
            DIRECTORY_TTL
        } else if writes.are_under_way() && self.inner.nodes.cached(attr.ino).is_some_and(|cached| !cached.give_attributes()) {
            Duration::ZERO
        } else {
            TTL
        }
    }

    /// Tells the kernel of a node, which is held from now on.
    fn remember_node(&self, node: Node) -> Result<Attr, Error> {
        let stat = node.stat()?;
        self.inner.nodes.remember(stat.ino, node, || self.inner.direct_writes.cached());
        Ok(attr(&stat))
    }

    fn entry(&self, reply: ReplyEntry, node: Result<Node, Error>) {
        match node.and_then(|node| self.remember_node(node)) {
            Ok(attr) => reply.entry(self.attr_ttl(&attr), TTL, &attr),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn at<T>(&self, parent: u64, call: impl FnOnce(&Fs, &Node) -> Result<T, Error>) -> Result<T, Error> {
        call(&self.inner.fs, &self.node(parent)?)
    }

    fn add(&self, file: File, flags: i32) -> u64 {
        let writes = flags & O_ACCMODE != 0;
        if writes {
            *self.inner.set_id.writers.lock().entry(file.node().ino()).or_default() += 1;
        }
        let cached = self.inner.nodes.cached(file.node().ino());
        self.inner.opened.add(OpenImageFile { file, cached, writes, place: Mutex::new(()) })
    }

    fn remove(&self, fh: u64) {
        let Some(opened) = self.inner.opened.remove(fh).filter(|opened| opened.writes) else { return };
        let mut writers = self.inner.set_id.writers.lock();
        if let std::collections::hash_map::Entry::Occupied(mut count) = writers.entry(opened.file.node().ino()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Entries from a place on, until `each` has no more room.
    fn list(&self, fh: u64, offset: u64, each: &mut dyn FnMut(&rawfs::fs::DirEntry, u64) -> bool) -> Result<(), Error> {
        let opened = self.opened(fh)?;
        let _place = opened.place.lock();
        opened.file.seek(SeekFrom::Start(offset))?;
        opened.file.read_dir(each)
    }

    /// An entry with its attributes; true: there was room. What has gone meanwhile is left out.
    fn add_plus(&self, dir: &Node, entry: &rawfs::fs::DirEntry, next: u64, reply: &mut ReplyDirectoryPlus) -> Result<bool, Error> {
        let name = OsStr::from_bytes(&entry.name);
        if next <= 2 {
            // The kernel takes no reference for these two, and believes nothing of them.
            let attr = Attr { ino: entry.ino, ..attr(&dir.stat()?) };
            return Ok(!reply.add(next, name, Duration::ZERO, &attr));
        }
        let found = self
            .inner
            .fs
            .lookup(dir, &entry.name, false, &Creds { check: false, ..Creds::root() })
            .and_then(|node| self.remember_node(node));
        let attr = match found {
            Ok(attr) => attr,
            Err(error) if error.errno() == Errno::NOENT => return Ok(true),
            Err(error) => return Err(error),
        };
        let full = reply.add(next, name, self.attr_ttl(&attr), &attr);
        if full {
            self.inner.nodes.forget(attr.ino, 1);
        }
        Ok(!full)
    }
}

impl FileSystem for ImageFilesystem {
    fn init(&self, config: &mut KernelConfig) {
        let mut want = |flags: InitFlags| config.add_capabilities(flags).is_ok();
        // The kernel checks permissions, by lists too; they are inherited here, where the umask does not count then.
        want(InitFlags::FUSE_POSIX_ACL);
        want(InitFlags::FUSE_DONT_MASK);
        want(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        want(InitFlags::FUSE_DO_READDIRPLUS);
        want(InitFlags::FUSE_READDIRPLUS_AUTO);
        want(InitFlags::FUSE_PARALLEL_DIROPS);
        want(InitFlags::FUSE_ASYNC_DIO);
        want(InitFlags::FUSE_CACHE_SYMLINKS);
        // Handles (NFS, open_by_handle_at) come back as lookups of `.` and `..` by numbers that the kernel has forgotten.
        want(InitFlags::FUSE_EXPORT_SUPPORT);
        set_request_sizes(config);
    }

    fn lookup(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        match name.as_bytes() {
            b"." => return self.entry(reply, self.by_number(parent)),
            b".." => return self.entry(reply, self.by_number(parent).and_then(|dir| self.inner.fs.parent(&dir))),
            _ => {}
        }
        match self.at(parent, |fs, dir| fs.lookup(dir, name.as_bytes(), false, &creds(req, 0))) {
            Err(error) if error.errno() == Errno::NOENT => reply.absent(TTL),
            found => self.entry(reply, found),
        }
    }

    fn forget(&self, ino: u64, times: u64) {
        self.inner.nodes.forget(ino, times);
    }

    fn getattr(&self, _req: &Request<'_>, ino: u64, _fh: Option<u64>, reply: ReplyAttr) {
        match self.node(ino).and_then(|node| node.stat()) {
            Ok(stat) => {
                let attr = attr(&stat);
                reply.attr(self.attr_ttl(&attr), &attr);
            }
            Err(error) => reply.error(code(&error)),
        }
    }

    fn setattr(&self, req: &Request<'_>, ino: u64, changes: &AttrChanges, reply: ReplyAttr) {
        let hybridfs::SetAttr { mode, uid, gid, size, atime, mtime, kill_set_id } = changes.set;
        // A change of nothing is one of the owner to what it is.
        let nothing = mode.is_none() && size.is_none() && atime.is_none() && mtime.is_none();
        let owner = (uid.is_some() || gid.is_some() || nothing).then_some((uid, gid));
        let set = SetAttr { mode: mode.map(|mode| (mode & 0o7777) as u16), owner, atime: set_time(atime), mtime: set_time(mtime) };
        match self.node(ino).and_then(|node| self.change(req, &node, size.map(|size| (size, kill_set_id)), &set)) {
            Ok(attr) => reply.attr(self.attr_ttl(&attr), &attr),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn readlink(&self, _req: &Request<'_>, ino: u64, reply: ReplyData) {
        match self.node(ino).and_then(|node| self.inner.fs.target(&node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn mknod(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, rdev: u32, reply: ReplyEntry) {
        let Some(kind) = kind_of(new.mode) else { return reply.error(Errno::INVAL) };
        let (mode, rdev) = ((new.mode & 0o7777) as u16, rdev_from_fuse(rdev));
        self.entry(reply, self.at(parent, |fs, dir| fs.mknod(dir, name.as_bytes(), kind, mode, rdev, &creds(req, new.umask))));
    }

    fn mkdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, reply: ReplyEntry) {
        self.entry(reply, self.at(parent, |fs, dir| fs.mkdir(dir, name.as_bytes(), (new.mode & 0o7777) as u16, &creds(req, new.umask))));
    }

    fn symlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, target: &OsStr, reply: ReplyEntry) {
        let target = target.as_bytes();
        self.entry(reply, self.at(parent, |fs, dir| fs.symlink(target, dir, name.as_bytes(), &creds(req, 0))));
    }

    fn unlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.at(parent, |fs, dir| fs.unlink(dir, name.as_bytes(), &creds(req, 0))));
    }

    fn rmdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.at(parent, |fs, dir| fs.rmdir(dir, name.as_bytes(), &creds(req, 0))));
    }

    fn rename(&self, req: &Request<'_>, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags, reply: ReplyEmpty) {
        let creds = creds(req, 0);
        let renamed = self.at(from.0, |fs, dir| {
            let target = self.node(to.0)?;
            let number = |dir: &Node, name: &OsStr| fs.lookup(dir, name.as_bytes(), false, &creds).map(|node| node.ino()).ok();
            let moved = number(dir, from.1);
            let exchanged = number(&target, to.1).filter(|_| flags.contains(RenameFlags::EXCHANGE));
            fs.rename(dir, from.1.as_bytes(), &target, to.1.as_bytes(), flags, &creds)?;
            [moved, exchanged].into_iter().flatten().for_each(|ino| self.inner.changed.invalidate_attributes(ino));
            Ok(())
        });
        empty(reply, renamed);
    }

    fn link(&self, req: &Request<'_>, ino: u64, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let linked = self.at(parent, |fs, dir| {
            let node = self.node(ino)?;
            fs.link(&node, dir, name.as_bytes(), &creds(req, 0)).map(|()| node)
        });
        self.entry(reply, linked);
    }

    fn open(&self, req: &Request<'_>, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.node(ino).and_then(|node| self.inner.fs.open_node(&node, open_flags(flags.0), &creds(req, 0)));
        match opened {
            Ok(file) => reply.opened(self.add(file, flags.0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn create(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, flags: i32, reply: ReplyCreate) {
        let made = self.at(parent, |fs, dir| {
            let exclusive = OFlags::from_bits_retain(flags as u32) & OFlags::EXCL;
            let how = open_flags(flags) | exclusive | OFlags::CREATE | OFlags::NOFOLLOW;
            let file = fs.open_at(dir, name.as_bytes(), how, (new.mode & 0o7777) as u16, &creds(req, new.umask))?;
            let attr = self.remember_node(file.node().clone())?;
            Ok((file, attr))
        });
        match made {
            Ok((file, attr)) => {
                let fopen = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                reply.created(TTL, TTL, &attr, self.add(file, flags), fopen, None);
            }
            Err(error) => reply.error(code(&error)),
        }
    }

    fn read(&self, _req: &Request<'_>, (fh, offset): (u64, u64), size: u32, direct: bool, mut reply: ReplyData) {
        let read = self.opened(fh).and_then(|opened| {
            opened.cached.iter().filter(|_| !direct).for_each(|cached| cached.has_pages());
            opened.file.read_at(reply.room(size as usize), offset)
        });
        match read {
            Ok(n) => reply.filled(n),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn write(&self, req: &Request<'_>, (fh, offset): (u64, u64), data: &[u8], how: WriteFlags, _flags: OpenFlags, reply: ReplyWrite) {
        let opened = match self.opened(fh) {
            Ok(opened) => opened,
            Err(error) => return reply.error(code(&error)),
        };
        let direct = how.contains(WriteFlags::FUSE_WRITE_LOCKOWNER);
        opened.cached.iter().filter(|_| !direct).for_each(|cached| cached.has_pages());
        match (self.write_now(req, &opened, offset, data, how), &opened.cached) {
            (Ok(length), Some(cached)) if direct => {
                let landed = CompletedDirectWrite { ino: opened.file.node().ino(), offset, length, cached };
                self.inner.direct_writes.answer(&landed, || req.may_wait(), move || reply.written(length as u32));
            }
            (Ok(n), _) => reply.written(n as u32),
            (Err(error), _) => reply.error(code(&error)),
        }
    }

    fn release(&self, _req: &Request<'_>, _ino: u64, fh: u64, reply: ReplyEmpty) {
        self.remove(fh);
        reply.ok();
    }

    fn fsync(&self, req: &Request<'_>, fh: u64, _datasync: bool, reply: ReplyEmpty) {
        match self.opened(fh) {
            // Others are served meanwhile, and join this commit.
            Ok(opened) => req.run_blocking(move || empty(reply, opened.file.sync())),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn opendir(&self, req: &Request<'_>, ino: u64, reply: ReplyOpen) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.node(ino).and_then(|node| self.inner.fs.open_node(&node, flags, &creds(req, 0))) {
            Ok(file) => reply.opened(self.add(file, 0), FopenFlags::empty()),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn readdir(&self, _req: &Request<'_>, _ino: u64, fh: u64, offset: u64, mut reply: ReplyDirectory) {
        let listed =
            self.list(fh, offset, &mut |entry, next| !reply.add(entry.ino, next, kind(entry.kind), OsStr::from_bytes(&entry.name)));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn readdirplus(&self, _req: &Request<'_>, ino: u64, fh: u64, offset: u64, mut reply: ReplyDirectoryPlus) {
        let (mut failed, mut any) = (None, false);
        let listed = self.node(ino).and_then(|dir| {
            self.list(fh, offset, &mut |entry, next| match self.add_plus(&dir, entry, next, &mut reply) {
                Ok(room) => {
                    any |= room;
                    room
                }
                // Entries that already have references must be sent; the error occurs again at the next read.
                Err(_) if any => false,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            })
        });
        match failed.map_or(listed, Err) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(code(&error)),
        }
    }

    fn releasedir(&self, _req: &Request<'_>, fh: u64, reply: ReplyEmpty) {
        self.inner.opened.remove(fh);
        reply.ok();
    }

    fn fsyncdir(&self, req: &Request<'_>, _ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        self.fsync(req, fh, datasync, reply);
    }

    fn statfs(&self, _req: &Request<'_>, reply: ReplyStatfs) {
        let of = self.inner.fs.stat_fs();
        reply.statfs([of.blocks, of.free, of.free], [of.files, of.files_free], of.block_bytes, of.name_max, of.block_bytes);
    }

    fn setxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, value: &[u8], flags: u32, reply: ReplyEmpty) {
        let flags = XattrFlags::from_bits_retain(flags);
        let set = self.node(ino).and_then(|node| {
            self.inner.fs.set_xattr(&node, name.as_bytes(), value, flags, &creds(req, 0))?;
            if name == "system.posix_acl_access" && req.uid() != 0 { self.lose_foreign_set_gid(&node, req) } else { Ok(()) }
        });
        self.inner.changed.invalidate_attributes(ino);
        empty(reply, set);
    }

    fn getxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self.node(ino).and_then(|node| self.inner.fs.get_xattr(&node, name.as_bytes(), &creds(req, 0)));
        xattr_reply(reply, size, label_or_unsupported(name, value.map_err(|error| error.errno())));
    }

    fn listxattr(&self, req: &Request<'_>, ino: u64, size: u32, reply: ReplyXattr) {
        let names = self.node(ino).and_then(|node| self.inner.fs.list_xattrs(&node, &creds(req, 0)));
        xattr_reply(reply, size, names.map_err(|error| error.errno()));
    }

    fn removexattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.node(ino).and_then(|node| {
            if name == "security.capability" {
                self.may_take_capabilities(&node, req)?;
            }
            self.inner.fs.remove_xattr(&node, name.as_bytes(), &creds(req, 0))
        });
        self.inner.changed.invalidate_attributes(ino);
        empty(reply, removed);
    }

    fn fallocate(&self, req: &Request<'_>, fh: u64, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let allocated = self.opened(fh).and_then(|opened| {
            if req.uid() != 0 {
                self.lose_set_id(opened.file.node(), req)?;
            }
            opened.file.allocate(mode, offset, length)?;
            self.inner.changed.invalidate_attributes(opened.file.node().ino());
            Ok(())
        });
        empty(reply, allocated);
    }

    fn lseek(&self, _req: &Request<'_>, fh: u64, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let to = match (u64::try_from(offset), whence) {
            (Ok(at), SEEK_DATA) => SeekFrom::Data(at),
            (Ok(at), SEEK_HOLE) => SeekFrom::Hole(at),
            (Err(_), SEEK_DATA | SEEK_HOLE) => return reply.error(Errno::NXIO),
            _ => return reply.error(Errno::INVAL),
        };
        match self.opened(fh).and_then(|opened| opened.file.seek(to)) {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(code(&error)),
        }
    }
}
