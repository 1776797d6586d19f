//! Making a cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use ssdcache::{PAGE_BYTES, Shape, SsdCache};

use super::Progress;
use super::disk::{Disk, failed};
use crate::Size;
use crate::error::{Error, Kind};

/// Segments of a cache that is not small: to give one up costs little.
const SEGMENTS_WANTED: u64 = 128;
/// The largest segment, in pages: 2 MiB.
const SEGMENT_PAGES_MAX: u64 = 512;

/// How a cache is to be made.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Options {
    /// Bytes of the file; a share is of what is free there. Of a device not more than it has; not said: all.
    pub size: Option<Size>,
    /// Whether an existing content is overwritten.
    pub force: bool,
    /// Its group may read and write it too.
    pub group: Option<u32>,
}

/// The result of creating a cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Made {
    /// The identity of the SSD, which formatting makes.
    pub uuid: String,
    /// Bytes of the file or device, for pages and metadata.
    pub bytes: u64,
    /// Pages there is room for, those that hold summaries included.
    pub pages: u64,
    /// The number of segments of its log.
    pub segments: u32,
    /// The number of pages of a segment.
    pub segment_pages: u32,
    /// The file was not there before.
    pub is_new: bool,
    /// What was there, and is no more.
    pub replaced: Option<String>,
}

/// Formats a file, a block device, or an SSD that this process drives itself. A file that is not there is made, with all its blocks.
///
/// # Errors
/// [`Kind::Device`]: it is in use, or there is something on it and `force` is not said; [`Kind::Invalid`]: a size that cannot be;
/// [`Kind::System`]: the kernel's, no space among them. Nothing is left then of a file that was to be made.
pub fn create(path: &Path, options: &Options, progress: Progress<'_>) -> Result<Made, Error> {
    let made = match std::fs::symlink_metadata(path) {
        _ if crate::user_space_nvme::is_meant(path) => what_is_there(path, options, progress),
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_file(path, options, progress),
        _ => what_is_there(path, options, progress),
    }?;
    super::forget_note(path)?;
    Ok(made)
}

/// The sizes of a log on so many bytes.
///
/// # Errors
/// Too few.
pub(super) fn shape(bytes: u64) -> Result<Shape, Error> {
    let pages = bytes / PAGE_BYTES as u64;
    let segment = (pages / SEGMENTS_WANTED).clamp(8, SEGMENT_PAGES_MAX).next_power_of_two();
    let shape = Shape::of_device(pages, segment as u32);
    shape.check(pages).map_err(|_| Error::invalid(format!("{bytes} bytes are too few for a cache: 128KiB is the least, 1TiB the most")))?;
    Ok(shape)
}

fn new_file(path: &Path, options: &Options, progress: Progress<'_>) -> Result<Made, Error> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let Some(size) = options.size else {
        let what = format!("{} is not there yet, so its size has to be said: --size 100GiB, or --size 80% of what is free", path.display());
        return Err(Error::invalid(what));
    };
    let free = free_bytes(dir)?;
    let bytes = size.of(free) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let shape = shape(bytes)?;
    if bytes > free {
        return Err(no_space(dir, free));
    }
    let unnamed = Unnamed::new(dir, path)?;
    let disk = Disk::of(unnamed.file.try_clone().map_err(|error| failed(path, "making", &error))?, path, true)?;
    disk.file().and_then(|file| allocate(file, bytes, progress)).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::DQUOT) => no_space(dir, free_bytes(dir).unwrap_or(0)),
        _ => disk.failed("allocating", &error),
    })?;
    disk.file().and_then(|file| belongs(file, options.group)).map_err(|error| disk.failed("giving it to its group", &error))?;
    let uuid = random()?;
    disk.finish(&SsdCache::format(uuid, shape))?;
    unnamed.name(path)?;
    Ok(Made { is_new: true, ..made(uuid, shape, bytes, None) })
}

fn what_is_there(path: &Path, options: &Options, progress: Progress<'_>) -> Result<Made, Error> {
    let mut disk = Disk::alone(path)?;
    let there = disk.signature().map_err(|error| disk.failed("reading", &error))?;
    if let Some(there) = there.filter(|_| !options.force) {
        let what =
            format!("{}: there is {there}, which is kept: a cache needs its own file or device (see --force in its help)", path.display());
        return Err(Error::new(Kind::Device, Errno::EXIST, what));
    }
    let bytes = match options.size {
        None if disk.bytes == 0 => return Err(Error::invalid(format!("{} is empty: say its --size", path.display()))),
        None => disk.bytes,
        Some(size) if disk.is_file() => size.of(free_bytes(path)? + disk.bytes),
        Some(size) => size.of(disk.bytes),
    };
    let bytes = bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let shape = shape(bytes)?;
    if !disk.is_file() && bytes > disk.bytes {
        return Err(Error::invalid(format!("{} has {} bytes, less than that --size", path.display(), disk.bytes)));
    }
    // From here on there is nothing on it, until all is.
    if disk.bytes >= 2 * PAGE_BYTES as u64 {
        disk.erase()?;
    }
    if disk.is_file() {
        let grown = disk.file().and_then(|file| file.set_len(bytes).and_then(|()| allocate(file, bytes, progress)));
        grown.map_err(|error| disk.failed("allocating", &error))?;
        disk.file().and_then(|file| belongs(file, options.group)).map_err(|error| disk.failed("giving it to its group", &error))?;
        disk.bytes = bytes;
    }
    let uuid = random()?;
    disk.finish(&SsdCache::format(uuid, shape))?;
    Ok(made(uuid, shape, bytes, there.map(str::to_owned)))
}

fn made(uuid: [u8; 16], shape: Shape, bytes: u64, replaced: Option<String>) -> Made {
    let (segments, segment_pages) = (shape.segments, shape.segment_pages);
    Made { uuid: super::inspect::hex(&uuid), bytes, pages: u64::from(shape.slots()), segments, segment_pages, is_new: false, replaced }
}

pub(super) fn free_bytes(at: &Path) -> Result<u64, Error> {
    let stat = rustix::fs::statvfs(at).map_err(|errno| match errno {
        Errno::NOENT => Error::new(Kind::System, errno, format!("there is no directory {}: create it", at.display())),
        _ => failed(at, "asking for free space", &errno.into()),
    })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

pub(super) fn no_space(dir: &Path, free: u64) -> Error {
    let what = format!("{}: only {} MiB are free there: give a smaller --size", dir.display(), free >> 20);
    Error::new(Kind::System, Errno::NOSPC, what)
}

/// All blocks now, so that a write to the cache never finds the disk full.
pub(super) fn allocate(file: &File, bytes: u64, progress: Progress<'_>) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
        Err(errno) => return Err(errno.into()),
    }
    let zeroes = vec![0; 1 << 20];
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(zeroes.len() as u64);
        file.write_all_at(&zeroes[..piece as usize], done)?;
        done += piece;
        progress(done, bytes);
    }
    Ok(())
}

/// Pages of files may be secret, so other users may not read them.
fn belongs(file: &File, group: Option<u32>) -> io::Result<()> {
    let bits = if group.is_some() { 0o660 } else { 0o600 };
    if let Some(group) = group {
        rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))?;
    }
    rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(bits))?;
    Ok(())
}

pub(super) fn random() -> Result<[u8; 16], Error> {
    let (mut bytes, from) = ([0; 16], Path::new("/dev/urandom"));
    let read = File::open(from).and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes));
    read.map_err(|error| failed(from, "reading", &error))?;
    Ok(bytes)
}

/// A file that gets its name when it is whole. Killed before, nothing is left of it, or (where the file system knows no files
/// without names) something that is called so and that the next one replaces.
pub(super) struct Unnamed {
    pub(super) file: File,
    temporary: Option<PathBuf>,
}

impl Unnamed {
    pub(super) fn new(dir: &Path, path: &Path) -> Result<Unnamed, Error> {
        let open = |flags: OFlags, at: &Path| {
            let flags = (flags | OFlags::CLOEXEC).bits().cast_signed();
            OpenOptions::new().read(true).write(true).custom_flags(flags).mode(0o600).open(at)
        };
        match open(OFlags::TMPFILE, dir) {
            Ok(file) => return Ok(Unnamed { file, temporary: None }),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
                Some(Errno::NOENT | Errno::NOTDIR) => {
                    return Err(Error::new(Kind::System, Errno::NOENT, format!("there is no directory {}: create it", dir.display())));
                }
                _ => return Err(failed(dir, "making a file there", &error)),
            },
        }
        let temporary = temporary_of(path);
        let _ = std::fs::remove_file(&temporary);
        let file = open(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, &temporary);
        let file = file.map_err(|error| failed(dir, "making a file there", &error))?;
        Ok(Unnamed { file, temporary: Some(temporary) })
    }

    /// Its contents are durable: now it appears, durably, if there is nothing of that name.
    pub(super) fn name(mut self, path: &Path) -> Result<(), Error> {
        use std::os::fd::AsRawFd;
        let named = match &self.temporary {
            None => {
                let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(temporary) => rustix::fs::renameat_with(CWD, temporary, CWD, path, rustix::fs::RenameFlags::NOREPLACE)
                .or_else(|errno| if errno == Errno::INVAL { rustix::fs::link(temporary, path) } else { Err(errno) }),
        };
        named.map_err(|errno| failed(path, "naming it", &errno.into()))?;
        if let Some(temporary) = self.temporary.take() {
            let _ = std::fs::remove_file(temporary);
        }
        sync_dir_of(path)
    }
}

impl Unnamed {
    /// As `name`, in the place of what has the name: it goes in the same moment.
    pub(super) fn replace(mut self, path: &Path) -> Result<(), Error> {
        use std::os::fd::AsRawFd;
        let temporary = match self.temporary.take() {
            Some(temporary) => temporary,
            None => {
                let temporary = temporary_of(path);
                let _ = std::fs::remove_file(&temporary);
                let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, open, CWD, &temporary, AtFlags::SYMLINK_FOLLOW)
                    .map_err(|errno| failed(path, "naming the new one", &errno.into()))?;
                temporary
            }
        };
        std::fs::rename(&temporary, path).map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            failed(path, "naming the new one", &error)
        })?;
        sync_dir_of(path)
    }
}

fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.hotshelf-new"))
}

/// The owner, group and bits of another.
pub(super) fn like(file: &File, other: &File) -> io::Result<()> {
    let stat = rustix::fs::fstat(other)?;
    let mine = rustix::fs::fstat(file)?;
    if (mine.st_uid, mine.st_gid) != (stat.st_uid, stat.st_gid) {
        rustix::fs::fchown(file, Some(rustix::fs::Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    }
    rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(stat.st_mode & 0o777))?;
    Ok(())
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// A name is durable when its directory is.
pub(super) fn sync_dir_of(path: &Path) -> Result<(), Error> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| failed(dir, "flushing", &error))
}
