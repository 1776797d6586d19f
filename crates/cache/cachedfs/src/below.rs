//! Access of the cache engine to backing files, and the search for a file of which only the key and the last path are known.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use datapath::engine::{BackingFile, Stamp};
use parking_lot::Mutex;
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_OMIT, fstat, futimens, openat, openat2,
};
use rustix::io::Errno;
use ssdcache::FileKey;

use crate::descriptor::{is_removed, path_of, reopen};
use crate::key::key_of;
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

/// Returns the stamp by which changes are detected.
pub fn stamp_of(stat: &Stat) -> Stamp {
    Stamp {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: ns(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        ctime: ns(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
    }
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

/// Finds the file of a key: at its last path, else where a process has it open, else in the same directory under another name, else below
/// a directory that was renamed within its parent.
///
/// # Errors
/// ENOENT: it was not found. Otherwise the kernel's: it exists, but may not be opened.
pub fn find(key: FileKey, path: &Path, pids: &[u32], writable: bool, listed: &Listed) -> Result<OwnedFd, Errno> {
    let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let is_it = |path: &Path| file_at(path).filter(|(_, found)| *found == key).map(|(fd, _)| fd);
    let of_pid = |pid: &u32| entries(&PathBuf::from(format!("/proc/{pid}/fd"))).find_map(|path| is_it(&path));
    let dir = path.parent().and_then(|dir| Some((dir, identity(dir)?)));
    let at_path = is_it(path);
    if let Some((dir, identity)) = dir.filter(|_| at_path.is_some()) {
        listed.know(dir, identity);
    }
    let found = at_path.or_else(|| pids.iter().find_map(of_pid)).or_else(|| listed.find(key, path.parent()?));
    let found = found.or_else(|| find_in_renamed_directory(key, path, listed));
    reopen(found.ok_or(Errno::NOENT)?.as_fd(), flags)
}

/// Opens a regular file with O_PATH and returns it with its key.
fn file_at(path: &Path) -> Option<(OwnedFd, FileKey)> {
    with_key(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?)
}

/// Returns a descriptor with the key of its file, if it is of a regular file.
fn with_key(fd: OwnedFd) -> Option<(OwnedFd, FileKey)> {
    let is_file = FileType::from_raw_mode(fstat(&fd).ok()?.st_mode) == FileType::RegularFile;
    let key = key_of(fd.as_fd()).ok().filter(|_| is_file)?;
    Some((fd, key))
}

/// Finds a file whose directory, or one further up, has another name in its parent now. It examines at most [`BESIDE_MAX`] directories of
/// the file system that the nearest remaining directory is on, and no mount point or automount in it. A directory that is still the one
/// where files were found was not renamed, nor were those above it.
fn find_in_renamed_directory(key: FileKey, path: &Path, listed: &Listed) -> Option<OwnedFd> {
    let (mut left, mut device) = (BESIDE_MAX, None);
    for dir in path.ancestors().skip(1) {
        if listed.is_unchanged(dir) {
            return None;
        }
        let Ok(parent) = openat(CWD, dir.parent()?, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else { continue };
        let on = fstat(&parent).ok()?.st_dev;
        if *device.get_or_insert(on) != on {
            return None;
        }
        let rest = path.strip_prefix(dir).ok()?;
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for beside in fs::read_dir(dir.parent()?).ok()?.flatten().filter(is_directory) {
            left = left.checked_sub(1)?;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
            let path = Path::new(&beside.file_name()).join(rest);
            let opened = openat2(&parent, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok();
            if let Some((fd, _)) = opened.and_then(with_key).filter(|(_, found)| *found == key) {
                return Some(fd);
            }
        }
    }
    None
}

/// Returns the device and the inode of a directory.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(dir).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// What is known of directories from earlier searches.
#[derive(Debug, Default)]
pub struct Listed {
    /// The keys of the directory that was searched last, because several files of it may be searched for in a row.
    last: Mutex<Option<Listing>>,
    /// The device and the inode of directories in which files were found.
    known: Mutex<HashMap<PathBuf, (u64, u64)>>,
}

#[derive(Debug)]
struct Listing {
    dir: PathBuf,
    /// The directory as it was when the listing started.
    stamp: DirStamp,
    files: HashMap<FileKey, OsString>,
}

/// Device, inode and modification time.
type DirStamp = (u64, u64, i64, i64);

/// A change so shortly before the listing may hide a later one with the same time.
const SETTLED: Duration = Duration::from_millis(50);
/// Maximum number of directories that a search for a renamed directory examines.
const BESIDE_MAX: usize = 512;
/// Maximum number of directories whose identity is kept: of others it is learned again.
const KNOWN_MAX: usize = 1024;
/// Maximum number of entries that are kept; larger directories are listed each time.
const LISTED_MAX: usize = 1 << 17;

impl Listing {
    fn find(&self, key: FileKey) -> Option<OwnedFd> {
        file_at(&self.dir.join(self.files.get(&key)?)).filter(|(_, found)| *found == key).map(|(fd, _)| fd)
    }
}

impl Listed {
    /// Records the identity of a directory in which a file was found.
    fn know(&self, dir: &Path, identity: (u64, u64)) {
        let mut known = self.known.lock();
        if known.get(dir) == Some(&identity) {
            return;
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(dir.to_owned(), identity);
    }

    /// Returns whether a directory is known to be the one in which files were found. False if nothing is known of it.
    fn is_unchanged(&self, dir: &Path) -> bool {
        let known = self.known.lock().get(dir).copied();
        known.is_some_and(|known| identity(dir) == Some(known))
    }

    fn find(&self, key: FileKey, dir: &Path) -> Option<OwnedFd> {
        let stamp = || {
            let stat = rustix::fs::stat(dir).ok()?;
            Some((stat.st_dev, stat.st_ino, stat.st_mtime, stat.st_mtime_nsec as i64))
        };
        let mut last = self.last.lock();
        let before = stamp()?;
        if last.as_ref().is_none_or(|last| last.dir != dir || last.stamp != before) {
            let changed = UNIX_EPOCH.checked_add(Duration::new(u64::try_from(before.2).unwrap_or(0), before.3 as u32));
            let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
            let all = entries(dir).filter_map(|path| Some((file_at(&path)?.1, path.file_name()?.to_owned())));
            let files: HashMap<FileKey, OsString> = all.collect();
            let is_kept = age.is_some_and(|age| age > SETTLED) && files.len() <= LISTED_MAX;
            let listing = Listing { dir: dir.to_owned(), stamp: before, files };
            let found = listing.find(key);
            *last = is_kept.then_some(listing);
            return found;
        }
        last.as_ref()?.find(key)
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
    pub listed: Listed,
}

/// Minimum and maximum number of files that the leader has open.
const HANDLES: (usize, usize) = (64, 1024);

/// Maximum number of messages that are kept.
const NOTES_MAX: usize = 32;

impl datapath::engine::Environment for CacheEnvironment {
    fn open(&self, key: FileKey, path: &Path, pids: &[u32], writable: bool) -> io::Result<Arc<dyn BackingFile>> {
        let Some(group) = self.group else { return Ok(Arc::new(Local::new(find(key, path, pids, writable, &self.listed)?, self.direct))) };
        // A member can write to the segment. Check that it may itself access the file that this process is to read or write for it.
        let found = find(key, path, pids, false, &self.listed)?;
        if !crate::group::can_reach(found.as_fd(), group, false) {
            return Err(Errno::ACCESS.into());
        }
        let fd = if writable && crate::group::can_write(found.as_fd(), group) { reopen(found.as_fd(), OFlags::RDWR)? } else { found };
        Ok(Arc::new(Local::new(fd, self.direct)))
    }

    fn may_keep(&self, key: FileKey, path: &Path) -> bool {
        let Some(group) = self.group else { return true };
        find(key, path, &[], false, &self.listed).is_ok_and(|fd| crate::group::can_reach(fd.as_fd(), group, false))
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

    fn is_clean(&self) -> bool {
        self.note.as_ref().and_then(Note::read) == Some(NoteContent::Clean)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let dir = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fsync(dir).map_err(io::Error::from)
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
