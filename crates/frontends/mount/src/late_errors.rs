//! Errors of writes that a file system does not tell before the file is closed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Returns whether the file system of a directory may tell an error of a write as late as at close(2).
///
/// # Errors
/// As fstatfs(2).
pub fn may_be_late(directory: impl AsFd) -> Result<bool, Errno> {
    Ok(cachedfs::is_remote(rustix::fs::fstatfs(directory)?.f_type as u64))
}

/// Returns whether the file system of the directory with this path may do so.
///
/// # Errors
/// As open(2).
pub fn directory_may_be_late(path: &Path) -> Result<bool, Errno> {
    may_be_late(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Closes one of several descriptors of an open file, and returns what the file system has to say of earlier writes.
///
/// # Errors
/// As close(2).
pub fn close_and_report(file: OwnedFd) -> Result<(), Errno> {
    nix::unistd::close(file).map_err(|error| Errno::from_raw_os_error(error as i32))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_local_file_system_tells_errors_at_once() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!((may_be_late(&file), directory_may_be_late(Path::new("/proc"))), (Ok(false), Ok(false)));
        assert_eq!(close_and_report(file.into()), Ok(()));
    }
}
