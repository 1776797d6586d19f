//! Descriptors of open files: opening the file again, and where it is now.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

/// Opens the same file again with other flags; the file system checks permissions again.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(CWD, in_proc(fd), flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty())
}

/// Returns whether a call failed because the process or the system has no descriptor left: it says nothing about the file.
pub fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Returns whether an error of an open says nothing of whether the file exists: the process has no descriptor left, or the file system
/// does not reply.
pub fn leaves_unknown(errno: Errno) -> bool {
    const DEAD: [Errno; 9] = [
        Errno::NOTCONN,
        Errno::CONNABORTED,
        Errno::SHUTDOWN,
        Errno::TIMEDOUT,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::IO,
    ];
    is_shortage(errno) || DEAD.contains(&errno)
}

fn in_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Returns the present path of an open file, or none if it has no name any more.
pub fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = fs::read_link(in_proc(fd)).ok()?;
    let is_there = path.is_absolute() && !path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)");
    is_there.then_some(path)
}

/// Returns the last name that is known of an open file that has another name now: the name by which it was opened was removed.
pub fn lost_path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = fs::read_link(in_proc(fd)).ok()?;
    let path = path.as_os_str().as_bytes().strip_suffix(b" (deleted)")?;
    let has_name = path.starts_with(b"/") && fstat(fd).is_ok_and(|stat| stat.st_nlink > 0);
    has_name.then(|| OsStr::from_bytes(path).into())
}

/// Returns whether an open file has no name any more. The link count alone does not suffice: some file systems do not maintain it.
pub fn is_removed(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| stat.st_nlink == 0) && path_of(fd).is_none()
}
