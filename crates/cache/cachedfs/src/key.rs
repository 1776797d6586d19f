//! The key of a file in the cache: 64 bits of its file system and its handle. A rename does not change it, and a new file that reuses an
//! inode gets another key.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, fstatfs, fstatvfs, statx};
use rustix::io::Errno;
use shm::FileHandle;
use ssdcache::FileKey;
use xxhash_rust::xxh3::Xxh3;

/// statfs(2). Its handles are numbers that the next mount gives to other files.
const FUSE: u64 = 0x6573_5546;
/// statfs(2): vfat and exFAT, which number inodes in memory: a file that the kernel forgot has another number.
const MSDOS: u64 = 0x4d44;
const EXFAT: u64 = 0x2011_bab0;
/// statfs(2). Its handles name the server's file system, too; NFS has no number that stays the same from mount to mount.
const NFS: u64 = 0x6969;

/// Returns whether the file keeps its key when its file system is mounted again, and while nobody has it open. Where it does not, unwritten
/// pages on the SSD could be written into another file after a crash.
///
/// # Errors
/// Those of the kernel.
pub fn is_lasting(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(!matches!(fstatfs(fd)?.f_type as u64, FUSE | MSDOS | EXFAT))
}

/// Returns the key of an open file (`O_PATH` is enough). It is never zero.
///
/// # Errors
/// Those of the kernel.
pub fn key_of(fd: BorrowedFd<'_>) -> Result<FileKey, Errno> {
    let mut hash = Xxh3::new();
    let kind = fstatfs(fd)?.f_type as u64;
    hash.update(&kind.to_le_bytes());
    let fsid = fstatvfs(fd)?.f_fsid;
    let handle = if kind == FUSE { None } else { FileHandle::of(fd).ok() };
    match handle {
        Some(handle) => {
            hash.update(&handle.kind().to_le_bytes());
            hash.update(handle.bytes());
        }
        None => by_inode(fd, &mut hash)?,
    }
    if fsid != 0 {
        hash.update(&fsid.to_le_bytes());
    } else if kind != NFS || handle.is_none() {
        hash.update(&rustix::fs::fstat(fd)?.st_dev.to_le_bytes());
    }
    Ok(FileKey(hash.digest().max(1)))
}

/// Inode and birth time: as unique, unless an inode is reused within a tick of the clock.
fn by_inode(fd: BorrowedFd<'_>, hash: &mut Xxh3) -> Result<(), Errno> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
    hash.update(&stat.stx_ino.to_le_bytes());
    if stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
        hash.update(&stat.stx_btime.tv_sec.to_le_bytes());
        hash.update(&stat.stx_btime.tv_nsec.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_key_follows_its_file_and_no_other_gets_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, moved) = (dir.path().join("a"), dir.path().join("b"));
        let key = |file: &std::fs::File| key_of(file.as_fd()).expect("a key");
        let first = std::fs::File::create(&path).expect("made");
        let was = key(&first);
        std::fs::rename(&path, &moved).expect("renamed");
        assert_eq!(key(&std::fs::File::open(&moved).expect("opened")), was);
        std::fs::remove_file(&moved).expect("removed");
        drop(first);
        assert_ne!(key(&std::fs::File::create(&path).expect("made")), was);
    }
}
