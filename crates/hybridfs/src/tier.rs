//! One directory of the pair, and the system calls on what is below it.
//!
//! Every call names a file by an open directory and a single component, never follows a symbolic link
//! and never takes a path with a slash: nothing below a tier can lead out of it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::config::Honours;
use crate::number;
use crate::report::TierName;

/// The directory in each root that is ours; no user of the mount sees it.
pub const HIDDEN: &str = ".hotshelf";

/// What a system call said, or the errno it failed with.
pub type Result<T> = std::result::Result<T, Errno>;

/// Flags for a handle that only names a file.
pub const NAME_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is known of a file from one statx(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Backing inode number.
    pub ino: u64,
    /// Device, as `major << 32 | minor`.
    pub dev: u64,
    /// On another file system than the root of its tier (a nested mount).
    pub foreign: bool,
    /// Immutable or append-only: it can neither be changed nor removed (chattr(1)).
    pub fixed: bool,
    /// It has set-id bits or leads to a device, and its file system is mounted so that this means nothing (nosuid, nodev).
    pub powerless: bool,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Best size for I/O.
    pub blksize: u32,
    /// Device node's number, as mknod(2) takes it.
    pub rdev: u64,
    /// Last read: seconds, nanoseconds.
    pub atime: (i64, u32),
    /// Last change of the data.
    pub mtime: (i64, u32),
    /// Last change of anything.
    pub ctime: (i64, u32),
    /// Birth; zero where the file system does not tell.
    pub birth: (i64, u32),
}

impl Stat {
    /// The type bits.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// A directory?
    pub fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// A regular file?
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// A device file?
    pub fn is_device(&self) -> bool {
        matches!(self.kind(), FileType::CharacterDevice | FileType::BlockDevice)
    }

    /// Whether both were taken of one file. A file system gives the number of a removed file to a new one, but not its birth.
    pub fn is_same_file(&self, other: &Stat) -> bool {
        (self.dev, self.ino, self.birth) == (other.dev, other.ino, other.birth)
    }

    /// Whether data or attributes may differ from when `other` was taken.
    pub fn changed_since(&self, other: &Stat) -> bool {
        (self.ino, self.size, self.mtime, self.ctime) != (other.ino, other.size, other.mtime, other.ctime)
    }
}

/// Space on a tier's file system, bytes, as df(1) counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// Used plus free for everybody.
    pub capacity: u64,
    /// Used by anybody.
    pub used: u64,
    /// Free for everybody.
    pub free: u64,
    /// Free beyond that, for root only: ext4 keeps 5 % by default.
    pub reserved: u64,
}

/// One directory of the pair.
#[derive(Debug)]
pub struct Tier {
    /// Which of the two.
    pub name: TierName,
    /// As given at mount, for messages.
    pub path: PathBuf,
    /// The directory itself.
    pub root: OwnedFd,
    /// Its `.hotshelf`.
    pub hidden: OwnedFd,
    /// Its `.hotshelf/tmp`.
    pub tmp: OwnedFd,
    /// Device of the root.
    pub dev: u64,
    /// What the mount lets files do.
    pub honours: Honours,
    /// Some file here may carry a mark.
    pub marks: AtomicBool,
    seen_marks: SeenMarks,
    /// Why it is degraded for good, if it is.
    pub degraded: Mutex<Option<String>>,
    /// Its file system was read-only at the last look; that may end.
    pub read_only: AtomicBool,
}

impl Tier {
    /// Opens a directory as a tier, making `.hotshelf` and `.hotshelf/tmp` when `writable`.
    pub fn open(name: TierName, path: &Path, writable: bool) -> Result<Tier> {
        let directory = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, directory | OFlags::RDONLY, Mode::empty())?;
        let make = |at: BorrowedFd<'_>, child: &str| -> Result<OwnedFd> {
            if writable {
                match rustix::fs::mkdirat(at, child, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error),
                }
            }
            rustix::fs::openat(at, child, directory | OFlags::NOFOLLOW | OFlags::RDONLY, Mode::empty())
        };
        let hidden = make(root.as_fd(), HIDDEN)?;
        let tmp = make(hidden.as_fd(), "tmp")?;
        let mut tier = Tier {
            name,
            path: path.to_owned(),
            root,
            hidden,
            tmp,
            dev: 0,
            honours: Honours::default(),
            marks: AtomicBool::new(false),
            seen_marks: SeenMarks::new(),
            degraded: Mutex::new(None),
            read_only: AtomicBool::new(false),
        };
        tier.dev = tier.stat_fd(tier.root.as_fd())?.dev;
        Ok(tier)
    }

    fn convert(&self, st: &rustix::fs::Statx) -> Stat {
        let dev = u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor);
        let time = |t: &rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        let born = st.stx_mask & StatxFlags::BTIME.bits() != 0;
        Stat {
            ino: st.stx_ino,
            dev,
            foreign: self.dev != 0 && dev != self.dev,
            powerless: false,
            fixed: st.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
            mode: u32::from(st.stx_mode),
            nlink: st.stx_nlink,
            uid: st.stx_uid,
            gid: st.stx_gid,
            size: st.stx_size,
            blocks: st.stx_blocks,
            blksize: st.stx_blksize,
            rdev: rustix::fs::makedev(st.stx_rdev_major, st.stx_rdev_minor),
            atime: time(&st.stx_atime),
            mtime: time(&st.stx_mtime),
            ctime: time(&st.stx_ctime),
            birth: if born { time(&st.stx_btime) } else { (0, 0) },
        }
    }

    /// Attributes of `name` in `dir`.
    pub fn stat(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Stat> {
        let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let st = rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, what)?;
        let stat = self.convert(&st);
        if !self.may_be_powerless(&stat) {
            return Ok(stat);
        }
        let opened = self.open_at(dir, name, NAME_ONLY).and_then(|file| self.stat_fd(file.as_fd()));
        // Another file has the name by now: nothing is known of this one's mount.
        Ok(Stat { powerless: opened.map_or(true, |opened| opened.powerless || !opened.is_same_file(&stat)), ..stat })
    }

    /// Attributes of an open file.
    pub fn stat_fd(&self, file: BorrowedFd<'_>) -> Result<Stat> {
        let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let st = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, what)?;
        let stat = self.convert(&st);
        if !self.may_be_powerless(&stat) {
            return Ok(stat);
        }
        let (set_id, devices) = (self.gives_rights(file)?, self.gives_devices(file)?);
        Ok(Stat { powerless: if stat.is_device() { !devices } else { !set_id }, ..stat })
    }

    /// Whether it depends on the flags of its mount what the file may do. Few files have such bits.
    fn may_be_powerless(&self, stat: &Stat) -> bool {
        let honours = self.honours;
        honours.set_id && stat.is_file() && stat.mode & 0o6000 != 0 || honours.devices && stat.is_device()
    }

    /// Whether set-id bits and capabilities of a file mean something on the file system it is on, as that is mounted now.
    pub fn gives_rights(&self, file: BorrowedFd<'_>) -> Result<bool> {
        Ok(!rustix::fs::fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::NOSUID))
    }

    /// Whether device files mean something on the file system a file is on.
    pub fn gives_devices(&self, file: BorrowedFd<'_>) -> Result<bool> {
        Ok(!rustix::fs::fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::NODEV))
    }

    /// Attributes of `name` in `dir`, `None` when there is no such name.
    pub fn look(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>> {
        loop {
            match self.stat(dir, name) {
                // Removed between finding the name and looking at the file.
                Ok(stat) if stat.nlink == 0 => {}
                Ok(stat) => return Ok(Some(stat)),
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens `name` in `dir`, never through a symbolic link.
    pub fn open_at(&self, dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    }

    /// Opens the directory `name` in `dir` as a name only, good for calls relative to it.
    pub fn open_dir(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd> {
        rustix::fs::openat(dir, name, NAME_ONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens what a name-only handle names, with data access.
    pub fn reopen(&self, file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::open(proc_path(file), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    }

    /// Makes the names in `dir` durable.
    pub fn sync_dir(&self, dir: BorrowedFd<'_>) -> Result<()> {
        match rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(readable) => rustix::fs::fsync(readable),
            // An ordinary user's own directory that he may not read: everything, then.
            Err(Errno::ACCESS) => rustix::fs::syncfs(&self.root),
            Err(error) => Err(error),
        }
    }

    /// Renames within this tier.
    pub fn rename(&self, from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new_name: &OsStr, flags: RenameFlags) -> Result<()> {
        if flags.is_empty() {
            rustix::fs::renameat(from, name, to, new_name)
        } else {
            rustix::fs::renameat_with(from, name, to, new_name, flags)
        }
    }

    /// Removes a name that is no directory.
    pub fn unlink(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        rustix::fs::unlinkat(dir, name, AtFlags::empty())
    }

    /// Removes `name` only while it still is the inode `ino`.
    pub fn unlink_if(&self, dir: BorrowedFd<'_>, name: &OsStr, ino: u64) -> Result<bool> {
        match self.look(dir, name)? {
            Some(stat) if stat.ino == ino => self.unlink(dir, name).map(|()| true),
            _ => Ok(false),
        }
    }

    /// What a move has to do in a directory. Its owner may have shut himself out of it, and where we are no more than he,
    /// us too: he is let in for as long as it takes.
    pub fn as_owner<T>(&self, dir: BorrowedFd<'_>, change: impl Fn() -> Result<T>) -> Result<T> {
        let refused = match change() {
            Err(Errno::ACCESS) => Errno::ACCESS,
            other => return other,
        };
        let stat = rustix::fs::fstat(dir)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused);
        }
        let own = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let was = Mode::from_raw_mode(stat.st_mode);
        rustix::fs::chmod(&own, was | Mode::RWXU)?;
        let changed = change();
        // Unless a user set it meanwhile.
        if rustix::fs::fstat(dir)?.st_mode == stat.st_mode | Mode::RWXU.bits() {
            rustix::fs::chmod(&own, was)?;
        }
        changed
    }

    /// Space on the file system, as df(1) has it.
    pub fn space(&self) -> Result<Space> {
        let st = rustix::fs::fstatvfs(&self.root)?;
        self.note_read_only(st.f_flag.contains(StatVfsMountFlags::RDONLY));
        let used = st.f_blocks.saturating_sub(st.f_bfree) * st.f_frsize;
        let free = st.f_bavail * st.f_frsize;
        let reserved = st.f_bfree.saturating_sub(st.f_bavail) * st.f_frsize;
        Ok(Space { capacity: used + free, used, free, reserved })
    }

    /// The number a mark on `name` in `dir` gives, if there is a good one.
    pub fn mark_of(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Option<u64> {
        self.ask_mark(dir, name, stat).ok().flatten()
    }

    fn ask_mark(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Result<Option<u64>> {
        if !self.marks.load(Ordering::Relaxed) || !(stat.is_file() || stat.is_dir()) {
            return Ok(None);
        }
        let path = child_path(dir, name);
        let mut value = [0u8; 64];
        match rustix::fs::lgetxattr(&path, number::MARK_NAME, &mut value[..]) {
            Ok(len) => {
                let mark = number::read_mark(&value[..len], stat.ino);
                self.seen_marks.note(stat, mark);
                Ok(mark)
            }
            // An ordinary user's own file that he may not read; its number must not change by that.
            Err(Errno::ACCESS) => Ok(self.seen_marks.of(stat)),
            Err(error) => Err(error),
        }
    }

    /// The number users see for a file on this tier; `None`: the name is gone since it was looked at.
    pub fn number_of(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Option<u64> {
        match self.ask_mark(dir, name, stat) {
            Ok(Some(number)) => Some(number),
            // Moved away meanwhile: what it was called may have been in a mark.
            Err(Errno::NOENT) => None,
            Ok(None) | Err(_) => Some(number::natural(self.name, stat)),
        }
    }

    /// Marks an open file with the number it keeps.
    pub fn set_mark(&self, file: BorrowedFd<'_>, backing_ino: u64, presented: u64) -> Result<()> {
        let value = number::mark(backing_ino, presented);
        rustix::fs::fsetxattr(file, number::MARK_NAME, &value, rustix::fs::XattrFlags::empty())?;
        if self.seen_marks.marks.is_some() {
            self.seen_marks.note(&self.stat_fd(file)?, Some(presented));
        }
        Ok(())
    }

    /// Whether its file system is mounted read-only now.
    pub fn is_read_only(&self) -> bool {
        if let Ok(st) = rustix::fs::fstatvfs(&self.root) {
            self.note_read_only(st.f_flag.contains(StatVfsMountFlags::RDONLY));
        }
        self.read_only.load(Ordering::Relaxed)
    }

    fn note_read_only(&self, now: bool) {
        if self.read_only.swap(now, Ordering::Relaxed) != now {
            let state = if now { "read-only" } else { "writable again" };
            tracing::warn!(tier = %self.name, directory = %self.path.display(), "the file system is {state}");
        }
    }

    /// What is wrong with the tier, in a sentence.
    pub fn trouble(&self) -> Option<String> {
        let lasting = self.degraded.lock().clone();
        lasting.or_else(|| self.read_only.load(Ordering::Relaxed).then(|| self.read_only_sentence()))
    }

    /// Whether new files had better go to the other side.
    pub fn is_troubled(&self) -> bool {
        self.read_only.load(Ordering::Relaxed) || self.degraded.lock().is_some()
    }

    pub(crate) fn read_only_sentence(&self) -> String {
        format!("{} is on a read-only file system; files there cannot be changed", self.path.display())
    }

    /// Notes that the tier misbehaves, once; the first reason stays.
    pub fn degrade(&self, why: String) {
        let mut degraded = self.degraded.lock();
        if degraded.is_none() {
            tracing::error!(tier = %self.name, directory = %self.path.display(), "{why}");
            *degraded = Some(why);
        }
    }
}

/// The marks an ordinary user has read, for when he may not any more.
#[derive(Debug)]
struct SeenMarks {
    /// `None` for root, who may read all. By backing inode, with its birth.
    marks: Option<Mutex<SeenMap>>,
}

type SeenMap = hashbrown::HashMap<u64, ((i64, u32), u64)>;

impl SeenMarks {
    fn new() -> SeenMarks {
        SeenMarks { marks: (!rustix::process::geteuid().is_root()).then(Mutex::default) }
    }

    fn note(&self, stat: &Stat, mark: Option<u64>) {
        const MOST: usize = 1 << 16;
        if let (Some(marks), Some(mark)) = (&self.marks, mark) {
            let mut marks = marks.lock();
            if marks.len() >= MOST {
                marks.clear();
            }
            marks.insert(stat.ino, (stat.birth, mark));
        }
    }

    fn of(&self, stat: &Stat) -> Option<u64> {
        let marks = self.marks.as_ref()?.lock();
        marks.get(&stat.ino).filter(|(birth, _)| *birth == stat.birth).map(|(_, mark)| *mark)
    }
}

/// A path that leads to exactly the open file, for calls that take no handle.
pub fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A path that leads to `name` in the open directory.
pub fn child_path(dir: BorrowedFd<'_>, name: &OsStr) -> Vec<u8> {
    let mut path = proc_path(dir).into_bytes();
    path.push(b'/');
    path.extend_from_slice(name.as_bytes());
    path
}

/// A name as the kernel hands it over: one component, not `.` or `..`.
pub fn valid_name(name: &OsStr) -> Result<()> {
    let bytes = name.as_bytes();
    if bytes.len() > 255 {
        return Err(Errno::NAMETOOLONG);
    }
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}
