//! Locks of open files (flock), between the threads of the process that has the image open.
#![expect(unsafe_code, reason = "called by C; a struct flock")]

use std::ffi::c_int;

use libc::flock;

use crate::api_error::{ApiError, ApiResult};
use crate::flocks::{release, take};
use crate::guard::ffi_guard;
use crate::nfiles::share;

/// Works like flock(2): LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB: locks of the open file, shared by duplicates of its number, between
/// threads of this process (no other process has the image open). Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL; EWOULDBLOCK (LOCK_NB, and another open file holds it).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_flock(fd: c_int, operation: c_int) -> c_int {
    ffi_guard(|| {
        let open = share(fd)?;
        let ((which, who), waits) = (open.lock_ids(), operation & libc::LOCK_NB == 0);
        match operation & !libc::LOCK_NB {
            libc::LOCK_SH => take(which, who, false, waits)?,
            libc::LOCK_EX => take(which, who, true, waits)?,
            libc::LOCK_UN => release(which, who),
            _ => return Err(ApiError::new(libc::EINVAL, format!("flock operation {operation}: LOCK_SH, LOCK_EX or LOCK_UN"))),
        }
        Ok(0)
    })
}

/// Handles a record lock, which never conflicts.
///
/// # Safety
/// `lock` is NULL or valid for reads and writes.
pub unsafe fn record(command: c_int, lock: *mut flock) -> ApiResult<c_int> {
    if lock.is_null() {
        return Err(ApiError::new(libc::EFAULT, "the struct flock is NULL"));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    let kind = unsafe { (&raw const (*lock).l_type).read() };
    if ![libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].contains(&kind.into()) {
        return Err(ApiError::new(libc::EINVAL, format!("a lock of type {kind}")));
    }
    if command == libc::F_GETLK {
        // SAFETY: as above.
        unsafe { (&raw mut (*lock).l_type).write(libc::F_UNLCK as _) };
    }
    Ok(0)
}
