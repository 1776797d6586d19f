//! Access of the cache engine to backing files.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use datapath::engine::{BackingFile, Stamp};
use parking_lot::Mutex;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, fstat, futimens, openat};
use rustix::io::Errno;
use ssdcache::FileKey;

use crate::descriptor::{is_removed, path_of, reopen};
use crate::find::{Listed, find};
use crate::guarded::SlowFileSystems;
use crate::key::FileSystem;
use crate::note::{Note, NoteContent};

/// The alignment for `O_DIRECT` that every drive accepts.
const ALIGN: usize = 4096;

/// A backing file that this process has open.
#[derive(Debug)]
pub struct Local {
    fd: OwnedFd,
    /// Whether it is a duplicate of the user's descriptor, and so keeps the user's flock(2).
    is_duplicate: AtomicBool,
    direct: Option<Direct>,
    largest: OnceLock<u64>,
}

/// A second descriptor that bypasses the kernel's page cache.
#[derive(Debug)]
struct Direct {
    fd: OwnedFd,
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Local {
    /// Wraps an open file. `direct`: I/O bypasses the kernel's page cache if the file system supports it.
    pub fn new(fd: OwnedFd, direct: bool) -> Local {
        let reopened =
            || reopen(fd.as_fd(), OFlags::RDWR | OFlags::DIRECT).or_else(|_| reopen(fd.as_fd(), OFlags::RDONLY | OFlags::DIRECT));
        let direct = if direct { reopened().ok().map(|fd| Direct { fd, buffers: Mutex::default() }) } else { None };
        Local { fd, is_duplicate: AtomicBool::new(false), direct, largest: OnceLock::new() }
    }

    /// Wraps a duplicate of the user's descriptor, as `new` does.
    pub fn duplicate(fd: OwnedFd, direct: bool) -> Local {
        Local { is_duplicate: AtomicBool::new(true), ..Local::new(fd, direct) }
    }

    /// Opens the file once more if the descriptor is a duplicate of the user's. `replace` puts the new open file description in place of
    /// the old one.
    pub fn leave_description(&self, replace: impl FnOnce(OwnedFd, BorrowedFd<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        if !self.is_duplicate.load(Ordering::Acquire) {
            return Ok(());
        }
        let access = rustix::fs::fcntl_getfl(&self.fd)? & OFlags::RWMODE;
        replace(reopen(self.fd(), access)?, self.fd())?;
        self.is_duplicate.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns the maximum size of the file.
    pub fn largest(&self) -> u64 {
        *self.largest.get_or_init(|| crate::limits::largest(self.fd()))
    }

    /// Returns the descriptor of the backing file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Local {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Returns the stamp by which changes are detected.
pub fn stamp_of(stat: &Stat) -> Stamp {
    Stamp {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: ns(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        ctime: ns(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
    }
}

/// Returns whether a file was last changed so long ago that its file system has written everything: kernels write data that is half a
/// minute old. `now`: ns since 1970.
fn is_long_ago(stamp: Stamp, now: u64) -> bool {
    /// Kernels may be busy, and clocks of servers wrong.
    const LONG_NS: i64 = 3600 * 1_000_000_000;
    // Anybody may set the one time, and nobody the other.
    let changed = stamp.mtime.max(stamp.ctime);
    i64::try_from(now).is_ok_and(|now| now.saturating_sub(changed) > LONG_NS)
}

/// Returns nanoseconds since 1970, saturated to 64 bits.
fn ns(seconds: i128, ns: i128) -> i64 {
    (seconds * 1_000_000_000 + ns).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl Direct {
    /// Runs I/O with a buffer that has the alignment the drive needs.
    fn with<T>(&self, bytes: usize, call: impl FnOnce(BorrowedFd<'_>, &mut [u8]) -> T) -> T {
        let mut buffer = self.buffers.lock().pop().unwrap_or_default();
        buffer.resize(buffer.len().max(bytes + ALIGN), 0);
        let skip = buffer.as_ptr().align_offset(ALIGN);
        let result = call(self.fd.as_fd(), &mut buffer[skip..skip + bytes]);
        self.buffers.lock().push(buffer);
        result
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> Result<usize, Errno> {
        self.with(to.len(), |fd, buffer| {
            let got = rustix::io::pread(fd, &mut *buffer, at)?;
            to[..got].copy_from_slice(&buffer[..got]);
            Ok(got)
        })
    }

    fn write_at(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        self.with(from.len(), |fd, buffer| {
            buffer.copy_from_slice(from);
            write_all(fd, at, buffer)
        })
    }
}

fn is_aligned(at: u64, bytes: usize) -> bool {
    at.is_multiple_of(ALIGN as u64) && bytes.is_multiple_of(ALIGN)
}

fn write_all(fd: BorrowedFd<'_>, mut at: u64, mut from: &[u8]) -> Result<(), Errno> {
    while !from.is_empty() {
        match rustix::io::pwrite(fd, from, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(done) => (at, from) = (at + done as u64, &from[done..]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl BackingFile for Local {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        if let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(at, to.len())) {
            match direct.read_at(at, to) {
                // Some file systems take O_DIRECT at open and refuse it later.
                Err(Errno::INVAL) => {}
                result => return result.map_err(io::Error::from),
            }
        }
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(&self.fd, &mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        if let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(at, from.len())) {
            match direct.write_at(at, from) {
                Err(Errno::INVAL) => {}
                result => return result.map_err(io::Error::from),
            }
        }
        write_all(self.fd(), at, from).map_err(io::Error::from)
    }

    fn sync(&self) -> io::Result<()> {
        // Not fdatasync: the times reveal changes by other programs.
        rustix::fs::fsync(&self.fd).map_err(io::Error::from)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        rustix::fs::ftruncate(&self.fd, len).map_err(io::Error::from)
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, how, at, len).map_err(io::Error::from)
    }

    fn set_mtime(&self, ns: u64) -> io::Result<()> {
        let mtime = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
        let atime = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        futimens(&self.fd, &Timestamps { last_access: atime, last_modification: mtime }).map_err(io::Error::from)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        Ok(stamp_of(&fstat(&self.fd)?))
    }

    fn is_removed(&self) -> bool {
        is_removed(self.fd())
    }

    fn has_lost_name(&self) -> bool {
        path_of(self.fd()).is_none() && fstat(self.fd()).is_ok_and(|stat| stat.st_nlink > 0)
    }

    fn path(&self) -> Option<PathBuf> {
        path_of(self.fd())
    }
}

/// The environment of the engine in this process.
#[derive(Debug)]
pub struct CacheEnvironment {
    /// Whether backing files are read and written with `O_DIRECT`.
    pub direct: bool,
    /// Messages for the user, newest last; their number is limited.
    pub notes: Mutex<Vec<String>>,
    /// The note about the SSD.
    pub note: Option<Note>,
    /// The group that shares the cache.
    pub group: Option<u32>,
    /// The directory that was searched last.
    pub listed: Arc<Listed>,
    /// The files that this process has open.
    pub opened: OpenLocals,
    /// The file systems that may not reply.
    pub slow: SlowFileSystems,
    /// Tells whether the clock was set since the process attached.
    pub clock: ClockOffset,
}

/// The time of day, less the time since the machine started, when a process attached: seconds.
#[derive(Debug)]
pub struct ClockOffset(i64);

impl ClockOffset {
    /// Measures the offset at this moment.
    pub fn now() -> ClockOffset {
        use rustix::time::{ClockId, clock_gettime};
        ClockOffset(clock_gettime(ClockId::Realtime).tv_sec - clock_gettime(ClockId::Boottime).tv_sec)
    }

    /// Returns whether nobody has set the clock since, as far as ages of files tell.
    fn is_kept(&self) -> bool {
        self.0.abs_diff(ClockOffset::now().0) < 60
    }
}

/// The backing files that a process has open, by key.
#[derive(Debug, Default)]
pub struct OpenLocals(Mutex<HashMap<FileKey, Vec<Weak<Local>>>>);

impl OpenLocals {
    /// Adds a file that was opened just now.
    pub fn add(&self, key: FileKey, file: &Arc<Local>) {
        self.0.lock().entry(key).or_default().push(Arc::downgrade(file));
    }

    /// Removes a file that is about to be closed.
    pub fn remove(&self, key: FileKey, file: &Arc<Local>) {
        let mut all = self.0.lock();
        if let Entry::Occupied(mut files) = all.entry(key) {
            let of_one = files.get().iter().position(|open| std::ptr::eq(open.as_ptr(), Arc::as_ptr(file)));
            of_one.map(|at| files.get_mut().swap_remove(at));
            if files.get().is_empty() {
                files.remove();
            }
        }
    }

    /// Returns a descriptor that this process has open for reading, and if `writable` for writing, too.
    fn get(&self, key: FileKey, writable: bool) -> Option<Arc<Local>> {
        let is_fit = |file: &Arc<Local>| {
            let flags = rustix::fs::fcntl_getfl(&file.fd).unwrap_or(OFlags::PATH);
            let access = flags & OFlags::RWMODE;
            !flags.contains(OFlags::PATH) && (access == OFlags::RDWR || access == OFlags::RDONLY && !writable)
        };
        self.0.lock().get(&key)?.iter().filter_map(Weak::upgrade).find(is_fit)
    }
}

/// Minimum and maximum number of files that the leader has open.
const HANDLES: (usize, usize) = (64, 1024);

/// Maximum number of messages that are kept.
const NOTES_MAX: usize = 32;

impl datapath::engine::Environment for CacheEnvironment {
    fn open(&self, key: FileKey, path: &Path, pids: &[u32], writable: bool) -> io::Result<Arc<dyn BackingFile>> {
        let (listed, pids, sought, group, direct) = (Arc::clone(&self.listed), pids.to_vec(), path.to_owned(), self.group, self.direct);
        let search = move || {
            let found = find(key, &sought, &pids, writable && group.is_none(), &listed)?;
            // A member can write to the segment. Check that it may itself access the file that this process is to read or write for it.
            let fd = match group {
                Some(group) if !crate::group::can_reach(found.as_fd(), group, false) => return Err(Errno::ACCESS),
                Some(group) if writable && crate::group::can_write(found.as_fd(), group) => reopen(found.as_fd(), OFlags::RDWR)?,
                _ => found,
            };
            let system = FileSystem::of(fd.as_fd())?;
            Ok((Arc::new(Local::new(fd, direct)), system))
        };
        let (file, system) = match self.slow.search(path, search)? {
            // The file system may refuse this process what it granted when the file was opened in the name of another user.
            Err(errno @ (Errno::ACCESS | Errno::PERM)) if self.group.is_none() => {
                let opened = self.opened.get(key, writable).ok_or(errno)?;
                self.slow.search(path, move || FileSystem::of(opened.fd()).map(|system| (opened, system)))??
            }
            found => found?,
        };
        self.slow.guard(file, system)
    }

    fn may_keep(&self, key: FileKey, path: &Path) -> bool {
        // What cannot be found out within seconds may not be kept: clean pages can be read again.
        let Some(group) = self.group else { return true };
        let (listed, sought) = (Arc::clone(&self.listed), path.to_owned());
        let search = move || find(key, &sought, &[], false, &listed).is_ok_and(|fd| crate::group::can_reach(fd.as_fd(), group, false));
        self.slow.search(path, search) == Ok(true)
    }

    fn handles_max(&self) -> usize {
        // The program needs descriptors for other files.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(HANDLES.1, |limit| usize::try_from(limit / 4).unwrap_or(HANDLES.1)).clamp(HANDLES.0, HANDLES.1)
    }

    fn now_ms(&self) -> u32 {
        // Each write needs it, and reading the exact clock costs more than finding the page.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000) as u32
    }

    fn realtime_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    }

    fn is_durable_by_age(&self, path: &Path, stamp: Stamp) -> bool {
        // Only there is it worth the while, and no loss of power here takes a change back that the stamp did not show yet.
        self.clock.is_kept() && is_long_ago(stamp, self.realtime_ns()) && crate::guarded::is_known_remote(path)
    }

    fn is_clean(&self) -> bool {
        self.note.as_ref().and_then(Note::read) == Some(NoteContent::Clean)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let sought = path.to_owned();
        let sync = move || {
            let dir = openat(CWD, &sought, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::fsync(dir)
        };
        Ok(self.slow.search(path, sync)??)
    }

    fn note_clean(&self, is_clean: bool) -> io::Result<()> {
        let Some(note) = &self.note else { return Ok(()) };
        if is_clean { note.write(Some(NoteContent::Clean)) } else { note.write_dirty() }
    }

    fn note_void(&self, is_owed: bool) -> io::Result<()> {
        let said = if is_owed { NoteContent::Lost } else { NoteContent::Void };
        self.note.as_ref().map_or(Ok(()), |note| note.write(Some(said)))
    }

    fn report(&self, words: &str) {
        tracing::warn!("{words}");
        let mut notes = self.notes.lock();
        if notes.len() == NOTES_MAX {
            notes.remove(0);
        }
        notes.push(words.to_owned());
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_file_is_durable_an_hour_after_its_last_change() {
        const HOUR: i64 = 3600 * 1_000_000_000;
        let now = 100 * HOUR;
        let stamp = |mtime, ctime| Stamp { size: 1, mtime, ctime };
        assert!(is_long_ago(stamp(now - HOUR - 1, now - HOUR - 1), now as u64));
        for recent in [stamp(0, now - HOUR), stamp(now - HOUR, 0), stamp(now + HOUR, 0), stamp(0, now)] {
            assert!(!is_long_ago(recent, now as u64));
        }
        assert!(is_long_ago(stamp(i64::MIN, i64::MIN), now as u64) && !is_long_ago(stamp(0, 0), u64::MAX));
        let clock = ClockOffset::now();
        assert!(clock.is_kept() && !ClockOffset(clock.0 + 3600).is_kept() && !ClockOffset(clock.0 - 3600).is_kept());
    }
}
