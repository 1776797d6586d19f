//! A file, a block device, or an SSD that this process drives itself, that is ours alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use ssdcache::{CacheOpenError, DevicePage, PAGE_BYTES, Page, Superblock};

use super::signature;
use crate::error::{Error, Kind};
use crate::user_space_nvme::{self, Blocks};

#[derive(Debug)]
pub(super) enum Medium {
    File(File),
    Driven(Box<Blocks>),
}

/// A cache SSD, locked exclusively.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) medium: Medium,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) is_file: bool,
}

impl Disk {
    /// Opens it exclusively for reading and writing.
    ///
    /// # Errors
    /// It is not there, of another kind, in use, or not ours to write.
    pub(super) fn alone(path: &Path) -> Result<Disk, Error> {
        if user_space_nvme::is_meant(path) {
            let (path, blocks) = (user_space_nvme::absolute(path), Blocks::alone(path)?);
            return Ok(Disk { bytes: blocks.bytes(), medium: Medium::Driven(Box::new(blocks)), path, is_file: false });
        }
        let kind = std::fs::metadata(path).map_err(|error| not_opened(path, &error))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = if kind.is_dir() { "a directory: name a file in it" } else { "neither a file nor a block device" };
            return Err(Error::new(Kind::Device, Errno::INVAL, format!("{} is {what}", path.display())));
        }
        let exclusive = if kind.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
        let flags = (exclusive | OFlags::NOCTTY | OFlags::CLOEXEC).bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        Disk::of(opened.map_err(|error| not_opened(path, &error))?, path, kind.is_file())
    }

    /// Takes an open file, and locks it.
    pub(super) fn of(mut file: File, path: &Path, is_file: bool) -> Result<Disk, Error> {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let who = holder(&file).map_or_else(String::new, |pid| format!(" by process {pid}"));
            let what = format!("{} is in use{who}: end the programs that use the cache, or `hotshelf cache detach` it", path.display());
            return Err(Error::new(Kind::Device, Errno::BUSY, what));
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| not_opened(path, &error))?;
        Ok(Disk { medium: Medium::File(file), path: path.to_owned(), bytes, is_file })
    }

    /// A regular file, no device.
    pub(super) fn is_file(&self) -> bool {
        self.is_file
    }

    /// Whole pages.
    pub(super) fn pages(&self) -> u64 {
        self.bytes / PAGE_BYTES as u64
    }

    /// The file, for what only files can do.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn file(&self) -> io::Result<&File> {
        match &self.medium {
            Medium::File(file) => Ok(file),
            Medium::Driven(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the length in bytes, in whole pages on a user-space driver.
    pub(super) fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        match &self.medium {
            Medium::File(file) => file.read_exact_at(to, at),
            Medium::Driven(blocks) => blocks.read(at, to),
        }
    }

    pub(super) fn read(&self, at: DevicePage, to: &mut Page) -> io::Result<()> {
        self.read_at(at.0 * PAGE_BYTES as u64, to)
    }

    pub(super) fn write(&self, at: DevicePage, pages: &[u8]) -> Result<(), Error> {
        let at = at.0 * PAGE_BYTES as u64;
        let written = match &self.medium {
            Medium::File(file) => file.write_all_at(pages, at),
            Medium::Driven(blocks) => blocks.write(at, pages),
        };
        written.map_err(|error| self.failed("writing", &error))
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        let synced = match &self.medium {
            Medium::File(file) => file.sync_all(),
            Medium::Driven(blocks) => blocks.sync(),
        };
        synced.map_err(|error| self.failed("flushing", &error))
    }

    /// What is there, by the marks that its kind leaves; none: zeroes.
    ///
    /// # Errors
    /// Reading it.
    pub(super) fn signature(&self) -> io::Result<Option<&'static str>> {
        signature::find(self.bytes, &mut |at, to| self.read_at(at, to))
    }

    /// No cache any more, durably.
    pub(super) fn erase(&self) -> Result<(), Error> {
        self.write(DevicePage(0), &[0; 2 * PAGE_BYTES])?;
        self.sync()
    }

    /// The two superblocks of an empty cache: the last step of its making.
    pub(super) fn finish(&self, pages: &[Page; 2]) -> Result<(), Error> {
        self.write(DevicePage(0), pages.as_flattened())?;
        self.sync()
    }

    /// # Errors
    /// No cache is here; or, as `CacheOpenError` says.
    pub(super) fn superblock(&self) -> Result<Superblock, Error> {
        let mut pages = [[0; PAGE_BYTES]; 2];
        for (at, page) in pages.iter_mut().enumerate() {
            if at as u64 >= self.pages() || self.read(DevicePage(at as u64), page).is_err() {
                *page = [0; PAGE_BYTES];
            }
        }
        Superblock::choose(&pages, self.pages()).map_err(|why| self.unusable(why))
    }

    /// Whether it is a cache, or was one before it was damaged.
    pub(super) fn is_ours(&self) -> Result<(), Error> {
        let found = self.signature().map_err(|error| self.failed("reading", &error))?;
        if found == Some(signature::OURS) { Ok(()) } else { Err(self.unusable(CacheOpenError::None)) }
    }

    pub(super) fn unusable(&self, why: CacheOpenError) -> Error {
        Error::new(Kind::Device, Errno::PROTO, format!("{}: {why}", self.path.display()))
    }

    pub(super) fn failed(&self, doing: &'static str, error: &io::Error) -> Error {
        failed(&self.path, doing, error)
    }
}

/// A call that the kernel refused.
pub(super) fn failed(path: &Path, doing: &str, error: &io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::new(Kind::System, errno, format!("{}: {doing}: {error}", path.display()))
}

fn not_opened(path: &Path, error: &io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    let shown = path.display();
    let what = match errno {
        Errno::NOENT => format!("there is no {shown}: `hotshelf cache create {shown} --size 100GiB` makes a cache"),
        Errno::BUSY => format!("{shown} is in use: mounted, part of a RAID or volume group, or opened by a program that wants it alone"),
        Errno::ACCESS | Errno::PERM => format!("{shown} may not be read and written by this user: change its permissions, or be its owner"),
        Errno::ROFS => format!("{shown} is on a read-only file system: a cache has to be written"),
        _ => return failed(path, "opening", error),
    };
    Error::new(Kind::System, errno, what)
}

/// A process that has the file locked, as far as the kernel tells.
pub(crate) fn holder(file: &File) -> Option<u32> {
    let stat = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains(" FLOCK ") && line.split_whitespace().any(|word| word == wanted))?;
    line.split_whitespace().nth(4)?.parse().ok()
}
