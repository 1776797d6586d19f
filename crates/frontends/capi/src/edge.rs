//! The edge itself: outcomes become return values and errno, and no panic gets past.
#![expect(unsafe_code, reason = "writes errno")]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cachedfs::Not;

use crate::fail::{Fail, Outcome, remember};
use crate::fork;

/// What a C function returns.
pub trait Answer {
    /// When it fails.
    const FAILED: Self;
}

impl Answer for i32 {
    const FAILED: i32 = -1;
}

/// `ssize_t`.
impl Answer for isize {
    const FAILED: isize = -1;
}

/// `off_t`.
impl Answer for i64 {
    const FAILED: i64 = -1;
}

impl<T> Answer for *const T {
    const FAILED: *const T = std::ptr::null();
}

impl<T> Answer for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Runs what a C function does. errno is only changed when it fails. Not for the child of a fork.
pub fn answer<T: Answer>(call: impl FnOnce() -> Outcome<T>) -> T {
    answer_anywhere(|| if fork::is_child() { Err(not_here()) } else { call() })
}

#[cold]
fn not_here() -> Fail {
    let why = "this process was forked from the one that uses this part of hotshelf: only the parent may go on; use exec, or hotshelf \
               after the fork";
    Fail::new(libc::EPERM, why)
}

/// Likewise for a function that uses files: also in the child of a fork.
#[inline]
pub fn answer_of_files<T: Answer>(call: impl FnOnce() -> Outcome<T>) -> T {
    if fork::uses_no_files() {
        fork::use_files();
    }
    answer_anywhere(call)
}

/// In the way that is short: it makes no call that changes errno, which is not looked after here. What is not done in it is done
/// otherwise, by a function of its own, so that nothing of it is prepared for in vain.
#[inline(always)]
pub fn answer_at_once<T: Answer>(call: impl FnOnce() -> Result<T, Not>, otherwise: impl FnOnce(Not) -> T) -> T {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(not)) => otherwise(not),
        Err(panic) => failed(&mistake(&*panic)),
    }
}

#[inline]
fn answer_anywhere<T: Answer>(call: impl FnOnce() -> Outcome<T>) -> T {
    let errno = errno();
    // SAFETY: see `errno`.
    let before = unsafe { *errno };
    match checked(call) {
        Ok(value) => {
            // SAFETY: see `errno`.
            unsafe { *errno = before };
            value
        }
        Err(fail) => failed(&fail),
    }
}

/// What is returned then.
#[cold]
#[inline(never)]
pub fn failed<T: Answer>(fail: &Fail) -> T {
    remember(fail);
    set_errno(fail.errno);
    T::FAILED
}

#[inline]
fn checked<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(mistake(&*panic)))
}

#[cold]
#[inline(never)]
fn mistake(panic: &(dyn std::any::Any + Send)) -> Fail {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let what = said.unwrap_or("no words");
    Fail::new(libc::EIO, format!("a mistake inside hotshelf ({what}): please report it; close what was used"))
}

/// Where this thread's errno is: valid as long as the thread, and nobody else's.
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

    fn told() -> c_int {
        // SAFETY: see `errno`.
        unsafe { *errno() }
    }

    #[test]
    fn errno_is_only_set_by_failures_and_panics_stop() {
        set_errno(77);
        assert_eq!(answer(|| Ok(5)), 5);
        assert_eq!(told(), 77);
        assert_eq!(answer::<isize>(|| Err(Fail::new(libc::EBADF, "no handle"))), -1);
        assert_eq!(told(), libc::EBADF);
        assert!(answer::<*mut u8>(|| panic!("a test")).is_null());
        assert_eq!(told(), libc::EIO);
    }
}
