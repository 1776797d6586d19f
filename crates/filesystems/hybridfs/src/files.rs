//! Open files: opening, reading, writing, and what happens when the SSD is full.

mod write;

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fusedev::Identity;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::CapabilitySet;

use crate::errno::Result;
use crate::names::Attr;
use crate::nodes::NodeKind;
use crate::open::{FileHandle, OpenDescriptors, OpenInode, UNKNOWN};
use crate::pair::TieredFs;
use crate::report::TierName;
use crate::stat::Stat;
use fusedev::Caller;

/// Tells how far a write came.
#[derive(Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// So many bytes are written.
    Done(usize),
    /// The side is full: ask again by [`TieredFs::write_waiting`], which may take long.
    Full,
}

/// A file smaller than this is written through us, so that it can still go to the HDD when it grows.
const BYPASS_WRITE_MIN: u64 = 4 << 20;
/// The user without rights, as the kernel has it.
const NOBODY: u32 = 65534;

impl TieredFs {
    /// Opens a regular file. The kernel has checked that the caller may.
    pub fn open(&self, caller: Caller, ino: u64, read: bool, write: bool) -> Result<FileHandle> {
        if write {
            self.writable()?;
        }
        let _gate = self.gate(ino).read_recursive();
        if let Some(inode) = self.open_again(caller, ino, read, write)? {
            return Ok(FileHandle { inode, write, caller });
        }
        let io = self.open_io(caller, ino, read, write)?;
        let tier = io.tier;
        let handle = self.register(Arc::new(OpenInode::new(ino, io)), write, caller)?;
        // Now that it is entered: a move that this open requests must know of it, or would drop because of it.
        self.touched(ino, tier);
        Ok(handle)
    }

    /// Another open of a file that is open: the descriptors are shared, and completed if need be.
    fn open_again(&self, caller: Caller, ino: u64, read: bool, write: bool) -> Result<Option<Arc<OpenInode>>> {
        let Some(inode) = self.opens.lock().get(&ino).cloned() else { return Ok(None) };
        let tier = {
            let mut io = inode.io.write();
            self.must_be_named(ino, &io)?;
            if self.privileged && !caller.is_root() {
                self.may_open(caller, ino, &self.tier(io.tier).stat_fd(io.any().as_fd())?, read, write)?;
            }
            let (can_read, can_write) = (io.must_rd().is_ok(), io.must_rw().is_ok());
            if read && !can_read || write && !can_write {
                let any = io.any().clone();
                let more = self.access(read || can_read, write || can_write, |flags| self.tier(io.tier).reopen(any.as_fd(), flags));
                let more = more?;
                io.rd = more.rd.or(io.rd.take());
                io.rw = more.rw.or(io.rw.take());
                io.wr = more.wr.or(io.wr.take());
            }
            io.tier
        };
        if !self.count_open(&inode, write) {
            return Ok(None);
        }
        self.touched(ino, tier);
        Ok(Some(inode))
    }

    /// An open file is joined only by those who mean its backing inode. The caller holds the file's gate: no move ends meanwhile.
    fn must_be_named(&self, ino: u64, io: &OpenDescriptors) -> Result<()> {
        let named = || self.nodes.with(ino, |node| node.backing[io.tier as usize] == io.backing).unwrap_or(true);
        if named() {
            return Ok(());
        }
        // What was looked up before the last move was noted after it.
        self.refind(ino)?;
        if named() { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Opens with the access asked for; for writing also for reading where that is allowed.
    fn access(&self, read: bool, write: bool, open: impl Fn(OFlags) -> Result<OwnedFd>) -> Result<OpenDescriptors> {
        let open = |flags| match open(if self.config.noatime { flags | OFlags::NOATIME } else { flags }) {
            // An ordinary user's daemon may do that with its own files.
            Err(Errno::PERM) if self.config.noatime => open(flags),
            opened => opened,
        };
        let mut io = OpenDescriptors { tier: TierName::Ssd, backing: 0, rd: None, rw: None, wr: None };
        if !write {
            io.rd = Some(Arc::new(open(OFlags::RDONLY)?));
            return Ok(io);
        }
        match open(OFlags::RDWR) {
            Ok(file) => io.rw = Some(Arc::new(file)),
            Err(Errno::ACCESS) if !read => io.wr = Some(Arc::new(open(OFlags::WRONLY)?)),
            Err(error) => return Err(error),
        }
        Ok(io)
    }

    fn open_io(&self, caller: Caller, ino: u64, read: bool, write: bool) -> Result<OpenDescriptors> {
        if let Some((tier, file)) = self.held.lock().get(&ino).cloned() {
            let io = self.access(read, write, |flags| self.tier(tier).reopen(file.as_fd(), flags))?;
            let stat = self.tier(tier).stat_fd(file.as_fd())?;
            self.may_open(caller, ino, &stat, read, write)?;
            return Ok(OpenDescriptors { tier, backing: stat.ino, ..io });
        }
        for _ in 0..8 {
            let place = self.nodes.place(ino).ok_or(Errno::STALE)?;
            if place.kind != NodeKind::Regular {
                return Err(if place.kind == NodeKind::Directory { Errno::ISDIR } else { Errno::NXIO });
            }
            let tier = place.tier();
            let opened = self.dir(place.parent).and_then(|dir| {
                let fd = dir.must(tier)?;
                self.access(read, write, |flags| self.tier(tier).open_at(fd, &place.name, flags | OFlags::NONBLOCK))
            });
            match opened {
                Ok(io) => {
                    let stat = self.tier(tier).stat_fd(io.any().as_fd())?;
                    if place.backing.is(tier, &stat) && self.is_numbered(tier, io.any().as_fd(), &stat, ino) {
                        self.may_open(caller, ino, &stat, read, write)?;
                        return Ok(OpenDescriptors { tier, backing: stat.ino, ..io });
                    }
                }
                // NXIO: a socket, or a device without a driver, which users can make too, has its name.
                Err(Errno::NOENT | Errno::STALE | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => {}
                Err(error) => {
                    self.note_failure(tier, error);
                    return Err(error);
                }
            }
            self.refind(ino)?;
        }
        Err(Errno::STALE)
    }

    /// Enters a freshly opened file; if somebody was faster, joins it, if it is the same file.
    pub(crate) fn register(&self, fresh: Arc<OpenInode>, write: bool, caller: Caller) -> Result<FileHandle> {
        let mut opens = self.opens.lock();
        let inode = match opens.get(&fresh.ino) {
            Some(other) => {
                let mut io = other.io.write();
                let mut mine = fresh.io.write();
                if (io.tier, io.backing) != (mine.tier, mine.backing) {
                    return Err(Errno::STALE);
                }
                io.rd = io.rd.take().or(mine.rd.take());
                io.rw = io.rw.take().or(mine.rw.take());
                io.wr = io.wr.take().or(mine.wr.take());
                drop(io);
                other.clone()
            }
            None => {
                opens.insert(fresh.ino, fresh.clone());
                fresh
            }
        };
        inode.handles.fetch_add(1, Ordering::Relaxed);
        inode.writers.fetch_add(u32::from(write), Ordering::Relaxed);
        Ok(FileHandle { inode, write, caller })
    }

    fn count_open(&self, inode: &Arc<OpenInode>, write: bool) -> bool {
        let opens = self.opens.lock();
        if !opens.get(&inode.ino).is_some_and(|current| Arc::ptr_eq(current, inode)) {
            return false;
        }
        inode.handles.fetch_add(1, Ordering::Relaxed);
        inode.writers.fetch_add(u32::from(write), Ordering::Relaxed);
        true
    }

    /// Ends an open. The last one lets waiting moves of the file go on.
    ///
    /// `stat`: what the caller has just seen of it.
    pub fn release(&self, handle: &FileHandle, stat: Option<&Stat>) {
        let inode = &handle.inode;
        let last = {
            let mut opens = self.opens.lock();
            inode.writers.fetch_sub(u32::from(handle.write), Ordering::Relaxed);
            let last = inode.handles.fetch_sub(1, Ordering::Relaxed) == 1;
            if last {
                opens.remove(&inode.ino);
            }
            last
        };
        if handle.write {
            let (tier, file) = inode.any_fd();
            if let Some(stat) = stat.copied().or_else(|| self.tier(tier).stat_fd(file.as_fd()).ok()) {
                self.resized(inode.ino, tier, &stat);
                let began = inode.began.load(Ordering::Relaxed);
                if began != UNKNOWN {
                    self.nodes.with(inode.ino, |node| node.settled.store(stat.blocks <= began, Ordering::Relaxed));
                }
            }
        }
        if last {
            self.space.unpromise(inode.promised.load(Ordering::Relaxed));
            self.closed(inode.ino);
        }
    }

    /// Whether somebody has the file open for writing.
    pub fn has_writers(&self, ino: u64) -> bool {
        let opens = self.opens.lock();
        opens.get(&ino).is_some_and(|open| open.writers.load(Ordering::Relaxed) > 0)
    }

    /// Attributes through an open file.
    pub fn handle_attr(&self, handle: &FileHandle) -> Result<Attr> {
        let ino = handle.inode.ino;
        let look = || {
            let (tier, file) = handle.inode.any_fd();
            self.tier(tier).stat_fd(file.as_fd())
        };
        let mut stat = look()?;
        if stat.nlink == 0 {
            // Without a name, or of the copy that a move has just removed.
            let _gate = self.gate(ino).read_recursive();
            stat = look()?;
        }
        Ok(Attr { ino, stat, unsettled: self.has_writers(ino) })
    }

    /// Whether the data of this open may bypass us.
    ///
    /// Reads of files on the SSD always; writes only to a file that is no newcomer while there is room
    /// for it to grow: the kernel gives a bypassing writer ENOSPC without asking us, and we cannot move the
    /// file away under it. A file that did not grow when it was last open for writing needs room for a
    /// quarter of its size; another, a database that was just created say, four times its size. What its
    /// holes can take comes on top. The same room is not promised twice.
    ///
    /// Asked once for all opens of a file, by the first.
    pub fn may_bypass(&self, handle: &FileHandle) -> bool {
        let inode = &handle.inode;
        let (tier, file) = inode.any_fd();
        let Ok(stat) = self.tier(tier).stat_fd(file.as_fd()) else { return false };
        // Of set-id files not even a reader: a writer who comes later must bypass too, and nobody would take the bits.
        let may = tier == TierName::Ssd && stat.mode & 0o6000 == 0;
        if !handle.write {
            return may;
        }
        inode.began.store(stat.blocks, Ordering::Relaxed);
        if !may || stat.size < BYPASS_WRITE_MIN {
            return false;
        }
        let holes = stat.size.saturating_sub(stat.blocks * 512);
        let quarter = (stat.size / 4).max(self.space.reserve()).saturating_add(holes);
        let settled = self.nodes.with(inode.ino, |node| node.settled.load(Ordering::Relaxed)).unwrap_or(false);
        let need = if settled { quarter } else { quarter.max(stat.size.saturating_mul(4)) };
        let promised = self.space.promise(quarter, need);
        if promised {
            inode.promised.fetch_add(quarter, Ordering::Relaxed);
        }
        promised
    }

    /// Registers the file of an open that bypasses us. What the kernel writes to it later, for whoever opens the file, is charged as
    /// writes are that come through us, and takes set-id bits: of writes that we do not see nobody else would.
    pub fn as_bypassing<T>(&self, handle: &FileHandle, register: impl FnOnce() -> T) -> Result<T> {
        if !self.privileged {
            return Ok(register());
        }
        let (tier, file) = handle.inode.any_fd();
        let stat = self.tier(tier).stat_fd(file.as_fd())?;
        // All opens share what is registered. Only where nobody but root may write, it is in root's name.
        let payer = match (stat.uid, handle.caller.uid) {
            (0, 0) if stat.mode & 0o022 == 0 => Identity { uid: 0, gid: 0 },
            (0, 0) => Identity { uid: NOBODY, gid: NOBODY },
            (0, uid) => Identity { uid, gid: handle.caller.gid },
            (uid, _) => Identity { uid, gid: stat.gid },
        };
        payer.act_without(CapabilitySet::FSETID, register)
    }

    /// Reads at `at` into `buffer`; less only at the end of the file. `wait: false` answers EAGAIN instead
    /// of waiting for a slow disk.
    pub fn read(&self, handle: &FileHandle, at: u64, buffer: &mut [u8], wait: bool) -> Result<usize> {
        let io = handle.inode.io.read();
        let file = io.must_rd()?;
        let mut have = 0;
        while have < buffer.len() {
            let rest = &mut buffer[have..];
            let offset = at + have as u64;
            let got = if wait || io.tier == TierName::Ssd {
                rustix::io::pread(file, &mut *rest, offset)
            } else {
                rustix::io::preadv2(file, &mut [IoSliceMut::new(rest)], offset, ReadWriteFlags::NOWAIT)
            };
            match got {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) if !wait => return Err(Errno::AGAIN),
                Err(error) => {
                    if error != Errno::AGAIN {
                        self.note_failure_at(io.tier, file.as_fd(), error);
                    }
                    return Err(error);
                }
            }
        }
        Ok(have)
    }

    /// Reserves or frees space; may wait like [`TieredFs::write_waiting`].
    pub fn fallocate(&self, caller: Caller, handle: &FileHandle, mode: u32, at: u64, len: u64) -> Result<()> {
        self.writable()?;
        for attempt in 0.. {
            let gate = self.gate(handle.inode.ino).read_recursive();
            let io = handle.inode.io.read();
            let file = io.must_rw()?;
            // Reserving takes the space at once, so a full SSD is known before it is full.
            let takes = mode & (FallocateFlags::PUNCH_HOLE | FallocateFlags::COLLAPSE_RANGE).bits() == 0;
            let fits = !takes || io.tier == TierName::Hdd || self.space.fits_ssd(len) || attempt > 0;
            self.drop_set_id(caller, handle.inode.ino, io.tier, file.as_fd())?;
            let allocate = || rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode), at, len);
            let payer = (handle.caller.uid, handle.caller.gid);
            let done = if fits { self.in_the_name_of(payer, allocate)? } else { Err(Errno::NOSPC) };
            match done {
                Err(Errno::NOSPC) if attempt < 4 => {}
                Ok(()) => {
                    handle.inode.note_truncated(0);
                    self.space.wrote(io.tier, if takes { len } else { 0 });
                    self.tell_changed(handle.inode.ino);
                    return Ok(());
                }
                Err(error) => return self.noted_at(io.tier, file.as_fd(), Err(error)),
            }
            drop(io);
            drop(gate);
            self.make_room(handle, len)?;
        }
        Err(Errno::NOSPC)
    }

    /// Returns the next data or hole at or after an offset.
    pub fn seek(&self, handle: &FileHandle, at: u64, hole: bool) -> Result<u64> {
        let io = handle.inode.io.read();
        let whence = if hole { rustix::fs::SeekFrom::Hole(at) } else { rustix::fs::SeekFrom::Data(at) };
        rustix::fs::seek(io.any(), whence)
    }

    /// Copies a range between open files inside one file system; EXDEV lets the kernel copy by itself.
    pub fn copy_range(&self, caller: Caller, source: &FileHandle, from: u64, target: &FileHandle, to: u64, len: usize) -> Result<usize> {
        self.writable()?;
        let file = source.inode.io.read().must_rd()?.clone();
        let io = target.inode.io.read();
        let (mut from, mut at) = (from, to);
        if io.tier == TierName::Ssd && !self.space.fits_ssd(len as u64) {
            return Err(Errno::XDEV);
        }
        self.drop_set_id(caller, target.inode.ino, io.tier, io.must_rw()?.as_fd())?;
        let (into, payer) = (io.must_rw()?, (target.caller.uid, target.caller.gid));
        let copy = || rustix::fs::copy_file_range(&*file, Some(&mut from), into, Some(&mut at), len);
        let copied = self.in_the_name_of(payer, copy)?;
        let copied = copied.map_err(|error| if error == Errno::NOSPC { Errno::XDEV } else { error })?;
        target.inode.note_written(to, copied as u64);
        self.space.wrote(io.tier, copied as u64);
        Ok(copied)
    }

    /// Makes an open file durable.
    pub fn fsync(&self, handle: &FileHandle, data_only: bool) -> Result<()> {
        let io = handle.inode.io.read();
        let synced = if data_only { rustix::fs::fdatasync(io.any()) } else { rustix::fs::fsync(io.any()) };
        self.keep_failure(handle, &io, synced)
    }

    /// Returns the error of earlier writes that the file system tells when a file is closed. `close` closes a duplicate of a descriptor.
    pub fn close_errors(&self, handle: &FileHandle, close: impl FnOnce(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
        let Some(io) = handle.inode.writable_io().filter(|_| handle.write) else { return Ok(()) };
        let closed = close(io.must_rw()?.as_fd());
        self.keep_failure(handle, &io, closed)
    }

    /// Keeps the error of writes that were lost. Returns the first one since the file was opened.
    fn keep_failure(&self, handle: &FileHandle, io: &OpenDescriptors, outcome: Result<()>) -> Result<()> {
        // The kernel tells a lost write once per descriptor, and ours is shared by all handles.
        let mut failed = handle.inode.failed.lock();
        if let Err(error) = outcome {
            self.note_failure_at(io.tier, io.any().as_fd(), error);
            if matches!(error, Errno::NOSPC | Errno::DQUOT) {
                // A disk that promised more room than it has: what was taken for written is lost.
                let path = self.tier(io.tier).path.display();
                self.tier(io.tier).degrade(format!("{path} lost what was written ({error}): the file system is full"));
            }
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Makes the names in a directory durable, on both sides.
    pub fn fsync_dir(&self, ino: u64) -> Result<()> {
        let dir = self.dir_or_held(ino)?;
        for tier in [TierName::Ssd, TierName::Hdd] {
            if let Some(fd) = dir.on(tier) {
                self.noted_at(tier, fd, self.tier(tier).sync_dir(fd))?;
            }
        }
        Ok(())
    }
}
