//! How a cached directory is mounted.

use std::path::PathBuf;
use std::time::Duration;

use cachedfs::Mode;

use super::slow_side::OfflinePolicy;
use crate::simple_session::SessionOptions;

/// Whether the daemon remembers names and attributes, and answers with them although they are older than the time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamesMode {
    /// No: only the kernel does, for the time to live.
    #[default]
    Kernel,
    /// In memory, until the directory is unmounted.
    Memory,
    /// In memory, and in a file while the directory is not mounted.
    Persistent,
}

impl NamesMode {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            NamesMode::Kernel => "kernel",
            NamesMode::Memory => "memory",
            NamesMode::Persistent => "persistent",
        }
    }
}

impl std::str::FromStr for NamesMode {
    type Err = String;

    fn from_str(name: &str) -> Result<NamesMode, String> {
        match name {
            "kernel" => Ok(NamesMode::Kernel),
            "memory" => Ok(NamesMode::Memory),
            "persistent" => Ok(NamesMode::Persistent),
            _ => Err(format!("`{name}`: kernel, memory or persistent")),
        }
    }
}

/// How to mount a cached directory.
#[derive(Clone, Debug)]
pub struct CachedOptions {
    /// The directory on the slow side.
    pub directory: PathBuf,
    /// The cache that serves the file data.
    pub cache: cachedfs::Config,
    /// What becomes of writes: write-through or write-back.
    pub mode: Mode,
    /// How long names and attributes are believed. Other programs may change the directory at any time. Default: 1 s, and 60 s where names
    /// are remembered of a directory on a network.
    pub ttl: Option<Duration>,
    /// Whether names and attributes are remembered for longer than that.
    pub names: NamesMode,
    /// How long the slow side may not reply before requests fail; zero: for ever.
    pub deadline: Duration,
    /// What is written while the slow side does not reply.
    pub offline: OfflinePolicy,
    /// The mount point and its flags.
    pub session: SessionOptions,
}
