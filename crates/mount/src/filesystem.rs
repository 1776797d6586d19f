//! The kernel's requests, one method each.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use hybridfs::{Attr, Caller, Handle, Hybrid, Make, Outcome, Reason, SetAttr, SetTime, Written};
use rustix::fs::FileType as Kind;
use rustix::io::{Errno, ReadWriteFlags};

use crate::handles::{Handles, OpenFile};
use crate::lanes::Lanes;
use crate::modes::Modes;
use crate::turns::Turns;

const O_ACCMODE: i32 = 0o3;
pub(crate) const O_WRONLY: i32 = 0o1;
pub(crate) const O_EXCL: i32 = 0o200;
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;
pub(crate) const ALL_OR_NOTHING: Generation = Generation(0);
pub(crate) const READ_MAX: usize = 1 << 20;
/// What only writes through us is handed over as it is, without a copy in the page cache above us that nobody may read; and
/// the kernel does not ask for file capabilities before the first write, which go with the write below us. Copies of others
/// stay right: the kernel drops the pages that such a write covers.
const WRITE_ONLY: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;
/// Short, so that files somebody puts into the directories below us are seen soon.
const ABSENT_TTL: Duration = Duration::from_secs(1);
/// Attributes of a directory that were asked for while somebody changed it may be kept by the kernel after the change: a change of
/// names does not raise what it compares (attr_version, in fs/fuse/dir.c). So not for long.
pub(crate) const DIRECTORY_TTL: Duration = Duration::from_secs(1);

/// The front door; cheap to clone for requests that go on on another thread.
#[derive(Clone)]
pub struct Front {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub fs: Arc<Hybrid>,
    pub handles: Handles,
    pub modes: Modes,
    pub lanes: Lanes,
    pub turns: Turns,
    /// The kernel gathers writes: its write-back cache.
    pub gathers: bool,
    pub ttl: Duration,
    /// The kernel checks permissions by mode and ACL.
    pub checked: bool,
    pub notifier: OnceLock<Notifier>,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn to_fuse(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

pub(crate) fn time((sec, nsec): (i64, u32)) -> SystemTime {
    let part = Duration::new(0, nsec);
    if sec >= 0 { UNIX_EPOCH + Duration::from_secs(sec as u64) + part } else { UNIX_EPOCH - Duration::from_secs(sec.unsigned_abs()) + part }
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => match at.duration_since(UNIX_EPOCH) {
            Ok(since) => SetTime::At(since.as_secs() as i64, since.subsec_nanos()),
            Err(before) => {
                // The FUSE crate takes the nanoseconds, which count forwards, away with the seconds.
                let before = before.duration();
                SetTime::At((before.as_secs() as i64).wrapping_neg(), before.subsec_nanos())
            }
        },
    }
}

fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn file_attr(attr: &Attr) -> FileAttr {
    let stat = &attr.stat;
    FileAttr {
        ino: INodeNo(attr.ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: time(stat.birth),
        kind: kind(stat.kind()),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: fuse_rdev(stat.rdev),
        blksize: stat.blksize,
        flags: 0,
    }
}

/// Device numbers cross the FUSE protocol in the kernel's 32-bit form (new_encode_dev).
pub(crate) fn fuse_rdev(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(crate) fn rdev_from_fuse(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

fn sync_flags(flags: OpenFlags) -> ReadWriteFlags {
    if flags.0 & O_SYNC == O_SYNC {
        ReadWriteFlags::SYNC
    } else if flags.0 & O_DSYNC != 0 {
        ReadWriteFlags::DSYNC
    } else {
        ReadWriteFlags::empty()
    }
}

impl Front {
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
        if attr.unsettled && self.inner.modes.bypasses(attr.ino) {
            Duration::ZERO
        } else if attr.stat.is_dir() {
            self.inner.ttl.min(DIRECTORY_TTL)
        } else {
            self.inner.ttl
        }
    }

    fn entry(&self, reply: ReplyEntry, made: Result<Attr, Errno>) {
        match made {
            Ok(attr) => reply.entry_with_ttls(&self.attr_ttl(&attr), &self.inner.ttl, &file_attr(&attr), ALL_OR_NOTHING),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    /// No such name, which the kernel may believe for a moment: compilers and shells ask for many that are not there.
    fn no_entry(&self, reply: ReplyEntry) {
        let ttl = self.inner.ttl.min(ABSENT_TTL);
        // Number 0 says so (fuse_lookup_name in the kernel).
        reply.entry_with_ttls(&Duration::ZERO, &ttl, &file_attr(&Attr::default()), ALL_OR_NOTHING);
    }

    fn attr(&self, reply: ReplyAttr, attr: Result<Attr, Errno>) {
        match attr {
            Ok(attr) => reply.attr(&self.attr_ttl(&attr), &file_attr(&attr)),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn file(&self, fh: FileHandle) -> Result<Arc<OpenFile>, Errno> {
        self.inner.handles.files.get(fh.0)
    }

    /// Attributes the kernel holds are not right any more.
    fn attributes_changed(&self, ino: u64) {
        if let Some(notifier) = self.inner.notifier.get()
            && let Err(error) = notifier.inval_inode(INodeNo(ino), -1, 0)
        {
            tracing::debug!(ino, %error, "the kernel did not take an invalidation");
        }
    }

    fn open_now(&self, caller: Caller, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        let access = flags.0 & O_ACCMODE;
        let (read, write) = (access != O_WRONLY, access != 0);
        let handle = match self.inner.fs.open(caller, ino, read, write) {
            Ok(handle) => handle,
            Err(error) => return reply.error(to_fuse(error)),
        };
        let fs = &self.inner.fs;
        let inode = handle.inode.clone();
        let backing = self.inner.modes.enter(&inode, || fs.may_bypass(&handle), |file| reply.open_backing(file));
        let mut fopen = FopenFlags::FOPEN_NOFLUSH;
        match backing {
            Some(backing) => {
                if write {
                    // From now on data may change without a request; what the kernel knew was for longer.
                    self.attributes_changed(ino);
                    fs.stamp_cache(ino, None);
                }
                let fh = self.inner.handles.files.add(OpenFile { handle, bypass: true });
                reply.opened_passthrough(FileHandle(fh), fopen, &backing);
            }
            None => {
                if fs.handle_attr(&handle).is_ok_and(|attr| fs.cache_is_current(ino, &attr.stat)) {
                    fopen |= FopenFlags::FOPEN_KEEP_CACHE;
                }
                fopen |= self.write_only(&handle, access);
                let fh = self.inner.handles.files.add(OpenFile { handle, bypass: false });
                reply.opened(FileHandle(fh), fopen);
            }
        }
    }

    /// How a handle that goes through us and was opened with this access is written to.
    fn write_only(&self, handle: &Handle, access: i32) -> FopenFlags {
        let direct = match self.inner.gathers {
            false => access == O_WRONLY,
            // To gather parts of pages the kernel must read the rest of them.
            true => access != 0 && !handle.inode.can_read(),
        };
        if direct { WRITE_ONLY } else { FopenFlags::empty() }
    }

    fn write_done(&self, file: &OpenFile, flags: WriteFlags) {
        // Written back from a shared mapping: the kernel has not seen the time change.
        if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.attributes_changed(file.handle.inode.ino);
        }
    }
}

impl Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
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
        let _ = config.set_max_write(READ_MAX as u32);
        let _ = config.set_max_background(64);
        let most = config.set_max_readahead(u32::MAX).err().unwrap_or(128 << 10);
        let _ = config.set_max_readahead(most.min(READ_MAX as u32));
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.inner.turns.take();
        let fs = &self.inner.fs;
        // Handles kept by an NFS server ask for these by number.
        let found = match name.as_bytes() {
            b"." => fs.lookup_again(parent.0),
            b".." => fs.lookup_again(fs.parent_of(parent.0)),
            _ => fs.lookup(parent.0, name),
        };
        match found {
            Err(Errno::NOENT) => self.no_entry(reply),
            found => self.entry(reply, found),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.inner.fs.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.inner.turns.take();
        let open = fh.and_then(|fh| self.file(fh).ok());
        let attr = match open {
            Some(file) => self.inner.fs.handle_attr(&file.handle),
            None => self.inner.fs.getattr(ino.0),
        };
        self.attr(reply, attr);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.inner.turns.take();
        let set = SetAttr { mode, uid, gid, size, atime: atime.map(set_time), mtime: mtime.map(set_time) };
        let open = fh.and_then(|fh| self.file(fh).ok());
        // Of a write that it took, or of a cut: the kernel's own note of when.
        let noted = self.inner.gathers && ctime.is_some() && [mode, uid, gid].iter().all(Option::is_none);
        let attr = match self.inner.fs.setattr(caller(req), ino.0, &set, open.as_ref().map(|file| &file.handle)) {
            // Who may write a file that is not his may not set its times; they are those of our write then.
            Err(error @ (Errno::PERM | Errno::ACCESS)) if noted && set.atime.is_none() => {
                self.inner.fs.getattr(ino.0).and_then(|attr| if attr.stat.fixed { Err(error) } else { Ok(attr) })
            }
            attr => attr,
        };
        self.attr(reply, attr);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.inner.turns.take();
        match self.inner.fs.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _turn = self.inner.turns.take();
        let made = self.inner.fs.make(caller(req), parent.0, name, Make::Node(mode, rdev_from_fuse(rdev)), umask);
        self.entry(reply, made);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _turn = self.inner.turns.take();
        let made = self.inner.fs.make(caller(req), parent.0, name, Make::Directory(mode), umask);
        self.entry(reply, made);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.inner.turns.take();
        let made = self.inner.fs.make(caller(req), parent.0, link_name, Make::Symlink(target.as_os_str()), 0);
        self.entry(reply, made);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        Self::empty(reply, self.inner.fs.unlink(parent.0, name));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        Self::empty(reply, self.inner.fs.rmdir(parent.0, name));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.inner.turns.take();
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        Self::empty(reply, self.inner.fs.rename(parent.0, name, newparent.0, newname, flags));
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _turn = self.inner.turns.take();
        self.entry(reply, self.inner.fs.link(ino.0, newparent.0, newname));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.inner.turns.take();
        let caller = caller(req);
        if !self.inner.fs.promotes_on_open(ino.0) {
            return self.open_now(caller, ino.0, flags, reply);
        }
        // The paper's way: the open waits until the file is on the SSD, or cannot be.
        let front = self.clone();
        self.inner.lanes.run(move || {
            let tier = hybridfs::report::TierName::Ssd;
            while front.inner.fs.move_file(ino.0, tier, Reason::OnOpen, &mut |_, _| {}) == Outcome::Busy && front.inner.fs.wait_for_move() {
            }
            front.open_now(caller, ino.0, flags, reply);
        });
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let _turn = self.inner.turns.take();
        let fs = &self.inner.fs;
        match fs.create(caller(req), parent.0, name, mode, umask, flags & O_EXCL != 0) {
            Ok((attr, handle)) => {
                // A newcomer may outgrow the SSD: it goes through us.
                let inode = handle.inode.clone();
                let backing = self.inner.modes.enter(&inode, || false, |file| reply.open_backing(file));
                let fopen = FopenFlags::FOPEN_NOFLUSH | self.write_only(&handle, flags & O_ACCMODE);
                let fh = self.inner.handles.files.add(OpenFile { handle, bypass: backing.is_some() });
                let file = file_attr(&attr);
                match backing {
                    None => {
                        reply.created(&self.inner.ttl, &file, ALL_OR_NOTHING, FileHandle(fh), fopen);
                    }
                    Some(backing) => {
                        let flags = FopenFlags::FOPEN_NOFLUSH;
                        reply.created_passthrough(&Duration::ZERO, &file, ALL_OR_NOTHING, FileHandle(fh), flags, &backing);
                    }
                }
            }
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.inner.turns.take();
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(error) => return reply.error(to_fuse(error)),
        };
        let size = (size as usize).min(READ_MAX);
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.inner.fs.read(&file.handle, offset, &mut buffer[..size], false) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(Errno::AGAIN) => {
                    let fs = self.inner.fs.clone();
                    self.inner.lanes.run(move || {
                        let mut buffer = vec![0; size];
                        match fs.read(&file.handle, offset, &mut buffer, true) {
                            Ok(n) => reply.data(&buffer[..n]),
                            Err(error) => reply.error(to_fuse(error)),
                        }
                    });
                }
                Err(error) => reply.error(to_fuse(error)),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.inner.turns.take();
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(error) => return reply.error(to_fuse(error)),
        };
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID).then(|| caller(req));
        let sync = sync_flags(flags);
        match self.inner.fs.write(&file.handle, offset, data, sync, kill) {
            Ok(Written::Done(n)) => {
                reply.written(n as u32);
                self.write_done(&file, write_flags);
            }
            Ok(Written::Full) => {
                let (front, data) = (self.clone(), data.to_vec());
                self.inner.lanes.run(move || {
                    match front.inner.fs.write_waiting(&file.handle, offset, &data, sync, kill) {
                        Ok(n) => reply.written(n as u32),
                        Err(error) => reply.error(to_fuse(error)),
                    }
                    front.write_done(&file, write_flags);
                });
            }
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.inner.turns.take();
        if let Some(file) = self.inner.handles.files.remove(fh.0) {
            let stat = if file.bypass { None } else { self.inner.fs.handle_attr(&file.handle).ok().map(|attr| attr.stat) };
            if let Some(stat) = &stat {
                self.inner.fs.stamp_cache(ino.0, Some(stat));
            }
            self.inner.modes.leave(&file.handle.inode);
            self.inner.fs.release(&file.handle, stat.as_ref());
        }
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        match self.file(fh) {
            Ok(file) => {
                let fs = self.inner.fs.clone();
                self.inner.lanes.run(move || Self::empty(reply, fs.fsync(&file.handle, datasync)));
            }
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.inner.turns.take();
        match self.inner.fs.open_listing(ino.0) {
            Ok(listing) => reply.opened(FileHandle(self.inner.handles.listings.add(listing)), FopenFlags::empty()),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _turn = self.inner.turns.take();
        let fs = &self.inner.fs;
        let outcome = self.inner.handles.listings.get(fh.0).and_then(|listing| {
            let entries = fs.entries(&listing, offset == 0)?;
            for at in offset.. {
                let full = match at {
                    0 => reply.add(ino, 1, FileType::Directory, "."),
                    1 => reply.add(INodeNo(fs.parent_of(ino.0)), 2, FileType::Directory, ".."),
                    _ => {
                        let Some(entry) = entries.get((at - 2) as usize) else { break };
                        match fs.entry_attr(&listing.dir, entry, false)? {
                            Some(attr) => reply.add(INodeNo(attr.ino), at + 1, kind(attr.stat.kind()), OsStr::from_bytes(&entry.name)),
                            None => false,
                        }
                    }
                };
                if full {
                    break;
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _turn = self.inner.turns.take();
        let fs = &self.inner.fs;
        let outcome = self.inner.handles.listings.get(fh.0).and_then(|listing| {
            let entries = fs.entries(&listing, offset == 0)?;
            for at in offset.. {
                let full = match at {
                    0 | 1 => {
                        // The kernel takes no reference for these two.
                        let (number, name) = if at == 0 { (ino.0, ".") } else { (fs.parent_of(ino.0), "..") };
                        let attr = fs.getattr(number)?;
                        reply.add(INodeNo(number), at + 1, name, &Duration::ZERO, &file_attr(&attr), ALL_OR_NOTHING)
                    }
                    _ => {
                        let Some(entry) = entries.get((at - 2) as usize) else { break };
                        match fs.entry_attr(&listing.dir, entry, true)? {
                            Some(attr) => {
                                let ttl = self.attr_ttl(&attr);
                                let name = OsStr::from_bytes(&entry.name);
                                let full = reply.add(INodeNo(attr.ino), at + 1, name, &ttl, &file_attr(&attr), ALL_OR_NOTHING);
                                if full {
                                    fs.forget(attr.ino, 1);
                                }
                                full
                            }
                            None => false,
                        }
                    }
                };
                if full {
                    break;
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        self.inner.handles.listings.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        let fs = self.inner.fs.clone();
        self.inner.lanes.run(move || Self::empty(reply, fs.fsync_dir(ino.0)));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.inner.turns.take();
        match self.inner.fs.statfs() {
            Ok(st) => {
                let (bsize, frsize) = (st.f_bsize as u32, st.f_frsize as u32);
                reply.statfs(st.f_blocks, st.f_bfree, st.f_bavail, st.f_files, st.f_ffree, bsize, st.f_namemax as u32, frsize);
            }
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn access(&self, _req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        Self::empty(reply, self.root_may(ino.0, mask));
    }

    fn setxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        Self::empty(reply, self.inner.fs.setxattr(caller(req), ino.0, name, value, flags as u32));
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.inner.turns.take();
        xattr_reply(reply, size, self.inner.fs.getxattr(ino.0, name));
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.inner.turns.take();
        xattr_reply(reply, size, self.inner.fs.listxattr(caller(req), ino.0));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        Self::empty(reply, self.inner.fs.removexattr(ino.0, name));
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _turn = self.inner.turns.take();
        reply.error(fuser::Errno::ENOTTY);
    }

    fn fallocate(&self, req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let _turn = self.inner.turns.take();
        match self.file(fh) {
            Ok(file) => {
                let (fs, caller) = (self.inner.fs.clone(), caller(req));
                self.inner.lanes.run(move || Self::empty(reply, fs.fallocate(caller, &file.handle, mode as u32, offset, length)));
            }
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _turn = self.inner.turns.take();
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let found = match (u64::try_from(offset), whence) {
            // What the kernel has gathered would seem to be a hole. It takes all for data, then.
            (_, SEEK_DATA | SEEK_HOLE) if self.inner.gathers => Err(Errno::NOSYS),
            (Ok(at), SEEK_DATA | SEEK_HOLE) => self.file(fh).and_then(|file| self.inner.fs.seek(&file.handle, at, whence == SEEK_HOLE)),
            (Err(_), SEEK_DATA | SEEK_HOLE) => Err(Errno::NXIO),
            _ => Err(Errno::INVAL),
        };
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(to_fuse(error)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _turn = self.inner.turns.take();
        let (source, target) = match (self.file(fh_in), self.file(fh_out)) {
            (Ok(source), Ok(target)) => (source, target),
            (Err(error), _) | (_, Err(error)) => return reply.error(to_fuse(error)),
        };
        let (fs, caller) = (self.inner.fs.clone(), caller(req));
        self.inner.lanes.run(move || {
            let len = len.min(64 << 20) as usize;
            match fs.copy_range(caller, &source.handle, offset_in, &target.handle, offset_out, len) {
                Ok(n) => reply.written(n as u32),
                Err(error) => reply.error(to_fuse(error)),
            }
        });
    }
}

pub(crate) fn xattr_reply(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::ERANGE),
        Err(error) => reply.error(to_fuse(error)),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_before_1970_are_what_they_were_before_the_fuse_crate_had_them() {
        for at in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-100, 1)] {
            let part = Duration::new(at.0 as u64, at.1);
            let decoded = if at.0 >= 0 { UNIX_EPOCH + part } else { UNIX_EPOCH - Duration::new(-at.0 as u64, at.1) };
            assert_eq!(set_time(TimeOrNow::SpecificTime(decoded)), SetTime::At(at.0, at.1), "{at:?}");
        }
        assert_eq!(time((-2, 800_000_000)), UNIX_EPOCH - Duration::new(1, 200_000_000));
    }

    #[test]
    fn device_numbers_go_both_ways() {
        for (major, minor) in [(1, 3), (8, 17), (259, 300), (4095, 1 << 19)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(rdev_from_fuse(fuse_rdev(rdev)), rdev, "{major}:{minor}");
        }
    }
}
