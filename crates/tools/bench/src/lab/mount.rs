//! The product itself, mounted over an SSD directory and an HDD directory.

use std::path::{Path, PathBuf};

use super::Lab;
use super::undo::UndoStep;
use crate::programs::run_path;

/// A mounted pair of directories.
pub struct MountedPair {
    /// The SSD directory of the pair.
    pub ssd: PathBuf,
    /// The HDD directory of the pair.
    pub hdd: PathBuf,
    /// The mount point of the pair.
    pub dir: PathBuf,
}

impl Lab<'_> {
    /// Mounts both directories with these flags.
    ///
    /// # Errors
    /// The mount command fails.
    pub fn mount_pair(&mut self, name: &str, ssd: &Path, hdd: &Path, flags: &[&str]) -> anyhow::Result<MountedPair> {
        let pair = MountedPair { ssd: ssd.join("pool"), hdd: hdd.join("pool"), dir: self.dir().join(name) };
        for dir in [&pair.ssd, &pair.hdd, &pair.dir] {
            std::fs::create_dir_all(dir)?;
        }
        self.will(UndoStep::Mount(pair.dir.clone()))?;
        let mut words: Vec<&std::ffi::OsStr> = vec!["mount".as_ref(), "--ssd".as_ref(), pair.ssd.as_os_str()];
        words.extend(["--hdd".as_ref(), pair.hdd.as_os_str(), pair.dir.as_os_str()]);
        words.extend(flags.iter().map(std::ffi::OsStr::new));
        run_path(self.context(), &self.context().program, &words)?;
        Ok(pair)
    }

    /// Unmounts the pair cleanly.
    ///
    /// # Errors
    /// The unmount command fails.
    pub fn unmount_pair(&mut self, pair: &MountedPair) -> anyhow::Result<()> {
        run_path(self.context(), &self.context().program, &["unmount".as_ref(), pair.dir.as_os_str()]).map(drop)
    }

    /// Mounts both directories with mergerfs.
    ///
    /// # Errors
    /// The mount fails.
    pub fn mergerfs(&mut self, name: &str, ssd: &Path, hdd: &Path) -> anyhow::Result<PathBuf> {
        let dir = self.dir().join(name);
        let (ssd, hdd) = (ssd.join("merged"), hdd.join("merged"));
        for dir in [&ssd, &hdd, &dir] {
            std::fs::create_dir_all(dir)?;
        }
        self.will(UndoStep::Mount(dir.clone()))?;
        let both = format!("{}:{}", ssd.display(), hdd.display());
        let words = [both.as_ref(), dir.as_os_str(), "-o".as_ref(), "category.create=ff,minfreespace=16M".as_ref()];
        run_path(self.context(), &crate::programs::find("mergerfs").unwrap_or_else(|| "mergerfs".into()), &words)?;
        Ok(dir)
    }
}
