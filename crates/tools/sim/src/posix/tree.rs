//! One of the two directories the calls are done on, and what is open there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;

/// Files open at a time.
pub const SLOTS: usize = 8;

/// What a system call said, in words that must be the same on both sides.
pub type CallResult = Result<String, Errno>;

/// A directory and the files open below it.
pub struct FileTree {
    /// For calls that take no directory.
    pub path: PathBuf,
    root: Option<OwnedFd>,
    /// Open files.
    pub slots: [Option<OwnedFd>; SLOTS],
    /// Where each listing stopped.
    pub cookies: [u64; SLOTS],
}

impl FileTree {
    pub fn new(path: PathBuf) -> Result<FileTree, Errno> {
        let mut tree = FileTree { path, root: None, slots: Default::default(), cookies: [0; SLOTS] };
        tree.open()?;
        Ok(tree)
    }

    pub fn open(&mut self) -> Result<(), Errno> {
        self.root = Some(rustix::fs::open(&self.path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?);
        Ok(())
    }

    /// Lets go of everything, for a remount.
    pub fn close(&mut self) {
        self.root = None;
        self.slots = Default::default();
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_ref().expect("open but for a remount").as_fd()
    }

    pub fn slot(&self, slot: usize) -> Result<BorrowedFd<'_>, Errno> {
        self.slots[slot].as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// A path as calls without a directory take it.
    pub fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { PathBuf::new() } else { PathBuf::from(format!("{}/{path}", self.path.display())) }
    }
}

/// Attributes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub ino: u64,
    pub birth: (i64, u32),
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub rdev: (u32, u32),
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

impl Stat {
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub fn is_link(&self) -> bool {
        self.mode & 0o170_000 == 0o120_000
    }
}

/// Attributes of a path, of a link itself; of the handle when the path is empty.
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

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirListing {
    pub name: String,
    pub kind: String,
    pub ino: u64,
}

/// Reads on from where the handle is; `most` names, and the position after them.
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

/// Everything in a directory, by name.
pub fn list_all(tree: &FileTree, path: &str) -> Result<Vec<DirListing>, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let dir = rustix::fs::openat(tree.root(), path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let (mut names, _) = list(dir.as_fd(), usize::MAX)?;
    names.sort();
    Ok(names)
}

/// A path below another.
pub fn join(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") }
}

/// The name of an error.
pub fn word(error: Errno) -> String {
    format!("{} ({})", error.raw_os_error(), std::io::Error::from(error))
}

/// A hash of data, and how much it is.
pub fn digest(data: &[u8]) -> String {
    format!("{} bytes {:016x}", data.len(), xxhash_rust::xxh3::xxh3_64(data))
}

/// More than this of a file is not read.
pub const READ_MAX: u64 = 16 << 20;

/// What a file holds, as a digest; where a link leads; of anything else nothing.
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
