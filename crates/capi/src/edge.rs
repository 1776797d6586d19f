//! The edge itself: outcomes become return values and errno, and no panic gets past.
#![expect(unsafe_code, reason = "writes errno")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fail::{Fail, Outcome, remember};

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

impl<T> Answer for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Set in the child of a fork: its memory has our objects, but the threads and rings behind them are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Watches for forks from now on.
pub fn watch_forks() {
    extern "C" fn forked() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the function only stores a flag, which is safe in the child of any fork. Without memory for it forks go unnoticed.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// Whether this is the child of a fork.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Runs what a C function does. errno is only changed when it fails.
pub fn answer<T: Answer>(call: impl FnOnce() -> Outcome<T>) -> T {
    let before = errno();
    match checked(call) {
        Ok(value) => {
            set_errno(before);
            value
        }
        Err(fail) => {
            remember(&fail);
            set_errno(fail.errno);
            T::FAILED
        }
    }
}

fn checked<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    if is_forked() {
        let why =
            "this process was forked from the one that uses hotshelf: only the parent may go on; use exec, or hotshelf after the fork";
        return Err(Fail::new(libc::EPERM, why));
    }
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let what = said.unwrap_or("no words");
        Err(Fail::new(libc::EIO, format!("a mistake inside hotshelf ({what}): please report it; close what was used")))
    })
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's errno is valid as long as the thread.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn errno_is_only_set_by_failures_and_panics_stop() {
        set_errno(77);
        assert_eq!(answer(|| Ok(5)), 5);
        assert_eq!(errno(), 77);
        assert_eq!(answer::<isize>(|| Err(Fail::new(libc::EBADF, "no handle"))), -1);
        assert_eq!(errno(), libc::EBADF);
        assert!(answer::<*mut u8>(|| panic!("a test")).is_null());
        assert_eq!(errno(), libc::EIO);
    }
}
