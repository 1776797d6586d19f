//! What a side's file system can do.
//!
//! "NAS" and "network file system" promise little: some refuse a rename that must not replace, some keep no owner or attributes,
//! some make inode numbers up. Each side is probed once, at mount, in its temporary directory; the rest of the crate uses what is
//! there and falls back to something safe. `status` and `doctor` print the result.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::errno::Result;
use crate::path::NAME_ONLY;

/// What a directory's file system can do, as found by trying.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Abilities {
    /// Type of the file system: `ext4`, `nfs4`, `fuse.sshfs`.
    pub file_system: String,
    /// Whether it was probed; a read-only side is not.
    pub probed: bool,
    /// Whether renameat2(2) with RENAME_NOREPLACE works.
    pub rename_noreplace: bool,
    /// Whether renameat2(2) with RENAME_EXCHANGE works.
    pub rename_exchange: bool,
    /// Whether link(2) makes hard links.
    pub hard_links: bool,
    /// Whether symlink(2) makes symbolic links.
    pub symlinks: bool,
    /// Whether mknod(2) makes named pipes.
    pub pipes: bool,
    /// mknod(2) of a device; `false` also where only root may.
    pub devices: bool,
    /// Whether open(2) with O_TMPFILE works.
    pub unnamed_files: bool,
    /// Whether extended attributes `user.*` can be stored.
    pub user_attributes: bool,
    /// Whether extended attributes `trusted.*` can be stored; `false` also if that needs privileges that the process lacks.
    pub trusted_attributes: bool,
    /// Whether POSIX access control lists are kept.
    pub acls: bool,
    /// Files can be given to another owner; `false` also where only root may.
    pub owners: bool,
    /// Files keep the permission bits they are given.
    pub modes: bool,
    /// Names may hold every character that Linux allows.
    pub any_name: bool,
    /// Two names that differ in case are two files.
    pub case_sensitive: bool,
    /// Parts of a file that were never written take no room.
    pub holes: bool,
    /// Whether fallocate(2) reserves space for a file.
    pub preallocation: bool,
    /// Whether fallocate(2) with FALLOC_FL_PUNCH_HOLE works.
    pub punch_hole: bool,
    /// lseek(2) with SEEK_HOLE finds holes.
    pub seek_hole: bool,
    /// Whether open(2) with O_DIRECT works.
    pub direct_io: bool,
    /// fsync(2) of a directory. FUSE file systems answer 0 also where they do nothing: see [`Abilities::syncs_names`].
    pub directory_sync: bool,
    /// Whether flock(2) locks a file.
    pub file_locks: bool,
    /// Inode numbers are the file system's own, the same after a remount.
    pub stable_inodes: bool,
    /// Files have a time of birth.
    pub birth_times: bool,
    /// Finest step of the time of last modification, nanoseconds.
    pub time_step_ns: u64,
    /// Largest file, bytes, as far as it is less than 8 TiB.
    pub largest_file_bytes: Option<u64>,
}

/// What a move can rely on when it gives a copy its name without replacing another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingMethod {
    /// One rename that refuses to replace.
    Rename,
    /// A hard link, which refuses to replace, then the temporary name is removed.
    Link,
    /// A file made exclusively keeps the name, until the copy is renamed over it.
    Placeholder,
}

impl Abilities {
    /// Returns how a copy gets its name.
    pub fn naming_method(&self) -> NamingMethod {
        match (self.rename_noreplace || !self.probed, self.hard_links) {
            (true, _) => NamingMethod::Rename,
            (false, true) => NamingMethod::Link,
            (false, false) => NamingMethod::Placeholder,
        }
    }

    /// Whether every file of an ordinary Linux file system fits with its name and all attributes. A side that was not probed is
    /// taken for one that does: what it refuses is an error then.
    pub fn keeps_all(&self) -> bool {
        let kept = self.user_attributes && self.acls && self.modes && self.any_name && self.case_sensitive;
        !self.probed || (kept && self.largest_file_bytes.is_none() && (self.owners || !rustix::process::geteuid().is_root()))
    }

    /// Whether a file of every kind and name can be made here.
    pub fn takes_all(&self) -> bool {
        !self.probed || (self.any_name && self.symlinks && self.pipes && (self.devices || !rustix::process::geteuid().is_root()))
    }

    /// Whether fsync(2) of a directory is known to make its names durable. Through FUSE it answers 0 even if nothing was done.
    pub fn syncs_names(&self) -> bool {
        !self.probed || (self.directory_sync && !self.file_system.starts_with("fuse"))
    }

    /// Returns sentences on what is missing and what is done instead, for `status` and `doctor`.
    pub fn limits(&self) -> Vec<String> {
        if !self.probed {
            return Vec::new();
        }
        let mut limits = Vec::new();
        let mut say = |missing: bool, sentence: &str| {
            if missing {
                limits.push(sentence.to_owned());
            }
        };
        match self.naming_method() {
            NamingMethod::Rename => {}
            NamingMethod::Link => say(true, "no rename without replacing: moves use a hard link instead"),
            NamingMethod::Placeholder => {
                say(true, "no rename without replacing and no hard links: moves reserve the name with a placeholder")
            }
        }
        say(!self.rename_exchange, "no exchange of two names (RENAME_EXCHANGE)");
        say(!self.hard_links, "no hard links");
        say(!self.symlinks, "no symbolic links: they are made on the other side");
        say(!self.pipes, "no pipes and sockets: they are made on the other side");
        let root = rustix::process::geteuid().is_root();
        say(!self.devices && root, "no device nodes: they are made on the other side");
        say(!self.unnamed_files, "no unnamed files (O_TMPFILE)");
        say(!self.user_attributes, "no extended attributes: files that have some stay on the other side; inode numbers change with a move");
        say(!self.acls, "no access control lists: files that have one stay on the other side");
        say(!self.owners && root, "no owners: files of other users stay on the other side");
        say(!self.modes, "not all permissions are kept: files that need others stay on the other side");
        say(!self.any_name, "not all characters are allowed in names: files with others stay on the other side");
        say(!self.case_sensitive, "names that differ only in case are the same file");
        say(!self.holes, "no holes: sparse files take their full size");
        say(!self.preallocation, "no preallocation (fallocate): programs get EOPNOTSUPP");
        say(!self.punch_hole, "no punching of holes (FALLOC_FL_PUNCH_HOLE): programs get EOPNOTSUPP");
        say(!self.direct_io, "no O_DIRECT");
        say(!self.syncs_names(), "fsync of directories may do nothing: files are flushed again after they got their name");
        say(!self.stable_inodes, "inode numbers are not permanent: after a crash, copies are recognized by size and time, or content");
        say(!self.file_locks, "no locks: do not use the directory from two machines");
        if self.time_step_ns > 1 {
            let step = match self.time_step_ns {
                ns if ns < 1000 => format!("{ns} ns"),
                ns if ns < 1_000_000 => format!("{} us", ns.div_ceil(1000)),
                ns => format!("{} ms", ns.div_ceil(1_000_000)),
            };
            say(true, &format!("times are kept in steps of {step}"));
        }
        if let Some(bytes) = self.largest_file_bytes {
            say(true, &format!("files are limited to {} MiB: larger ones stay on the other side", bytes >> 20));
        }
        limits
    }

    /// Probes the file system that the empty or shared directory `dir` is on. Whatever it makes there, it removes. `None` if nothing
    /// can be made.
    pub fn probe(dir: BorrowedFd<'_>) -> Option<Abilities> {
        let probe = AbilityProbe::begin(dir).ok()?;
        let abilities = probe.run();
        probe.clean_up();
        Some(abilities)
    }
}

/// File systems by their statfs(2) magic.
const NAMES: [(i64, &str); 22] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlayfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0xca45_1a4e, "bcachefs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x517b, "smb"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0x7366_746e, "ntfs3"),
    (0x5346_544e, "ntfs"),
    (0x482b, "hfsplus"),
    (0x5346_414f, "afs"),
    (0x4750_4653, "gpfs"),
    (0x0bd0_0bd0, "lustre"),
];

const FUSE_MAGIC: i64 = 0x6573_5546;

/// The type of the file system an open file is on.
fn file_system_of(file: BorrowedFd<'_>) -> String {
    let Ok(stat) = rustix::fs::fstatfs(file) else { return "unknown".into() };
    // Some architectures' field is narrower, and signed.
    let magic = i128::from(stat.f_type) as i64 & 0xffff_ffff;
    if magic == FUSE_MAGIC {
        return fuse_type(file).unwrap_or_else(|| "fuse".into());
    }
    NAMES.iter().find(|(known, _)| *known == magic).map_or_else(|| format!("type {magic:#x}"), |(_, name)| (*name).into())
}

/// FUSE file systems have their own type in the list of mounts only.
fn fuse_type(file: BorrowedFd<'_>) -> Option<String> {
    let stat = rustix::fs::fstat(file).ok()?;
    let device = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    let kind = line.split(" - ").nth(1)?.split(' ').next()?;
    kind.starts_with("fuse").then(|| kind.to_owned())
}

/// A temporary directory in which abilities are tried.
struct AbilityProbe<'a> {
    parent: BorrowedFd<'a>,
    name: String,
    dir: OwnedFd,
}

impl<'a> AbilityProbe<'a> {
    fn begin(parent: BorrowedFd<'a>) -> Result<AbilityProbe<'a>> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("probe-{}-{count}", std::process::id());
        rustix::fs::mkdirat(parent, &*name, Mode::RWXU)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(parent, &*name, flags, Mode::empty()) {
            Ok(dir) => Ok(AbilityProbe { parent, name, dir }),
            Err(error) => {
                let _ = rustix::fs::unlinkat(parent, &*name, AtFlags::REMOVEDIR);
                Err(error)
            }
        }
    }

    fn clean_up(self) {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let _ = crate::read_dir::read_names(self.dir.as_fd(), &mut |name, _| names.push(name.into()));
        for name in names {
            use std::os::unix::ffi::OsStrExt;
            let _ = rustix::fs::unlinkat(&self.dir, OsStr::from_bytes(&name), AtFlags::empty());
        }
        let _ = rustix::fs::unlinkat(self.parent, &*self.name, AtFlags::REMOVEDIR);
    }

    fn make(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)
    }

    fn there(&self, name: &str) -> bool {
        rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn run(&self) -> Abilities {
        let dir = self.dir.as_fd();
        let mut found = Abilities { file_system: file_system_of(dir), probed: true, ..Abilities::default() };
        self.names(&mut found);
        if let Ok(file) = self.make("file") {
            self.attributes(&mut found, file.as_fd());
            self.data(&mut found, file.as_fd());
        }
        let unnamed = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        found.unnamed_files = rustix::fs::openat(dir, c".", unnamed, Mode::RUSR | Mode::WUSR).is_ok();
        found.directory_sync = rustix::fs::fsync(dir).is_ok();
        found
    }

    fn names(&self, found: &mut Abilities) {
        let dir = self.dir.as_fd();
        let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(dir, from, dir, to, flags).is_ok();
        let made = self.make("a").is_ok() && self.make("b").is_ok();
        // A server that ignores the flag would replace: both must hold.
        let moved = made && rename("a", "c", RenameFlags::NOREPLACE) && self.there("c");
        let refused = moved && !rename("c", "b", RenameFlags::NOREPLACE) && self.there("c");
        found.rename_noreplace = moved && refused;
        let inode = |name: &str| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_ino);
        let _ = (self.make("x"), self.make("y"));
        found.rename_exchange = match (inode("x"), inode("y"), rename("x", "y", RenameFlags::EXCHANGE)) {
            (Ok(x), Ok(y), true) => inode("x") == Ok(y) && inode("y") == Ok(x),
            _ => false,
        };
        found.hard_links = rustix::fs::linkat(dir, "x", dir, "link", AtFlags::empty()).is_ok();
        // Where numbers are made up, each name has its own.
        found.stable_inodes = found.hard_links && inode("x").is_ok() && inode("x") == inode("link");
        found.symlinks = rustix::fs::symlinkat("nowhere", dir, "symlink").is_ok();
        found.pipes = rustix::fs::mknodat(dir, "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).is_ok();
        let null = rustix::fs::makedev(1, 3);
        found.devices = rustix::fs::mknodat(dir, "device", FileType::CharacterDevice, Mode::RUSR, null).is_ok();
        let odd = ["all:of<these>are|allowed?*\"", "back\\slash", "ends with a dot.", "ends with a blank ", "control\u{1}"];
        found.any_name = odd.iter().all(|name| self.make(name).is_ok() && self.there(name));
        let long = "l".repeat(255);
        found.any_name &= self.make(&long).is_ok();
        found.case_sensitive = self.make("Case").is_ok() && !self.there("cASE");
    }

    fn attributes(&self, found: &mut Abilities, file: BorrowedFd<'_>) {
        let kept = |name: &str, value: &[u8]| {
            let mut read = [0u8; 64];
            let set = rustix::fs::fsetxattr(file, name, value, XattrFlags::empty());
            set.is_ok() && rustix::fs::fgetxattr(file, name, &mut read[..]) == Ok(value.len())
        };
        found.user_attributes = kept("user.hotshelf.probe", b"x");
        found.trusted_attributes = kept("trusted.hotshelf.probe", b"x");
        found.acls = kept("system.posix_acl_access", &probe_acl());
        let stat = || rustix::fs::fstat(file);
        let modes = [0o600, 0o644, 0o755, 0o640, 0o440];
        found.modes = modes.iter().all(|mode| {
            let set = rustix::fs::fchmod(file, Mode::from_raw_mode(*mode));
            set.is_ok() && stat().is_ok_and(|stat| stat.st_mode & 0o7777 == *mode)
        });
        let _ = rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR);
        let (uid, gid) = (Uid::from_raw(54_321), Gid::from_raw(54_322));
        let given = rustix::fs::fchown(file, Some(uid), Some(gid));
        found.owners = given.is_ok() && stat().is_ok_and(|stat| (stat.st_uid, stat.st_gid) == (54_321, 54_322));
        found.time_step_ns = self.time_step(file);
        let born = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        found.birth_times = born.is_ok_and(|st| st.stx_mask & StatxFlags::BTIME.bits() != 0);
    }

    /// Sets a time with all digits and sees which are kept.
    fn time_step(&self, file: BorrowedFd<'_>) -> u64 {
        let wanted = Timespec { tv_sec: 1_234_567_891, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: wanted, last_modification: wanted };
        // Checked by name: some clients answer from their cache while the file is open.
        let kept = rustix::fs::futimens(file, &times).and_then(|()| {
            let again = rustix::fs::openat(&self.dir, "file", NAME_ONLY, Mode::empty())?;
            rustix::fs::fstat(&again)
        });
        let Ok(stat) = kept else { return 2_000_000_000 };
        let (seconds, nanoseconds) = (stat.st_mtime, stat.st_mtime_nsec);
        match (seconds == wanted.tv_sec, nanoseconds) {
            (true, 123_456_789) => 1,
            (true, 0) => 1_000_000_000,
            (true, part) => [100, 1000, 1_000_000, 10_000_000].into_iter().find(|step| part + step > 123_456_789).unwrap_or(100_000_000),
            (false, _) => 2_000_000_000,
        }
    }

    fn data(&self, found: &mut Abilities, file: BorrowedFd<'_>) {
        const FAR: u64 = 256 << 10;
        let blocks = || rustix::fs::fstat(file).map_or(u64::MAX, |stat| stat.st_blocks as u64 * 512);
        let wrote = rustix::io::pwrite(file, &[1u8; 4096], FAR) == Ok(4096);
        found.seek_hole = wrote && matches!(rustix::fs::seek(file, SeekFrom::Data(0)), Ok(at) if at > 0);
        let _ = rustix::fs::fdatasync(file);
        found.holes = wrote && blocks() < FAR;
        found.preallocation = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 8192).is_ok();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        found.punch_hole = rustix::fs::fallocate(file, punch, 0, 4096).is_ok();
        let direct = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        found.direct_io = rustix::fs::openat(&self.dir, "file", direct, Mode::empty()).is_ok();
        found.file_locks = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Where there are no holes a long file would be written to the end: its kind tells.
        found.largest_file_bytes = match (found.holes, &*found.file_system) {
            (_, "vfat") => Some((4 << 30) - 1),
            (true, _) => [(4u64 << 30) - 1, (2 << 40) - 1, 8 << 40]
                .into_iter()
                .rev()
                .find_map(|size| match self.grows_to(file, size) {
                    true => Some((size < 8 << 40).then_some(size)),
                    false => None,
                })
                .unwrap_or(Some(i32::MAX as u64)),
            (false, _) => None,
        };
        let _ = rustix::fs::ftruncate(file, 0);
    }

    fn grows_to(&self, file: BorrowedFd<'_>, size: u64) -> bool {
        rustix::fs::ftruncate(file, size) != Err(Errno::FBIG)
    }
}

/// An access control list with one entry for another user, as setxattr(2) takes it.
fn probe_acl() -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    let nobody = 65_534u32;
    for (tag, permissions, id) in [(1u16, 6u16, u32::MAX), (2, 4, nobody), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_probe_leaves_nothing_behind_and_finds_what_linux_file_systems_have() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = std::fs::File::open(dir.path()).expect("opened");
        let found = Abilities::probe(open.as_fd()).expect("probed");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
        assert!(found.hard_links && found.symlinks && found.pipes && found.stable_inodes && found.any_name, "{found:?}");
        assert!(found.case_sensitive && found.modes, "{found:?}");
    }

    /// Everything that programs or moves may miss, and the words that say it.
    // long: a table of abilities and their sentences.
    #[test]
    fn every_missing_ability_is_said() {
        let all = Abilities {
            file_system: "ext4".into(),
            probed: true,
            rename_noreplace: true,
            rename_exchange: true,
            hard_links: true,
            symlinks: true,
            pipes: true,
            devices: true,
            unnamed_files: true,
            user_attributes: true,
            trusted_attributes: true,
            acls: true,
            owners: true,
            modes: true,
            any_name: true,
            case_sensitive: true,
            holes: true,
            preallocation: true,
            punch_hole: true,
            seek_hole: true,
            direct_io: true,
            directory_sync: true,
            file_locks: true,
            stable_inodes: true,
            birth_times: true,
            time_step_ns: 1,
            largest_file_bytes: None,
        };
        assert_eq!(all.limits(), Vec::<String>::new());
        type Lose = fn(&mut Abilities);
        let lacks: [(Lose, &str); 17] = [
            (|a| a.rename_noreplace = false, "no rename without replacing"),
            (|a| a.rename_exchange = false, "RENAME_EXCHANGE"),
            (|a| a.hard_links = false, "no hard links"),
            (|a| a.symlinks = false, "no symbolic links"),
            (|a| a.pipes = false, "no pipes"),
            (|a| a.unnamed_files = false, "O_TMPFILE"),
            (|a| a.user_attributes = false, "no extended attributes"),
            (|a| a.acls = false, "no access control lists"),
            (|a| a.modes = false, "not all permissions"),
            (|a| a.any_name = false, "not all characters"),
            (|a| a.case_sensitive = false, "names that differ only in case"),
            (|a| a.preallocation = false, "fallocate"),
            (|a| a.punch_hole = false, "FALLOC_FL_PUNCH_HOLE"),
            (|a| a.direct_io = false, "no O_DIRECT"),
            (|a| a.directory_sync = false, "fsync of directories"),
            (|a| a.file_locks = false, "no locks"),
            (|a| a.time_step_ns = 2_000_000_000, "steps of 2000 ms"),
        ];
        for (lose, words) in lacks {
            let mut less = all.clone();
            lose(&mut less);
            let limits = less.limits();
            assert!(limits.iter().any(|limit| limit.contains(words)), "{words}: {limits:?}");
        }
        if rustix::process::geteuid().is_root() {
            let less = Abilities { devices: false, owners: false, ..all };
            assert!(less.limits().iter().any(|limit| limit.contains("no device nodes")), "{:?}", less.limits());
            assert!(less.limits().iter().any(|limit| limit.contains("no owners")), "{:?}", less.limits());
        }
    }

    #[test]
    fn what_is_missing_decides_how_names_are_given() {
        let all = Abilities { probed: true, rename_noreplace: true, hard_links: true, ..Abilities::default() };
        assert_eq!(all.naming_method(), NamingMethod::Rename);
        assert_eq!(Abilities { rename_noreplace: false, ..all.clone() }.naming_method(), NamingMethod::Link);
        let none = Abilities { rename_noreplace: false, hard_links: false, ..all };
        assert_eq!(none.naming_method(), NamingMethod::Placeholder);
        assert_eq!(Abilities::default().naming_method(), NamingMethod::Rename);
        assert!(none.limits().iter().any(|limit| limit.contains("placeholder")), "{:?}", none.limits());
    }
}
