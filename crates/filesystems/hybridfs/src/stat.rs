//! The attributes of a file, from one statx(2).

use rustix::fs::FileType;

/// What is known of a file from one statx(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Identifies the backing inode on its side: its number, or for a file of a nested mount [`number::foreign`].
    pub ino: u64,
    /// Device, as `major << 32 | minor`.
    pub dev: u64,
    /// On another file system than the root of its tier (a nested mount).
    pub foreign: bool,
    /// Immutable or append-only: it can neither be changed nor removed (chattr(1)).
    pub fixed: bool,
    /// It has set-id bits or leads to a device, and its file system is mounted so that this means nothing (nosuid, nodev).
    pub powerless: bool,
    /// File type and permission bits.
    pub mode: u32,
    /// Number of hard links to the file.
    pub nlink: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the file.
    pub gid: u32,
    /// Size of the file in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred size of one I/O in bytes.
    pub blksize: u32,
    /// Device node's number, as mknod(2) takes it.
    pub rdev: u64,
    /// Time of the last access: seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Last change of the data.
    pub mtime: (i64, u32),
    /// Time of the last change: seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// Birth; zero where the file system does not tell.
    pub birth: (i64, u32),
}

/// Names an inode, not only its number: the number of a removed file is given to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeId {
    /// The number of the backing inode.
    pub ino: u64,
    /// Nanoseconds from 1970 to its birth, modulo 2^64; 0: not known.
    pub birth: u64,
}

impl InodeId {
    /// Returns whether `stat` was taken of this inode. A birth that is not known fits every file of the number.
    pub fn is(&self, stat: &Stat) -> bool {
        self.ino == stat.ino && (self.birth == 0 || self.birth == stat.id().birth)
    }
}

impl Stat {
    /// Returns the inode's number and birth.
    pub fn id(&self) -> InodeId {
        let birth = self.birth.0.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(u64::from(self.birth.1));
        InodeId { ino: self.ino, birth }
    }

    /// Returns the file type bits of the mode.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Returns what decides about access to the file.
    pub fn permissions(&self) -> fusedev::Permissions {
        fusedev::Permissions { uid: self.uid, gid: self.gid, mode: self.mode }
    }

    /// Returns whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Returns whether the file is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// Returns whether the file is a device file.
    pub fn is_device(&self) -> bool {
        matches!(self.kind(), FileType::CharacterDevice | FileType::BlockDevice)
    }

    /// Whether both were taken of one file. A file system gives the number of a removed file to a new one, but not its birth.
    pub fn is_same_file(&self, other: &Stat) -> bool {
        (self.dev, self.ino, self.birth) == (other.dev, other.ino, other.birth)
    }

    /// Whether data or attributes may differ from when `other` was taken.
    pub fn changed_since(&self, other: &Stat) -> bool {
        (self.ino, self.size, self.mtime, self.ctime) != (other.ino, other.size, other.mtime, other.ctime)
    }
}

/// Whether others than the owner may write; with an ACL the group's bits are its mask, so these two cover it.
pub(crate) fn others_may_write(mode: u32) -> bool {
    mode & 0o022 != 0
}
