//! Asynchronous requests of the u calls, as C submits them; `urequests.rs` executes them.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::timespec;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::library::ensure_init;
use crate::objects::{ObjectKind as _, end, enroll, with};
use crate::types::*;
use crate::urequests::Requests;

/// Maximum number of unreaped requests of one UAIO.
const DEPTH_MAX: u32 = 1 << 16;

/// Creates a queue for asynchronous requests: `depth` unreaped requests, 1 to 65536. Thread-safe.
///
/// Returns it, or NULL: EINVAL (depth), EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn uaio_create(depth: u32) -> *mut UAIO {
    uaio_create_with(depth, 0)
}

/// Creates a queue for asynchronous requests, for a program that promises more: `flags` are UAIO_ONE_THREAD, UAIO_WAITS and UAIO_POLLS,
/// each with those before it, or 0. See uaio_create. Thread-safe.
///
/// Returns it, or NULL: EINVAL (depth or flags), EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn uaio_create_with(depth: u32, flags: u32) -> *mut UAIO {
    ffi_guard(|| {
        ensure_init()?;
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(ApiError::new(libc::EINVAL, format!("a depth of {depth}: 1 to {DEPTH_MAX}")));
        }
        if flags & !(UAIO_ONE_THREAD | UAIO_WAITS | UAIO_POLLS) != 0 {
            return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x}: UAIO_ONE_THREAD, UAIO_WAITS, UAIO_POLLS or 0")));
        }
        if flags & (flags + 1) != 0 {
            return Err(ApiError::new(libc::EINVAL, "UAIO_WAITS goes with UAIO_ONE_THREAD, UAIO_POLLS with both"));
        }
        enroll(Requests::new(depth, flags)?)
    })
}

/// Allocates memory for reads of `aio`, at least `bytes`, page-aligned and zeroed. A whole page of 4096 bytes, aligned in the file and in
/// this memory, is read from the SSD without a copy; otherwise it is like other memory. uaio_destroy and hs_shutdown free it. May be
/// called again for more. Thread-safe.
///
/// A hanging drive is given up to 36 seconds. After that, reads into this memory fail with EIO, and the drive may still write to their
/// buffers, which must not be used any more.
///
/// Returns it, or NULL: EBADF; EINVAL (no bytes); ENOMEM; EBUSY (it was promised to another thread).
#[unsafe(no_mangle)]
pub extern "C" fn uaio_memory(aio: *mut UAIO, bytes: usize) -> *mut c_void {
    ffi_guard(|| with(aio, |ours: &Arc<Requests>| ours.memory(bytes)))
}

/// Submits requests, which are copied: `count` of them, or as many as fit. They have no order: to run one after another, wait for the
/// first. Reads from memory have completed on return; reads from the SSD run in the device, many in one submission; threads of the
/// library do the rest. Thread-safe, and fastest if only one thread submits and reaps, above all with UAIO_ONE_THREAD.
///
/// The SSD sees the reads when the call returns. An SSD that works in parallel with the program is busier with several calls of a few
/// reads each; where the program's CPU does the work (a loop device, a RAM disk) one call for all is faster.
///
/// Returns the number of submitted requests, or -1 if none was: EBADF; EFAULT; EINVAL; EAGAIN (the queue is full: call uaio_reap first);
/// EBUSY (it was promised to another thread). An invalid request ends the call; those before it are submitted.
///
/// # Safety
/// `requests` has `count` elements; the `buf` of each has `n` bytes and belongs to the library until it is reaped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uaio_submit(aio: *mut UAIO, requests: *const uaio, count: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let requests = unsafe { requests_of(requests, count) }?;
        // SAFETY: likewise.
        with(aio, |ours: &Arc<Requests>| unsafe { ours.submit(requests) }.map(|done| done as c_int))
    })
}

/// # Safety
/// `requests` has `count` elements, which do not change during the call.
unsafe fn requests_of<'a>(requests: *const uaio, count: c_int) -> ApiResult<&'a [uaio]> {
    let count = usize::try_from(count).map_err(|_| ApiError::new(libc::EINVAL, "fewer requests than none"))?;
    if requests.is_null() && count > 0 {
        return Err(ApiError::new(libc::EFAULT, "requests is NULL"));
    }
    // SAFETY: the caller's promise.
    Ok(if count > 0 { unsafe { std::slice::from_raw_parts(requests, count) } } else { &[] })
}

/// # Safety
/// NULL or valid.
pub unsafe fn time_of(timeout: *const timespec) -> ApiResult<Option<Instant>> {
    // SAFETY: the caller's promise.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    let wrong = || ApiError::new(libc::EINVAL, "the timeout is not a time");
    let (seconds, nanos) = (u64::try_from(timeout.tv_sec).map_err(|_| wrong())?, u32::try_from(timeout.tv_nsec).map_err(|_| wrong())?);
    if nanos >= 1_000_000_000 {
        return Err(wrong());
    }
    Ok(Instant::now().checked_add(Duration::new(seconds, nanos)))
}

/// Reaps completed requests: at least `min`, unless fewer are outstanding or `timeout` (NULL: none) passes, at most `max`. `result` of
/// each is the return value of the call, or a negative errno. Thread-safe: each completion goes to one thread.
///
/// Returns the number, or -1: EBADF; EFAULT; EINVAL (min, max or timeout); EBUSY (it was promised to another thread).
///
/// # Safety
/// `done` has room for `max`; `timeout` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uaio_reap(aio: *mut UAIO, done: *mut uaio, min: c_int, max: c_int, timeout: *const timespec) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let wish = unsafe { RequestSpec::new(done, min, max, timeout) }?;
        with(aio, |ours: &Arc<Requests>| ours.reap(wish.min, wish.max, wish.until, wish.out()).map(|count| count as c_int))
    })
}

/// Which completions to return, and where.
struct RequestSpec {
    min: usize,
    max: usize,
    until: Option<Instant>,
    to: *mut uaio,
}

impl RequestSpec {
    /// # Safety
    /// As `uaio_reap`.
    unsafe fn new(to: *mut uaio, min: c_int, max: c_int, timeout: *const timespec) -> ApiResult<RequestSpec> {
        let wrong = || ApiError::new(libc::EINVAL, format!("from {min} to {max} requests"));
        let (min, max) = (usize::try_from(min).map_err(|_| wrong())?, usize::try_from(max).map_err(|_| wrong())?);
        if min > max {
            return Err(wrong());
        }
        if to.is_null() && max > 0 {
            return Err(ApiError::new(libc::EFAULT, "there is no room for them"));
        }
        // SAFETY: the caller's promise.
        let until = unsafe { time_of(timeout) }?;
        Ok(RequestSpec { min, max, until, to })
    }

    /// Returns a function that stores at most `max`.
    fn out(&self) -> impl FnMut(uaio) + use<> {
        let mut to = self.to;
        move |request| {
            // SAFETY: there is room for `max`, as `new` was promised, and no more are handed out.
            unsafe {
                to.write(request);
                to = to.add(1);
            }
        }
    }
}

/// Submits `count` requests as uaio_submit, then reaps as uaio_reap, for a program that waits after submitting: the device sees the
/// requests with the wait, in one system call. All `count` are submitted; an invalid one completes with its error in `result`. An error of
/// the call itself submits none. `requests` and `done` may be the same memory. Thread-safe, as uaio_submit.
///
/// Returns the number of completions in `done`, or -1: EBADF; EFAULT; EINVAL (count, min, max or timeout); EAGAIN (not enough room: call
/// uaio_reap first); EBUSY (it was promised to another thread).
///
/// # Safety
/// `requests` has `count` elements; the `buf` of each has `n` bytes and belongs to the library until it is reaped. `done` has room for
/// `max`; `timeout` is NULL or valid.
// long: the signature is part of the C interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uaio_submit_and_reap(
    aio: *mut UAIO,
    requests: *const uaio,
    count: c_int,
    done: *mut uaio,
    min: c_int,
    max: c_int,
    timeout: *const timespec,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let wish = unsafe { RequestSpec::new(done, min, max, timeout) }?;
        with(aio, |ours: &Arc<Requests>| {
            // SAFETY: likewise. Nobody looks at these when they have been taken in: `done` may be there.
            let taken = unsafe { ours.take_in(requests_of(requests, count)?) }?;
            Ok(taken.reap(wish.min, wish.max, wish.until, wish.out()) as c_int)
        })
    })
}

/// Waits for requests in flight and discards their completions. Thread-safe. Returns 0, or -1: EBADF; EBUSY (it was promised to another
/// thread, which lives and has reads in flight).
#[unsafe(no_mangle)]
pub extern "C" fn uaio_destroy(aio: *mut UAIO) -> c_int {
    ffi_guard(|| end(aio, Requests::may_end, Requests::finish))
}
