//! From a request to the call that does it.

use fuser::{AccessFlags, OpenFlags, WriteFlags};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::answer::Answer;
use super::decode::{Head, Op};
use super::filesystem::{Aside, FileSystem, NewMode, Request};
use super::reply::{ReplyDirectory, ReplyDirectoryPlus};

/// Whether the request may be done for this user. Without `--allow-other` only the owner of the mount is let in, which the kernel
/// checks itself; what it asks on its own behalf bears anybody's number.
fn admitted(op: &Op<'_>, uid: u32, owner: Option<u32>) -> bool {
    owner.is_none_or(|owner| uid == owner)
        || matches!(
            op,
            Op::Read { .. }
                | Op::ReadDir { .. }
                | Op::ReadDirPlus { .. }
                | Op::Write { .. }
                | Op::Fsync { .. }
                | Op::FsyncDir { .. }
                | Op::Release { .. }
                | Op::ReleaseDir { .. }
                | Op::Interrupt
                | Op::Unknown
        )
}

/// Whether a read or write goes around the page cache. Only then the kernel names the owner of locks (fuse_send_read and fuse_send_write
/// in fs/fuse/file.c), by the same bit in both; the file's O_DIRECT may have changed since the call began.
fn is_direct(flags: u32) -> bool {
    flags & WriteFlags::FUSE_WRITE_LOCKOWNER.bits() != 0
}

/// Forgets, if that is what the kernel wants; it takes no answer.
pub fn forgets(fs: &impl FileSystem, head: &Head, op: &Op<'_>) -> bool {
    match *op {
        Op::Forget { times } => fs.forget(head.ino, times),
        Op::BatchForget { pairs } => Op::forgotten(pairs).for_each(|(ino, times)| fs.forget(ino, times)),
        _ => return false,
    }
    true
}

/// Does what was asked. `owner`: nobody else is served.
pub fn perform(fs: &impl FileSystem, owner: Option<u32>, head: Head, op: Op<'_>, aside: &dyn Aside, answer: Answer) {
    if !admitted(&op, head.uid, owner) {
        return answer.fail(Errno::ACCESS);
    }
    let req = &Request { head, aside };
    let ino = head.ino;
    match op {
        Op::Lookup { name } => fs.lookup(req, ino, name, answer.into()),
        Op::GetAttr { fh } => fs.getattr(req, ino, fh, answer.into()),
        Op::SetAttr(changes) => fs.setattr(req, ino, &changes, answer.into()),
        Op::ReadLink => fs.readlink(req, ino, answer.into()),
        Op::Symlink { name, target } => fs.symlink(req, ino, name, target, answer.into()),
        Op::MkNod { name, mode, umask, rdev } => fs.mknod(req, ino, name, NewMode { mode, umask }, rdev, answer.into()),
        Op::MkDir { name, mode, umask } => fs.mkdir(req, ino, name, NewMode { mode, umask }, answer.into()),
        Op::Unlink { name } => fs.unlink(req, ino, name, answer.into()),
        Op::RmDir { name } => fs.rmdir(req, ino, name, answer.into()),
        Op::Rename { name, new_parent, new_name, flags } => {
            fs.rename(req, (ino, name), (new_parent, new_name), RenameFlags::from_bits_retain(flags), answer.into());
        }
        Op::Link { ino: target, name } => fs.link(req, target, ino, name, answer.into()),
        Op::Open { flags } => fs.open(req, ino, OpenFlags(flags), answer.into()),
        Op::Read { fh, offset, size, read_flags, .. } => fs.read(req, (fh, offset), size, is_direct(read_flags), answer.into()),
        Op::Write { fh, offset, data, write_flags, flags } => {
            fs.write(req, (fh, offset), data, WriteFlags::from_bits_retain(write_flags), OpenFlags(flags), answer.into());
        }
        Op::StatFs => fs.statfs(req, answer.into()),
        Op::Release { fh } => fs.release(req, ino, fh, answer.into()),
        Op::Fsync { fh, datasync } => fs.fsync(req, fh, datasync, answer.into()),
        Op::SetXattr { name, value, flags } => fs.setxattr(req, ino, name, value, flags, answer.into()),
        Op::GetXattr { name, size } => fs.getxattr(req, ino, name, size, answer.into()),
        Op::ListXattr { size } => fs.listxattr(req, ino, size, answer.into()),
        Op::RemoveXattr { name } => fs.removexattr(req, ino, name, answer.into()),
        Op::OpenDir { .. } => fs.opendir(req, ino, answer.into()),
        Op::ReadDir { fh, offset, size } => fs.readdir(req, ino, fh, offset, ReplyDirectory::new(answer, size)),
        Op::ReadDirPlus { fh, offset, size } => fs.readdirplus(req, ino, fh, offset, ReplyDirectoryPlus::new(answer, size)),
        Op::ReleaseDir { fh } => fs.releasedir(req, fh, answer.into()),
        Op::FsyncDir { fh, datasync } => fs.fsyncdir(req, ino, fh, datasync, answer.into()),
        Op::Access { mask } => fs.access(req, ino, AccessFlags::from_bits_retain(mask), answer.into()),
        Op::Create { name, mode, umask, flags } => fs.create(req, ino, name, NewMode { mode, umask }, flags, answer.into()),
        Op::Ioctl => fs.ioctl(req, answer.into()),
        Op::Fallocate { fh, offset, length, mode } => fs.fallocate(req, fh, offset, length, mode, answer.into()),
        Op::Lseek { fh, offset, whence } => fs.lseek(req, fh, offset, whence, answer.into()),
        Op::CopyFileRange { fh_in, offset_in, fh_out, offset_out, len } => {
            fs.copy_file_range(req, (fh_in, offset_in), (fh_out, offset_out), len, answer.into());
        }
        // A request under way is not interrupted; told so, the kernel does not ask again.
        Op::Interrupt | Op::Unknown => answer.fail(Errno::NOSYS),
        Op::Destroy | Op::Forget { .. } | Op::BatchForget { .. } => answer.fail(Errno::IO),
    }
}
