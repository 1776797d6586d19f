//! Reading, writing and seeking.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};

use cachedfs::{File, Whence};
use libc::{iovec, off_t, ssize_t};
use rustix::io::Errno;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::{ffi_fast_path, guard_files as ffi_guard, report_error};
use crate::memory::{Memory, fast_path_from, gather, offset_of, scatter};
use crate::ufiles::{checked, fast_path, with};

/// Works like read(2), through the cache. Thread-safe: reads and writes at the file position are serialised.
///
/// Returns the number of bytes, 0 at the end of the file, or -1: any error of read(2); EFAULT (`buf` is NULL); ESTALE (another program
/// changed the file while the cache had newer data).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uread(ufd: c_int, buf: *mut c_void, n: usize) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let memory = checked(ufd, unsafe { Memory::new(buf, n) })?;
        with(ufd, |open| memory.with_mut(|bytes| open.read(bytes)).map(|n| n as isize))
    })
}

/// Works like write(2), through the cache: the bytes are visible to all users of the cache at once, and durable after ufsync. Thread-safe.
///
/// Returns the number of bytes, or -1: any error of write(2); EFAULT (`buf` is NULL); EROFS (the cache is read-only).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uwrite(ufd: c_int, buf: *const c_void, n: usize) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let memory = checked(ufd, unsafe { Memory::new(buf.cast_mut(), n) })?;
        with(ufd, |open| memory.with(|bytes| open.write(bytes)).map(|n| n as isize))
    })
}

/// Works like pread(2), through the cache. Thread-safe. Returns as uread; also EINVAL (a negative offset).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upread(ufd: c_int, buf: *mut c_void, n: usize, off: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_fast_path(|| unsafe { read_at_once(ufd, buf, n, off) }, || unsafe { read_long(ufd, buf, n, off) })
}

#[inline(always)]
unsafe fn read_at_once(ufd: c_int, buf: *mut c_void, n: usize, off: off_t) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    let (memory, at) = (unsafe { Memory::checked(buf, n) }?, fast_path_from(off)?);
    fast_path(ufd, |_, file, _| Some(answered("reading", file, memory.with_mut(|bytes| file.read_at_once(at, bytes))?)))
}

#[inline(never)]
unsafe fn read_long(ufd: c_int, buf: *mut c_void, n: usize, off: off_t) -> ssize_t {
    ffi_guard(|| {
        let at = offset_of(off)?;
        // SAFETY: the caller's promise.
        let memory = checked(ufd, unsafe { Memory::new(buf, n) })?;
        with(ufd, |open| memory.with_mut(|bytes| open.read_long(at, bytes)).map(|n| n as isize))
    })
}

/// Works like pwrite(2), through the cache; with O_APPEND at the end of the file, as Linux has it. Thread-safe. Returns as uwrite; also
/// EINVAL.
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upwrite(ufd: c_int, buf: *const c_void, n: usize, off: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_fast_path(|| unsafe { write_at_once(ufd, buf, n, off) }, || unsafe { write_long(ufd, buf, n, off) })
}

#[inline(always)]
unsafe fn write_at_once(ufd: c_int, buf: *const c_void, n: usize, off: off_t) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    let (memory, at) = (unsafe { Memory::checked(buf.cast_mut(), n) }?, fast_path_from(off)?);
    fast_path(ufd, |_, file, _| Some(answered("writing", file, memory.with(|bytes| file.write_at_once(at, bytes))?)))
}

#[inline(never)]
unsafe fn write_long(ufd: c_int, buf: *const c_void, n: usize, off: off_t) -> ssize_t {
    ffi_guard(|| {
        let at = offset_of(off)?;
        // SAFETY: the caller's promise.
        let memory = checked(ufd, unsafe { Memory::new(buf.cast_mut(), n) })?;
        with(ufd, |open| memory.with(|bytes| open.write_long(at, bytes)).map(|n| n as isize))
    })
}

/// Converts a result to the return value for C.
#[inline(always)]
fn answered(doing: &'static str, file: &File, done: Result<usize, Errno>) -> ssize_t {
    match done {
        Ok(bytes) => bytes as ssize_t,
        Err(errno) => report_error(&file.to_error(doing, errno).into()),
    }
}

unsafe fn read_vectored(ufd: c_int, iov: *const iovec, count: c_int, at: Option<off_t>) -> ssize_t {
    ffi_guard(|| {
        let at = at.map(offset_of).transpose()?;
        // SAFETY: the promise of those who call.
        checked(ufd, unsafe { scatter(iov, count, |parts| with(ufd, |open| open.read_vectored(at, parts)).map(|n| n as isize)) })
    })
}

unsafe fn write_vectored(ufd: c_int, iov: *const iovec, count: c_int, at: Option<off_t>) -> ssize_t {
    ffi_guard(|| {
        let at = at.map(offset_of).transpose()?;
        // SAFETY: the promise of those who call.
        checked(ufd, unsafe { gather(iov, count, |parts| with(ufd, |open| open.write_vectored(at, parts)).map(|n| n as isize)) })
    })
}

/// Works like readv(2), through the cache. Thread-safe. Returns as uread; also EINVAL (a count that is negative or above 1024).
///
/// # Safety
/// `iov` has `count` elements, whose memory has as many bytes as each says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ureadv(ufd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { read_vectored(ufd, iov, count, None) }
}

/// Works like writev(2), through the cache. Thread-safe. Returns as uwrite; also EINVAL.
///
/// # Safety
/// Works like ureadv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uwritev(ufd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { write_vectored(ufd, iov, count, None) }
}

/// Works like preadv(2), through the cache. Thread-safe. Returns as ureadv.
///
/// # Safety
/// Works like ureadv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upreadv(ufd: c_int, iov: *const iovec, count: c_int, off: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { read_vectored(ufd, iov, count, Some(off)) }
}

/// Works like pwritev(2), through the cache. Thread-safe. Returns as uwritev.
///
/// # Safety
/// Works like ureadv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upwritev(ufd: c_int, iov: *const iovec, count: c_int, off: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { write_vectored(ufd, iov, count, Some(off)) }
}

fn whence_of(whence: c_int) -> ApiResult<Whence> {
    match whence {
        libc::SEEK_SET => Ok(Whence::Start),
        libc::SEEK_CUR => Ok(Whence::Current),
        libc::SEEK_END => Ok(Whence::End),
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => Err(ApiError::new(libc::EINVAL, format!("whence {whence}: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE"))),
    }
}

/// Works like lseek(2), SEEK_DATA and SEEK_HOLE included. Thread-safe.
///
/// Returns the new position, or -1: any error of lseek(2).
#[unsafe(no_mangle)]
pub extern "C" fn ulseek(ufd: c_int, off: off_t, whence: c_int) -> off_t {
    ffi_guard(|| {
        let whence = checked(ufd, whence_of(whence))?;
        with(ufd, |open| open.seek(off, whence).map(|at| at as off_t))
    })
}
