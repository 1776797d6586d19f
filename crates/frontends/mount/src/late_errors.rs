//! Errors of writes that a file system does not tell before the file is closed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// File systems that send data over a network or to another process (statfs(2)): NFS, three of SMB, Ceph, FUSE, 9P, two of AFS, Coda,
/// OCFS2, Lustre and GPFS.
const REMOTE: [u64; 13] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x6573_5546,
    0x0102_1997,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x7461_636f,
    0x0bd0_0bd0,
    0x4750_4653,
];

/// Returns whether the file system of a directory may tell an error of a write as late as at close(2).
///
/// # Errors
/// As fstatfs(2).
pub fn may_be_late(directory: impl AsFd) -> Result<bool, Errno> {
    // Some of the numbers have their highest bit set, and the field is signed.
    let kind = rustix::fs::fstatfs(directory)?.f_type as u64 & 0xffff_ffff;
    Ok(REMOTE.contains(&kind))
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
