//! The attributes of a file.

use std::os::fd::BorrowedFd;

use fusedev::{Permissions, SET_GID, SET_UID};
use rustix::fs::{AtFlags, FileType, StatVfsMountFlags, StatxFlags, StatxTimestamp, statx};

use crate::Result;

/// The attributes of a file, as its file system gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Device number of the file system.
    pub dev: u64,
    /// The mount that the file was reached by, of several of one file system; zero where the kernel does not tell.
    pub mount: u64,
    /// Inode number on that file system.
    pub ino: u64,
    /// Time of birth: seconds and nanoseconds; zero where the file system does not tell.
    pub birth: (i64, u32),
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
    /// Preferred size of reads and writes in bytes.
    pub blksize: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Whether set-ID bits or a device number have no effect on the file system that the file is on, as that is mounted.
    pub is_powerless: bool,
    /// Time of the last access: seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Time of the last change of the data.
    pub mtime: (i64, u32),
    /// Time of the last change of data or attributes.
    pub ctime: (i64, u32),
}

impl Stat {
    /// Reads the attributes of an open file; `O_PATH` is enough.
    ///
    /// # Errors
    /// As statx(2).
    pub fn of(file: BorrowedFd<'_>) -> Result<Stat> {
        Stat::by(file, AtFlags::empty())
    }

    /// Reads the attributes of an open file as [`Stat::of`] does; a network file system asks its server for them.
    ///
    /// # Errors
    /// As statx(2).
    pub fn newest_of(file: BorrowedFd<'_>) -> Result<Stat> {
        Stat::by(file, AtFlags::STATX_FORCE_SYNC)
    }

    fn by(file: BorrowedFd<'_>, flags: AtFlags) -> Result<Stat> {
        let flags = flags | AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let found = statx(file, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID)?;
        let time = |time: &StatxTimestamp| (time.tv_sec, time.tv_nsec);
        let mode = u32::from(found.stx_mode);
        let kind = FileType::from_raw_mode(mode);
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        // Few files have such bits.
        let is_powerless = if is_device {
            rustix::fs::fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::NODEV)
        } else {
            let has_bits = kind == FileType::RegularFile && mode & (SET_UID | SET_GID) != 0;
            has_bits && rustix::fs::fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::NOSUID)
        };
        let has = |field: StatxFlags| found.stx_mask & field.bits() != 0;
        Ok(Stat {
            dev: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            ino: found.stx_ino,
            mount: if has(StatxFlags::MNT_ID) { found.stx_mnt_id } else { 0 },
            birth: if has(StatxFlags::BTIME) { time(&found.stx_btime) } else { (0, 0) },
            mode,
            nlink: found.stx_nlink,
            uid: found.stx_uid,
            gid: found.stx_gid,
            size: found.stx_size,
            blocks: found.stx_blocks,
            blksize: found.stx_blksize,
            rdev: rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor),
            is_powerless,
            atime: time(&found.stx_atime),
            mtime: time(&found.stx_mtime),
            ctime: time(&found.stx_ctime),
        })
    }

    /// Returns whether both can be of one file that nobody has changed in between: type, mode and owner are the same, and also the size and
    /// the times of what is not a directory.
    pub(crate) fn may_be_same(&self, other: &Stat) -> bool {
        let access = |stat: &Stat| (stat.mode, stat.uid, stat.gid);
        let version = |stat: &Stat| (stat.size, stat.mtime, stat.ctime);
        access(self) == access(other) && (self.is_dir() || version(self) == version(other))
    }

    /// Returns whether the file can give power to whoever runs or opens it: a program with set-ID bits, or a device. What is remembered of
    /// it may be wrong by now, and is not answered.
    pub(crate) fn has_power(&self) -> bool {
        let is_device = matches!(self.kind(), FileType::CharacterDevice | FileType::BlockDevice);
        is_device || self.is_file() && self.mode & (SET_UID | SET_GID) != 0
    }

    /// Returns the file type bits of the mode.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Returns whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Returns whether the file is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// Returns what decides about access to the file.
    pub fn permissions(&self) -> Permissions {
        Permissions { uid: self.uid, gid: self.gid, mode: self.mode }
    }
}
