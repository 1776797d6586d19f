//! What one open asks for, beyond the flags of open(2).

use std::time::Duration;

pub use datapath::shelf::Advice;
use ssdcache::Mode;

use crate::config::Admit;

/// See the module. What is `None` is as the rules of the configuration have it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Options {
    /// The mode of this open, within the instance's ([`Mode::within`]).
    pub mode: Option<Mode>,
    /// Whether the SSD takes its pages.
    pub admit: Option<Admit>,
    /// Its pages stay in memory while it is open: those it has when it is opened, until a quarter of the memory is so used.
    pub pin: bool,
    /// How it will be read.
    pub advice: Advice,
    /// After a conflict with a change from outside: what is below counts, our changes that were not written are forgotten.
    pub discard: bool,
    /// What it writes is below after so long.
    pub dirty_age: Option<Duration>,
}
