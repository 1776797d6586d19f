//! Names and paths for system calls.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::errno::Result;

/// The directory in each root that is ours; no user of the mount sees it.
pub const HIDDEN: &str = ".hotshelf";

/// Flags for a handle that only names a file.
pub const NAME_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path that leads to exactly the open file, for calls that take no handle.
pub fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A path that leads to `name` in the open directory.
pub fn child_path(dir: BorrowedFd<'_>, name: &OsStr) -> Vec<u8> {
    let mut path = proc_path(dir).into_bytes();
    path.push(b'/');
    path.extend_from_slice(name.as_bytes());
    path
}

/// A name as the kernel hands it over: one component, not `.` or `..`.
pub fn valid_name(name: &OsStr) -> Result<()> {
    let bytes = name.as_bytes();
    if bytes.len() > 255 {
        return Err(Errno::NAMETOOLONG);
    }
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}
