//! The files of an instance: `NAME.segment`, `NAME.lock` and the socket `NAME.queues`, in a directory of the user or of the group.
//!
//! That directory is in one that every user may write to, so it is checked before use: no symbolic link, owned by the user, closed to
//! others. A process that creates, opens or removes a segment locks `NAME.making` (flock(2)) meanwhile, so that two processes that start
//! at the same time share one segment.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, fchmod, fchown, flock, fstat, mkdirat, openat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use shm::{FileAccess, ProcessSlots};

use crate::config::Config;
use crate::error::{Error, Kind};

/// The paths of an instance's files.
#[derive(Clone, Debug)]
pub struct InstancePaths {
    /// The directory of the files.
    pub dir: PathBuf,
    /// The path of the shared-memory segment.
    pub segment: PathBuf,
    /// The lock file: opened by a process once, see `shm::ProcessSlots`.
    pub locks: PathBuf,
    /// Locked while a process creates or removes the segment.
    pub making: PathBuf,
    /// The socket on which the leader hands out queues of a user-space NVMe drive (`user_space_nvme.rs`).
    pub queues: PathBuf,
    /// The users that share them.
    pub sharing: FileAccess,
}

/// Keeps other processes from creating or removing the segment until it is dropped.
#[derive(Debug)]
pub struct InstanceLock {
    _file: OwnedFd,
}

/// How long creating or removing a segment may take.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of trying the lock.
const RETRY_PERIOD: Duration = Duration::from_millis(2);

impl InstancePaths {
    /// Returns the paths for a configuration. Creates nothing.
    ///
    /// # Errors
    /// There is no such group.
    pub fn of(config: &Config) -> Result<InstancePaths, Error> {
        let group = config.group.as_deref().map(group_of).transpose()?;
        let dir = match group {
            None => format!("hotshelf-{}", geteuid().as_raw()),
            Some(group) => format!("hotshelf-g{group}"),
        };
        let dir = config.runtime_dir.join(dir);
        let permissions = config.permissions.unwrap_or(if group.is_some() { 0o660 } else { 0o600 });
        let file = |ending: &str| dir.join(format!("{}.{ending}", config.name));
        Ok(InstancePaths {
            segment: file("segment"),
            locks: file("lock"),
            making: file("making"),
            queues: file("queues"),
            sharing: FileAccess { permissions, group },
            dir,
        })
    }

    /// Creates and checks the directory, and takes the lock for creating or removing the segment.
    ///
    /// # Errors
    /// [`Kind::Segment`]: the directory fails the checks. [`Kind::Full`], EBUSY: another process holds the lock too long.
    pub fn hold(&self) -> Result<InstanceLock, Error> {
        self.ensure()?;
        let begun = Instant::now();
        loop {
            let file = ProcessSlots::open_lock_file(&self.making, self.sharing)
                .map_err(|why| Error::new(Kind::Segment, Errno::PERM, format!("{}: {why}: remove it", self.making.display())))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Not one that was removed before we had it.
                Ok(()) if self.is_named(&file) => return Ok(InstanceLock { _file: file }),
                Ok(()) | Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCK_TIMEOUT => std::thread::sleep(RETRY_PERIOD),
                Err(Errno::WOULDBLOCK) => {
                    let holder = crate::image::holder(&file.into()).map_or("a process".to_owned(), |pid| format!("process {pid}"));
                    let what = format!("{}: {holder} has been making or removing this cache for {LOCK_TIMEOUT:?}", self.segment.display());
                    return Err(Error::new(Kind::Full, Errno::BUSY, what));
                }
                Err(errno) => return Err(self.failed(errno, "locking the making of the shared memory")),
            }
        }
    }

    /// Creates the directory if it does not exist, and checks it.
    ///
    /// # Errors
    /// [`Kind::Segment`]: the directory is not what it should be.
    pub fn ensure(&self) -> Result<(), Error> {
        if self.open()?.is_none() {
            self.make()?;
            self.open()?;
        }
        Ok(())
    }

    fn is_named(&self, file: &OwnedFd) -> bool {
        let named = rustix::fs::statat(CWD, &self.making, AtFlags::SYMLINK_NOFOLLOW);
        matches!((named, fstat(file)), (Ok(named), Ok(held)) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino))
    }

    /// Removes the segment. The caller holds the lock.
    pub fn remove(&self, _held: &InstanceLock) -> Result<(), Error> {
        for path in [&self.segment, &self.locks, &self.queues, &self.making] {
            match rustix::fs::unlink(path.as_path()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::system(errno, "removing the shared memory", &path.as_path().into())),
            }
        }
        Ok(())
    }

    /// Under another name first, so that no process sees it before it belongs to the group.
    fn make(&self) -> Result<(), Error> {
        let Some(group) = self.sharing.group else {
            return match mkdirat(CWD, &self.dir, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(self.failed(errno, "making the directory of the shared memory")),
            };
        };
        let unfinished = self.dir.with_extension(std::process::id().to_string());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = mkdirat(CWD, &unfinished, Mode::RWXU)
            .and_then(|()| openat(CWD, &unfinished, flags, Mode::empty()))
            .and_then(|dir| fchown(&dir, None, Some(Gid::from_raw(group))).and_then(|()| fchmod(&dir, Mode::from_raw_mode(0o770))))
            .and_then(|()| match renameat_with(CWD, &unfinished, CWD, &self.dir, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => unlinkat(CWD, &unfinished, AtFlags::REMOVEDIR),
                renamed => renamed,
            });
        made.map_err(|errno| {
            let _ = unlinkat(CWD, &unfinished, AtFlags::REMOVEDIR);
            self.failed(errno, "making the directory of the shared memory for its group")
        })
    }

    /// Opens the directory, if it exists, and checks it.
    ///
    /// # Errors
    /// As `hold`.
    pub fn open(&self) -> Result<Option<OwnedFd>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match openat(CWD, &self.dir, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(self.refused("is no directory: remove it")),
            Err(errno) => return Err(self.failed(errno, "opening the directory of the shared memory")),
        };
        let stat = fstat(&dir).map_err(|errno| self.failed(errno, "looking at the directory of the shared memory"))?;
        let (owner, bits) = (stat.st_uid, stat.st_mode & 0o777);
        match self.sharing.group {
            None if owner != geteuid().as_raw() => {
                Err(self.refused(&format!("belongs to user {owner}: remove it, or say another runtime_dir")))
            }
            None if bits & 0o077 != 0 => Err(self.refused("is open to others: chmod 700 it, or remove it")),
            Some(group) if stat.st_gid != group => Err(self.refused(&format!("does not belong to group {group}: chgrp it, or remove it"))),
            Some(_) if bits & 0o007 != 0 => Err(self.refused("is open to everybody: chmod 770 it, or remove it")),
            _ if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => Err(self.refused("is no directory: remove it")),
            _ => Ok(Some(dir)),
        }
    }

    fn failed(&self, errno: Errno, doing: &'static str) -> Error {
        Error::system(errno, doing, &self.dir.as_path().into())
    }

    fn refused(&self, why: &str) -> Error {
        Error::new(Kind::Segment, Errno::PERM, format!("{}: the directory of the shared memory {why}", self.dir.display()))
    }
}

/// A group's number, from its number or its name.
fn group_of(name: &str) -> Result<u32, Error> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string(Path::new("/etc/group")).unwrap_or_default();
    let find = |line: &str| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    };
    groups.lines().find_map(find).ok_or_else(|| Error::invalid(format!("[cache] group: there is no group `{name}`; say its number")))
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(dir: &Path) -> Config {
        Config { runtime_dir: dir.to_owned(), ..Config::default() }
    }

    #[test]
    fn the_directory_is_ours_alone_or_it_is_refused() {
        let tmp = tempfile::tempdir().expect("a directory");
        let place = InstancePaths::of(&config(tmp.path())).expect("a place");
        drop(place.hold().expect("made"));
        assert_eq!(std::fs::metadata(&place.dir).expect("there").permissions().mode() & 0o777, 0o700);
        std::fs::set_permissions(&place.dir, PermissionsExt::from_mode(0o755)).expect("changed");
        assert!(place.hold().expect_err("open to others").to_string().contains("chmod 700"));
        std::fs::remove_dir_all(&place.dir).expect("removed");
        std::os::unix::fs::symlink(tmp.path(), &place.dir).expect("a link");
        assert_eq!(place.hold().expect_err("a link").kind(), Kind::Segment);
        std::fs::remove_file(&place.dir).expect("removed");
        std::fs::write(&place.dir, "").expect("a file");
        assert_eq!(place.hold().expect_err("a file").kind(), Kind::Segment);
    }

    #[test]
    fn a_group_has_a_directory_of_its_own() {
        let tmp = tempfile::tempdir().expect("a directory");
        let group = rustix::process::getegid().as_raw();
        let place = InstancePaths::of(&Config { group: Some(group.to_string()), ..config(tmp.path()) }).expect("a place");
        drop(place.hold().expect("made"));
        assert_eq!(std::fs::metadata(&place.dir).expect("there").permissions().mode() & 0o777, 0o770);
        assert!(InstancePaths::of(&Config { group: Some("no such group".into()), ..config(tmp.path()) }).is_err());
    }
}
