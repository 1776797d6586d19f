//! An open file behind ufds: a file of the cache, or a standard stream of the process (0, 1, 2), whose calls are forwarded.
#![expect(unsafe_code, reason = "the descriptors 0, 1 and 2 are the process's")]

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use cachedfs::{File, Whence};
use rustix::fs::{FallocateFlags, FileType, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::api_error::{ApiError, ApiResult};
use crate::pins::Pins;

/// An open file, shared by duplicates of its ufd.
pub struct Open {
    body: FileBackend,
    /// Calls never block indefinitely (unlike on pipes, terminals, sockets), and the file is not broken.
    plain: AtomicBool,
    broken: AtomicBool,
    /// The pages of the file that the program has pinned.
    pub pins: Pins,
}

enum FileBackend {
    File(File),
    Stream(RawFd),
}

/// Converts the result of a system call on a stream.
fn plain<T>(what: &str, done: Result<T, Errno>) -> ApiResult<T> {
    done.map_err(|errno| ApiError::new(errno.raw_os_error(), format!("{what}: {}", std::io::Error::from(errno))))
}

#[cold]
#[inline(never)]
fn broken() -> ApiError {
    ApiError::new(libc::EIO, "an earlier call failed inside this file: it can only be closed")
}

fn waits(fd: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    !matches!(kind, Ok(FileType::RegularFile | FileType::Directory | FileType::BlockDevice))
}

impl Open {
    /// Wraps a file of the cache, or an uncached file that the cache opened.
    pub fn file(file: File) -> Open {
        let waits = !file.is_cached() && waits(file.fd());
        Open { body: FileBackend::File(file), plain: AtomicBool::new(!waits), pins: Pins::default(), broken: AtomicBool::new(false) }
    }

    /// Wraps one of the process's standard streams.
    pub fn stream(fd: RawFd) -> Open {
        Open { body: FileBackend::Stream(fd), plain: AtomicBool::new(false), pins: Pins::default(), broken: AtomicBool::new(false) }
    }

    /// Returns the kernel's descriptor of the file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.body {
            FileBackend::File(file) => file.fd(),
            // SAFETY: a program that closes descriptors behind our back gets EBADF from the kernel; nothing else is done with it.
            FileBackend::Stream(fd) => unsafe { BorrowedFd::borrow_raw(*fd) },
        }
    }

    /// Returns whether it is a standard stream of the process.
    pub fn is_stream(&self) -> bool {
        matches!(self.body, FileBackend::Stream(_))
    }

    /// Returns whether it was opened with O_PATH: it only names the file.
    pub fn is_path(&self) -> bool {
        self.cached().is_some_and(|file| file.flags().contains(OFlags::PATH))
    }

    /// Returns the file of the cache.
    #[inline]
    pub fn cached(&self) -> Option<&File> {
        if let FileBackend::File(file) = &self.body { Some(file) } else { None }
    }

    /// Returns whether a hazard-protected read suffices for its calls, and it is not broken.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.plain.load(Ordering::Relaxed)
    }

    /// Runs a call on it unless it is broken.
    pub fn run<T>(&self, call: impl FnOnce(&Open) -> ApiResult<T>) -> ApiResult<T> {
        if self.broken.load(Ordering::Relaxed) { Err(broken()) } else { self.watched(call) }
    }

    /// Runs a call on a file that is not broken; a panic breaks it.
    #[inline(always)]
    pub fn watched<T>(&self, call: impl FnOnce(&Open) -> T) -> T {
        let watch = PanicGuard(self);
        let done = call(self);
        let _ = std::mem::ManuallyDrop::new(watch);
        done
    }

    /// Reads at the file position, and advances it.
    #[inline]
    pub fn read(&self, to: &mut [u8]) -> ApiResult<usize> {
        match &self.body {
            FileBackend::File(file) => Ok(file.read(to)?),
            FileBackend::Stream(_) => plain("reading", rustix::io::read(self.fd(), to)),
        }
    }

    /// Writes at the file position, and advances it.
    #[inline]
    pub fn write(&self, from: &[u8]) -> ApiResult<usize> {
        match &self.body {
            FileBackend::File(file) => Ok(file.write(from)?),
            FileBackend::Stream(_) => plain("writing", rustix::io::write(self.fd(), from)),
        }
    }

    /// Reads at an offset; the file position stays.
    #[inline]
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> ApiResult<usize> {
        match &self.body {
            FileBackend::File(file) => Ok(file.read_at(at, to)?),
            FileBackend::Stream(_) => plain("reading", rustix::io::pread(self.fd(), to, at)),
        }
    }

    /// Writes at an offset; the file position stays.
    #[inline]
    pub fn write_at(&self, at: u64, from: &[u8]) -> ApiResult<usize> {
        match &self.body {
            FileBackend::File(file) => Ok(file.write_at(at, from)?),
            FileBackend::Stream(_) => plain("writing", rustix::io::pwrite(self.fd(), from, at)),
        }
    }

    /// Reads through the slow path.
    pub fn read_long(&self, at: u64, to: &mut [u8]) -> ApiResult<usize> {
        match &self.body {
            FileBackend::File(file) => Ok(file.read_long(at, to)?),
            FileBackend::Stream(_) => self.read_at(at, to),
        }
    }

    /// Writes through the slow path.
    pub fn write_long(&self, at: u64, from: &[u8]) -> ApiResult<usize> {
        match &self.body {
            FileBackend::File(file) => Ok(file.write_long(at, from)?),
            FileBackend::Stream(_) => self.write_at(at, from),
        }
    }

    /// Reads at the file position or at an offset.
    pub fn read_vectored(&self, at: Option<u64>, to: &mut [IoSliceMut<'_>]) -> ApiResult<usize> {
        match (&self.body, at) {
            (FileBackend::File(file), None) => Ok(file.read_vectored(to)?),
            (FileBackend::File(file), Some(at)) => Ok(file.read_vectored_at(at, to)?),
            (FileBackend::Stream(_), None) => plain("reading", rustix::io::readv(self.fd(), to)),
            (FileBackend::Stream(_), Some(at)) => plain("reading", rustix::io::preadv(self.fd(), to, at)),
        }
    }

    /// Writes at the file position or at an offset.
    pub fn write_vectored(&self, at: Option<u64>, from: &[IoSlice<'_>]) -> ApiResult<usize> {
        match (&self.body, at) {
            (FileBackend::File(file), None) => Ok(file.write_vectored(from)?),
            (FileBackend::File(file), Some(at)) => Ok(file.write_vectored_at(at, from)?),
            (FileBackend::Stream(_), None) => plain("writing", rustix::io::writev(self.fd(), from)),
            (FileBackend::Stream(_), Some(at)) => plain("writing", rustix::io::pwritev(self.fd(), from, at)),
        }
    }

    /// Moves the file position and returns the new one.
    pub fn seek(&self, to: i64, whence: Whence) -> ApiResult<u64> {
        let FileBackend::File(file) = &self.body else {
            let negative = || plain("seeking", u64::try_from(to).map_err(|_| Errno::INVAL));
            let to = match whence {
                Whence::Start => SeekFrom::Start(negative()?),
                Whence::Current => SeekFrom::Current(to),
                Whence::End => SeekFrom::End(to),
                Whence::Data => SeekFrom::Data(negative()?),
                Whence::Hole => SeekFrom::Hole(negative()?),
            };
            return plain("seeking", rustix::fs::seek(self.fd(), to));
        };
        Ok(file.seek(to, whence)?)
    }

    /// Flushes the file: works like fsync(2), or with `data_only` like fdatasync(2).
    pub fn sync(&self, data_only: bool) -> ApiResult<()> {
        match &self.body {
            FileBackend::File(file) => Ok(file.sync(data_only)?),
            FileBackend::Stream(_) if data_only => plain("syncing", rustix::fs::fdatasync(self.fd())),
            FileBackend::Stream(_) => plain("syncing", rustix::fs::fsync(self.fd())),
        }
    }

    /// Truncates or extends the file to this size in bytes.
    pub fn set_len(&self, bytes: u64) -> ApiResult<()> {
        match &self.body {
            FileBackend::File(file) => Ok(file.set_len(bytes)?),
            FileBackend::Stream(_) => plain("truncating", rustix::fs::ftruncate(self.fd(), bytes)),
        }
    }

    /// Punches a hole (`hole`), or reserves space.
    pub fn allocate(&self, range: Range<u64>, keep_size: bool, hole: bool) -> ApiResult<()> {
        match &self.body {
            FileBackend::File(file) if hole => Ok(file.punch_hole(range)?),
            FileBackend::File(file) => Ok(file.allocate(range, keep_size)?),
            FileBackend::Stream(_) => {
                let hole = if hole { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::empty() };
                let keep = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                plain("allocating", rustix::fs::fallocate(self.fd(), hole | keep, range.start, range.end - range.start))
            }
        }
    }

    /// Returns the attributes of the file, as fstat(2) does.
    pub fn stat(&self) -> ApiResult<Stat> {
        match &self.body {
            FileBackend::File(file) => Ok(file.stat()?),
            FileBackend::Stream(_) => plain("stat", rustix::fs::fstat(self.fd())),
        }
    }

    /// Returns the flags as F_GETFL does.
    pub fn flags(&self) -> ApiResult<OFlags> {
        let mut flags = plain("its flags", rustix::fs::fcntl_getfl(self.fd()))?;
        if let Some(file) = self.cached().filter(|file| file.is_cached()) {
            flags.set(OFlags::APPEND, file.appends());
        }
        Ok(flags)
    }

    /// Sets the flags as F_SETFL does. The cache handles O_APPEND; the kernel stores the other changeable flags.
    pub fn set_flags(&self, flags: OFlags) -> ApiResult<()> {
        let Some(file) = self.cached().filter(|file| file.is_cached()) else {
            return plain("its flags", rustix::fs::fcntl_setfl(self.fd(), flags));
        };
        if flags.contains(OFlags::DIRECT) && !file.flags().contains(OFlags::DIRECT) {
            return Err(ApiError::new(libc::EINVAL, "O_DIRECT is for open: what is cached cannot be made direct later"));
        }
        let of_kernel = OFlags::NONBLOCK | OFlags::NOATIME | OFlags::DIRECT | OFlags::from_bits_retain(libc::O_ASYNC as u32);
        plain("its flags", rustix::fs::fcntl_setfl(self.fd(), flags & of_kernel))?;
        file.set_appends(flags.contains(OFlags::APPEND));
        Ok(())
    }

    /// Returns a write error that was not reported yet.
    pub fn take_unreported(&self) -> ApiResult<()> {
        self.cached().map_or(Ok(()), |file| Ok(file.take_unreported()?))
    }

    /// Closes it; returns errors that were not reported yet.
    pub fn close(self) -> ApiResult<()> {
        match &self.body {
            FileBackend::File(_) => self.take_unreported(),
            FileBackend::Stream(fd) => {
                // SAFETY: the program closed the ufd of this descriptor, which it owns.
                let closed = unsafe { libc::close(*fd) };
                if closed == 0 { Ok(()) } else { Err(ApiError::new(libc::EBADF, "it was closed behind the library's back")) }
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let FileBackend::File(file) = &self.body {
            self.pins.release_all(file);
        }
    }
}

/// Marks a file as broken if its call panics.
struct PanicGuard<'a>(&'a Open);

impl Drop for PanicGuard<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
        self.0.plain.store(false, Ordering::Relaxed);
    }
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}
