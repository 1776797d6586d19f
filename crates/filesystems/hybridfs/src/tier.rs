//! One directory of the pair, and the system calls in its tree.
//!
//! Every call names a file by an open directory and a single component, never follows a symbolic link
//! and never takes a path with a slash: nothing below a tier can lead out of it.

mod marks;

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::abilities::{Abilities, NamingMethod};
use crate::config::HonouredFeatures;
use crate::errno::Result;
use crate::hidden_dir::{OpenError, open_root, own_directory, own_key};
use crate::number::{self, NumberKey};
use crate::path::{HIDDEN, NAME_ONLY, proc_path};
use crate::report::TierName;
use crate::stat::{InodeId, Stat};
use marks::{SeenMarks, mark_name};

/// Space on a tier's file system, bytes, as df(1) counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceInfo {
    /// Used bytes plus those that ordinary users may allocate.
    pub capacity: u64,
    /// Bytes that files of all users occupy.
    pub used: u64,
    /// Free bytes that ordinary users may allocate.
    pub free: u64,
    /// Free beyond that, for root only: ext4 keeps 5 % by default.
    pub reserved: u64,
}

/// One directory of the pair.
#[derive(Debug)]
pub struct Tier {
    /// Whether this is the SSD or the HDD.
    pub name: TierName,
    /// As given at mount, for messages.
    pub path: PathBuf,
    /// The root directory of the tier.
    pub root: OwnedFd,
    /// The directory `.hotshelf` in the root.
    pub hidden: OwnedFd,
    /// The directory `.hotshelf/tmp` for unfinished copies.
    pub tmp: OwnedFd,
    /// Inode of the hidden directory.
    hidden_ino: u64,
    /// Device number of the root directory's file system.
    pub dev: u64,
    /// What the mount lets files do.
    pub honours: HonouredFeatures,
    keeps_owners: OnceLock<bool>,
    /// Some file here may carry a mark.
    pub marks: AtomicBool,
    /// The secret that makes marks unforgeable.
    key: NumberKey,
    /// The attribute that holds marks.
    mark_name: &'static str,
    seen_marks: SeenMarks,
    /// What its file system can do; not probed before the pair is locked.
    pub abilities: Abilities,
    /// Why the tier is degraded until the next mount, if it is.
    pub degraded: Mutex<Option<String>>,
    /// Its file system was read-only at the last look; that may end.
    pub read_only: AtomicBool,
}

impl Tier {
    /// Opens a directory as a tier, making `.hotshelf` and `.hotshelf/tmp` when `writable`.
    pub fn open(name: TierName, path: &Path, writable: bool) -> std::result::Result<Tier, OpenError> {
        let root = open_root(path)?;
        let hidden = own_directory(root.as_fd(), root.as_fd(), HIDDEN, writable)?;
        let key = own_key(hidden.as_fd(), writable)?;
        let tmp = own_directory(root.as_fd(), hidden.as_fd(), "tmp", writable)?;
        let mark_name = mark_name(tmp.as_fd(), writable);
        let mut tier = Tier {
            name,
            path: path.to_owned(),
            root,
            hidden,
            tmp,
            hidden_ino: 0,
            dev: 0,
            honours: HonouredFeatures::default(),
            keeps_owners: OnceLock::new(),
            marks: AtomicBool::new(false),
            key,
            mark_name,
            seen_marks: SeenMarks::new(),
            abilities: Abilities::default(),
            degraded: Mutex::new(None),
            read_only: AtomicBool::new(false),
        };
        tier.dev = tier.stat_fd(tier.root.as_fd())?.dev;
        tier.hidden_ino = tier.stat_fd(tier.hidden.as_fd())?.ino;
        Ok(tier)
    }

    fn convert(&self, st: &rustix::fs::Statx) -> Stat {
        let dev = u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor);
        let time = |t: &rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        let born = st.stx_mask & StatxFlags::BTIME.bits() != 0;
        let foreign = self.dev != 0 && dev != self.dev;
        Stat {
            ino: if foreign { number::foreign(&self.key, dev, st.stx_ino) } else { st.stx_ino },
            dev,
            foreign,
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

    /// Whether an inode number that was written down means the same file after a remount of the file system.
    pub fn keeps_inodes(&self) -> bool {
        self.abilities.stable_inodes || !self.abilities.probed
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

    /// Opens what a name-only handle names, with data access. EAGAIN: its owner has a lease on it (`F_SETLEASE` in fcntl(2)), which ends
    /// by this. To wait for that would keep a thread that serves everybody for 45 seconds, and others with the next file.
    pub fn reopen(&self, file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::open(proc_path(file), flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    }

    /// Makes the names in `dir` durable.
    pub fn sync_dir(&self, dir: BorrowedFd<'_>) -> Result<()> {
        match rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(readable) => rustix::fs::fsync(readable),
            // A user may own a directory without being allowed to read it: everything, then.
            Err(Errno::ACCESS) => rustix::fs::syncfs(&self.root),
            Err(error) => Err(error),
        }
    }

    /// Renames a file within this tier.
    pub fn rename(&self, from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new_name: &OsStr, flags: RenameFlags) -> Result<()> {
        if flags.is_empty() {
            rustix::fs::renameat(from, name, to, new_name)
        } else {
            rustix::fs::renameat_with(from, name, to, new_name, flags)
        }
    }

    /// Gives the file that is `tmp_name` in the temporary directory its name, and returns its inode by that name. Never replaces a file
    /// that another program made. `tag` names the move in a placeholder: see [`Tier::is_placeholder`].
    pub fn place(&self, (tmp_name, tmp): (&OsStr, InodeId), to: BorrowedFd<'_>, name: &OsStr, tag: u64) -> Result<InodeId> {
        match self.abilities.naming_method() {
            NamingMethod::Rename => {
                self.rename(self.tmp.as_fd(), tmp_name, to, name, RenameFlags::NOREPLACE)?;
                if self.abilities.syncs_names() && self.keeps_inodes() {
                    return Ok(tmp);
                }
            }
            NamingMethod::Link => match rustix::fs::linkat(&self.tmp, tmp_name, to, name, AtFlags::empty()) {
                // The kernel refuses links to files of others (fs.protected_hardlinks), and some servers links to what is no regular file.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => self.place_by_placeholder(tmp_name, to, name, tag)?,
                linked => {
                    linked?;
                    crate::crash::point("placed by a link");
                    if let Err(error) = self.unlink(self.tmp.as_fd(), tmp_name) {
                        // The file is where it belongs; the next mount removes its other name.
                        tracing::warn!(tier = %self.name, %error, "a temporary name could not be removed");
                    }
                }
            },
            NamingMethod::Placeholder => self.place_by_placeholder(tmp_name, to, name, tag)?,
        }
        let placed = self.placed(to, name);
        // An error must mean that the name is not given.
        placed.inspect_err(|_| {
            let _ = self.unlink(to, name);
        })
    }

    /// Reserves the name with a placeholder, which the file in the temporary directory then replaces.
    fn place_by_placeholder(&self, tmp_name: &OsStr, to: BorrowedFd<'_>, name: &OsStr, tag: u64) -> Result<()> {
        if self.name == TierName::Ssd {
            // Users would see the placeholder instead of the file.
            return Err(Errno::OPNOTSUPP);
        }
        self.reserve(to, name, tag)?;
        crate::crash::point("placeholder made");
        if !self.is_placeholder(to, name, tag)? {
            return Err(Errno::EXIST);
        }
        self.rename(self.tmp.as_fd(), tmp_name, to, name, RenameFlags::empty())
    }

    /// Makes a copy's new name durable where fsync(2) of the directory may not, and returns the inode that it has by it.
    fn placed(&self, to: BorrowedFd<'_>, name: &OsStr) -> Result<InodeId> {
        self.sync_file_for_name(to, name)?;
        // Asked of the file system, not of what the kernel remembers: a client would go on showing the link that is gone.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        rustix::fs::statx(to, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME).map(|stat| self.convert(&stat).id())
    }

    /// Makes the name of a regular file durable, also where fsync(2) of its directory may do nothing.
    pub fn sync_name(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        self.sync_file_for_name(dir, name)?;
        self.sync_dir(dir)
    }

    /// A flush of a file carries its name.
    fn sync_file_for_name(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        if self.abilities.syncs_names() || !self.look(dir, name)?.is_some_and(|stat| stat.is_file()) {
            return Ok(());
        }
        match self.open_at(dir, name, OFlags::RDONLY | OFlags::NONBLOCK) {
            // An ordinary user's file that may not be read.
            Err(Errno::ACCESS) => Ok(()),
            file => rustix::fs::fsync(file?),
        }
    }

    /// Whether a client program or server renames a file that is removed while it is open, instead of removing it.
    pub fn hides_open_files(&self) -> bool {
        self.abilities.file_system.starts_with("fuse") || self.abilities.file_system.starts_with("nfs")
    }

    /// Gives the directory `tmp_name` in the temporary directory its name. What is there already makes it fail, but for an empty
    /// directory where the file system cannot refuse that.
    pub fn place_dir(&self, tmp_name: &OsStr, to: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        let flags = if self.abilities.naming_method() == NamingMethod::Rename { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        self.rename(self.tmp.as_fd(), tmp_name, to, name, flags)
    }

    /// Makes a file that keeps a name for a move.
    fn reserve(&self, dir: BorrowedFd<'_>, name: &OsStr, tag: u64) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        let text = placeholder(tag);
        let written = rustix::io::write(&file, text.as_bytes()).and_then(|n| if n == text.len() { Ok(()) } else { Err(Errno::IO) });
        written.and_then(|()| rustix::fs::fsync(&file)).inspect_err(|_| {
            let _ = self.unlink(dir, name);
        })
    }

    /// Whether a name is the placeholder of the move `tag`, by its content.
    pub fn is_placeholder(&self, dir: BorrowedFd<'_>, name: &OsStr, tag: u64) -> Result<bool> {
        let text = placeholder(tag);
        let Some(stat) = self.look(dir, name)? else { return Ok(false) };
        if !stat.is_file() || stat.size != text.len() as u64 {
            return Ok(false);
        }
        let file = self.open_at(dir, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut read = [0u8; 64];
        let n = rustix::io::pread(&file, &mut read[..], 0)?;
        Ok(read[..n] == *text.as_bytes())
    }

    /// Removes a name that is no directory.
    pub fn unlink(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        rustix::fs::unlinkat(dir, name, AtFlags::empty())
    }

    /// Removes `name` only while it still is this inode.
    pub fn unlink_if(&self, dir: BorrowedFd<'_>, name: &OsStr, id: InodeId) -> Result<bool> {
        match self.look(dir, name)? {
            Some(stat) if id.is(&stat) => self.unlink(dir, name).map(|()| true),
            _ => Ok(false),
        }
    }

    /// What a move has to do in a directory. The mode may lock out the owner, and also the daemon if it runs as the owner:
    /// then the owner gets access for the duration of the call.
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
    pub fn space(&self) -> Result<SpaceInfo> {
        let st = rustix::fs::fstatvfs(&self.root)?;
        self.note_read_only(st.f_flag.contains(StatVfsMountFlags::RDONLY));
        let used = st.f_blocks.saturating_sub(st.f_bfree) * st.f_frsize;
        let free = st.f_bavail * st.f_frsize;
        let reserved = st.f_bfree.saturating_sub(st.f_bavail) * st.f_frsize;
        Ok(SpaceInfo { capacity: used + free, used, free, reserved })
    }

    /// The secret of this side.
    pub(crate) fn key(&self) -> NumberKey {
        self.key
    }

    /// Whether files here have owners of their own: not on vfat, say. Only for root to ask.
    pub fn keeps_owners(&self) -> bool {
        *self.keeps_owners.get_or_init(|| {
            let name = format!("owners.{}", rustix::process::getpid());
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(file) = rustix::fs::openat(&self.tmp, &*name, flags, Mode::RUSR | Mode::WUSR) else { return true };
            let nobody = rustix::fs::Uid::from_raw(65534);
            let kept = rustix::fs::fchown(&file, Some(nobody), None).and_then(|()| rustix::fs::fstat(&file));
            let _ = rustix::fs::unlinkat(&self.tmp, &*name, AtFlags::empty());
            kept.is_ok_and(|stat| stat.st_uid == 65534)
        })
    }

    /// Whether its file system is mounted read-only now.
    pub fn is_read_only(&self) -> bool {
        if let Ok(st) = rustix::fs::fstatvfs(&self.root) {
            self.note_read_only(st.f_flag.contains(StatVfsMountFlags::RDONLY));
        }
        self.read_only.load(Ordering::Relaxed)
    }

    /// Whether this is the hidden directory, whatever its name.
    pub fn is_hidden(&self, stat: &Stat) -> bool {
        stat.is_dir() && stat.ino == self.hidden_ino
    }

    /// Whether another file system is mounted on a name, as far as the kernel knows without asking that.
    pub fn is_mounted_on(&self, dir: BorrowedFd<'_>, name: &OsStr) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let st = rustix::fs::statx(dir, name, flags, StatxFlags::TYPE);
        st.is_ok_and(|st| self.convert(&st).foreign)
    }

    /// Whether the side works: a file can be made in it, or where that may not be tried, it can be looked at.
    pub fn takes_files(&self, may_write: bool) -> bool {
        if !may_write {
            return rustix::fs::fstatvfs(&self.root).is_ok_and(|st| !st.f_flag.contains(StatVfsMountFlags::RDONLY));
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.tmp, "works", flags, Mode::RUSR | Mode::WUSR);
        made.is_ok_and(|_| matches!(self.unlink(self.tmp.as_fd(), OsStr::new("works")), Ok(()) | Err(Errno::NOENT)))
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

    /// Records that the tier misbehaves, once; the first reason stays.
    pub fn degrade(&self, why: String) {
        let mut degraded = self.degraded.lock();
        if degraded.is_none() {
            tracing::error!(tier = %self.name, directory = %self.path.display(), "{why}");
            *degraded = Some(why);
        }
    }
}

/// What a placeholder holds: nobody makes such a file by chance.
fn placeholder(tag: u64) -> String {
    format!("hotshelf placeholder {tag:016x}\n")
}
