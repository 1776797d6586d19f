//! A file system as a library, on a raw device or an image: no kernel file system below it (NVMeDFS, section III.C; testFS on SPDK).
//!
//! - [`disk`]: the device in blocks of 4 KiB, over queues for control, metadata and data.
//! - [`store`]: the metadata, an ordered key-value store with atomic batches, a log and checkpoints; the allocators of blocks.
//! - [`tree`]: the map that the store keeps its keys in. [`log`]: what was applied since the last checkpoint. [`space`]: the
//!   allocators. [`layout`]: the regions of an image.
//! - `budget`: the memory budget. `page`: a block in memory. [`units`], [`error`]: basic types.

#![forbid(unsafe_code)]

mod budget;
pub mod disk;
pub mod error;
pub mod fs;
pub mod layout;
mod log;
mod page;
mod space;
pub mod store;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod units;

pub use disk::{Disk, DiskSettings, QueueClass};
pub use error::Error;
pub use store::{Batch, BudgetSettings, FormatOptions, Recovery, ScanStep, Settings, Store, TreeId, Usage};
pub use units::{BLOCK_BYTES, Block, Extent, Lsn};
