// long: one trait with a method for each request of the kernel.
//! The kernel's requests to a cached directory, one method each.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use cachedfs::Mode;
use directoryfs::{Found, KeptData, NewNode, Node, ROOT, Stat};
use fuser::{FopenFlags, InitFlags, KernelConfig, OpenFlags, WriteFlags};
use rustix::fs::{FallocateFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;

use super::data::ClosedData;
use super::open_handle::OpenHandle;
use super::shared::{CachedShared, O_ACCMODE, O_APPEND, O_DSYNC, O_EXCL, O_WRONLY, OpenCachedFile, WritePlace, open_flags, to_wire_attr};
use crate::direct_writes::CompletedDirectWrite;
use crate::filesystem::{caller, kind, label_or_unsupported, rdev_from_fuse, set_request_sizes, xattr_reply};
use crate::late_errors::keep_error;
use crate::wire::{
    Attr, AttrChanges, FileSystem, NewMode, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Watchdog, opcodes,
};

/// Serves the kernel's requests from a directory, with file data through the cache; cheap to clone.
#[derive(Clone)]
pub struct CachedFilesystem {
    /// The state that all serving threads share.
    pub inner: Arc<CachedShared>,
}

fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    try_empty(reply, outcome);
}

/// Returns whether the kernel got the reply.
fn try_empty(reply: ReplyEmpty, outcome: Result<(), Errno>) -> bool {
    match outcome {
        Ok(()) => reply.try_ok(),
        Err(error) => reply.try_error(error),
    }
}

impl CachedFilesystem {
    fn opened(&self, fh: u64) -> Result<Arc<OpenCachedFile>, Errno> {
        let opened = self.inner.opened.get(fh)?.open(|promised| self.inner.keep_promise(promised))?;
        self.inner.look_for_change(&opened.file);
        Ok(opened)
    }

    /// Replies with an inode. Returns whether the kernel got the reply, and with it the reference.
    fn entry(&self, reply: ReplyEntry, found: Result<impl Into<Found>, Errno>) -> bool {
        match found.map(Into::into) {
            Ok(Found { number, stat, node }) => {
                node.inspect(|node| self.inner.compare(node, &stat));
                let ttl = self.inner.ttl;
                let is_known = reply.try_entry(ttl, ttl, &to_wire_attr(number, &stat, self.inner.flags));
                if !is_known {
                    self.forget(number, 1);
                }
                is_known
            }
            Err(error) => reply.try_error(error),
        }
    }

    /// Replies to a call that made a name. If the reply comes too late, the kernel looks the name up again.
    fn made(&self, reply: ReplyEntry, made: Result<(Node, Stat), Errno>, (parent, name): (u64, &OsStr)) {
        if !self.entry(reply, made) {
            self.drop_names(&[(parent, name)]);
        }
    }

    /// Replies to a call that changed names, as `made` does.
    fn changed_names(&self, reply: ReplyEmpty, outcome: Result<(), Errno>, names: &[(u64, &OsStr)]) {
        if !try_empty(reply, outcome) {
            self.drop_names(names);
        }
    }

    /// Makes the kernel look names up again which a call has perhaps changed after its request was replied to.
    fn drop_names(&self, names: &[(u64, &OsStr)]) {
        let names: Vec<(u64, OsString)> = names.iter().map(|(parent, name)| (*parent, (*name).to_owned())).collect();
        self.inner.direct_writes.later(move |changed| {
            for (parent, name) in names {
                changed.drop_name(parent, &name);
                changed.invalidate_attributes(parent);
            }
        });
    }

    /// Replies with attributes. Returns whether the kernel got the reply.
    fn attr(&self, reply: ReplyAttr, number: u64, stat: Result<Stat, Errno>) -> bool {
        match stat {
            Ok(stat) => reply.try_attr(self.inner.ttl, &to_wire_attr(number, &stat, self.inner.flags)),
            Err(error) => reply.try_error(error),
        }
    }

    /// Replies to a flush. An error that nobody gets is kept for the next one: the file system below tells it once.
    fn flushed(opened: &OpenCachedFile, reply: ReplyEmpty, outcome: Result<(), Errno>) {
        if !try_empty(reply, outcome) {
            keep_error(&opened.late_error, outcome);
        }
    }

    /// Replies to a write whose data the cache has.
    fn written(
        &self,
        opened: &OpenCachedFile,
        direct: bool,
        (offset, length): (u64, usize),
        may_wait: impl FnOnce() -> bool,
        reply: ReplyWrite,
    ) {
        let (inner, ino) = (Arc::clone(&self.inner), opened.node.number());
        let answer = move || {
            if !reply.try_written(length as u32) {
                // The program was told that the write failed: it reads what the file has.
                inner.direct_writes.drop_all_pages_later(ino);
            }
        };
        if direct {
            self.inner.changed.invalidate_attributes(opened.node.number());
            let landed = CompletedDirectWrite { ino: opened.node.number(), offset, length, cached: &opened.pages };
            self.inner.direct_writes.answer(&landed, may_wait, answer);
        } else {
            answer();
        }
    }
}

impl FileSystem for CachedFilesystem {
    fn watchdog(&self) -> Option<&Arc<Watchdog>> {
        self.inner.side.watchdog.as_ref()
    }

    fn serves_away(&self, opcode: u32) -> bool {
        self.inner.side.serves_away(opcode) || self.inner.fs.remembers_names() && opcodes::only_looks(opcode)
    }

    fn known_attributes(&self, ino: u64) -> Option<(Duration, Attr)> {
        self.inner.fs.last_stat(ino).map(|stat| (self.inner.ttl, to_wire_attr(ino, &stat, self.inner.flags)))
    }

    fn side_changed(&self) {
        self.inner.side.publish();
    }

    fn init(&self, config: &mut KernelConfig) {
        let mut want = |flags: InitFlags| config.add_capabilities(flags).is_ok();
        want(InitFlags::FUSE_POSIX_ACL);
        want(InitFlags::FUSE_DONT_MASK);
        want(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        want(InitFlags::FUSE_DO_READDIRPLUS);
        want(InitFlags::FUSE_READDIRPLUS_AUTO);
        want(InitFlags::FUSE_PARALLEL_DIROPS);
        want(InitFlags::FUSE_ASYNC_DIO);
        // Other programs change files below: their pages are dropped with the attributes.
        want(InitFlags::FUSE_AUTO_INVAL_DATA);
        set_request_sizes(config);
    }

    fn lookup(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        match self.inner.fs.lookup(caller(req), parent, name) {
            Err(Errno::NOENT) => reply.absent(self.inner.ttl),
            found => _ = self.entry(reply, found),
        }
    }

    fn forget(&self, ino: u64, times: u64) {
        // The leader may have to drop data of a removed file, and requests do not wait for that.
        if let Some(data) = self.inner.fs.forget(ino, times) {
            // With many at the same time, this thread drops them too: each has descriptors.
            drop(self.inner.forgotten.try_send(data));
        }
    }

    fn getattr(&self, req: &Request<'_>, ino: u64, _fh: Option<u64>, reply: ReplyAttr) {
        self.attr(reply, ino, self.inner.getattr(caller(req), ino));
    }

    fn setattr(&self, req: &Request<'_>, ino: u64, changes: &AttrChanges, reply: ReplyAttr) {
        let (filesystem, caller, changes) = (self.clone(), caller(req), *changes);
        let is_slow = changes.set.size.is_some() || changes.set.atime.is_some() || changes.set.mtime.is_some();
        let change = move || {
            let changed = filesystem.inner.setattr(caller, ino, &changes);
            if !filesystem.attr(reply, ino, changed) {
                filesystem.inner.direct_writes.drop_all_pages_later(ino);
            }
        };
        // Dirty pages are written first, and others are served meanwhile.
        if is_slow { req.run_blocking(change) } else { change() }
    }

    fn readlink(&self, req: &Request<'_>, ino: u64, reply: ReplyData) {
        match self.inner.fs.readlink(caller(req), ino) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, rdev: u32, reply: ReplyEntry) {
        let what = NewNode::Node(new.mode, rdev_from_fuse(rdev));
        self.made(reply, self.inner.fs.make(caller(req), parent, name, what, new.umask), (parent, name));
    }

    fn mkdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, reply: ReplyEntry) {
        self.made(reply, self.inner.fs.make(caller(req), parent, name, NewNode::Directory(new.mode), new.umask), (parent, name));
    }

    fn symlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, target: &OsStr, reply: ReplyEntry) {
        self.made(reply, self.inner.fs.make(caller(req), parent, name, NewNode::Symlink(target), 0), (parent, name));
    }

    fn unlink(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        self.changed_names(reply, self.inner.fs.unlink(caller(req), parent, name), &[(parent, name)]);
    }

    fn rmdir(&self, req: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        self.changed_names(reply, self.inner.fs.rmdir(caller(req), parent, name), &[(parent, name)]);
    }

    fn rename(&self, req: &Request<'_>, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags, reply: ReplyEmpty) {
        let renamed = self.inner.fs.rename(caller(req), from, to, flags).map(|renamed| {
            // The time of their last change.
            renamed.into_iter().flatten().for_each(|number| self.inner.changed.invalidate_attributes(number));
        });
        self.changed_names(reply, renamed, &[from, to]);
    }

    fn link(&self, req: &Request<'_>, ino: u64, parent: u64, name: &OsStr, reply: ReplyEntry) {
        self.made(reply, self.inner.fs.link(caller(req), ino, parent, name), (parent, name));
    }

    fn open(&self, req: &Request<'_>, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, flags) = (caller(req), flags.0);
        let inner = &self.inner;
        if let Some((promised, is_kept)) = inner.promise(caller, ino, flags) {
            let mut fopen = inner.fopen_flags(flags);
            if is_kept {
                fopen |= FopenFlags::FOPEN_KEEP_CACHE;
            } else {
                inner.fs.set_cached(ino, &promised.stat);
            }
            let handle = OpenHandle::promised(promised);
            if is_kept {
                inner.watch_version(&handle);
            }
            let fh = inner.opened.add(handle);
            if !reply.try_opened(fh, fopen) {
                inner.opened.remove(fh);
            }
            return;
        }
        let open = || {
            let node = inner.fs.node(caller, ino)?;
            let access = flags & O_ACCMODE;
            inner.fs.may_open(caller, &node, access != O_WRONLY, access != 0)?;
            // An older version only costs the kernel its pages at the next open; a newer one would keep old pages.
            let stat = inner.newest(&node)?;
            let file = inner.open_file(caller, &node, open_flags(flags))?;
            // A network file system asks its server when a file is opened, and answers from memory before.
            let is_kept = node.is_cached(&stat) && node.is_cached(&inner.fs.stat_of(&node)?);
            Ok((file, node, stat, is_kept))
        };
        match open() {
            Ok((file, node, stat, is_kept)) => {
                let mut fopen = inner.fopen_flags(flags);
                // Close-to-open: what the kernel has of an older version of the file is dropped.
                if is_kept {
                    fopen |= FopenFlags::FOPEN_KEEP_CACHE;
                } else {
                    inner.changed.invalidate_attributes(ino);
                    node.set_cached(&stat);
                }
                let (fh, is_changed) = inner.add(caller, file, node, flags);
                if is_changed {
                    fopen -= FopenFlags::FOPEN_KEEP_CACHE;
                }
                if !reply.try_opened(fh, fopen) {
                    drop(inner.take_handle(fh));
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn create(&self, req: &Request<'_>, parent: u64, name: &OsStr, new: NewMode, flags: i32, reply: ReplyCreate) {
        let (caller, inner) = (caller(req), &self.inner);
        let made = inner.fs.create(caller, parent, name, (new.mode, new.umask), flags & O_EXCL != 0);
        let opened = made.and_then(|(node, stat, fd)| match inner.open_created(caller, fd, open_flags(flags)) {
            Ok(file) => Ok((node, stat, file)),
            Err(error) => {
                inner.fs.forget(node.number(), 1);
                Err(error)
            }
        });
        match opened {
            Ok((node, stat, file)) => {
                let attr = to_wire_attr(node.number(), &stat, inner.flags);
                node.set_cached(&stat);
                node.set_last_stat(&stat, node.changes());
                let fopen = inner.fopen_flags(flags);
                let (fh, _) = inner.add(caller, file, node, flags);
                if !reply.try_created(inner.ttl, &attr, fh, fopen) {
                    drop(inner.take_handle(fh));
                    self.forget(attr.ino, 1);
                    self.drop_names(&[(parent, name)]);
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(&self, req: &Request<'_>, (fh, offset): (u64, u64), size: u32, direct: bool, mut reply: ReplyData) {
        let handle = match self.inner.opened.get(fh) {
            Ok(handle) => handle,
            Err(error) => return reply.error(error),
        };
        let size = size as usize;
        if let Some(opened) = handle.get() {
            if !direct {
                opened.pages.has_pages();
            }
            if opened.file.is_cached()
                && let Some(Ok(read)) = opened.file.read_at_once(offset, reply.room(size))
                && (read == size || opened.file.len().is_ok_and(|end| end == offset + read as u64))
            {
                return reply.filled(read);
            }
        }
        if self.inner.side.is_away() && handle.get().is_some_and(|opened| !self.inner.has_all(&opened, offset, size)) {
            return reply.error(Errno::TIMEDOUT);
        }
        // The slow side may take long; others are served meanwhile.
        let inner = Arc::clone(&self.inner);
        req.run_blocking(move || match inner.read_handle(&handle, offset, reply.room(size), direct) {
            Ok(read) => reply.filled(read),
            Err(error) => reply.error(error),
        });
    }

    fn write(&self, req: &Request<'_>, (fh, offset): (u64, u64), data: &[u8], how: WriteFlags, flags: OpenFlags, reply: ReplyWrite) {
        let opened = match self.opened(fh) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error),
        };
        let direct = how.contains(WriteFlags::FUSE_WRITE_LOCKOWNER);
        if !direct {
            opened.pages.has_pages();
        }
        if self.inner.side.is_away() && opened.file.mode() != Mode::WriteBack {
            return reply.error(Errno::TIMEDOUT);
        }
        if how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
            && let Err(error) = self.inner.take_set_id(caller(req), &opened.node)
        {
            return reply.error(error);
        }
        // Not what the kernel writes back from a mapping, which has its place.
        let is_mapped = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let is_append = flags.0 & O_APPEND != 0 && !is_mapped;
        // pwritev2(2) with RWF_DSYNC or RWF_SYNC on a file whose writes the kernel passes on at once: it sends no FSYNC then.
        let is_durable = flags.0 & O_DSYNC != 0 && !opened.is_synchronous;
        let may_wait = direct && req.may_wait();
        let (filesystem, data) = (self.clone(), data.to_vec());
        req.run_blocking(move || {
            let place = match () {
                () if is_mapped => WritePlace::WithinFile,
                () if is_append => WritePlace::End,
                () => WritePlace::Anywhere,
            };
            let mut written = filesystem.inner.write(&opened, offset, &data, place);
            let mut synced = Ok(());
            if is_durable && written.is_ok() {
                synced = filesystem.inner.sync(&opened, true);
                written = synced.and(written);
            }
            match written {
                Ok((length, at)) => {
                    filesystem.written(&opened, direct, (at, length), || may_wait, reply);
                    if at != offset {
                        // The kernel has the data at another offset, in pages that it keeps locked for the reply.
                        let first = at.min(offset);
                        let bytes = (at.max(offset) - first) as usize + length;
                        filesystem.inner.direct_writes.drop_pages_later(opened.node.number(), first, bytes);
                    }
                }
                // A part may have been written after the kernel had read the file again.
                Err(error) if !reply.try_error(error) => {
                    // It may be of an earlier write, and was told once.
                    keep_error(&opened.late_error, synced);
                    filesystem.inner.direct_writes.drop_all_pages_later(opened.node.number());
                }
                Err(_) => {}
            }
            if is_mapped {
                // Written back from a shared mapping: the kernel has not seen the time change.
                filesystem.inner.changed.invalidate_attributes(opened.node.number());
            }
        });
    }

    fn release(&self, req: &Request<'_>, _ino: u64, fh: u64, reply: ReplyEmpty) {
        let Some(opened) = self.inner.take_handle(fh) else { return reply.ok() };
        let is_write_back = self.inner.mode == Mode::WriteBack;
        let close = move || {
            // The process that has it by an O_PATH descriptor may open it again.
            if is_write_back && opened.file.is_removed() {
                opened.node.keep(|| KeptData::new(ClosedData(Arc::clone(&opened.file))));
            }
            drop(opened);
            reply.ok();
        };
        // The leader may have to take over a file with dirty pages.
        if is_write_back { req.run_blocking(close) } else { close() }
    }

    fn flush(&self, req: &Request<'_>, fh: u64, reply: ReplyEmpty) {
        match self.opened(fh) {
            Ok(opened) => {
                let inner = Arc::clone(&self.inner);
                req.run_blocking(move || Self::flushed(&opened, reply, inner.flush(&opened)));
            }
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, req: &Request<'_>, fh: u64, datasync: bool, reply: ReplyEmpty) {
        match self.opened(fh) {
            Ok(opened) => {
                let inner = Arc::clone(&self.inner);
                req.run_blocking(move || Self::flushed(&opened, reply, inner.sync(&opened, datasync)));
            }
            Err(error) => reply.error(error),
        }
    }

    fn opendir(&self, req: &Request<'_>, ino: u64, reply: ReplyOpen) {
        match self.inner.fs.open_listing(caller(req), ino) {
            Ok(listing) => {
                let fh = self.inner.listings.add(listing);
                if !reply.try_opened(fh, FopenFlags::empty()) {
                    self.inner.listings.remove(fh);
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, req: &Request<'_>, _ino: u64, fh: u64, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.inner.listings.get(fh).and_then(|listing| {
            self.inner
                .fs
                .list(caller(req), &listing, offset, &mut |entry| !reply.add(entry.number, entry.next, kind(entry.kind), &entry.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(&self, req: &Request<'_>, ino: u64, fh: u64, offset: u64, mut reply: ReplyDirectoryPlus) {
        let (caller, inner) = (caller(req), &self.inner);
        let (mut any, mut references) = (false, Vec::new());
        let listed = inner.listings.get(fh).and_then(|listing| {
            let own = inner.getattr(caller, ino)?;
            inner.fs.list(caller, &listing, offset, &mut |entry| {
                if entry.is_dots() {
                    // The kernel takes no reference for these two, and believes nothing of them.
                    let added = !reply.add(entry.next, &entry.name, Duration::ZERO, &to_wire_attr(entry.number, &own, inner.flags));
                    any |= added;
                    return added;
                }
                match inner.fs.entry(caller, &listing, &entry.name) {
                    Ok(Found { number, stat, node }) => {
                        node.inspect(|node| inner.compare(node, &stat));
                        let is_full = reply.add(entry.next, &entry.name, inner.ttl, &to_wire_attr(number, &stat, inner.flags));
                        if is_full {
                            inner.fs.forget(number, 1);
                        } else {
                            references.push(number);
                        }
                        any |= !is_full;
                        !is_full
                    }
                    Err(Errno::NOENT) => true,
                    // A mount of a user that root may not enter, or a damaged inode, hides no other name.
                    Err(_) => {
                        let added = !reply.add_name(entry.number, entry.next, kind(entry.kind), &entry.name);
                        any |= added;
                        added
                    }
                }
            })
        });
        match listed {
            // Entries that have references must be sent; an error occurs again at the next read.
            Err(error) if !any => reply.error(error),
            _ if reply.try_ok() => {}
            _ => references.into_iter().for_each(|number| self.forget(number, 1)),
        }
    }

    fn releasedir(&self, _req: &Request<'_>, fh: u64, reply: ReplyEmpty) {
        self.inner.listings.remove(fh);
        reply.ok();
    }

    fn fsyncdir(&self, req: &Request<'_>, _ino: u64, fh: u64, _datasync: bool, reply: ReplyEmpty) {
        match self.inner.listings.get(fh) {
            Ok(listing) => {
                let (inner, caller) = (Arc::clone(&self.inner), caller(req));
                req.run_blocking(move || empty(reply, inner.fs.sync_listing(caller, &listing)));
            }
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _req: &Request<'_>, reply: ReplyStatfs) {
        match self.inner.fs.statfs() {
            Ok(of) => {
                let (block, fragment) = (of.f_bsize as u32, of.f_frsize as u32);
                reply.statfs([of.f_blocks, of.f_bfree, of.f_bavail], [of.f_files, of.f_ffree], block, of.f_namemax as u32, fragment);
            }
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, value: &[u8], flags: u32, reply: ReplyEmpty) {
        // An access control list changes the mode.
        self.inner.fs.note_changed(ino);
        let set = self.inner.fs.setxattr(caller(req), ino, name, value, flags);
        self.inner.changed.invalidate_attributes(ino);
        empty(reply, set);
    }

    fn getxattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr_reply(reply, size, label_or_unsupported(name, self.inner.fs.getxattr(caller(req), ino, name)));
    }

    fn listxattr(&self, req: &Request<'_>, ino: u64, size: u32, reply: ReplyXattr) {
        xattr_reply(reply, size, self.inner.fs.listxattr(caller(req), ino));
    }

    fn removexattr(&self, req: &Request<'_>, ino: u64, name: &OsStr, reply: ReplyEmpty) {
        self.inner.fs.note_changed(ino);
        let removed = self.inner.fs.removexattr(caller(req), ino, name);
        self.inner.changed.invalidate_attributes(ino);
        empty(reply, removed);
    }

    fn ioctl(&self, _req: &Request<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOTTY);
    }

    fn fallocate(&self, req: &Request<'_>, fh: u64, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let opened = match self.opened(fh) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error),
        };
        let Some(end) = offset.checked_add(length) else { return reply.error(Errno::FBIG) };
        let (inner, caller) = (Arc::clone(&self.inner), caller(req));
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        req.run_blocking(move || {
            opened.node.note_changed();
            let done = inner.fs.as_caller(opened.opener, || inner.allocate(caller, &opened, offset..end, mode));
            opened.node.note_changed();
            inner.changed.invalidate_attributes(opened.node.number());
            if !try_empty(reply, done) {
                inner.direct_writes.drop_all_pages_later(opened.node.number());
            }
        });
    }

    fn lseek(&self, req: &Request<'_>, fh: u64, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let to = match (u64::try_from(offset), whence) {
            (Ok(at), SEEK_DATA) => SeekFrom::Data(at),
            (Ok(at), SEEK_HOLE) => SeekFrom::Hole(at),
            (Err(_), SEEK_DATA | SEEK_HOLE) => return reply.error(Errno::NXIO),
            _ => return reply.error(Errno::INVAL),
        };
        let opened = match self.opened(fh) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error),
        };
        let inner = Arc::clone(&self.inner);
        req.run_blocking(move || match inner.seek(&opened, to) {
            Ok(at) => reply.offset(at.cast_signed()),
            Err(error) => reply.error(error),
        });
    }
}

const _: () = assert!(ROOT == 1, "the kernel's number of the top directory");
