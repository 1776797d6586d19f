//! The two drives of paper 003 and what is measured on them.

use std::path::{Path, PathBuf};

use crate::lab::{Disk, DriveSpeed, Lab, MountedPair};
use crate::needs::Need;

/// What every experiment of the mount needs.
pub const NEEDS: &[Need] =
    &[Need::Root, Need::Loop, Need::Fuse, Need::Throttle, Need::Program("fio", "fio"), Need::Program("mkfs.ext4", "e2fsprogs")];

/// Files of such names live on the HDD.
pub const SLOW: &str = "slow";

/// An SSD and an HDD with an ext4 each, and both as one.
pub struct Drives {
    pub ssd: Disk,
    pub hdd: Disk,
    pub pair: MountedPair,
}

impl Drives {
    /// Sets up both, slowed down to this, and the mount.
    pub fn new(lab: &mut Lab<'_>, mib: (u64, u64), ssd: &DriveSpeed, hdd: &DriveSpeed, flags: &[&str]) -> anyhow::Result<Drives> {
        let ssd = lab.drive("ssd", mib.0, ssd)?;
        let hdd = lab.drive("hdd", mib.1, hdd)?;
        let slow = format!("{SLOW}*");
        let all: Vec<&str> = ["--promotion", "never", "--hdd-only", &slow].into_iter().chain(flags.iter().copied()).collect();
        let pair = lab.mount_pair("mnt", &ssd.dir, &hdd.dir, &all)?;
        Ok(Drives { ssd, hdd, pair })
    }

    /// A directory on the HDD's ext4, beside ours.
    pub fn plain_hdd(&self) -> anyhow::Result<PathBuf> {
        below(&self.hdd.dir)
    }

    /// The same on the SSD's.
    pub fn plain_ssd(&self) -> anyhow::Result<PathBuf> {
        below(&self.ssd.dir)
    }
}

fn below(dir: &Path) -> anyhow::Result<PathBuf> {
    let dir = dir.join("alone");
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// What the kernel keeps of these files is dropped; those that are not there have nothing.
pub fn drop_page_cache(paths: &[PathBuf]) -> anyhow::Result<()> {
    for file in paths.iter().filter_map(|path| std::fs::File::open(path).ok()) {
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// A number of bytes as people write it.
pub fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}
