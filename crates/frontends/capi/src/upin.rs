//! Pinned pages of the cache, lent to the program without a copy.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};

use cachedfs::File;
use libc::{off_t, ssize_t};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::{ffi_fast_path, guard_files as ffi_guard};
use crate::memory::{fast_path_from, offset_of, store};
use crate::pins::Pins;
use crate::ufiles::{fast_path, with_record};

#[inline]
fn pin(ufd: c_int, off: off_t, n: usize) -> ApiResult<(usize, *const c_void)> {
    let at = offset_of(off)?;
    with_record(ufd, move |open, record| {
        let file = open.cached().ok_or_else(no_pages)?;
        let Some(lent) = file.pin_page(at, n)? else { return copied(file, &open.pins, at, n) };
        let lies = (lent.len(), lent.as_ptr().cast());
        open.pins.add(record, at, lent);
        Ok(lies)
    })
}

#[cold]
#[inline(never)]
fn no_pages() -> ApiError {
    ApiError::new(libc::ESPIPE, "a stream has no pages")
}

/// Returns a copy of uncached data, or nothing at the end of the file.
#[inline(never)]
fn copied(file: &File, pins: &Pins, at: u64, n: usize) -> ApiResult<(usize, *const c_void)> {
    let pinned = file.pin(at, n)?;
    let (bytes, address) = (pinned.len(), pinned.as_ptr().cast());
    if bytes == 0 {
        return Ok((0, std::ptr::null()));
    }
    pins.add_copy(at, pinned);
    Ok((bytes, address))
}

/// Pins bytes of a file in the cache, without a copy: up to `n` from `off` on, at most to the end of their page of 4096 bytes and of the
/// file. They stay until uunpin, or until the last duplicate (udup) of this ufd is closed, and are read-only; writes to the file are
/// visible in them. Uncached data is copied. Thread-safe.
///
/// Returns the number of bytes at *p; 0 at the end of the file (*p is NULL, nothing is pinned); or -1: any error of upread; EFAULT (p is
/// NULL); ENOBUFS (too many pages are pinned).
///
/// # Safety
/// `p` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upin(ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_fast_path(|| unsafe { pin_at_once(ufd, off, n, p) }, || unsafe { pin_slowly(ufd, off, n, p) })
}

#[inline(always)]
unsafe fn pin_at_once(ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> Option<ssize_t> {
    let at = fast_path_from(off)?;
    if p.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let tell = |address: *const u8| unsafe { store(p, address.cast()) };
    let lent = fast_path(ufd, |open, file, record| open.pins.lend_at_once(record, file.find_page(at)?, at, n, tell));
    lent.map(|bytes| bytes as ssize_t)
}

#[inline(never)]
unsafe fn pin_slowly(ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> ssize_t {
    ffi_guard(|| {
        if p.is_null() {
            return Err(ApiError::new(libc::EFAULT, "there is no place for the address"));
        }
        let (bytes, address) = pin(ufd, off, n)?;
        // SAFETY: the caller's promise.
        unsafe { store(p, address) };
        Ok(bytes as isize)
    })
}

/// Releases a pin of upin, with the same offset. Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL (not pinned, or not at that offset).
#[unsafe(no_mangle)]
pub extern "C" fn uunpin(ufd: c_int, off: off_t, p: *const c_void) -> c_int {
    let given_back = || {
        let at = fast_path_from(off)?;
        fast_path(ufd, |open, file, record| open.pins.give_back_at_once(record, file, at, p.addr())).map(|()| 0)
    };
    ffi_fast_path(given_back, || unpin_slowly(ufd, off, p))
}

#[inline(never)]
fn unpin_slowly(ufd: c_int, off: off_t, p: *const c_void) -> c_int {
    let given_back: isize = ffi_guard(|| {
        let at = offset_of(off)?;
        let address = p.addr();
        with_record(ufd, move |open, record| match open.cached() {
            Some(file) if open.pins.give_back(record, file, at, address) => Ok(0),
            _ => Err(not_lent(off)),
        })
    });
    given_back as c_int
}

#[cold]
#[inline(never)]
fn not_lent(off: off_t) -> ApiError {
    ApiError::new(libc::EINVAL, format!("nothing is lent there of offset {off}: given back before?"))
}
