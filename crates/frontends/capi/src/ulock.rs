//! Record locks, as in fcntl(2): of the process, released when it closes the file.
//!
//! The kernel drops a process's record locks when it closes *any* descriptor of the file, and the cache opens and closes descriptors as
//! needed. So the locks are taken on a descriptor kept only for them, one for each file, as open file description locks (F_OFD_SETLK):
//! other processes see no difference. The POSIX rules for close are implemented here.
#![expect(unsafe_code, reason = "called for C; fcntl(2)")]

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, flock, off_t};
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};

use crate::api_error::{ApiError, ApiResult};
use crate::open::Open;

/// The descriptor for the locks of a file.
struct Locked {
    file: (u64, u64),
    fd: Arc<OwnedFd>,
}

/// The locked files of this process.
static LOCKED: Mutex<Vec<Locked>> = Mutex::new(Vec::new());
/// Number of locked files, for a quick check.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn identity(file: BorrowedFd<'_>) -> ApiResult<(u64, u64)> {
    let stat = rustix::fs::fstat(file);
    let stat = stat.map_err(|errno| ApiError::new(errno.raw_os_error(), format!("locking: {}", std::io::Error::from(errno))))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns a separate description for the locks of a file; without permission to reopen the file, that of the ufd.
fn descriptor(open: &Open) -> ApiResult<OwnedFd> {
    let path = format!("/proc/self/fd/{}", open.fd().as_raw_fd());
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if let Ok(fd) = rustix::fs::openat(CWD, path, flags | OFlags::RDWR, Mode::empty()) {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(open.fd(), 0)
        .map_err(|errno| ApiError::new(errno.raw_os_error(), format!("locking: {}", std::io::Error::from(errno))))
}

fn lock_fd(open: &Open) -> ApiResult<Arc<OwnedFd>> {
    let file = identity(open.fd())?;
    let mut locked = LOCKED.lock();
    if let Some(there) = locked.iter().find(|locked| locked.file == file) {
        return Ok(Arc::clone(&there.fd));
    }
    let fd = Arc::new(descriptor(open)?);
    locked.push(Locked { file, fd: Arc::clone(&fd) });
    COUNT.store(locked.len(), Ordering::Release);
    Ok(fd)
}

/// Returns the absolute offset: positions and ends are ours, not the kernel's.
fn absolute(open: &Open, lock: &flock) -> ApiResult<off_t> {
    let wrong = || ApiError::new(libc::EINVAL, "a lock begins at no such place");
    let from = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => open.seek(0, cachedfs::Whence::Current)? as off_t,
        libc::SEEK_END => open.stat()?.st_size,
        _ => return Err(wrong()),
    };
    from.checked_add(lock.l_start).ok_or_else(wrong)
}

/// Checks the range first, as the kernel does.
fn check_range(lock: &flock) -> ApiResult<()> {
    let wrong = |errno| Err(ApiError::new(errno, "a lock of no such range"));
    match (lock.l_start, lock.l_len) {
        (..0, _) => wrong(libc::EINVAL),
        (start, len @ 1..) if start.checked_add(len - 1).is_none() => wrong(libc::EOVERFLOW),
        (start, len) if len < 0 && start.checked_add(len).is_none_or(|begin| begin < 0) => wrong(libc::EINVAL),
        _ => Ok(()),
    }
}

fn check_access(open: &Open, kind: c_int) -> ApiResult<()> {
    let access = open.flags()? & OFlags::RWMODE;
    let wrong = (kind == libc::F_RDLCK && access == OFlags::WRONLY) || (kind == libc::F_WRLCK && access == OFlags::RDONLY);
    if wrong { Err(ApiError::new(libc::EBADF, "the file is not open for what the lock is for")) } else { Ok(()) }
}

/// Handles F_GETLK, F_SETLK and F_SETLKW.
///
/// # Safety
/// `lock` is NULL or valid for reads and writes.
pub unsafe fn control(open: &Open, command: c_int, lock: *mut flock) -> ApiResult<c_int> {
    if open.is_path() {
        return Err(ApiError::new(libc::EBADF, "it was opened to be named alone"));
    }
    if lock.is_null() {
        return Err(ApiError::new(libc::EFAULT, "the struct flock is NULL"));
    }
    // SAFETY: the caller's promise.
    let mut asked = unsafe { lock.read() };
    asked.l_start = absolute(open, &asked)?;
    (asked.l_whence, asked.l_pid) = (libc::SEEK_SET as _, 0);
    check_range(&asked)?;
    let command = match command {
        libc::F_GETLK => libc::F_OFD_GETLK,
        libc::F_SETLK => libc::F_OFD_SETLK,
        _ => libc::F_OFD_SETLKW,
    };
    if command != libc::F_OFD_GETLK {
        check_access(open, c_int::from(asked.l_type))?;
    }
    let fd = lock_fd(open)?;
    // SAFETY: `asked` is ours.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut asked) } < 0 {
        return Err(ApiError::last("locking"));
    }
    if command == libc::F_OFD_GETLK {
        // SAFETY: the caller's promise.
        unsafe { lock.write(asked) };
    }
    Ok(0)
}

/// Releases the process's locks when a ufd of the file is closed. Closing an O_PATH ufd releases none, as in the kernel.
pub fn closed(open: &Open) {
    if !open.is_path() {
        release(open.fd());
    }
}

/// Releases the process's locks on a file of which the program closes a descriptor: of a ufd, or of a directory stream.
pub fn release(file: BorrowedFd<'_>) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let Ok(file) = identity(file) else { return };
    let mut locked = LOCKED.lock();
    let Some(at) = locked.iter().position(|locked| locked.file == file) else { return };
    let gone = locked.swap_remove(at);
    COUNT.store(locked.len(), Ordering::Release);
    drop(locked);
    // SAFETY: integers alone, for which zeroes are values: the whole file.
    let mut all: flock = unsafe { std::mem::zeroed() };
    all.l_type = libc::F_UNLCK as _;
    // Explicitly: a forked child may have the description, too.
    // SAFETY: `all` is ours.
    unsafe { libc::fcntl(gone.fd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut all) };
}

/// Locks the table before a fork: no thread is in the middle of a change.
pub fn hold() {
    let _held = ManuallyDrop::new(LOCKED.lock());
}

/// Unlocks the table after a fork, in parent and child.
///
/// # Safety
/// After `hold`, once in each process.
pub unsafe fn let_go(is_child: bool) {
    // SAFETY: held since `hold`, by this thread or the one that this is the child of.
    unsafe {
        if is_child {
            // The locks are the parent's.
            drop(std::mem::take(&mut *LOCKED.data_ptr()));
            COUNT.store(0, Ordering::Release);
        }
        LOCKED.force_unlock();
    }
}
