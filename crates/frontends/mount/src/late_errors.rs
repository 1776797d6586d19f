//! Errors of writes that a file system does not tell before the file is closed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use parking_lot::Mutex;
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

/// Keeps the error of an outcome that nobody got for whoever asks next. One that is kept already stays: a later success is none of its.
pub fn keep_error(kept: &Mutex<Option<Errno>>, outcome: Result<(), Errno>) {
    if let Err(error) = outcome {
        kept.lock().get_or_insert(error);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_error_that_nobody_got_outlives_later_outcomes() {
        let kept = Mutex::default();
        for outcome in [Ok(()), Err(Errno::NOSPC), Ok(()), Err(Errno::IO)] {
            keep_error(&kept, outcome);
        }
        assert_eq!(kept.into_inner(), Some(Errno::NOSPC));
    }

    #[test]
    fn a_local_file_system_tells_errors_at_once() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!((may_be_late(&file), directory_may_be_late(Path::new("/proc"))), (Ok(false), Ok(false)));
        assert_eq!(close_and_report(file.into()), Ok(()));
    }
}
