//! The search for a file of which only the key and the last path are known.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use ssdcache::FileKey;

use crate::descriptor::{leaves_unknown, reopen};
use crate::key::key_of;

/// Finds the file of a key: at its last path, else where a process has it open, else in the same directory under another name, else below
/// a directory that was renamed within its parent.
///
/// # Errors
/// ENOENT: it was not found. Otherwise the kernel's: it exists, but may not be opened.
pub fn find(key: FileKey, path: &Path, pids: &[u32], writable: bool, listed: &Listed) -> Result<OwnedFd, Errno> {
    let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let dir = path.parent().and_then(|dir| Some((dir, identity(dir)?)));
    let at_path = file_of(key, path)?;
    if let Some((dir, identity)) = dir.filter(|_| at_path.is_some()) {
        listed.know(dir, identity);
    }
    let found = match at_path {
        Some(found) => Some(found),
        None => find_elsewhere(key, path, pids, listed)?,
    };
    reopen(found.ok_or(Errno::NOENT)?.as_fd(), flags)
}

/// Finds a file that is not at its last path.
///
/// # Errors
/// As [`file_at`].
fn find_elsewhere(key: FileKey, path: &Path, pids: &[u32], listed: &Listed) -> Result<Option<OwnedFd>, Errno> {
    for pid in pids {
        for path in entries(&PathBuf::from(format!("/proc/{pid}/fd")))? {
            if let Some(found) = file_of(key, &path)? {
                return Ok(Some(found));
            }
        }
    }
    if let Some(dir) = path.parent()
        && let Some(found) = listed.find(key, dir)?
    {
        return Ok(Some(found));
    }
    find_in_renamed_directory(key, path, listed)
}

/// Opens a regular file with O_PATH and returns it with its key.
///
/// # Errors
/// The process has no descriptor left, or the file system does not reply: nothing is known of the file.
fn file_at(path: &Path) -> Result<Option<(OwnedFd, FileKey)>, Errno> {
    match openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Err(errno) if leaves_unknown(errno) => Err(errno),
        Err(_) => Ok(None),
        Ok(fd) => with_key(fd),
    }
}

/// Opens the file at a path with O_PATH if it has that key.
///
/// # Errors
/// As [`file_at`].
fn file_of(key: FileKey, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    Ok(file_at(path)?.filter(|(_, found)| *found == key).map(|(fd, _)| fd))
}

/// Returns a descriptor with the key of its file, if it is of a regular file.
///
/// # Errors
/// As [`file_at`].
fn with_key(fd: OwnedFd) -> Result<Option<(OwnedFd, FileKey)>, Errno> {
    let key = fstat(&fd).and_then(|stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => key_of(fd.as_fd()).map(Some),
        _ => Ok(None),
    });
    match key {
        Err(errno) if leaves_unknown(errno) => Err(errno),
        key => Ok(key.ok().flatten().map(|key| (fd, key))),
    }
}

/// Finds a file whose directory, or one further up, has another name in its parent now. It examines at most [`BESIDE_MAX`] directories of
/// the file system that the nearest remaining directory is on, and no mount point or automount in it. A directory that is still the one
/// where files were found was not renamed, nor were those above it.
///
/// # Errors
/// As [`file_at`].
fn find_in_renamed_directory(key: FileKey, path: &Path, listed: &Listed) -> Result<Option<OwnedFd>, Errno> {
    let (mut left, mut device) = (BESIDE_MAX, None);
    for dir in path.ancestors().skip(1) {
        let Some(above) = dir.parent().filter(|_| !listed.is_unchanged(dir)) else { return Ok(None) };
        let parent = match openat(CWD, above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Err(errno) if leaves_unknown(errno) => return Err(errno),
            Err(_) => continue,
            Ok(parent) => parent,
        };
        let on = fstat(&parent).ok().map(|stat| stat.st_dev);
        let (Some(on), Ok(rest)) = (on, path.strip_prefix(dir)) else { return Ok(None) };
        if *device.get_or_insert(on) != on {
            return Ok(None);
        }
        let Some(listing) = listing_of(above)? else { return Ok(None) };
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for beside in listing.flatten().filter(is_directory) {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
            let path = Path::new(&beside.file_name()).join(rest);
            match openat2(&parent, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(errno) if leaves_unknown(errno) => return Err(errno),
                Err(_) => {}
                Ok(opened) => {
                    if let Some((fd, _)) = with_key(opened)?.filter(|(_, found)| *found == key) {
                        return Ok(Some(fd));
                    }
                }
            }
        }
    }
    Ok(None)
}

/// Returns the device and the inode of a directory.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(dir).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns the paths of the entries of a directory; none if it cannot be read.
///
/// # Errors
/// As [`listing_of`].
fn entries(dir: &Path) -> Result<impl Iterator<Item = PathBuf> + use<>, Errno> {
    Ok(listing_of(dir)?.into_iter().flatten().flatten().map(|entry| entry.path()))
}

/// Opens a directory for listing, if that is possible.
///
/// # Errors
/// The process has no descriptor left.
fn listing_of(dir: &Path) -> Result<Option<fs::ReadDir>, Errno> {
    let listing = fs::read_dir(dir);
    match listing.as_ref().err().and_then(Errno::from_io_error) {
        Some(errno) if leaves_unknown(errno) => Err(errno),
        _ => Ok(listing.ok()),
    }
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
    fn find(&self, key: FileKey) -> Result<Option<OwnedFd>, Errno> {
        self.files.get(&key).map_or(Ok(None), |name| file_of(key, &self.dir.join(name)))
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

    /// Finds a file in a directory by listing that.
    fn find(&self, key: FileKey, dir: &Path) -> Result<Option<OwnedFd>, Errno> {
        let stamp = || {
            let stat = rustix::fs::stat(dir).ok()?;
            Some((stat.st_dev, stat.st_ino, stat.st_mtime, stat.st_mtime_nsec as i64))
        };
        let mut last = self.last.lock();
        let Some(before) = stamp() else { return Ok(None) };
        if last.as_ref().is_none_or(|last| last.dir != dir || last.stamp != before) {
            let changed = UNIX_EPOCH.checked_add(Duration::new(u64::try_from(before.2).unwrap_or(0), before.3 as u32));
            let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
            let mut files: HashMap<FileKey, OsString> = HashMap::new();
            for path in entries(dir)? {
                if let (Some((_, key)), Some(name)) = (file_at(&path)?, path.file_name()) {
                    files.insert(key, name.to_owned());
                }
            }
            let is_kept = age.is_some_and(|age| age > SETTLED) && files.len() <= LISTED_MAX;
            let listing = Listing { dir: dir.to_owned(), stamp: before, files };
            let found = listing.find(key);
            *last = is_kept.then_some(listing);
            return found;
        }
        last.as_ref().map_or(Ok(None), |last| last.find(key))
    }
}
