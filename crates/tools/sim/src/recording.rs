//! Disks as files of a small FUSE mount: with a loop device on such a file, every write and flush of the file system above arrives here in
//! order.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};

use crate::disk_log::{DiskEvent, DiskLog};

const TTL: Duration = Duration::from_secs(3600);

/// One disk that is recorded.
#[derive(Debug)]
pub struct RecordedDisk {
    /// File name of the disk in the mount.
    pub name: String,
    /// File with the current content.
    pub image: File,
    /// Size of the disk, in bytes.
    pub bytes: u64,
}

struct Recorder {
    disks: Vec<RecordedDisk>,
    log: Arc<DiskLog>,
}

/// Serves the disks on `mountpoint` until the returned session is dropped.
pub fn serve(disks: Vec<RecordedDisk>, log: Arc<DiskLog>, mountpoint: &Path) -> std::io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("recorded-disks".into())];
    Session::new(Recorder { disks, log }, mountpoint, &config)?.spawn()
}

impl Recorder {
    fn disk(&self, ino: INodeNo) -> Option<(usize, &RecordedDisk)> {
        let at = (ino.0 as usize).checked_sub(2)?;
        self.disks.get(at).map(|disk| (at, disk))
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let disk = self.disk(ino);
        let kind = if disk.is_some() { FileType::RegularFile } else { FileType::Directory };
        let size = disk.map_or(0, |(_, disk)| disk.bytes);
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Recorder {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_BIG_WRITES);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.disks.iter().position(|disk| name == &*disk.name) {
            Some(at) => reply.entry(&TTL, &self.attr(INodeNo(at as u64 + 2)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // No cache between the loop device and this file.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((_, disk)) = self.disk(ino) else { return reply.error(Errno::EIO) };
        let mut buffer = vec![0; (size as u64).min(disk.bytes.saturating_sub(offset)) as usize];
        match disk.image.read_exact_at(&mut buffer, offset) {
            Ok(()) => reply.data(&buffer),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some((at, disk)) = self.disk(ino) else { return reply.error(Errno::EIO) };
        if offset + data.len() as u64 > disk.bytes {
            return reply.error(Errno::ENOSPC);
        }
        match disk.image.write_all_at(data, offset) {
            Ok(()) => {
                self.log.push(DiskEvent::Write { disk: at, offset, data: data.into() });
                reply.written(data.len() as u32);
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.disk(ino) {
            Some((at, _)) => {
                self.log.push(DiskEvent::Flush { disk: at });
                reply.ok();
            }
            None => reply.error(Errno::EIO),
        }
    }
}
