//! The table of open files by ufd, and the ways in which a call uses one.
#![expect(unsafe_code, reason = "a lock that another function lets go")]

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Once};

use cachedfs::File;
use rustix::fs::CWD;

use crate::api_error::{ApiError, ApiResult};
use crate::hazard::ThreadRecord;
use crate::open::Open;
use crate::ufd::{TableFullError, Ufds};
use crate::ulock;

static UFDS: Ufds<Open> = Ufds::new();

/// Returns the table, with the process's three standard streams from the first use on.
fn ufds() -> &'static Ufds<Open> {
    static STREAMS: Once = Once::new();
    STREAMS.call_once(|| {
        for fd in 0..3 {
            // Also without such a descriptor: calls then fail with EBADF, and files get numbers from 3 on.
            let _ = UFDS.replace(fd, Arc::new(Open::stream(fd)));
        }
    });
    &UFDS
}

#[cold]
#[inline(never)]
fn closed(ufd: i32) -> ApiError {
    ApiError::new(libc::EBADF, format!("ufd {ufd} is not open"))
}

/// Runs a call with an open file.
#[inline(always)]
pub fn with<T>(ufd: i32, call: impl FnOnce(&Open) -> ApiResult<T>) -> ApiResult<T> {
    with_record(ufd, |open, _| call(open))
}

/// Runs a call with an open file and this thread's record, unless another call of the thread is reading (in a signal handler, or
/// interrupted by one).
#[inline(always)]
pub fn with_record<T>(ufd: i32, call: impl FnOnce(&Open, Option<&'static ThreadRecord>) -> ApiResult<T>) -> ApiResult<T> {
    match UFDS.guard(ufd) {
        Some(open) if open.is_plain() => open.watched(|file| call(file, Some(open.record()))),
        looked => {
            drop(looked);
            with_share(ufd, |open| call(open, None))
        }
    }
}

/// Runs a call on the fast path if a protected read of the file suffices.
#[inline(always)]
pub fn fast_path<T>(ufd: i32, call: impl FnOnce(&Open, &File, &'static ThreadRecord) -> Option<T>) -> Option<T> {
    let open = UFDS.protect_fast(ufd).filter(|open| open.is_plain())?;
    open.watched(|file| call(file, file.cached()?, open.record()))
}

/// Runs a call with a reference, if it may take long or no protection is available: in a signal handler during a read, in a thread that
/// ends.
#[cold]
#[inline(never)]
fn with_share<T>(ufd: i32, call: impl FnOnce(&Open) -> ApiResult<T>) -> ApiResult<T> {
    share(ufd)?.run(call)
}

/// Returns an error of the arguments; EBADF comes first, as in the kernel.
#[cold]
#[inline(never)]
fn open_first(ufd: i32, fail: ApiError) -> ApiError {
    if share(ufd).is_ok() { fail } else { closed(ufd) }
}

/// Returns checked arguments of a call on a ufd.
#[inline]
pub fn checked<T>(ufd: i32, arguments: ApiResult<T>) -> ApiResult<T> {
    arguments.map_err(|fail| open_first(ufd, fail))
}

/// Returns a reference to an open file, for calls that may block.
pub fn share(ufd: i32) -> ApiResult<Arc<Open>> {
    ufds().get(ufd).ok_or_else(|| closed(ufd))
}

/// Runs a call with the base directory of a path: AT_FDCWD, or a ufd.
pub fn at<T>(dir: i32, call: impl FnOnce(BorrowedFd<'_>) -> ApiResult<T>) -> ApiResult<T> {
    if dir == libc::AT_FDCWD { call(CWD) } else { call(share(dir)?.fd()) }
}

/// Gives an open file the lowest free number that is at least `from`.
pub fn insert(open: Arc<Open>, from: usize) -> ApiResult<i32> {
    ufds().insert(open, from).map_err(|TableFullError| ApiError::new(libc::EMFILE, "too many files are open: close some"))
}

/// Locks the tables before a fork.
pub fn hold() {
    UFDS.hold();
}

/// Unlocks the tables after a fork, in parent and child.
///
/// # Safety
/// After `hold`, once in each process.
pub unsafe fn let_go() {
    // SAFETY: the caller's promise.
    unsafe { UFDS.let_go() }
}

/// Drops the reference of a ufd: the last one closes the file. As in the kernel, each close returns errors that were not reported yet,
/// also while a duplicate or a request keeps the file open.
fn finish(open: Arc<Open>) -> ApiResult<()> {
    ulock::closed(&open);
    Arc::try_unwrap(open).map_or_else(|shared| shared.take_unreported(), Open::close)
}

/// Closes a ufd; returns errors of the file that were not reported yet.
pub fn close(ufd: i32) -> ApiResult<()> {
    finish(ufds().remove(ufd).ok_or_else(|| closed(ufd))?)
}

/// Gives an open file this number, and closes the file that had it before.
pub fn replace(ufd: i32, open: Arc<Open>) -> ApiResult<()> {
    let before = ufds().replace(ufd, open).map_err(|TableFullError| ApiError::new(libc::EBADF, format!("{ufd} is no number for a ufd")))?;
    // As dup2(2): an error of this close is lost.
    drop(before.map(finish));
    Ok(())
}

/// Closes every file except the standard streams. Returns the first error.
pub fn close_all() -> ApiResult<()> {
    let mut first = Ok(());
    for ufd in UFDS.open() {
        if UFDS.with(ufd, Open::is_stream) != Some(false) {
            continue;
        }
        // A concurrent close has reported its error.
        let done = UFDS.remove(ufd).map_or(Ok(()), finish);
        first = first.and(done);
    }
    first
}

/// Returns whether files are open.
pub fn any_open() -> bool {
    UFDS.open().into_iter().any(|ufd| UFDS.with(ufd, Open::is_stream) == Some(false))
}
