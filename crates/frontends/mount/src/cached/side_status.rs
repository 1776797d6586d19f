//! What the daemon of a cached mount tells `hotshelf status` of its slow side.

use cachedfs::Config;

use super::{presence, status_file};

/// The state of the slow side of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct SideStatus {
    /// Since when the side has not replied, in seconds since the epoch, if it is away.
    pub away_since: Option<u64>,
    /// Requests that timed out since the side went away, or last did.
    pub timed_out: u64,
    /// Calls on the side that have not returned yet, although their requests were replied to.
    pub unfinished: usize,
    /// Requests that timed out since the daemon began.
    pub timed_out_total: u64,
    /// Requests that failed since the daemon began as they do when a disk or a server fails.
    pub failed_total: u64,
}

/// Returns the state of the slow side of this user's mount with this device number (`major:minor`), while its daemon runs. None: it has no
/// deadline, or the mount is another user's, who may write anything.
pub fn read(cache: &Config, device: &str) -> Option<SideStatus> {
    status_file::read(cache, device, &presence::side_path(cache, device)?)
}
