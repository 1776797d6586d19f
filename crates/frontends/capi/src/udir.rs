//! Names and directories: the kernel's, adjusted by the cache for files with cached data.
#![expect(unsafe_code, reason = "called by C; C's own directory streams")]

use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use libc::{DIR, dirent, mode_t, off_t, stat};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, RenameFlags};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::guard_files as ffi_guard;
use crate::library::{ensure_init, instance};
use crate::memory::{self, offset_of, path};
use crate::objects::{CloseOrder, ObjectKind, end, enroll, with};
use crate::types::UDIR;
use crate::ufiles::at;
use crate::ulock;
use crate::ustate::tell;

/// Works like stat(2), with the size and times of the cached data. Thread-safe. Returns 0, or -1: any error of stat(2).
///
/// # Safety
/// `path` is NULL or a string; `st` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ustat(path: *const c_char, st: *mut stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ufstatat(libc::AT_FDCWD, path, st, 0) }
}

/// Works like lstat(2); see ustat. Thread-safe.
///
/// # Safety
/// Works like ustat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulstat(path: *const c_char, st: *mut stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ufstatat(libc::AT_FDCWD, path, st, libc::AT_SYMLINK_NOFOLLOW) }
}

/// Works like fstatat(2); see ustat. `dir` is a ufd or AT_FDCWD. Thread-safe.
///
/// # Safety
/// Works like ustat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ufstatat(dir: c_int, path: *const c_char, st: *mut stat, flags: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { self::path(path) }?;
        let flags = AtFlags::from_bits_retain(flags as u32);
        // SAFETY: the caller's promise.
        unsafe { tell(st, || at(dir, |dir| Ok(instance()?.stat(dir, path, flags)?))) }
    })
}

/// Works like truncate(2). Thread-safe. Returns 0, or -1: any error of truncate(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utruncate(path: *const c_char, len: off_t) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (path, len) = (unsafe { self::path(path) }?, offset_of(len)?);
        Ok(instance()?.truncate(CWD, path, len).map(|()| 0)?)
    })
}

/// Works like unlink(2). The cached data is dropped at the last close. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uunlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { uunlinkat(libc::AT_FDCWD, path, 0) }
}

/// Works like unlinkat(2), AT_REMOVEDIR included; see uunlink. `dir` is a ufd or AT_FDCWD. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uunlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { self::path(path) }?;
        at(dir, |dir| Ok(instance()?.unlink(dir, path, AtFlags::from_bits_retain(flags as u32))?)).map(|()| 0)
    })
}

/// Works like rename(2). Thread-safe.
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn urename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { urenameat2(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

/// Works like renameat2(2). The directories are ufds or AT_FDCWD. Thread-safe.
///
/// # Safety
/// Both paths are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn urenameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: u32) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (path(from)?, path(to)?) };
        let flags = RenameFlags::from_bits_retain(flags);
        let cache = instance()?;
        at(from_dir, |from_dir| at(to_dir, |to_dir| Ok(cache.rename(from_dir, from, to_dir, to, flags)?))).map(|()| 0)
    })
}

/// Works like mkdir(2). Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umkdir(path: *const c_char, mode: mode_t) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { self::path(path) }?;
        // SAFETY: a string, as was promised.
        if unsafe { libc::mkdir(path, mode) } == 0 { Ok(0) } else { Err(ApiError::last("making a directory")) }
    })
}

/// Works like rmdir(2). Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn urmdir(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { uunlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) }
}

/// An open directory stream of the u calls.
pub struct Dir(Mutex<DirStream>);

/// C's own stream. NULL once it is closed.
struct DirStream(*mut DIR);

// SAFETY: one thread at a time has it (the lock); C ties it to no thread.
unsafe impl Send for DirStream {}

impl Dir {
    fn stream<T>(&self, call: impl FnOnce(*mut DIR) -> ApiResult<T>) -> ApiResult<T> {
        let stream = self.0.lock();
        if stream.0.is_null() { Err(ApiError::new(libc::EBADF, "the directory is closed")) } else { call(stream.0) }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // The error of this close is lost.
        let _ = self.finish();
    }
}

impl ObjectKind for Dir {
    const NAME: &'static str = "directory";
    const CLOSE_ORDER: CloseOrder = CloseOrder::Directory;
    /// Closes the stream of the C library; does nothing the second time.
    fn finish(&self) -> ApiResult<()> {
        let stream = std::mem::replace(&mut self.0.lock().0, std::ptr::null_mut());
        if stream.is_null() {
            return Ok(());
        }
        // As closedir(3), which closes a descriptor of the directory.
        // SAFETY: of opendir, not closed.
        ulock::release(unsafe { BorrowedFd::borrow_raw(libc::dirfd(stream)) });
        // SAFETY: of opendir, closed once.
        if unsafe { libc::closedir(stream) } == 0 { Ok(()) } else { Err(ApiError::last("closing a directory")) }
    }
}

/// Works like opendir(3). Thread-safe.
///
/// Returns the directory, or NULL: any error of opendir(3); EMFILE.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uopendir(path: *const c_char) -> *mut UDIR {
    ffi_guard(|| {
        ensure_init()?;
        // SAFETY: the caller's promise.
        unsafe { memory::bytes(path, "the path") }?;
        // SAFETY: a string, as was promised.
        let dir = unsafe { libc::opendir(path) };
        if dir.is_null() {
            return Err(ApiError::last("opening a directory"));
        }
        enroll(Arc::new(Dir(Mutex::new(DirStream(dir)))))
    })
}

/// Works like readdir(3). Thread-safe, but the result is valid only until the next call for the same directory.
///
/// Returns the next entry; or NULL: at the end (errno is unchanged), or EBADF and any error of readdir(3).
#[unsafe(no_mangle)]
pub extern "C" fn ureaddir(dir: *mut UDIR) -> *mut dirent {
    ffi_guard(|| {
        with(dir, |dir: &Arc<Dir>| {
            dir.stream(|stream| {
                // SAFETY: the address of this thread's errno; readdir tells an end from a failure only by it.
                unsafe { *libc::__errno_location() = 0 };
                // SAFETY: of opendir, not closed.
                let entry = unsafe { libc::readdir(stream) };
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
                if entry.is_null() && errno != 0 { Err(ApiError::last("reading a directory")) } else { Ok(entry) }
            })
        })
    })
}

/// Works like rewinddir(3). Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn urewinddir(dir: *mut UDIR) -> c_int {
    ffi_guard(|| {
        with(dir, |dir: &Arc<Dir>| {
            dir.stream(|stream| {
                // SAFETY: of opendir, not closed.
                unsafe { libc::rewinddir(stream) };
                Ok(0)
            })
        })
    })
}

/// Works like closedir(3). Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn uclosedir(dir: *mut UDIR) -> c_int {
    ffi_guard(|| end(dir, |_: &Dir| Ok(()), Dir::finish))
}
