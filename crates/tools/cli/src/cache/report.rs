//! What `hotshelf cache status` reports of one cache.

use std::path::PathBuf;

use cachedfs::Status;
use serde::Serialize;

/// The state of a cache, and where its settings are.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Whether at least one process is attached to the cache.
    pub in_use: bool,
    /// Path of the configuration file, if the settings come from one.
    pub settings: Option<PathBuf>,
    /// The state as shared memory or the SSD reports it.
    #[serde(flatten)]
    pub status: Status,
}
