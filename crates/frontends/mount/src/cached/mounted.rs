//! The cached directories that are mounted.

use std::path::{Path, PathBuf};

use crate::source;

/// The type as mount(8) shows it.
const FS_TYPE: &str = "fuse.hotshelf-cached";

/// A cached directory that is mounted, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedMount {
    /// The directory where the files appear.
    pub mountpoint: PathBuf,
    /// The cache: its name, or the path of its SSD.
    pub cache: PathBuf,
    /// The directory on the slow side.
    pub directory: PathBuf,
    /// The user who mounted it. What another user's mount says of its cache is not to be believed.
    pub owner: u32,
}

impl CachedMount {
    /// Returns whether this user mounted it.
    pub fn is_ours(&self) -> bool {
        self.owner == rustix::process::geteuid().as_raw()
    }

    /// Returns the device number of the mount as `major:minor`, while it is mounted.
    pub fn device(&self) -> Option<String> {
        source::device_at(&self.mountpoint)
    }
}

/// Returns all cached directories that are mounted.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn mounts() -> std::io::Result<Vec<CachedMount>> {
    let to_mount = |found: source::MountEntry| CachedMount {
        mountpoint: found.mountpoint,
        cache: found.ssd,
        directory: found.hdd,
        owner: found.owner,
    };
    Ok(source::mounted_as(FS_TYPE)?.into_iter().map(to_mount).collect())
}

/// Returns the cached directory that is mounted on exactly this directory, if one is on top.
pub fn mount_at(path: &Path) -> Option<CachedMount> {
    source::type_at(path).filter(|kind| kind == FS_TYPE)?;
    mounts().ok()?.into_iter().rev().find(|found| found.mountpoint == path)
}
