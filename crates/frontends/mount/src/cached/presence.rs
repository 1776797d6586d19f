//! A file that is locked while the daemon of a cached mount runs, so that `hotshelf unmount` can wait for its end.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cachedfs::{Config, Instance};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock};

use crate::source;

/// Holds the lock of one mount; the file is removed with it.
#[derive(Debug)]
pub struct Presence {
    path: PathBuf,
    /// Returned to a program that goes on with the mount.
    locked: Option<OwnedFd>,
}

/// Returns the path in the directory of the cache's segment, which nobody else may write.
fn path_of(cache: &Config, device: &str) -> Option<PathBuf> {
    Some(Instance::segment_path(cache).parent()?.join(format!("mount-{device}.lock")))
}

/// Returns the path of the file in which the mount with this device number reports the state of its slow side.
pub fn side_path(cache: &Config, device: &str) -> Option<PathBuf> {
    path_of(cache, device).map(|path| path.with_extension("side"))
}

impl Presence {
    /// Locks the file of the mount on this directory; none if it cannot be made, which only makes `hotshelf unmount` return earlier.
    pub fn new(cache: &Config, mountpoint: &Path) -> Option<Presence> {
        let path = path_of(cache, &source::device_at(mountpoint)?)?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Presence { path, locked: Some(file) })
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
}

impl Drop for Presence {
    fn drop(&mut self) {
        if self.locked.is_some() {
            // Whoever waits has it open, or finds none.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns whether the daemon of the mount that has or had this device number (`major:minor`) still runs.
pub fn is_served(cache: &Config, device: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Some(Ok(file)) = path_of(cache, device).map(|path| rustix::fs::open(path, flags, Mode::empty())) else { return false };
    let is_ours = rustix::fs::fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_uid == rustix::process::geteuid().as_raw()
    });
    is_ours && flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}
