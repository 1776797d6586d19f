//! The files of a test run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cachedfs::{Config, Mode, Size};

use crate::version_table::{LOGS, SHARED};

/// The working directory of a run.
#[derive(Clone, Debug)]
pub struct WorkDir {
    /// Path of the working directory.
    pub dir: PathBuf,
}

impl WorkDir {
    /// Returns the path of the version table.
    pub fn version_table(&self) -> PathBuf {
        self.dir.join("versions")
    }

    /// Returns the path of the SSD file.
    pub fn ssd(&self) -> PathBuf {
        self.dir.join("ssd")
    }

    /// Returns the path of a file; from [`LOGS`] on they are logs.
    pub fn file(&self, number: u32) -> PathBuf {
        let kind = match number {
            0..SHARED => "shared",
            SHARED..LOGS => "own",
            _ => "log",
        };
        self.dir.join(format!("{kind}{number}"))
    }

    /// Returns the configuration of the cache.
    pub fn config(&self) -> Result<Config> {
        Ok(Config::read(&self.dir.join("config.toml"))?)
    }

    /// Creates the directories and the configuration.
    pub fn prepare(&self, runtime: &Path, mode: Mode, ssd: Option<PathBuf>) -> Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        std::fs::create_dir_all(runtime)?;
        let config = Config {
            name: "stress".to_owned(),
            memory: Some(Size::Bytes(2 << 20)),
            ssd_size: ssd.is_some().then_some(Size::Bytes(24 << 20)),
            ssd,
            mode,
            dirty_age: "300ms".parse().map_err(|error| anyhow::anyhow!("{error:?}"))?,
            stream_cutoff: Size::Bytes(256 << 10),
            files: 256,
            runtime_dir: runtime.to_owned(),
            ..Config::default()
        };
        let text = toml::to_string(&std::collections::BTreeMap::from([("cache", &config)]))?;
        std::fs::write(self.dir.join("config.toml"), text).context("the settings")
    }
}
