//! The two drives of the HyCache paper as loop devices.

use std::path::{Path, PathBuf};

use crate::experiment::Need;
use crate::lab::{Disk, DriveSpeed, Lab, MountedPair};

/// Requirements of every experiment of the mount.
pub const NEEDS: &[Need] =
    &[Need::Root, Need::Loop, Need::Fuse, Need::Throttle, Need::Program("fio", "fio"), Need::Program("mkfs.ext4", "e2fsprogs")];

/// Prefix of the files that stay on the HDD.
pub const SLOW: &str = "slow";

/// An SSD and an HDD with ext4, and a mount over both.
pub struct Drives {
    /// The SSD's loop device and ext4.
    pub ssd: Disk,
    /// The HDD's loop device and ext4.
    pub hdd: Disk,
    /// The mount over both drives.
    pub pair: MountedPair,
}

impl Drives {
    /// Creates both drives, limited to these speeds, and the mount.
    pub fn new(lab: &mut Lab<'_>, mib: (u64, u64), ssd: &DriveSpeed, hdd: &DriveSpeed, flags: &[&str]) -> anyhow::Result<Drives> {
        let ssd = lab.drive("ssd", mib.0, ssd)?;
        let hdd = lab.drive("hdd", mib.1, hdd)?;
        let slow = format!("{SLOW}*");
        let all: Vec<&str> = ["--promotion", "never", "--hdd-only", &slow].into_iter().chain(flags.iter().copied()).collect();
        let pair = lab.mount_pair("mnt", &ssd.dir, &hdd.dir, &all)?;
        Ok(Drives { ssd, hdd, pair })
    }

    /// Returns a directory on the HDD's ext4, outside the mount.
    pub fn plain_hdd(&self) -> anyhow::Result<PathBuf> {
        below(&self.hdd.dir)
    }

    /// Returns a directory on the SSD's ext4, outside the mount.
    pub fn plain_ssd(&self) -> anyhow::Result<PathBuf> {
        below(&self.ssd.dir)
    }
}

fn below(dir: &Path) -> anyhow::Result<PathBuf> {
    let dir = dir.join("alone");
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Drops the page cache of these files; missing files are ignored.
pub fn drop_page_cache(paths: &[PathBuf]) -> anyhow::Result<()> {
    for file in paths.iter().filter_map(|path| std::fs::File::open(path).ok()) {
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Formats a number of bytes.
pub fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}
