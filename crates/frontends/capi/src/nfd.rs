//! File numbers of the library file system: open, duplicates, close, fcntl.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use libc::{flock, mode_t};
use rustix::fs::OFlags;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::nfiles::{FIRST, Open, close, insert, replace, share, with};
use crate::nlock;
use crate::nplace::{DirPath, from_dir, from_root};
use crate::ntypes::*;
use crate::ufd::UFDS_MAX;

/// Opens a file and assigns a number.
pub fn open_at(at: &DirPath<'_>, flags: c_int, mode: mode_t) -> ApiResult<c_int> {
    let mut flags = OFlags::from_bits_retain(flags as u32);
    let makes = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
    if at.mount.is(NVMEDFS_SYNC) {
        flags |= OFlags::SYNC;
    }
    let mode = if makes { (mode & 0o7777) as u16 } else { 0 };
    let file = at.fs.open_at(at.node, at.path, flags, mode, &at.creds)?;
    let changes = makes || flags.contains(OFlags::TRUNC);
    if changes {
        at.changed(Ok(()))?;
    }
    insert(Arc::new(Open { file: Arc::new(file), mount: at.mount.used() }), FIRST)
}

/// Works like open(2), for the file system's own files: O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_CREAT, O_DIRECTORY, O_DSYNC, O_EXCL,
/// O_NOATIME, O_NOFOLLOW, O_PATH, O_SYNC, O_TMPFILE, O_TRUNC and O_DIRECT; other flags are ignored. A path is relative to the root, with
/// or without a leading slash. The third argument is the mode of a new file (O_CREAT, O_TMPFILE). Thread-safe.
///
/// O_DIRECT: reads come from the device and writes are on it when the call returns, and neither uses the cache. It is coherent with access
/// through the cache. Offset, length and memory must be multiples of 512 (EINVAL); multiples of 4096 avoid extra I/O. Files of up to 3 KiB
/// are part of the metadata, which is in memory. A write is durable after nvmedfs_fsync, as any other.
///
/// Returns a file number: the lowest free one from 3 on, of a separate table. Or -1: any error of open(2); ENXIO (a pipe, socket or
/// device: these have names and attributes here, but no content); EROFS.
///
/// # Safety
/// `path` is NULL or a string.
// C declares it with `...`: see uopen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_open(fs: *mut NVMEDFS, path: *const c_char, flags: c_int, variadic: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| open_at(at, flags, variadic)) })
}

/// Works like openat(2); see nvmedfs_open. `dir` is the number of an open directory. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_openat(dir: c_int, path: *const c_char, flags: c_int, variadic: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_dir(dir, path, |at| open_at(at, flags, variadic)) })
}

/// Works like creat(2); see nvmedfs_open. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_creat(fs: *mut NVMEDFS, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { nvmedfs_open(fs, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

/// Works like close(2). Written data reaches the device in time; nvmedfs_fsync makes it durable. Calls of other threads with this number
/// continue. Thread-safe.
///
/// Returns 0, or -1: EBADF; EIO, ENOSPC (of earlier writes, not reported before; the number is closed in any case).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_close(fd: c_int) -> c_int {
    ffi_guard(|| close(fd).map(|()| 0))
}

/// Works like dup(2): both share the file's position and flags. Thread-safe.
///
/// Returns the lowest free number from 3 on, or -1: EBADF, EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_dup(fd: c_int) -> c_int {
    ffi_guard(|| insert(share(fd)?, FIRST))
}

/// Works like dup2(2). Thread-safe.
///
/// Returns `to`, or -1: EBADF (also: `to` is below 3).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_dup2(fd: c_int, to: c_int) -> c_int {
    ffi_guard(|| {
        let open = share(fd)?;
        if usize::try_from(to).is_ok_and(|to| to < FIRST) {
            return Err(ApiError::new(libc::EBADF, format!("{to} is no number for a file")));
        }
        if fd == to {
            return Ok(to);
        }
        replace(to, open).map(|()| to)
    })
}

/// Works like fcntl(2): F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD and F_SETFD (numbers do not survive exec), F_GETFL, F_SETFL (O_APPEND, O_DIRECT,
/// O_NONBLOCK). F_GETLK, F_SETLK and F_SETLKW: record locks of a process never conflict, because only one process has the image open; use
/// nvmedfs_flock between threads. Thread-safe.
///
/// Returns what fcntl(2) would, or -1: EBADF; EINVAL (another command).
///
/// # Safety
/// The argument has the type that fcntl(2) requires for the command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fcntl(fd: c_int, command: c_int, variadic: usize) -> c_int {
    // The upper half of an int argument is undefined.
    let number = variadic as c_int;
    ffi_guard(|| match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let from = usize::try_from(number).ok().filter(|from| *from < UFDS_MAX);
            let from = from.ok_or_else(|| ApiError::new(libc::EINVAL, format!("no number from {number} on: there are {UFDS_MAX}")))?;
            insert(share(fd)?, from.max(FIRST))
        }
        libc::F_GETFD => with(fd, |_, _| Ok(libc::FD_CLOEXEC)),
        libc::F_SETFD => with(fd, |_, _| Ok(0)),
        libc::F_GETFL => with(fd, |_, file| Ok(file.flags().bits() as c_int)),
        libc::F_SETFL => with(fd, |_, file| {
            file.set_flags(OFlags::from_bits_retain(number as u32));
            Ok(0)
        }),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => {
            let lock: *mut flock = std::ptr::with_exposed_provenance_mut(variadic);
            // SAFETY: the caller's promise.
            with(fd, |_, _| unsafe { nlock::record(command, lock) })
        }
        _ => Err(ApiError::new(libc::EINVAL, format!("fcntl command {command} is not known here"))),
    })
}
