//! What can be chosen, and what is reported.

use crate::units::Lsn;

/// How an image is made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FormatOptions {
    /// Its name; none: by chance.
    pub uuid: Option<[u8; 16]>,
    /// Blocks it has, if not all of the device.
    pub blocks: Option<u64>,
    /// Bytes for metadata; none: a sixteenth of the device, at least 4 MiB.
    pub metadata_bytes: Option<u64>,
    /// Bytes of the log; none: a thirty-second of the device, 1 MiB to 128 MiB.
    pub log_bytes: Option<u64>,
    /// Whether the old content of the device is discarded.
    pub discard: bool,
}

/// Memory for nodes, data in the log, and blocks of files together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetSettings {
    /// All of it, in bytes. What the others do not use is for blocks that were read.
    pub bytes: usize,
    /// Of that for these in any case.
    pub blocks_bytes: usize,
}

/// How a store is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Memory for nodes as they are on the device, in bytes.
    pub node_cache_bytes: usize,
    /// Memory for nodes that differ from the device, in bytes: more of them begin a checkpoint.
    pub dirty_bytes: usize,
    /// Memory for data that the log has and its place not yet, in bytes: half of it begins a checkpoint.
    pub filled_bytes: usize,
    /// Memory for all of these and for what files have above. None: each has its bound and nothing else.
    pub budget: Option<BudgetSettings>,
    /// A thread makes checkpoints. Without one they are made within the call that finds one due.
    pub background: bool,
    /// Freed blocks are discarded on the device.
    pub discard: bool,
    /// Only this image is opened.
    pub uuid: Option<[u8; 16]>,
    /// Nothing is written: what the log has is done in memory alone, and batches are refused. For looking at an image.
    pub read_only: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            node_cache_bytes: 64 << 20,
            dirty_bytes: 64 << 20,
            filled_bytes: 16 << 20,
            budget: None,
            background: true,
            discard: true,
            uuid: None,
            read_only: false,
        }
    }
}

/// What opening has found and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovery {
    /// It was closed cleanly: nothing had to be done.
    pub clean: bool,
    /// The last batch that is there.
    pub lsn: Lsn,
    /// Batches taken from the log.
    pub replayed: u64,
    /// Data blocks read to see whether they are what the log says.
    pub verified: u64,
    /// Batches in the log that were dropped because a data block was not saved; none of them was reported durable.
    pub dropped: u64,
    /// A superblock was damaged, and made again from its copy.
    pub repaired: bool,
}

/// How full a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The number of blocks for data.
    pub blocks: u64,
    /// Data blocks that files can take now.
    pub blocks_free: u64,
    /// Nodes of 16 KiB in the metadata region.
    pub nodes: u64,
    /// The number of free nodes.
    pub nodes_free: u64,
    /// Changed since the last checkpoint.
    pub nodes_dirty: u64,
    /// The size of the log in bytes.
    pub log_bytes: u64,
    /// Of it in use until the next checkpoint.
    pub log_used: u64,
    /// Memory in use for nodes, in bytes.
    pub memory_bytes: u64,
    /// Nodes read from the device since the store was opened.
    pub node_reads: u64,
    /// The memory of the bitmaps in bytes.
    pub bitmap_bytes: u64,
}
