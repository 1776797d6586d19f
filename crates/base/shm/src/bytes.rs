//! Record locks on single bytes of a file (fcntl(2)). They belong to the process, not to the descriptor: the kernel frees them when
//! the process ends, after its memory is gone; a fork does not inherit them.
#![expect(unsafe_code, reason = "fcntl(2) with a range, which the library of safe calls does not offer")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

fn record(kind: i32, byte: u32) -> libc::flock {
    // SAFETY: a C structure of integers, for which zero is a value.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = kind as libc::c_short;
    record.l_whence = libc::SEEK_SET as libc::c_short;
    record.l_start = byte.into();
    record.l_len = 1;
    record
}

fn call(fd: &OwnedFd, command: i32, record: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the three commands used here take a pointer to this structure, which outlives the call.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(record)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// False: another process has it.
pub(crate) fn try_lock(fd: &OwnedFd, byte: u32) -> io::Result<bool> {
    match call(fd, libc::F_SETLK, &mut record(libc::F_WRLCK, byte)) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks a byte of the file. Waits until no other process has it.
///
/// # Errors
/// EINTR: a signal. EDEADLK: the kernel sees a circle of processes that wait for each other, on whatever files.
pub(crate) fn lock(fd: &OwnedFd, byte: u32) -> io::Result<()> {
    call(fd, libc::F_SETLKW, &mut record(libc::F_WRLCK, byte))
}

pub(crate) fn unlock(fd: &OwnedFd, byte: u32) {
    // Unlocking one byte within none or one range: it needs no memory, so it does not fail.
    let unlocked = call(fd, libc::F_SETLK, &mut record(libc::F_UNLCK, byte));
    debug_assert!(unlocked.is_ok(), "{unlocked:?}");
}

/// Which other process has it; 0: one of another pid namespace.
pub(crate) fn holder(fd: &OwnedFd, byte: u32) -> io::Result<Option<u32>> {
    let mut record = record(libc::F_WRLCK, byte);
    call(fd, libc::F_GETLK, &mut record)?;
    Ok((i32::from(record.l_type) != libc::F_UNLCK).then(|| u32::try_from(record.l_pid).unwrap_or(0)))
}
