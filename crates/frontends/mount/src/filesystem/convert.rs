//! Values of the wire protocol as values of the file system, and back.

use fuser::{FileType, KernelConfig, OpenFlags};
use hybridfs::{Attr, Caller};
use rustix::fs::FileType as Kind;
use rustix::io::ReadWriteFlags;

use super::{O_DSYNC, O_SYNC};
use crate::wire::{self, DATA_MAX, Request};

pub(crate) fn caller(req: &Request<'_>) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

/// Returns the type of a listed file; none where the file system of its directory does not list types.
pub(crate) fn kind(kind: Kind) -> Option<FileType> {
    match kind {
        Kind::Directory => Some(FileType::Directory),
        Kind::Symlink => Some(FileType::Symlink),
        Kind::Fifo => Some(FileType::NamedPipe),
        Kind::Socket => Some(FileType::Socket),
        Kind::CharacterDevice => Some(FileType::CharDevice),
        Kind::BlockDevice => Some(FileType::BlockDevice),
        Kind::RegularFile => Some(FileType::RegularFile),
        _ => None,
    }
}

pub(super) fn to_wire_attr(attr: &Attr) -> wire::Attr {
    let stat = &attr.stat;
    wire::Attr {
        ino: attr.ino,
        size: stat.size,
        blocks: stat.blocks,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        mode: if stat.powerless { stat.mode & !0o6000 } else { stat.mode },
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: if stat.powerless { 0 } else { fuse_rdev(stat.rdev) },
        blksize: stat.blksize,
    }
}

/// Requests the largest requests that one reply can hold, and a read-ahead of one request.
pub(crate) fn set_request_sizes(config: &mut KernelConfig) {
    let _ = config.set_max_write(DATA_MAX as u32);
    let _ = config.set_max_background(64);
    let most = config.set_max_readahead(u32::MAX).err().unwrap_or(128 << 10);
    let _ = config.set_max_readahead(most.min(DATA_MAX as u32));
}

/// Device numbers cross the FUSE protocol in the kernel's 32-bit form (new_encode_dev).
pub(crate) fn fuse_rdev(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(crate) fn rdev_from_fuse(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

pub(super) fn sync_flags(flags: OpenFlags) -> ReadWriteFlags {
    if flags.0 & O_SYNC == O_SYNC {
        ReadWriteFlags::SYNC
    } else if flags.0 & O_DSYNC != 0 {
        ReadWriteFlags::DSYNC
    } else {
        ReadWriteFlags::empty()
    }
}
