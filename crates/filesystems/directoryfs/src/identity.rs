//! What distinguishes one file from all others.

use crate::Stat;

/// What distinguishes a file from all others that exist at the same time. A file that two mounts lead to (a bind mount below) is two: one
/// of them may be read-only, or give no power to set-ID bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InodeId {
    /// The device number of the file system.
    pub dev: u64,
    /// The mount that leads to it; [`EARLIER_MOUNT`] for numbers that may be another file's by now.
    pub mount: u64,
    /// The inode number on the file system.
    pub ino: u64,
    /// The time of birth; zero where the file system does not tell.
    pub birth: (i64, u32),
}

/// Instead of a mount: the inode number was read before this mount began, on a file system without times of birth. The number may be
/// another file's by now.
pub(crate) const EARLIER_MOUNT: u64 = u64::MAX;

impl InodeId {
    /// Returns the identity of the file with these attributes.
    pub fn of(stat: &Stat) -> InodeId {
        InodeId { dev: stat.dev, mount: stat.mount, ino: stat.ino, birth: stat.birth }
    }

    /// Returns whether a later file with the same inode number has another identity.
    pub fn is_unique(&self) -> bool {
        self.birth != (0, 0)
    }
}
