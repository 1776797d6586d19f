//! The allocators of data blocks and nodes. No I/O: what is persistent is handed out in pages.
//!
//! - [`bits`]: a bitmap as the device keeps it, in pages.
//! - [`blocks`]: the allocator of data blocks: a bitmap in groups, each with its lock.
//! - [`nodes`]: the allocator of nodes.
//! - [`freed`]: what is free only when the log says so.

pub mod bits;
pub mod blocks;
pub mod freed;
pub mod nodes;
#[cfg(test)]
mod test;
