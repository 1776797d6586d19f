//! A regular file or a block device of the kernel as a [`Device`].
//!
//! It bypasses the page cache (O_DIRECT) if the file system supports that; [`FileDevice::direct`] returns whether it does. Requests go
//! through io_uring, or through blocking calls on a few threads where io_uring is forbidden.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::claim::{self, RetryTimer};
use super::plain::PlainQueue;
use super::target::FileTarget;
use super::uring::{FileCommands, RingError, UringQueue};
use crate::device::{Device, OpenError, QueueOptions};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::Queue;

mod shape;

/// The mechanism that executes the requests of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// io_uring; where that is forbidden, threads, with one warning in the log.
    #[default]
    Auto,
    /// io_uring only; otherwise opening the queue fails.
    Uring,
    /// Threads that block in `preadv2` and `pwritev2`.
    Plain,
}

/// The options with which a file is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// Whether the file is opened for reading only.
    pub read_only: bool,
    /// Whether I/O uses the kernel's page cache even if the file supports direct I/O.
    pub buffered: bool,
    /// Whether a block device opened for writing is opened exclusively (O_EXCL): not mounted, no RAID member, not open so elsewhere.
    pub exclusive: bool,
    /// Whether a file opened for writing is locked (flock) against other openers with this option. The lock ends with the device and its
    /// queues.
    pub locked: bool,
    /// The block size in bytes; `None` selects the smallest that the file supports.
    pub block_bytes: Option<u32>,
    /// Whether bytes after the last whole block are ignored; otherwise such a file is refused.
    pub round_down: bool,
    /// The mechanism that executes the requests.
    pub engine: Engine,
}

impl Default for FileOptions {
    fn default() -> Self {
        let engine = Engine::Auto;
        FileOptions { read_only: false, buffered: false, exclusive: true, locked: false, block_bytes: None, round_down: false, engine }
    }
}

/// An open file or block device. Clones share the open file.
#[derive(Clone, Debug)]
pub struct FileDevice {
    target: Arc<FileTarget>,
    engine: Engine,
}

impl FileDevice {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// Fails with the obstacle, the file and a remedy.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        let block = check_kind(path)?;
        let (file, direct) = open(path, options, block)?;
        if options.locked && !options.read_only {
            claim::lock(&file, path)?;
        }
        let shape = shape::look(&file, path, options, block, direct)?;
        let target = FileTarget {
            file,
            path: path.to_owned(),
            holes: shape.geometry.discard && !block,
            geometry: shape.geometry,
            direct: shape.direct,
            zero_by_holes: AtomicBool::new(false),
            not_polled: shape.not_polled,
            polled_bytes_max: shape.polled_bytes_max,
            warned: AtomicBool::new(false),
        };
        Ok(FileDevice { target: Arc::new(target), engine: options.engine })
    }

    /// Returns whether I/O bypasses the kernel's page cache.
    pub fn direct(&self) -> bool {
        self.target.direct
    }

    /// Returns why the device cannot be polled for completions, or `None` if it can.
    pub fn not_polled(&self) -> Option<&str> {
        self.target.not_polled.as_deref()
    }

    fn plain(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let what = || format!("starting the threads of {}", self.target.path.display());
        Ok(Box::new(PlainQueue::new(self.target.clone(), options.depth).map_err(|error| OpenError::system(what(), error))?))
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> &Geometry {
        &self.target.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        check_depth(options)?;
        if self.engine == Engine::Plain {
            return self.plain(options);
        }
        let mut options = options.clone();
        if let (true, Some(why)) = (options.device_polled, &self.target.not_polled) {
            self.target.warn(&format!("{} is not polled but waited for: {why}", self.target.path.display()));
            options.device_polled = false;
        }
        match UringQueue::new(FileCommands { target: self.target.clone() }, self.target.file.as_fd(), &options) {
            Ok(queue) => Ok(Box::new(queue)),
            Err(RingError::Forbidden(why)) if self.engine == Engine::Auto => {
                self.target.warn(&format!("{} is used without io_uring, at more CPU: {why}", self.target.path.display()));
                self.plain(&options)
            }
            Err(refused) => Err(refused.explain(&self.target.path)),
        }
    }

    fn read_now(&self, at: u64, to: &mut [u8]) -> Option<Result<(), Error>> {
        Some(self.target.read(at, to))
    }
}

/// Checks that the depth is one that [`QueueOptions`] allows.
pub(super) fn check_depth(options: &QueueOptions) -> Result<(), OpenError> {
    if options.depth.is_power_of_two() && options.depth <= 4096 {
        return Ok(());
    }
    Err(OpenError::Unusable(format!("a queue of depth {}: it is a power of two, at most 4096", options.depth)))
}

impl RingError {
    /// Converts the error into a message for a queue of this file.
    pub(super) fn explain(self, path: &Path) -> OpenError {
        match self {
            RingError::Forbidden(why) => OpenError::Unusable(format!("no io_uring queue for {}: {why}", path.display())),
            RingError::Failed(error) => OpenError::system(format!("making an io_uring queue for {}", path.display()), error),
        }
    }
}

/// Returns whether the path is a block device; refuses anything but a block device or regular file, before it is opened.
fn check_kind(path: &Path) -> Result<bool, OpenError> {
    let shown = path.display();
    let unusable = |what: String| Err(OpenError::Unusable(what));
    let kind = match std::fs::metadata(path) {
        Ok(meta) => meta.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!("{shown} does not exist: make it first, with its size (truncate -s 10G {shown})");
            return Err(OpenError::refused(what, &error));
        }
        Err(error) => return Err(OpenError::system(format!("looking at {shown}"), error)),
    };
    if kind.is_dir() {
        return unusable(format!("{shown} is a directory: name a file or a block device"));
    }
    if kind.is_char_device() {
        return unusable(format!("{shown} is a character device: the nodes of NVMe drives (/dev/ng0n1) are opened as passthrough"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return unusable(format!("{shown} is neither a file nor a block device"));
    }
    Ok(kind.is_block_device())
}

/// Opens the file, and returns whether it supports O_DIRECT. Retries while the device is in use: see [`claim`](super::claim).
fn open(path: &Path, options: &FileOptions, block: bool) -> Result<(File, bool), OpenError> {
    let timer = RetryTimer::begin();
    loop {
        match try_open(path, options, block) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && timer.lasts(claim::claim_timeout(path)) => {}
            opened => return opened.map_err(|error| explain(path, error, options.read_only)),
        }
    }
}

fn try_open(path: &Path, options: &FileOptions, block: bool) -> io::Result<(File, bool)> {
    let exclusive = if block && options.exclusive && !options.read_only { OFlags::EXCL } else { OFlags::empty() };
    let open = |flags: OFlags| {
        let flags = (flags | exclusive).bits().cast_signed();
        OpenOptions::new().read(true).write(!options.read_only).custom_flags(flags).open(path).inspect(leave_the_access_time)
    };
    if !options.buffered {
        match open(OFlags::DIRECT) {
            Ok(file) => return Ok((file, true)),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {} // not on this file system
            Err(error) => return Err(error),
        }
    }
    Ok((open(OFlags::empty())?, false))
}

/// Disables access-time updates, which would cost a check at each read. Only the owner may do that; other users continue without.
fn leave_the_access_time(file: &File) {
    if let Ok(flags) = fcntl_getfl(file) {
        let _ = fcntl_setfl(file, flags | OFlags::NOATIME);
    }
}

fn explain(path: &Path, error: io::Error, read_only: bool) -> OpenError {
    let path = path.display();
    let what = match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => format!(
            "{path} is in use: mounted, part of a RAID or volume group, or opened by a program that wants it alone; \
             release it (umount {path}), or open it read-only"
        ),
        Some(Errno::ACCESS | Errno::PERM) if read_only => {
            format!("{path} may not be read by this user: change its permissions, or join its group (ls -l {path})")
        }
        Some(Errno::ACCESS | Errno::PERM) => format!(
            "{path} may not be read and written by this user: change its permissions, join its group (ls -l {path}), or open it read-only"
        ),
        Some(Errno::ROFS) => format!("{path} cannot be written (read-only file system or device): open it read-only"),
        _ => return OpenError::system(format!("opening {path}"), error),
    };
    OpenError::refused(what, &error)
}
