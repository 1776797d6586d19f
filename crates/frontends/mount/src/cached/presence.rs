//! A file that is locked while the daemon of a cached mount runs, so that `hotshelf unmount` can wait for its end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use cachedfs::{Config, Instance};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::source;

/// What is missing without the file.
const WITHOUT: &str = "`hotshelf unmount` does not wait for its end, and `hotshelf status` does not show its slow side and its reads";

/// Holds the lock of one mount; the file is removed with it.
#[derive(Debug)]
pub struct Presence {
    path: PathBuf,
    /// Returned to a program that goes on with the mount.
    locked: Option<OwnedFd>,
}

/// Returns the path in the directory of the cache's segment, where the users of a group's cache may write, too.
fn path_of(cache: &Config, device: &str) -> Option<PathBuf> {
    Some(Instance::segment_path(cache).parent()?.join(format!("mount-{device}.lock")))
}

/// Returns the path of the file in which the mount with this device number reports the state of its slow side.
pub fn side_path(cache: &Config, device: &str) -> Option<PathBuf> {
    path_of(cache, device).map(|path| path.with_extension("side"))
}

/// Returns the path of the file in which the mount with this device number notes where its counters stood when it began.
pub fn counts_path(cache: &Config, device: &str) -> Option<PathBuf> {
    path_of(cache, device).map(|path| path.with_extension("counts"))
}

/// Returns whether a file that was opened by its name is a regular file of this user. Others may have put something else there.
pub fn is_own_file(file: impl AsFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_uid == rustix::process::geteuid().as_raw()
    })
}

/// Opens a file of this user, or makes it, also in the place of what others have put there.
fn open_own(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) if is_own_file(&file) => return Ok(file),
        Err(Errno::NOENT) => {}
        _ => rustix::fs::unlink(path)?,
    }
    rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)
}

/// Opens the file of a mount, and locks it. A daemon that is still ending may hold the one that is there: its mount is gone, and the kernel
/// has given the device number to this one. That daemon's file goes; who waits for its end has it open.
fn lock_own(path: &Path) -> Result<OwnedFd, Errno> {
    let file = open_own(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => rustix::fs::unlink(path)?,
        locked => return locked.map(|()| file),
    }
    let file = open_own(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map(|()| file)
}

/// Returns whether a file is the one of that name.
fn is_at(file: impl AsFd, path: &Path) -> bool {
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    rustix::fs::fstat(file).is_ok_and(|ours| rustix::fs::lstat(path).is_ok_and(|there| identity(there) == identity(ours)))
}

impl Presence {
    /// Locks the file of the mount on this directory. None if it cannot be made: `hotshelf unmount` then returns earlier, and
    /// `hotshelf status` shows nothing of the slow side and the reads.
    pub fn new(cache: &Config, mountpoint: &Path) -> Option<Presence> {
        let Some(path) = source::device_at(mountpoint).and_then(|device| path_of(cache, &device)) else {
            tracing::warn!(mountpoint = %mountpoint.display(), "the mount has no device number: {WITHOUT}");
            return None;
        };
        match lock_own(&path) {
            Ok(file) => Some(Presence { path, locked: Some(file) }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the file that says that this mount is served cannot be locked: {WITHOUT}");
                None
            }
        }
    }

    /// Goes on with the locked file of a mount that another program has served.
    pub fn resume(cache: &Config, mountpoint: &Path, locked: OwnedFd) -> Option<Presence> {
        Some(Presence { path: path_of(cache, &source::device_at(mountpoint)?)?, locked: Some(locked) })
    }

    /// Returns whether no other mount has got the device number, and with it the names of the files.
    pub fn is_current(&self) -> bool {
        self.locked.as_ref().is_some_and(|locked| is_at(locked, &self.path))
    }

    /// Returns the locked file, which stays.
    pub fn hand_over(mut self) -> Option<OwnedFd> {
        self.locked.take()
    }

    /// Returns the path of the file in which the mount reports the state of its slow side.
    pub fn side_path(&self) -> PathBuf {
        self.path.with_extension("side")
    }

    /// Returns the path of the file in which the mount notes where its counters stood when it began. It is removed with the lock.
    pub fn counts_path(&self) -> PathBuf {
        self.path.with_extension("counts")
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if self.is_current() {
            let _ = std::fs::remove_file(self.counts_path());
            // Whoever waits has it open, or finds none.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The daemon of a mount, as another process sees it. Found before the mount is gone, it stays this one, whoever gets the device number.
#[derive(Debug)]
pub struct ServingDaemon(OwnedFd);

impl ServingDaemon {
    /// Returns the daemon of the mount with this device number (`major:minor`), if it says that it is there.
    pub fn find(cache: &Config, device: &str) -> Option<ServingDaemon> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path_of(cache, device)?, flags, Mode::empty()).ok()?;
        is_own_file(&file).then_some(ServingDaemon(file))
    }

    /// Returns whether it still runs.
    pub fn is_running(&self) -> bool {
        let is_locked = flock(&self.0, FlockOperation::NonBlockingLockShared).is_err();
        if !is_locked {
            let _ = flock(&self.0, FlockOperation::Unlock);
        }
        is_locked
    }
}

/// Returns whether the daemon of the mount that has this device number (`major:minor`) runs.
pub fn is_served(cache: &Config, device: &str) -> bool {
    ServingDaemon::find(cache, device).is_some_and(|daemon| daemon.is_running())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_mount_with_the_device_number_of_one_that_is_ending_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mount-0:5.lock");
        let ending = Presence { path: path.clone(), locked: Some(lock_own(&path).expect("locked")) };
        let waits = ServingDaemon(rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).expect("opens"));
        let next = Presence { path: path.clone(), locked: Some(lock_own(&path).expect("locked too")) };
        assert!(waits.is_running() && !is_at(ending.locked.as_ref().expect("there"), &path));
        drop(ending);
        assert!(!waits.is_running() && path.exists(), "the file of the next one stays");
        let found = ServingDaemon(rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).expect("opens"));
        assert!(found.is_running());
        drop(next);
        assert!(!found.is_running() && !path.exists());
    }

    #[test]
    fn what_others_put_in_the_place_of_the_file_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, victim) = (dir.path().join("mount-0:5.lock"), dir.path().join("victim"));
        let inode = || rustix::fs::stat(&path).expect("there").st_ino;
        let opened = || open_own(&path).map(|file| is_own_file(&file));
        assert_eq!(opened(), Ok(true));
        let first = inode();
        assert_eq!((opened(), inode()), (Ok(true), first));
        std::fs::remove_file(&path).expect("removed");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        assert_eq!(opened(), Ok(true));
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&victim, "kept").expect("written");
        std::os::unix::fs::symlink(&victim, &path).expect("linked");
        assert_eq!(opened(), Ok(true));
        assert!(std::fs::symlink_metadata(&path).expect("there").is_file());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).expect("given away");
            assert_eq!(opened(), Ok(true));
        }
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        assert_eq!(opened(), Err(Errno::ISDIR));
    }
}
