//! Values of the wire protocol as values of the image, and back.

use fuser::FileType;
use rawfs::fs::{FileKind, SetTime, Stat, Timestamp};
use rustix::fs::OFlags;

use crate::filesystem::fuse_rdev;
use crate::wire::Attr;

pub(super) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn kind_of(mode: u32) -> Option<FileKind> {
    [FileKind::File, FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice]
        .into_iter()
        .find(|kind| kind.bits() == mode & 0o170_000)
}

pub(super) fn attr(stat: &Stat) -> Attr {
    let at = |stamp: Timestamp| (stamp.sec, stamp.nsec);
    Attr {
        ino: stat.ino,
        size: stat.size,
        blocks: stat.blocks,
        atime: at(stat.atime),
        mtime: at(stat.mtime),
        ctime: at(stat.ctime),
        mode: stat.kind.bits() | stat.mode & 0o7777,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: fuse_rdev(stat.device),
        blksize: rawfs::BLOCK_BYTES as u32,
    }
}

pub(super) fn set_time(time: Option<hybridfs::SetTime>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(hybridfs::SetTime::Now) => SetTime::Now,
        Some(hybridfs::SetTime::At(sec, nsec)) => SetTime::At(Timestamp { sec, nsec }),
    }
}

/// Returns the flags that a node is opened with. The kernel has created and truncated the file before it sends the open. It passes the
/// offset of each appending write itself, even after an fcntl that changed O_APPEND, which it does not report.
pub(super) fn open_flags(flags: i32) -> OFlags {
    let flags = OFlags::from_bits_retain(flags as u32);
    flags - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::APPEND)
}
