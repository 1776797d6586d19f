//! The key of a file in the cache: 64 bits of its file system and its handle. A rename does not change it, and a new file that reuses an
//! inode gets another key.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use parking_lot::RwLock;
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
    Ok(!matches!(FileSystem::of(fd)?.kind, FUSE | MSDOS | EXFAT))
}

/// What statfs(2) says of the file system of a file: on a network file system each such question waits for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The type, as statfs(2) has it.
    pub kind: u64,
    /// The device number, as stat(2) has it.
    pub device: u64,
    /// The identity, zero where it has none.
    id: u64,
}

/// What distinguishes a file system from others for as long as the machine runs: the unique number of a mount, which no later mount gets,
/// and the device number, as subvolumes of btrfs have different ones.
type MountedAs = (u64, (u32, u32));

/// The file systems of the files that this process has opened lately.
static KNOWN: RwLock<BTreeMap<MountedAs, FileSystem>> = RwLock::new(BTreeMap::new());
/// Beyond this number they are asked for again.
const KNOWN_MAX: usize = 256;

impl FileSystem {
    /// Returns the file system with this device number, if this process has opened a file there lately.
    pub fn known(device: u64) -> Option<FileSystem> {
        KNOWN.read().values().find(|system| system.device == device).copied()
    }

    /// Returns the file system of an open file.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn of(fd: BorrowedFd<'_>) -> Result<FileSystem, Errno> {
        let mounted = mounted_as(fd);
        if let Some(known) = mounted.and_then(|mounted| KNOWN.read().get(&mounted).copied()) {
            return Ok(known);
        }
        let device = rustix::fs::fstat(fd)?.st_dev;
        let system = FileSystem { kind: fstatfs(fd)?.f_type as u64, device, id: fstatvfs(fd)?.f_fsid };
        if let Some(mounted) = mounted {
            let mut known = KNOWN.write();
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.insert(mounted, system);
        }
        Ok(system)
    }
}

/// Returns what distinguishes the file system, without a question to a server; none before Linux 6.8, where numbers of mounts are used
/// again.
fn mounted_as(fd: BorrowedFd<'_>) -> Option<MountedAs> {
    /// STATX_MNT_ID_UNIQUE of statx(2).
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, UNIQUE).ok()?;
    let is_told = stat.stx_mask & UNIQUE.bits() != 0;
    is_told.then_some((stat.stx_mnt_id, (stat.stx_dev_major, stat.stx_dev_minor)))
}

/// Returns the number by which caches know an open file (`O_PATH` is enough).
///
/// # Errors
/// Those of the kernel.
pub fn data_key(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    key_of(fd).map(|key| key.0)
}

/// Returns the key of an open file (`O_PATH` is enough). It is never zero.
///
/// # Errors
/// Those of the kernel.
pub fn key_of(fd: BorrowedFd<'_>) -> Result<FileKey, Errno> {
    let mut hash = Xxh3::new();
    let FileSystem { kind, device, id: fsid } = FileSystem::of(fd)?;
    hash.update(&kind.to_le_bytes());
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
        hash.update(&device.to_le_bytes());
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
    fn a_file_system_is_asked_once() {
        let file = tempfile::tempfile().expect("a file");
        let system = FileSystem::of(file.as_fd()).expect("a file system");
        assert_eq!(system.kind, fstatfs(&file).expect("known").f_type as u64);
        assert_eq!(FileSystem::of(file.as_fd()), Ok(system));
        assert!(!crate::guarded::is_known_remote(&std::env::temp_dir()), "files for a short time are on no server");
        match mounted_as(file.as_fd()) {
            Some(mounted) => assert_eq!(KNOWN.read().get(&mounted), Some(&system)),
            None => println!("SKIP: the numbers of mounts are used again before Linux 6.8"),
        }
        let proc = std::fs::File::open("/proc/self/status").expect("opened");
        assert_ne!(FileSystem::of(proc.as_fd()).expect("a file system").kind, system.kind);
    }

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
