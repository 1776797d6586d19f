//! The page cache: 4 KiB frames of memory, which page of which file each holds, and which is evicted next.
//!
//! (HyCache, section III.C; NVMeDirect, section III.B, "Block cache".) It never does I/O. Its frames and metadata are in a region that
//! several processes map, or that one process has for itself. `datapath` moves the bytes. [`shared`] explains the rules.
#![forbid(unsafe_code)]

mod replacement;
pub mod shared;
mod units;

pub use replacement::Replacement;
pub use units::{PAGE_BYTES, PageIndex};
