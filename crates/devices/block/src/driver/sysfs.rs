//! The kernel's attributes of a block device's queue, in /sys (Documentation/ABI/stable/sysfs-block).

use std::fs;
use std::path::PathBuf;

/// The queue attributes of one block device.
#[derive(Clone, Debug)]
pub(super) struct QueueAttributes {
    dir: PathBuf,
}

impl QueueAttributes {
    /// Returns the attributes of a device, or of the disk for a partition; `None` if there is no block device (a network file system).
    pub(super) fn of(major: u32, minor: u32) -> Option<QueueAttributes> {
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        [device.join("queue"), device.join("../queue")].into_iter().find(|dir| dir.is_dir()).map(|dir| QueueAttributes { dir })
    }

    /// Returns the attributes of a disk by its name (nvme0n1).
    pub(super) fn of_disk(name: &str) -> Option<QueueAttributes> {
        let dir = PathBuf::from(format!("/sys/block/{name}/queue"));
        dir.is_dir().then_some(QueueAttributes { dir })
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.dir.join(name)).ok()?.trim().to_owned())
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns whether the device supports polling for completions.
    pub(super) fn polls(&self) -> bool {
        self.number("io_poll") == Some(1)
    }

    /// Returns whether the device loses its write cache on power loss; unknown counts as yes.
    pub(super) fn volatile_cache(&self) -> bool {
        self.text("write_cache").is_none_or(|kind| kind != "write through")
    }
}
