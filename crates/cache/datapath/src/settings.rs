//! How a block cache shall be, and what it did.

use std::sync::Arc;
use std::time::Duration;

use block::clock::Monotonic;
use block::{Clock, Geometry};
use pagecache::{Config, PAGE_BYTES};

/// When writes reach the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteMode {
    /// When they are flushed, or old, or many.
    #[default]
    Back,
    /// Before the call returns; its error is the writer's. What the device took may still be in its own cache.
    Through,
    /// Before the call returns, and past the device's cache (force unit access).
    Durable,
}

/// How a block cache shall be.
#[derive(Clone)]
pub struct Settings {
    /// The page cache below.
    pub pages: Config,
    /// When writes reach the device.
    pub mode: WriteMode,
    /// Most pages read ahead of a sequential reader; 0: none.
    pub ahead_max: u32,
    /// With more unwritten pages than this, write-back begins.
    pub dirty_background: u32,
    /// With so many unwritten pages, writers wait and help.
    pub dirty_max: u32,
    /// A dirty page this old is written back (by `tick`, and by writers in passing).
    pub dirty_age: Duration,
    /// Most readers and writers that wait for the device at a time; others wait for one of them. 1 is enough for one thread.
    pub waiters: u32,
    /// What ages are told by.
    pub clock: Arc<dyn Clock>,
}

impl Settings {
    /// For a cache of so many frames: read-ahead of 64 pages (256 KiB), write-back from a quarter dirty on, half at most, or
    /// 30 s old (as Linux's dirty_expire_centisecs).
    pub fn new(frames: u32) -> Settings {
        Settings {
            pages: Config::new(frames),
            mode: WriteMode::Back,
            ahead_max: 64.min(frames / 4),
            dirty_background: frames / 4,
            dirty_max: (frames / 2).max(1),
            dirty_age: Duration::from_secs(30),
            waiters: 64,
            clock: Arc::new(Monotonic::default()),
        }
    }

    /// Why a device cannot be cached in pages of 4 KiB; none: it can.
    pub(crate) fn obstacle(geometry: &Geometry) -> Option<String> {
        let page = PAGE_BYTES as u32;
        let block = geometry.block_bytes;
        if block > page {
            return Some(format!("the device's blocks have {block} bytes; the block cache has pages of {page}: use it uncached"));
        }
        if geometry.transfer_bytes_max < page || geometry.memory_align > page || geometry.segments_max == 0 {
            return Some(format!("the device cannot transfer {page} bytes at once: use it uncached"));
        }
        let short = !geometry.bytes().is_multiple_of(page.into());
        (short && geometry.memory_align > block)
            .then(|| format!("the device's last {block} bytes cannot be transferred alone: give it a size in multiples of {page}"))
    }
}

/// What a cache did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Pages that were there when they were asked for.
    pub hits: u64,
    /// Pages that were read because somebody waited for them.
    pub misses: u64,
    /// Pages that were read ahead.
    pub ahead: u64,
    /// Requests for reading that were sent.
    pub reads: u64,
    /// Pages that were written.
    pub pages_written: u64,
    /// Requests for writing that were sent.
    pub writes: u64,
    /// Flush commands that were sent.
    pub flushes: u64,
}
