//! Options of one open, beyond the flags of open(2).

use std::time::Duration;

pub use datapath::engine::Advice;
use ssdcache::Mode;

use crate::config::Admit;

/// Options of one open. The rules of the configuration decide where an option is `None`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Options {
    /// The mode of this open, within the instance's ([`Mode::within`]).
    pub mode: Option<Mode>,
    /// Whether the SSD takes its pages.
    pub admit: Option<Admit>,
    /// Whether the pages that the file has now stay in memory while it is open, up to a quarter of the memory.
    pub pin: bool,
    /// The access pattern that the program expects.
    pub advice: Advice,
    /// Whether a conflict is resolved by discarding the cache's dirty pages.
    pub discard: bool,
    /// Whether the file goes around the cache, which does not register it.
    pub is_uncached: bool,
    /// The age at which its writes are written to the backing file.
    pub dirty_age: Option<Duration>,
}
