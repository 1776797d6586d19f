//! How a cached directory is mounted.

use std::path::PathBuf;
use std::time::Duration;

use cachedfs::Mode;

use crate::simple_session::SessionOptions;

/// How to mount a cached directory.
#[derive(Clone, Debug)]
pub struct CachedOptions {
    /// The directory on the slow side.
    pub directory: PathBuf,
    /// The cache that serves the file data.
    pub cache: cachedfs::Config,
    /// What becomes of writes: write-through or write-back.
    pub mode: Mode,
    /// How long the kernel may use names and attributes. Other programs may change the directory at any time.
    pub ttl: Duration,
    /// The mount point and its flags.
    pub session: SessionOptions,
}
