//! One of the two compared directories, and its open files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;

/// Maximum number of open files.
pub const SLOTS: usize = 8;

/// The result of a system call as text that must be equal on both sides.
pub type CallResult = Result<String, Errno>;

/// A directory and its open files.
pub struct FileTree {
    /// Path, for calls without a directory descriptor.
    pub path: PathBuf,
    root: Option<OwnedFd>,
    /// The open files, by slot.
    pub slots: [Option<OwnedFd>; SLOTS],
    /// Position of each directory listing.
    pub cookies: [u64; SLOTS],
}

impl FileTree {
    /// Opens the directory as a tree.
    pub fn new(path: PathBuf) -> Result<FileTree, Errno> {
        let mut tree = FileTree { path, root: None, slots: Default::default(), cookies: [0; SLOTS] };
        tree.open()?;
        Ok(tree)
    }

    /// Opens the root directory again.
    pub fn open(&mut self) -> Result<(), Errno> {
        self.root = Some(rustix::fs::open(&self.path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?);
        Ok(())
    }

    /// Closes everything, for a remount.
    pub fn close(&mut self) {
        self.root = None;
        self.slots = Default::default();
    }

    /// Returns the descriptor of the root.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_ref().expect("open but for a remount").as_fd()
    }

    /// Returns the open file of a slot.
    pub fn slot(&self, slot: usize) -> Result<BorrowedFd<'_>, Errno> {
        self.slots[slot].as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Returns the absolute path for calls without a directory descriptor.
    pub fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { PathBuf::new() } else { PathBuf::from(format!("{}/{path}", self.path.display())) }
    }
}

/// The attributes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode number of the file.
    pub ino: u64,
    /// Birth time: seconds and nanoseconds.
    pub birth: (i64, u32),
    /// File type and permission bits.
    pub mode: u32,
    /// Number of hard links to it.
    pub nlink: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Size of the file in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Major and minor number of a device node.
    pub rdev: (u32, u32),
    /// Access time: seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Change time: seconds and nanoseconds.
    pub ctime: (i64, u32),
}

impl Stat {
    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    /// Returns whether it is a symbolic link.
    pub fn is_link(&self) -> bool {
        self.mode & 0o170_000 == 0o120_000
    }
}

/// Returns the attributes of a path (of a link itself), or of the descriptor if the path is empty.
pub fn stat(at: BorrowedFd<'_>, path: &str) -> Result<Stat, Errno> {
    let flags = if path.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
    let st = rustix::fs::statx(at, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let time = |t: &rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    Ok(Stat {
        ino: st.stx_ino,
        birth: time(&st.stx_btime),
        mode: u32::from(st.stx_mode),
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        size: st.stx_size,
        blocks: st.stx_blocks,
        rdev: (st.stx_rdev_major, st.stx_rdev_minor),
        atime: time(&st.stx_atime),
        mtime: time(&st.stx_mtime),
        ctime: time(&st.stx_ctime),
    })
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirListing {
    /// Name of the directory entry.
    pub name: String,
    /// File type in the directory entry.
    pub kind: String,
    /// Inode number of the file.
    pub ino: u64,
}

/// Reads at most `most` entries from the current position; returns them and the new position.
pub fn list(dir: BorrowedFd<'_>, most: usize) -> Result<(Vec<DirListing>, u64), Errno> {
    let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 4096];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    let mut cookie = 0;
    while names.len() < most {
        let Some(entry) = raw.next() else { break };
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        cookie = entry.next_entry_cookie();
        if name != "." && name != ".." && name != "lost+found" {
            names.push(DirListing { name, kind: format!("{:?}", entry.file_type()), ino: entry.ino() });
        }
    }
    Ok((names, cookie))
}

/// Returns all entries of a directory, sorted by name.
pub fn list_all(tree: &FileTree, path: &str) -> Result<Vec<DirListing>, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let dir = rustix::fs::openat(tree.root(), path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let (mut names, _) = list(dir.as_fd(), usize::MAX)?;
    names.sort();
    Ok(names)
}

/// Joins a path and a name.
pub fn join(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") }
}

/// Returns the name of an error.
pub fn word(error: Errno) -> String {
    format!("{} ({})", error.raw_os_error(), std::io::Error::from(error))
}

/// Returns a hash of data with its length.
pub fn digest(data: &[u8]) -> String {
    format!("{} bytes {:016x}", data.len(), xxhash_rust::xxh3::xxh3_64(data))
}

/// At most this much of a file is read.
pub const READ_MAX: u64 = 16 << 20;

/// Returns a digest of a file, the target of a link, or nothing for other types.
pub fn content(tree: &FileTree, path: &str, stat: &Stat) -> Result<String, Errno> {
    if stat.is_link() {
        return rustix::fs::readlinkat(tree.root(), path, Vec::new()).map(|target| target.to_string_lossy().into_owned());
    }
    if !stat.is_file() {
        return Ok(String::new());
    }
    let file = rustix::fs::openat(tree.root(), path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut data = vec![0u8; stat.size.min(READ_MAX) as usize];
    let mut have = 0;
    while have < data.len() {
        match rustix::io::pread(&file, &mut data[have..], have as u64)? {
            0 => break,
            n => have += n,
        }
    }
    Ok(digest(&data[..have]))
}
