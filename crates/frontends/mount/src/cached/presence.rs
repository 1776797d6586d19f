//! A file that is locked while the daemon of a cached mount runs, so that `hotshelf unmount` can wait for its end.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::source;

/// Holds the lock of one mount; the file is removed with it.
#[derive(Debug)]
pub struct Presence {
    path: PathBuf,
    _locked: File,
}

fn path_of(runtime_dir: &Path, device: &str) -> PathBuf {
    runtime_dir.join(format!("mount-{device}.lock"))
}

impl Presence {
    /// Locks the file of the mount on this directory; none if it cannot be made, which only makes `hotshelf unmount` return earlier.
    pub fn new(runtime_dir: &Path, mountpoint: &Path) -> Option<Presence> {
        let path = path_of(runtime_dir, &source::device_at(mountpoint)?);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Presence { path, _locked: file.into() })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // Whoever waits has it open, or finds none.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns whether the daemon of the mount that has or had this device number (`major:minor`) still runs.
pub fn is_served(runtime_dir: &Path, device: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path_of(runtime_dir, device), flags, Mode::empty())
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}
