//! The product itself, mounted: an SSD directory and an HDD directory as one.

use std::path::{Path, PathBuf};

use super::Lab;
use super::undo::UndoStep;
use crate::programs::run_path;

/// A mount of ours.
pub struct MountedPair {
    /// The fast directory.
    pub ssd: PathBuf,
    /// The slow one.
    pub hdd: PathBuf,
    /// Where both appear.
    pub dir: PathBuf,
}

impl Lab<'_> {
    /// Mounts `pool` of both directories, with these flags.
    ///
    /// # Errors
    /// The command says why not.
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

    /// Unmounts it in good order.
    ///
    /// # Errors
    /// The command says why not.
    pub fn unmount_pair(&mut self, pair: &MountedPair) -> anyhow::Result<()> {
        run_path(self.context(), &self.context().program, &["unmount".as_ref(), pair.dir.as_os_str()]).map(drop)
    }

    /// The same two directories through mergerfs.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn mergerfs(&mut self, name: &str, ssd: &Path, hdd: &Path) -> anyhow::Result<PathBuf> {
        let dir = self.dir().join(name);
        let (ssd, hdd) = (ssd.join("merged"), hdd.join("merged"));
        for dir in [&ssd, &hdd, &dir] {
            std::fs::create_dir_all(dir)?;
        }
        self.will(UndoStep::Mount(dir.clone()))?;
        let both = format!("{}:{}", ssd.display(), hdd.display());
        let words = [both.as_ref(), dir.as_os_str(), "-o".as_ref(), "category.create=ff,minfreespace=16M".as_ref()];
        run_path(self.context(), &crate::needs::find("mergerfs").unwrap_or_else(|| "mergerfs".into()), &words)?;
        Ok(dir)
    }
}
