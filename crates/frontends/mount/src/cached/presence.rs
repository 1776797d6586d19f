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

impl Presence {
    /// Locks the file of the mount on this directory. None if it cannot be made: `hotshelf unmount` then returns earlier, and
    /// `hotshelf status` shows nothing of the slow side and the reads.
    pub fn new(cache: &Config, mountpoint: &Path) -> Option<Presence> {
        let Some(path) = source::device_at(mountpoint).and_then(|device| path_of(cache, &device)) else {
            tracing::warn!(mountpoint = %mountpoint.display(), "the mount has no device number: {WITHOUT}");
            return None;
        };
        let locked = open_own(&path).and_then(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).map(|()| file));
        match locked {
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
        if self.locked.is_some() {
            let _ = std::fs::remove_file(self.counts_path());
            // Whoever waits has it open, or finds none.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns whether the daemon of the mount that has or had this device number (`major:minor`) still runs.
pub fn is_served(cache: &Config, device: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Some(Ok(file)) = path_of(cache, device).map(|path| rustix::fs::open(path, flags, Mode::empty())) else { return false };
    is_own_file(&file) && flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

#[cfg(test)]
mod test {
    use super::*;

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
