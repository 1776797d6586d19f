//! From a request to the call that does it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::{AccessFlags, OpenFlags, WriteFlags};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::decode::{self, FuseOp, RequestHeader};
use super::filesystem::{BlockingExecutor, FileSystem, NewMode, Request};
use super::pending_reply::PendingReply;
use super::reply::{ReplyDirectory, ReplyDirectoryPlus};

/// Whether the request may be done for this user. Without `--allow-other` only the owner of the mount is let in, which the kernel
/// checks itself; what it asks on its own behalf bears anybody's number.
fn admitted(op: &FuseOp<'_>, uid: u32, owner: Option<u32>) -> bool {
    owner.is_none_or(|owner| uid == owner)
        || matches!(
            op,
            FuseOp::Read { .. }
                | FuseOp::ReadDir { .. }
                | FuseOp::ReadDirPlus { .. }
                | FuseOp::Write { .. }
                | FuseOp::Fsync { .. }
                | FuseOp::FsyncDir { .. }
                | FuseOp::Flush { .. }
                | FuseOp::Release { .. }
                | FuseOp::ReleaseDir { .. }
                | FuseOp::Interrupt { .. }
                | FuseOp::Unknown
        )
}

/// Whether a read or write goes around the page cache. Only then the kernel names the owner of locks (fuse_send_read and fuse_send_write
/// in fs/fuse/file.c), by the same bit in both; the file's O_DIRECT may have changed since the call began.
fn is_direct(flags: u32) -> bool {
    flags & WriteFlags::FUSE_WRITE_LOCKOWNER.bits() != 0
}

/// Looks at one message of the device. What takes no reply of the file system is done here, and `serve` gets the rest. Returns whether it
/// was the last message of the mount.
///
/// # Errors
/// It is no request.
pub fn dispatch<'a>(
    fs: &impl FileSystem,
    device: &Arc<OwnedFd>,
    message: &'a [u8],
    serve: impl FnOnce(RequestHeader, FuseOp<'a>),
) -> io::Result<bool> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a request of FUSE");
    let (head, args, rest) = decode::split(message).map_err(|_| invalid())?;
    let answer = || PendingReply::by_device(head.unique, device);
    match decode::decode(head.opcode, args, rest) {
        Ok(op) if forgets(fs, &head, &op) => {}
        Ok(FuseOp::Destroy) => {
            answer().send(&[]);
            return Ok(true);
        }
        Ok(op) => serve(head, op),
        Err(_) => {
            tracing::error!(opcode = head.opcode, "a request makes no sense");
            answer().fail(Errno::IO);
        }
    }
    Ok(false)
}

/// Handles a forget request, which takes no reply. Returns whether it was one.
fn forgets(fs: &impl FileSystem, head: &RequestHeader, op: &FuseOp<'_>) -> bool {
    match *op {
        FuseOp::Forget { times } => fs.forget(head.ino, times),
        FuseOp::BatchForget { pairs } => FuseOp::forgotten(pairs).for_each(|(ino, times)| fs.forget(ino, times)),
        _ => return false,
    }
    true
}

/// Performs the request. If `owner` is set, other users are refused.
pub fn perform(
    fs: &impl FileSystem,
    owner: Option<u32>,
    head: RequestHeader,
    op: FuseOp<'_>,
    executor: &dyn BlockingExecutor,
    answer: PendingReply,
) {
    if !admitted(&op, head.uid, owner) {
        answer.fail(Errno::ACCESS);
        return;
    }
    let req = &Request { head, executor };
    let ino = head.ino;
    match op {
        FuseOp::Lookup { name } => fs.lookup(req, ino, name, answer.into()),
        FuseOp::GetAttr { fh } => fs.getattr(req, ino, fh, answer.into()),
        FuseOp::SetAttr(changes) => fs.setattr(req, ino, &changes, answer.into()),
        FuseOp::ReadLink => fs.readlink(req, ino, answer.into()),
        FuseOp::Symlink { name, target } => fs.symlink(req, ino, name, target, answer.into()),
        FuseOp::MkNod { name, mode, umask, rdev } => fs.mknod(req, ino, name, NewMode { mode, umask }, rdev, answer.into()),
        FuseOp::MkDir { name, mode, umask } => fs.mkdir(req, ino, name, NewMode { mode, umask }, answer.into()),
        FuseOp::Unlink { name } => fs.unlink(req, ino, name, answer.into()),
        FuseOp::RmDir { name } => fs.rmdir(req, ino, name, answer.into()),
        FuseOp::Rename { name, new_parent, new_name, flags } => {
            fs.rename(req, (ino, name), (new_parent, new_name), RenameFlags::from_bits_retain(flags), answer.into());
        }
        FuseOp::Link { ino: target, name } => fs.link(req, target, ino, name, answer.into()),
        FuseOp::Open { flags } => fs.open(req, ino, OpenFlags(flags), answer.into()),
        FuseOp::Read { fh, offset, size, read_flags, .. } => fs.read(req, (fh, offset), size, is_direct(read_flags), answer.into()),
        FuseOp::Write { fh, offset, data, write_flags, flags } => {
            fs.write(req, (fh, offset), data, WriteFlags::from_bits_retain(write_flags), OpenFlags(flags), answer.into());
        }
        FuseOp::StatFs => fs.statfs(req, answer.into()),
        FuseOp::Release { fh } => fs.release(req, ino, fh, answer.into()),
        FuseOp::Flush { fh } => fs.flush(req, fh, answer.into()),
        FuseOp::Fsync { fh, datasync } => fs.fsync(req, fh, datasync, answer.into()),
        FuseOp::SetXattr { name, value, flags } => fs.setxattr(req, ino, name, value, flags, answer.into()),
        FuseOp::GetXattr { name, size } => fs.getxattr(req, ino, name, size, answer.into()),
        FuseOp::ListXattr { size } => fs.listxattr(req, ino, size, answer.into()),
        FuseOp::RemoveXattr { name } => fs.removexattr(req, ino, name, answer.into()),
        FuseOp::OpenDir { .. } => fs.opendir(req, ino, answer.into()),
        FuseOp::ReadDir { fh, offset, size } => fs.readdir(req, ino, fh, offset, ReplyDirectory::new(answer, size)),
        FuseOp::ReadDirPlus { fh, offset, size } => fs.readdirplus(req, ino, fh, offset, ReplyDirectoryPlus::new(answer, size)),
        FuseOp::ReleaseDir { fh } => fs.releasedir(req, fh, answer.into()),
        FuseOp::FsyncDir { fh, datasync } => fs.fsyncdir(req, ino, fh, datasync, answer.into()),
        FuseOp::Access { mask } => fs.access(req, ino, AccessFlags::from_bits_retain(mask), answer.into()),
        FuseOp::Create { name, mode, umask, flags } => fs.create(req, ino, name, NewMode { mode, umask }, flags, answer.into()),
        FuseOp::Ioctl => fs.ioctl(req, answer.into()),
        FuseOp::Fallocate { fh, offset, length, mode } => fs.fallocate(req, fh, offset, length, mode, answer.into()),
        FuseOp::Lseek { fh, offset, whence } => fs.lseek(req, fh, offset, whence, answer.into()),
        FuseOp::CopyFileRange { fh_in, offset_in, fh_out, offset_out, len } => {
            fs.copy_file_range(req, (fh_in, offset_in), (fh_out, offset_out), len, answer.into());
        }
        // A request under way is not interrupted; told so, the kernel does not ask again.
        FuseOp::Interrupt { .. } | FuseOp::Unknown => _ = answer.fail(Errno::NOSYS),
        FuseOp::Destroy | FuseOp::Forget { .. } | FuseOp::BatchForget { .. } => _ = answer.fail(Errno::IO),
    }
}
