//! The open files of the library file system, by number: a separate table, starting at 3, for all mounts.

use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom};
use stack::rawfs::fs::{File, FileKind, Fs};

use crate::api_error::{ApiError, ApiResult};
use crate::flocks::{self, LockedFile};
use crate::memory::Memory;
use crate::mounted::{Mount, MountGuard};
use crate::ufd::{TableFullError, Ufds};

/// The first number: programs use 0, 1 and 2 for standard streams.
pub const FIRST: usize = 3;
/// Alignment of offsets, lengths and memory with O_DIRECT, in bytes.
pub const DIRECT_ALIGN: usize = 512;

static FILES: Ufds<Open> = Ufds::new();

/// An open file, shared by duplicates of its number.
pub struct Open {
    /// The file in the library file system.
    pub file: Arc<File>,
    /// Dropped after the file: then the mount may go.
    pub mount: MountGuard,
}

impl Drop for Open {
    fn drop(&mut self) {
        let (which, who) = self.lock_ids();
        flocks::release_at_close(which, who);
    }
}

impl Open {
    /// Runs a call with the file.
    pub fn run<T>(&self, call: impl FnOnce(&Arc<File>) -> ApiResult<T>) -> ApiResult<T> {
        self.mount.watch(|| call(&self.file))
    }

    /// Returns the file and the open file, as locks identify them.
    pub fn lock_ids(&self) -> (LockedFile, usize) {
        ((Arc::as_ptr(&self.mount).addr(), self.file.node().ino()), Arc::as_ptr(&self.file).addr())
    }

    /// Returns whether the file was opened with O_DIRECT.
    pub fn is_direct(&self) -> bool {
        self.file.flags().contains(OFlags::DIRECT)
    }

    /// Returns EINVAL for misaligned O_DIRECT access.
    pub fn check_direct<'m>(&self, memory: impl IntoIterator<Item = &'m Memory>, at: Option<u64>) -> ApiResult<()> {
        if !self.is_direct() || self.file.node().kind() != FileKind::File {
            return Ok(());
        }
        let at = at.map_or_else(|| self.file.seek(SeekFrom::Current(0)), Ok)?;
        let fits = |number: usize| number.is_multiple_of(DIRECT_ALIGN);
        let all = memory.into_iter().all(|memory| fits(memory.len()) && fits(memory.address().addr()));
        let what = "a file opened with O_DIRECT: offset, length and memory have to be multiples of 512";
        if all && at.is_multiple_of(DIRECT_ALIGN as u64) { Ok(()) } else { Err(ApiError::new(libc::EINVAL, what)) }
    }
}

#[cold]
#[inline(never)]
fn closed(fd: i32) -> ApiError {
    ApiError::new(libc::EBADF, format!("file number {fd} of nvmedfs_open is not open"))
}

/// Returns a reference to an open file.
pub fn share(fd: i32) -> ApiResult<Arc<Open>> {
    FILES.get(fd).ok_or_else(|| closed(fd))
}

/// Runs a call with an open file.
pub fn with<T>(fd: i32, call: impl FnOnce(&Open, &Arc<File>) -> ApiResult<T>) -> ApiResult<T> {
    let open = share(fd)?;
    open.run(|file| call(&open, file))
}

/// Runs a call with an open file and its file system.
pub fn with_fs<T>(fd: i32, call: impl FnOnce(&Fs, &File, &Mount) -> ApiResult<T>) -> ApiResult<T> {
    let open = share(fd)?;
    open.mount.run(|fs| call(fs, &open.file, &open.mount))
}

/// Gives an open file the lowest free number that is at least `from`.
pub fn insert(open: Arc<Open>, from: usize) -> ApiResult<i32> {
    FILES.insert(open, from).map_err(|TableFullError| ApiError::new(libc::EMFILE, "too many files are open: close some"))
}

/// Drops the reference of a file number.
fn finish(open: Arc<Open>) -> ApiResult<()> {
    Arc::try_unwrap(open).map_or(Ok(()), |open| Ok(open.file.take_error()?))
}

/// Closes a file number; returns errors of the file that were not reported yet.
pub fn close(fd: i32) -> ApiResult<()> {
    finish(FILES.remove(fd).ok_or_else(|| closed(fd))?)
}

/// Gives an open file this number, and closes the file that had it before.
pub fn replace(fd: i32, open: Arc<Open>) -> ApiResult<()> {
    let no_number = |_| ApiError::new(libc::EBADF, format!("{fd} is no number for a file"));
    let before = FILES.replace(fd, open).map_err(no_number)?;
    // As dup2(2): an error of this close is lost.
    drop(before);
    Ok(())
}

/// Closes every file. Returns the first error.
pub fn close_all() -> ApiResult<()> {
    let mut first = Ok(());
    for fd in FILES.open() {
        let done = FILES.remove(fd).map_or(Ok(()), finish);
        first = first.and(done);
    }
    first
}
