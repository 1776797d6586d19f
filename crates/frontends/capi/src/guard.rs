//! The C boundary: results become return values and errno, and panics stop here.
#![expect(unsafe_code, reason = "writes errno")]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api_error::{ApiError, ApiResult, remember};
use crate::fork;

/// A return type of C functions.
pub trait ReturnValue {
    /// The return value of a failed call.
    const FAILURE: Self;
}

impl ReturnValue for i32 {
    const FAILURE: i32 = -1;
}

/// The C type `ssize_t`.
impl ReturnValue for isize {
    const FAILURE: isize = -1;
}

/// The C type `off_t`.
impl ReturnValue for i64 {
    const FAILURE: i64 = -1;
}

impl<T> ReturnValue for *const T {
    const FAILURE: *const T = std::ptr::null();
}

impl<T> ReturnValue for *mut T {
    const FAILURE: *mut T = std::ptr::null_mut();
}

/// Runs the body of a C function. Sets errno only on failure. Fails in a forked child.
pub fn ffi_guard<T: ReturnValue>(call: impl FnOnce() -> ApiResult<T>) -> T {
    guard_call(|| if fork::is_child() { Err(not_here()) } else { call() })
}

#[cold]
fn not_here() -> ApiError {
    let why = "this process was forked from the one that uses this part of hotshelf: only the parent may go on; use exec, or hotshelf \
               after the fork";
    ApiError::new(libc::EPERM, why)
}

/// Runs the body of a C function that uses files; works in a forked child.
#[inline]
pub fn guard_files<T: ReturnValue>(call: impl FnOnce() -> ApiResult<T>) -> T {
    if fork::uses_no_files() {
        fork::use_files();
    }
    guard_call(call)
}

/// Runs the fast path of a C function, which must make no call that changes errno: errno is not saved. If the fast path does not apply,
/// `otherwise` runs; it is a separate function, so that the fast path prepares nothing for it.
#[inline(always)]
pub fn ffi_fast_path<T: ReturnValue>(call: impl FnOnce() -> Option<T>, otherwise: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Some(value)) => value,
        Ok(None) => otherwise(),
        Err(panic) => report_error(&internal_error(&*panic)),
    }
}

#[inline]
fn guard_call<T: ReturnValue>(call: impl FnOnce() -> ApiResult<T>) -> T {
    let errno = errno();
    // SAFETY: see `errno`.
    let before = unsafe { *errno };
    match checked(call) {
        Ok(value) => {
            // SAFETY: see `errno`.
            unsafe { *errno = before };
            value
        }
        Err(fail) => report_error(&fail),
    }
}

/// Stores the error, sets errno and returns the failure value.
#[cold]
#[inline(never)]
pub fn report_error<T: ReturnValue>(fail: &ApiError) -> T {
    remember(fail);
    set_errno(fail.errno);
    T::FAILURE
}

#[inline]
fn checked<T>(call: impl FnOnce() -> ApiResult<T>) -> ApiResult<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(internal_error(&*panic)))
}

#[cold]
#[inline(never)]
fn internal_error(panic: &(dyn std::any::Any + Send)) -> ApiError {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let what = said.unwrap_or("no words");
    ApiError::new(libc::EIO, format!("a mistake inside hotshelf ({what}): please report it; close what was used"))
}

/// Returns the address of this thread's errno.
#[inline]
fn errno() -> *mut c_int {
    // SAFETY: it only tells the address.
    unsafe { libc::__errno_location() }
}

#[cold]
fn set_errno(value: c_int) {
    // SAFETY: see `errno`.
    unsafe { *errno() = value }
}

#[cfg(test)]
mod test {
    use super::*;

    fn current_errno() -> c_int {
        // SAFETY: see `errno`.
        unsafe { *errno() }
    }

    #[test]
    fn errno_is_only_set_by_failures_and_panics_stop() {
        set_errno(77);
        assert_eq!(ffi_guard(|| Ok(5)), 5);
        assert_eq!(current_errno(), 77);
        assert_eq!(ffi_guard::<isize>(|| Err(ApiError::new(libc::EBADF, "no handle"))), -1);
        assert_eq!(current_errno(), libc::EBADF);
        assert!(ffi_guard::<*mut u8>(|| panic!("a test")).is_null());
        assert_eq!(current_errno(), libc::EIO);
    }
}
