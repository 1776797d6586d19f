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

    /// A drive, real or of a virtual machine, and nothing that the kernel makes by itself (loop, zram, device mapper).
    pub(super) fn is_of_hardware(&self) -> bool {
        self.dir.join("../device").exists()
    }

    /// A loss of power empties its cache. Unknown counts as yes.
    pub(super) fn volatile_cache(&self) -> bool {
        self.text("write_cache").is_none_or(|kind| kind != "write through")
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn hardware_is_what_has_a_device_behind_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |name: &str| QueueAttributes { dir: dir.path().join(name).join("queue") };
        for made in ["vda/queue", "vda/device", "loop0/queue"] {
            fs::create_dir_all(dir.path().join(made)).expect("made");
        }
        assert!(of("vda").is_of_hardware());
        assert!(!of("loop0").is_of_hardware());
    }
}
