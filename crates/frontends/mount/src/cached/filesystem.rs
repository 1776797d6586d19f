// long: one trait with a method for each request of the kernel.
//! The kernel's requests to a cached directory, one method each.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use cachedfs::{File, Instance, Mode, Options};
use directoryfs::{DirectoryFs, Found, KeptData, Listing, NewNode, Node, ROOT, Stat};
use fusedev::{Caller, SetAttr};
use fuser::{FopenFlags, InitFlags, KernelConfig, OpenFlags, WriteFlags};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;

use super::data::{ClosedData, InstanceCache, errno};
use super::kernel_pages::{KernelPages, OpenFilePages};
use super::open_handle::{OpenHandle, PromisedOpen};
use super::slow_side::SlowSide;
use crate::direct_writes::{CompletedDirectWrite, DirectWrites};
use crate::filesystem::{caller, fuse_rdev, kind, label_or_unsupported, rdev_from_fuse, set_request_sizes, xattr_reply};
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::late_errors::{close_and_report, keep_error};
use crate::options::MountFlags;
use crate::wire::{
    Attr, AttrChanges, FileSystem, NewMode, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Watchdog, check_wanted, opcodes,
};

const O_ACCMODE: i32 = 0o3;
const O_WRONLY: i32 = 0o1;
const O_EXCL: i32 = 0o200;
const O_APPEND: i32 = 0o2000;
const O_DSYNC: i32 = 0o10_000;

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

/// Holds the state that all serving threads share.
pub struct CachedShared {
    /// The directory on the slow side.
    pub fs: DirectoryFs<InstanceCache>,
    /// The cache of file data.
    pub instance: Arc<Instance>,
    /// The open files of the mount.
    pub opened: HandleTable<OpenHandle<OpenCachedFile>>,
    /// The open directories of the mount.
    pub listings: HandleTable<Listing>,
    /// The mount flags, which decide what powers files have.
    pub flags: MountFlags,
    /// The device number of the directory's file system.
    pub device: u64,
    /// What the kernel may have cached of open files.
    pub pages: Arc<KernelPages>,
    /// Tells the kernel which cached attributes are stale.
    pub changed: Arc<KernelNotifier>,
    /// Keeps the kernel's cache coherent with direct writes.
    pub direct_writes: DirectWrites,
    /// The mode that files are opened in: write-through or write-back.
    pub mode: Mode,
    /// Whether the directory's file system may tell an error of a write not before the file is closed.
    pub is_remote: bool,
    /// How long the kernel may use names and attributes. Other programs may change the directory at any time.
    pub ttl: Duration,
    /// Drops the data of removed files that the kernel has forgotten.
    pub forgotten: SyncSender<KeptData>,
    /// Whether the slow side replies, and what is done while it does not.
    pub side: SlowSide,
}

/// Serves the kernel's requests from a directory, with file data through the cache; cheap to clone.
#[derive(Clone)]
pub struct CachedFilesystem {
    /// The state that all serving threads share.
    pub inner: Arc<CachedShared>,
}

/// Returns attributes as the kernel gets them. Where the mount lets programs and devices have their power (`-o suid`, `-o dev`), those of a
/// file system that does not allow it have none.
fn to_wire_attr(number: u64, stat: &Stat, flags: MountFlags) -> Attr {
    let hides_device = stat.is_powerless && flags.dev;
    let hides_set_id = stat.is_powerless && flags.suid && stat.is_file();
    Attr {
        ino: number,
        size: stat.size,
        blocks: stat.blocks,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        mode: if hides_set_id { stat.mode & !0o6000 } else { stat.mode },
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: if hides_device { 0 } else { fuse_rdev(stat.rdev) },
        blksize: stat.blksize,
    }
}

/// Returns the flags that the file on the slow side is opened with. The kernel has created and truncated the file before it sends the open,
/// and passes the offset of each appending write itself. Direct access ends at the cache: the kernel's requests are not aligned.
fn open_flags(flags: i32) -> OFlags {
    const KEPT: OFlags = OFlags::RWMODE.union(OFlags::SYNC).union(OFlags::DSYNC);
    // A lease of the file's owner would make the open wait, and this thread with it (`F_SETLEASE` in fcntl(2)): EAGAIN instead.
    (OFlags::from_bits_retain(flags as u32) & KEPT) | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
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

impl CachedShared {
    /// Opens a file of the slow side in the cache. What the cache reads of it is no access by a user: also a write reads pages.
    fn open_file(&self, caller: Caller, file: impl AsFd, flags: OFlags) -> Result<File, Errno> {
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
    fn open_created(&self, caller: Caller, file: OwnedFd, flags: OFlags) -> Result<File, Errno> {
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

    fn add(&self, opener: Caller, file: File, node: Node, flags: i32) -> u64 {
        self.opened.add(OpenHandle::of(self.note_open(opener, file, node, flags)))
    }

    /// Opens a file whose open(2) was replied to already.
    pub fn keep_promise(&self, open: &PromisedOpen) -> Result<OpenCachedFile, Errno> {
        let PromisedOpen { caller, number, flags, ref stat, .. } = *open;
        let node = self.fs.node(caller, number)?;
        self.fs.may_open(caller, &node, true, false)?;
        let file = self.open_file(caller, &node, open_flags(flags))?;
        let now = self.fs.stat_of(&node)?;
        if (now.size, now.mtime, now.ctime) != (stat.size, stat.mtime, stat.ctime) {
            // The kernel may have pages of the older version.
            node.set_cached(&now);
            self.direct_writes.drop_pages_later(number, 0, stat.size.max(now.size) as usize);
        }
        Ok(self.note_open(caller, file, node, flags))
    }

    /// Replies to an open(2) for reading by what is remembered of the file, if that is fresh. The file is opened when the kernel wants to
    /// read what it does not have.
    fn promise(&self, caller: Caller, number: u64, flags: i32) -> Option<(PromisedOpen, bool)> {
        if flags & O_ACCMODE != 0 {
            return None;
        }
        let stat = self.fs.fresh_attributes(number)?;
        if !stat.is_file() || stat.dev != self.device || self.fs.may_open_with(caller, &stat, true, false).is_err() {
            return None;
        }
        let open = PromisedOpen { caller, number, flags, stat, _held: self.fs.held(number) };
        Some((open, self.fs.is_cached(number, &stat)))
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

    /// Appends `data` at the present end of a file, which another program may have moved since the kernel looked. Returns the length
    /// and the offset.
    fn append(&self, opened: &OpenCachedFile, data: &[u8]) -> Result<(usize, u64), Errno> {
        // A network file system asks its server at each append. The cache takes what that told from the file system's memory.
        if self.is_remote {
            Stat::newest_of(opened.file.fd())?;
        }
        opened.file.stat().map_err(|error| errno(&error))?;
        check_wanted()?;
        opened.file.append_some(data).map(|(at, length)| (length, at)).map_err(|error| errno(&error))
    }

    /// Writes all of `data`, which the kernel takes for one write. Returns the length, and the offset.
    fn write(&self, opened: &OpenCachedFile, offset: u64, data: &[u8], is_append: bool) -> Result<(usize, u64), Errno> {
        let written = self.fs.as_caller(opened.opener, || {
            if is_append { self.append(opened, data) } else { Ok((self.write_at(opened, offset, data)?, offset)) }
        });
        match &written {
            Ok((length, at)) => opened.node.note_written(at + *length as u64),
            Err(_) => opened.node.note_changed(),
        }
        self.note_write_time(&opened.file);
        written
    }

    /// Lets programs see a change by its time. Writes that go through have the time of the file system.
    fn note_write_time(&self, file: &File) {
        if self.mode == Mode::WriteBack {
            file.note_exact_write_time();
        }
    }

    /// Returns an error of earlier writes that nobody has got yet.
    fn flush(&self, opened: &OpenCachedFile) -> Result<(), Errno> {
        opened.late_error.lock().take().map_or(Ok(()), Err)?;
        opened.file.take_unreported().map_err(|error| errno(&error))?;
        if !self.is_remote {
            return Ok(());
        }
        let again = || rustix::io::fcntl_dupfd_cloexec(opened.file.written_fd(), 0);
        close_and_report(self.fs.with_descriptors(again)?)
    }

    /// Makes the written data of an open file durable.
    fn sync(&self, opened: &OpenCachedFile, data_only: bool) -> Result<(), Errno> {
        opened.late_error.lock().take().map_or(Ok(()), Err)?;
        // A file system in another process may tell the error of a write only to the descriptor that made it; the leader has its own.
        if self.is_remote && opened.is_written {
            rustix::fs::fsync(opened.file.written_fd())?;
        }
        opened.late_error.lock().take().map_or(Ok(()), Err)?;
        opened.file.sync(data_only).map_err(|error| errno(&error))
    }

    /// Returns the flags of a reply to an open(2).
    fn fopen_flags(&self, flags: i32) -> FopenFlags {
        let access = flags & O_ACCMODE;
        // The kernel passes the data on without a copy in the page cache that nobody may read.
        let direct = if access == O_WRONLY { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
        let has_late_errors = access != 0 && (self.is_remote || self.mode == Mode::WriteBack);
        if has_late_errors { direct } else { direct | FopenFlags::FOPEN_NOFLUSH }
    }

    fn write_at(&self, opened: &OpenCachedFile, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < data.len() {
            check_wanted()?;
            match opened.file.write_at(offset + done as u64, &data[done..]) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(errno(&error)),
            }
        }
        Ok(done)
    }

    /// Reads all of `to` that the file has. A part before an error is not given out: the kernel takes a short reply for the end of the
    /// file, and fills the rest of the page with zeroes.
    fn read(&self, opened: &OpenCachedFile, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < to.len() {
            match opened.file.read_at(offset + done as u64, &mut to[done..]).map_err(|error| errno(&error))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    /// Changes the size through the cache, by the open file of the request or by another. `takes_set_id`: set-ID bits go before, unless the
    /// file cannot have this size.
    fn set_len(&self, caller: Caller, node: &Node, open: Option<&OpenCachedFile>, (size, takes_set_id): (u64, bool)) -> Result<(), Errno> {
        let to_errno = |error: cachedfs::Error| errno(&error);
        let resize = |file: &File| {
            file.may_have_len(size).map_err(to_errno)?;
            check_wanted()?;
            if takes_set_id {
                self.take_set_id(caller, node)?;
                check_wanted()?;
            }
            file.set_len(size).map_err(to_errno)?;
            self.note_write_time(file);
            Ok(())
        };
        if let Some(open) = open.filter(|open| open.is_written) {
            return resize(&open.file);
        }
        let file = self.open_file(caller, node, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK)?;
        resize(&file)?;
        file.close().map_err(to_errno)
    }

    fn setattr(&self, caller: Caller, number: u64, changes: &AttrChanges) -> Result<Stat, Errno> {
        let node = self.fs.node(caller, number)?;
        node.note_changed();
        let set: SetAttr = changes.set;
        if let Some(size) = set.size {
            let open = changes.fh.and_then(|fh| self.opened.get(fh).ok()?.get());
            if !open.as_ref().is_some_and(|open| open.is_written) {
                self.fs.may_open(caller, &node, false, true)?;
            }
            let resized = self.set_len(caller, &node, open.as_deref(), (size, set.kill_set_id));
            self.fs.forget_attributes(number);
            resized?;
        }
        let rest = SetAttr { size: None, ..set };
        if set.size.is_none() || !rest.changes_nothing() {
            self.fs.setattr(caller, number, &rest)?;
        }
        node.note_changed();
        self.newest(&node)
    }

    /// Takes set-ID bits before a change of the data, and lets the kernel know: what it believes of the mode decides about the rights of a
    /// program.
    fn take_set_id(&self, caller: Caller, node: &Node) -> Result<(), Errno> {
        if self.fs.take_set_id(caller, node)? {
            self.changed.invalidate_attributes(node.number());
        }
        Ok(())
    }

    fn allocate(&self, caller: Caller, opened: &OpenCachedFile, range: std::ops::Range<u64>, mode: FallocateFlags) -> Result<(), Errno> {
        if !caller.is_root() {
            self.take_set_id(caller, &opened.node)?;
        }
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let file = &opened.file;
        check_wanted()?;
        let done = match mode - FallocateFlags::KEEP_SIZE {
            // Only the times change.
            FallocateFlags::PUNCH_HOLE if keep_size && self.is_beyond(file, range.start)? => {
                let call = || rustix::fs::fallocate(file.fd(), mode, range.start, range.end - range.start);
                return self.instance.change_times(file.fd(), call);
            }
            FallocateFlags::PUNCH_HOLE if keep_size => file.punch_hole(range),
            FallocateFlags::ZERO_RANGE => file.punch_hole(range.clone()).and_then(|()| file.allocate(range, keep_size)),
            plain if plain.is_empty() => file.allocate(range, keep_size),
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.note_write_time(file);
        done.map_err(|error| errno(&error))
    }

    /// Returns whether a file ends at or before an offset.
    fn is_beyond(&self, file: &File, offset: u64) -> Result<bool, Errno> {
        Ok(offset >= file.len().map_err(|error| errno(&error))?)
    }

    /// Makes the cache compare its pages of an open file that seems changed, before the kernel drops its own with these attributes and
    /// reads them again. A file that is not open is compared when it is opened.
    fn compare(&self, node: &Node, stat: &Stat) {
        let is_cached = node.is_file() && stat.dev == self.device;
        let compare = || self.fs.with_descriptors(|| self.instance.compare(node.as_fd())) == Ok(true);
        if is_cached && !node.is_compared(stat) && self.pages.is_open(node.number()) && compare() {
            node.set_compared(stat);
        }
    }

    /// Reads the attributes of a node, and remembers them for when the slow side is away.
    fn newest(&self, node: &Node) -> Result<Stat, Errno> {
        let changes = node.changes();
        let stat = self.fs.stat_of(node)?;
        node.set_last_stat(&stat, changes);
        Ok(stat)
    }

    /// Closes a handle. Returns the open file, which is closed when it is dropped; none if nothing has needed it.
    fn take_handle(&self, fh: u64) -> Option<Arc<OpenCachedFile>> {
        let opened = self.opened.remove(fh)?.get()?;
        if opened.is_written {
            self.fs.remove_writer(opened.node.number());
        }
        Some(opened)
    }

    /// Returns whether a read needs nothing of the slow side.
    fn has_all(&self, opened: &OpenCachedFile, offset: u64, size: usize) -> bool {
        let Ok(len) = opened.file.len() else { return false };
        let range = offset..offset.saturating_add(size as u64).min(len);
        range.is_empty() || matches!(opened.file.residency_in(range), Ok(Some(part)) if part.cached == part.pages)
    }

    fn getattr(&self, caller: Caller, number: u64) -> Result<Stat, Errno> {
        // Of an open file the cache compares its pages with what the slow side says now.
        if !self.pages.is_open(number)
            && let Some(stat) = self.fs.known_attributes(caller, number)
        {
            return Ok(stat);
        }
        if self.side.is_away() {
            return self.fs.last_stat(number).ok_or(Errno::TIMEDOUT);
        }
        let node = self.fs.node(caller, number)?;
        let stat = self.newest(&node)?;
        self.compare(&node, &stat);
        Ok(stat)
    }

    fn seek(&self, opened: &OpenCachedFile, to: SeekFrom) -> Result<u64, Errno> {
        // The slow side knows its holes, once it has all data.
        if self.instance.stat_if_newer(opened.file.fd())?.is_some() {
            opened.file.clean().map_err(|error| errno(&error))?;
        }
        rustix::fs::seek(opened.file.fd(), to)
    }
}

impl CachedFilesystem {
    fn opened(&self, fh: u64) -> Result<Arc<OpenCachedFile>, Errno> {
        self.inner.opened.get(fh)?.open(|promised| self.inner.keep_promise(promised))
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
        for (parent, name) in names {
            self.inner.changed.drop_name(*parent, name);
            self.inner.changed.invalidate_attributes(*parent);
        }
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
        let (changed, ino) = (Arc::clone(&self.inner.changed), opened.node.number());
        let answer = move || {
            if !reply.try_written(length as u32) {
                // The program was told that the write failed: it reads what the file has.
                changed.drop_all_pages(ino);
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
                filesystem.inner.changed.drop_all_pages(ino);
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
            let fh = inner.opened.add(OpenHandle::promised(promised));
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
                let fh = inner.add(caller, file, node, flags);
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
                let fh = inner.add(caller, file, node, flags);
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
                && read == size
            {
                return reply.filled(read);
            }
        }
        if self.inner.side.is_away() && !handle.get().is_some_and(|opened| self.inner.has_all(&opened, offset, size)) {
            return reply.error(Errno::TIMEDOUT);
        }
        // The slow side may take long; others are served meanwhile.
        let inner = Arc::clone(&self.inner);
        req.run_blocking(move || {
            let read = handle.open(|promised| inner.keep_promise(promised)).and_then(|opened| {
                if !direct {
                    opened.pages.has_pages();
                }
                inner.read(&opened, offset, reply.room(size))
            });
            match read {
                Ok(read) => reply.filled(read),
                Err(error) => reply.error(error),
            }
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
        let is_append = flags.0 & O_APPEND != 0 && !how.contains(WriteFlags::FUSE_WRITE_CACHE);
        // pwritev2(2) with RWF_DSYNC or RWF_SYNC on a file whose writes the kernel passes on at once: it sends no FSYNC then.
        let is_durable = flags.0 & O_DSYNC != 0 && !opened.is_synchronous;
        let may_wait = direct && req.may_wait();
        let (filesystem, data) = (self.clone(), data.to_vec());
        req.run_blocking(move || {
            let mut written = filesystem.inner.write(&opened, offset, &data, is_append);
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
                    filesystem.inner.changed.drop_all_pages(opened.node.number());
                }
                Err(_) => {}
            }
            if how.contains(WriteFlags::FUSE_WRITE_CACHE) {
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
                inner.changed.drop_all_pages(opened.node.number());
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
