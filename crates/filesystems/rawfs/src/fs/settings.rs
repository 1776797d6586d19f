//! What can be chosen.

use std::time::Duration;

use super::time::Timestamp;

/// How a file system is run.
#[derive(Clone, Debug)]
pub struct FsSettings {
    /// Memory for what was read or written and is on the device, in bytes; at least, where the store has a budget for all.
    pub cache_bytes: usize,
    /// Memory for what was written and is not on the device yet, in bytes; a writer of more waits until some is.
    pub dirty_bytes: usize,
    /// How long what was written waits in memory, at most about twice this; zero: until it is synced, or there is too much of it.
    pub write_back: Duration,
    /// What is read ahead of a sequential reader, at most, in bytes.
    pub read_ahead_bytes: usize,
    /// Files that may be open at a time.
    pub open_max: usize,
    /// When a read is remembered.
    pub atime: Atime,
    /// The clock that gives the time of changes.
    pub clock: fn() -> Timestamp,
}

/// When reading a file changes its time of last read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atime {
    /// When it would be older than a change, or is a day old (Linux's default).
    Relative,
    /// Never.
    Never,
}

impl Default for FsSettings {
    fn default() -> Self {
        FsSettings {
            cache_bytes: 64 << 20,
            dirty_bytes: 64 << 20,
            write_back: Duration::from_secs(5),
            read_ahead_bytes: 512 << 10,
            open_max: usize::MAX,
            atime: Atime::Relative,
            clock: Timestamp::now,
        }
    }
}
