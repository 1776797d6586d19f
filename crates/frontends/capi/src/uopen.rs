//! The numbers of open files: uopen, duplicates, uclose, ufcntl.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use cachedfs::Options;
use libc::mode_t;
use rustix::fs::{Mode, OFlags};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::guard_files as ffi_guard;
use crate::library::instance;
use crate::memory;
use crate::open::Open;
use crate::ufd::UFDS_MAX;
use crate::ufiles::{at, close, insert, replace, share, with};
use crate::ulock;

/// Files that programs map to share memory, such as the index of SQLite's write-ahead log, bypass the cache from the first open on: mapped
/// and cached access would otherwise diverge.
fn is_mapped(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"-shm")
}

fn open_at(dir: c_int, path: &Path, flags: c_int, mode: mode_t) -> ApiResult<c_int> {
    // A ufd does not survive exec, so neither does its descriptor.
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
    let creates = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
    let mode = if creates { Mode::from_bits_retain(mode & 0o7777) } else { Mode::empty() };
    let instance = instance()?;
    let options = Options { mode: is_mapped(path).then_some(cachedfs::Mode::PassThrough), ..Options::default() };
    let file = at(dir, |dir| Ok(instance.open_file(dir, path, flags, mode, &options)?))?;
    insert(Arc::new(Open::file(file)), 0)
}

/// Works like open(2), through the cache: data in memory or on the cache's SSD is read without the kernel. Calls on files that cannot be
/// cached (pipes, devices, directories, /proc) are forwarded to the kernel, and so are those on a file whose name ends with -shm, which
/// programs map (SQLite). Thread-safe.
///
/// The third argument is the mode of a new file (O_CREAT, O_TMPFILE). The cache is that of hs_init; without it, hs_init(NULL).
///
/// Returns a ufd: the lowest free number, of a separate table (0, 1 and 2 are the process's standard streams), which does not survive
/// exec. Or -1: any error of open(2); EMFILE; errors of the cache if this is the first file (hs_error says which).
///
/// # Safety
/// `path` is NULL or a string.
// C declares it with `...`. On the supported systems (System V ABI of x86-64, AArch64 and RISC-V) a variadic argument is passed like this
// one; it is used only if the flags say that it is present.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uopen(path: *const c_char, flags: c_int, variadic: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { uopenat(libc::AT_FDCWD, path, flags, variadic) }
}

/// Works like openat(2); see uopen. `dir` is a ufd or AT_FDCWD. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uopenat(dir: c_int, path: *const c_char, flags: c_int, variadic: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| open_at(dir, unsafe { memory::path(path) }?, flags, variadic))
}

/// Works like creat(2); see uopen. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucreat(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { uopenat(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

/// Works like close(2). Written data stays in the cache, visible to all its users, and reaches the backing file in time; ufsync makes it
/// durable. Pins end with the last duplicate (udup) of the ufd they were made through; other opens of the file do not keep them.
/// Thread-safe: calls of other threads on this ufd complete first, or fail with EBADF.
///
/// Returns 0, or -1: EBADF; a write error that was not reported before (the ufd is closed in any case).
#[unsafe(no_mangle)]
pub extern "C" fn uclose(ufd: c_int) -> c_int {
    ffi_guard(|| close(ufd).map(|()| 0))
}

/// Works like dup(2): both share the file's position and flags. Thread-safe.
///
/// Returns the lowest free ufd, or -1: EBADF, EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn udup(ufd: c_int) -> c_int {
    ffi_guard(|| insert(share(ufd)?, 0))
}

/// Works like dup2(2). Thread-safe.
///
/// Returns `to`, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn udup2(ufd: c_int, to: c_int) -> c_int {
    ffi_guard(|| {
        let open = share(ufd)?;
        if ufd == to {
            return Ok(to);
        }
        replace(to, open).map(|()| to)
    })
}

/// Works like fcntl(2): F_DUPFD (a ufd), F_GETFD and F_SETFD (a ufd never survives exec), F_GETFL, F_SETFL (O_APPEND, O_NONBLOCK and the
/// like). F_GETLK, F_SETLK and F_SETLKW: POSIX record locks between all programs of the machine, except that F_GETLK in other programs
/// returns -1 as the owner, and that there is no deadlock detection. Other commands go to the kernel's descriptor. Thread-safe.
///
/// # Safety
/// The argument has the type that fcntl(2) requires for the command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ufcntl(ufd: c_int, command: c_int, variadic: usize) -> c_int {
    // The upper half of an int argument is undefined.
    let number = variadic as c_int;
    ffi_guard(|| match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let open = share(ufd)?;
            let from = usize::try_from(number).map_err(|_| ApiError::new(libc::EINVAL, format!("no ufd from {number} on")))?;
            if from >= UFDS_MAX {
                return Err(ApiError::new(libc::EINVAL, format!("no ufd from {from} on: there are {}", UFDS_MAX)));
            }
            insert(open, from)
        }
        libc::F_GETFD => with(ufd, |_| Ok(libc::FD_CLOEXEC)),
        libc::F_SETFD => with(ufd, |_| Ok(0)),
        libc::F_GETFL => with(ufd, |open| Ok(open.flags()?.bits() as c_int)),
        libc::F_SETFL => with(ufd, |open| open.set_flags(OFlags::from_bits_retain(number as u32)).map(|()| 0)),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => {
            let open = share(ufd)?;
            let lock = std::ptr::with_exposed_provenance_mut(variadic);
            // SAFETY: the caller's promise.
            if !open.is_stream() { unsafe { ulock::control(&open, command, lock) } } else { unsafe { below(&open, command, variadic) } }
        }
        _ => {
            let open = share(ufd)?;
            // SAFETY: the caller's promise.
            unsafe { below(&open, command, variadic) }
        }
    })
}

/// Forwards a command to the kernel's descriptor.
///
/// # Safety
/// The argument has the type that fcntl(2) requires for the command.
unsafe fn below(open: &Open, command: c_int, argument: usize) -> ApiResult<c_int> {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::fcntl(open.fd().as_raw_fd(), command, argument) };
    if done < 0 { Err(ApiError::last(&format!("fcntl command {command}"))) } else { Ok(done) }
}

/// Returns the kernel's descriptor of a ufd, for calls not offered here (such as ioctl). It belongs to the library: it must not be closed,
/// and is closed with the last duplicate of the ufd. Reads and writes through it bypass the cache. Thread-safe.
///
/// Returns the descriptor, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn ufileno(ufd: c_int) -> c_int {
    ffi_guard(|| share(ufd).map(|open| open.fd().as_raw_fd()))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_close_and_not_when_the_cache_forgets_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = dir.path().join("config.toml");
        std::fs::write(&config, format!("[cache]\nmemory = \"1MiB\"\nruntime-dir = \"{}\"\n", dir.path().display())).expect("written");
        let c_path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: strings.
        assert_eq!(unsafe { crate::library::hs_init(c_path(&config).as_ptr()) }, 0);
        let path = dir.path().join("file");
        std::fs::write(&path, "text").expect("written");
        let other = std::fs::File::open(&path).expect("opened");
        let try_lock = || rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        // SAFETY: a string.
        let ufd = unsafe { uopen(c_path(&path).as_ptr(), libc::O_RDWR, 0) };
        assert!(ufd >= 0);
        // As a thread of the library keeps the file in the cache for a moment.
        let kept = with(ufd, |open| Ok(open.cached().map(|file| file.pin(0, 4)))).expect("open");
        assert_eq!(crate::ustate::uflock(ufd, libc::LOCK_EX | libc::LOCK_NB), 0);
        assert_eq!(try_lock(), Err(rustix::io::Errno::WOULDBLOCK));
        let double = udup(ufd);
        assert_eq!(uclose(ufd), 0);
        assert_eq!(try_lock(), Err(rustix::io::Errno::WOULDBLOCK), "a duplicate is open");
        assert_eq!(uclose(double), 0);
        assert_eq!(try_lock(), Ok(()));
        drop(kept);
    }
}
