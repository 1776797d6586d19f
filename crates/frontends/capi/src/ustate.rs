//! Durability, size and attributes of an open file, and calls forwarded to the kernel's descriptor.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{gid_t, mode_t, off_t, stat, timespec, uid_t};
use rustix::fs::{Stat, Timestamps};
use rustix::io::Errno;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::guard_files as ffi_guard;
use crate::memory::offset_of;
use crate::ufiles::{share, with};

/// Works like fsync(2): when it returns 0, every byte of the file written before survives any crash. Thread-safe.
///
/// Returns 0, or -1: any error of fsync(2); each affected open file gets a failure once.
#[unsafe(no_mangle)]
pub extern "C" fn ufsync(ufd: c_int) -> c_int {
    ffi_guard(|| share(ufd)?.run(|open| open.sync(false)).map(|()| 0))
}

/// Works like fdatasync(2): as ufsync, without metadata that is not needed to read the bytes. Thread-safe. Returns as ufsync.
#[unsafe(no_mangle)]
pub extern "C" fn ufdatasync(ufd: c_int) -> c_int {
    ffi_guard(|| share(ufd)?.run(|open| open.sync(true)).map(|()| 0))
}

/// Works like ftruncate(2). Thread-safe. Returns 0, or -1: any error of ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn uftruncate(ufd: c_int, len: off_t) -> c_int {
    ffi_guard(|| {
        let len = offset_of(len)?;
        with(ufd, |open| open.set_len(len)).map(|()| 0)
    })
}

/// Works like fallocate(2), with the modes 0, FALLOC_FL_KEEP_SIZE, and FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE. Thread-safe.
///
/// Returns 0, or -1: any error of fallocate(2); EOPNOTSUPP (another mode, or the underlying file system does not support it).
#[unsafe(no_mangle)]
pub extern "C" fn ufallocate(ufd: c_int, mode: c_int, off: off_t, len: off_t) -> c_int {
    ffi_guard(|| {
        let (keep, hole) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE);
        // In the kernel's order: an open file, a range, a mode, write access, and the size limit.
        with(ufd, |open| {
            if open.is_path() {
                return Err(ApiError::new(libc::EBADF, "it was opened to be named alone"));
            }
            let (start, len) = (offset_of(off)?, offset_of(len)?);
            if len == 0 {
                return Err(ApiError::new(libc::EINVAL, "a range of no bytes"));
            }
            if mode != 0 && mode != keep && mode != hole {
                return Err(ApiError::new(libc::EOPNOTSUPP, format!("fallocate mode {mode:#x}: only keeping the size and punching holes")));
            }
            if open.cached().is_some_and(|file| !file.is_writable()) {
                return Err(ApiError::new(libc::EBADF, "it was not opened to be written"));
            }
            let end = start.checked_add(len).filter(|end| *end <= i64::MAX as u64);
            let end = end.ok_or_else(|| ApiError::new(libc::EFBIG, "no file is that long"))?;
            open.allocate(start..end, mode & keep != 0, mode == hole)
        })
        .map(|()| 0)
    })
}

/// Converts attributes to the C library's struct.
fn to_c_stat(from: &Stat) -> stat {
    // SAFETY: integers alone, for which zeroes are values.
    let mut to: stat = unsafe { std::mem::zeroed() };
    to.st_dev = from.st_dev as _;
    to.st_ino = from.st_ino as _;
    to.st_nlink = from.st_nlink as _;
    to.st_mode = from.st_mode as _;
    to.st_uid = from.st_uid as _;
    to.st_gid = from.st_gid as _;
    to.st_rdev = from.st_rdev as _;
    to.st_size = from.st_size as _;
    to.st_blksize = from.st_blksize as _;
    to.st_blocks = from.st_blocks as _;
    (to.st_atime, to.st_atime_nsec) = (from.st_atime as _, from.st_atime_nsec as _);
    (to.st_mtime, to.st_mtime_nsec) = (from.st_mtime as _, from.st_mtime_nsec as _);
    (to.st_ctime, to.st_ctime_nsec) = (from.st_ctime as _, from.st_ctime_nsec as _);
    to
}

/// Stores the attributes for the program.
///
/// # Safety
/// `to` is NULL or valid for a write.
pub unsafe fn tell(to: *mut stat, found: impl FnOnce() -> ApiResult<Stat>) -> ApiResult<c_int> {
    // In the kernel's order: EBADF or ENOENT first.
    let found = found()?;
    if to.is_null() {
        return Err(ApiError::new(libc::EFAULT, "the struct stat is NULL"));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    unsafe { to.write(to_c_stat(&found)) };
    Ok(0)
}

/// Works like fstat(2), with the size and times of the cached data. Thread-safe. Returns 0, or -1: any error of fstat(2).
///
/// # Safety
/// `st` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ufstat(ufd: c_int, st: *mut stat) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { tell(st, || with(ufd, |open| open.stat())) })
}

/// Changes attributes through the kernel's descriptor, without counting as a change by another program.
fn attributes(ufd: c_int, what: &'static str, call: impl FnOnce(c_int) -> c_int) -> c_int {
    ffi_guard(|| {
        let open = share(ufd)?;
        let change = |fd: BorrowedFd<'_>| {
            let done = call(fd.as_raw_fd());
            let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            if done < 0 { Err(Errno::from_raw_os_error(errno())) } else { Ok(done) }
        };
        open.run(|open| match open.cached() {
            Some(file) => Ok(file.set_attributes(change)?),
            None => {
                change(open.fd()).map_err(|errno| ApiError::new(errno.raw_os_error(), format!("{what}: {}", std::io::Error::from(errno))))
            }
        })
    })
}

/// Works like fchmod(2), for a ufd. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn ufchmod(ufd: c_int, mode: mode_t) -> c_int {
    // SAFETY: no memory is handed over.
    attributes(ufd, "changing its mode", |fd| unsafe { libc::fchmod(fd, mode) })
}

/// Works like fchown(2), for a ufd. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn ufchown(ufd: c_int, owner: uid_t, group: gid_t) -> c_int {
    // SAFETY: no memory is handed over.
    attributes(ufd, "changing its owner", |fd| unsafe { libc::fchown(fd, owner, group) })
}

/// Works like flock(2): locks of the open file, between all programs of the machine. A lock ends with uclose of the last duplicate. (If
/// the process could not reopen the file, it may end a moment later, like that of a flock(2) on the descriptor of ufileno.) Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn uflock(ufd: c_int, operation: c_int) -> c_int {
    ffi_guard(|| {
        let open = share(ufd)?;
        if let Some(file) = open.cached() {
            // If that fails, the lock lasts as long as the cache's descriptor.
            let _ = file.leave_description(|new, old| {
                // SAFETY: both are open. The old number goes on to stand for the same file.
                let done = unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) };
                let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                if done < 0 { Err(Errno::from_raw_os_error(errno())) } else { Ok(()) }
            });
        }
        // SAFETY: no memory is handed over.
        let done = unsafe { libc::flock(open.fd().as_raw_fd(), operation) };
        if done < 0 { Err(ApiError::last("locking")) } else { Ok(done) }
    })
}

/// Works like futimens(2), after dirty data was written back, so that the times stay. Thread-safe.
///
/// # Safety
/// `times` is NULL or has two elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ufutimens(ufd: c_int, times: *const timespec) -> c_int {
    ffi_guard(|| {
        let open = share(ufd)?;
        let Some(file) = open.cached().filter(|file| file.is_cached()) else {
            // SAFETY: the caller's promise.
            let done = unsafe { libc::futimens(open.fd().as_raw_fd(), times) };
            return if done < 0 { Err(ApiError::last("changing its times")) } else { Ok(0) };
        };
        let now = timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
        // SAFETY: the caller's promise.
        let [atime, mtime] = if times.is_null() { [now; 2] } else { unsafe { [times.read(), times.add(1).read()] } };
        let of = |time: timespec| rustix::fs::Timespec { tv_sec: time.tv_sec as _, tv_nsec: time.tv_nsec as _ };
        open.run(|_| Ok(file.set_times(&Timestamps { last_access: of(atime), last_modification: of(mtime) })?)).map(|()| 0)
    })
}
