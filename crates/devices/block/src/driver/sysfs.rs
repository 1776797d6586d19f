//! What the kernel says of a block device's queue, below /sys (Documentation/ABI/stable/sysfs-block).

use std::fs;
use std::path::PathBuf;

/// The attributes of one device.
#[derive(Clone, Debug)]
pub(super) struct QueueAttributes {
    dir: PathBuf,
}

impl QueueAttributes {
    /// Those of a device or, for a partition, of the disk it is a part of; none: no block device (a network file system).
    pub(super) fn of(major: u32, minor: u32) -> Option<QueueAttributes> {
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        [device.join("queue"), device.join("../queue")].into_iter().find(|dir| dir.is_dir()).map(|dir| QueueAttributes { dir })
    }

    /// Of a disk by its name (nvme0n1).
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

    /// It can be asked for completions without interrupts.
    pub(super) fn polls(&self) -> bool {
        self.number("io_poll") == Some(1)
    }

    /// A loss of power empties its cache. Unknown counts as yes.
    pub(super) fn volatile_cache(&self) -> bool {
        self.text("write_cache").is_none_or(|kind| kind != "write through")
    }
}
