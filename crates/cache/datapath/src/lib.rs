//! The path of a read, a write and a flush: the only crate in which caches meet devices.
//!
//! - [`engine`]: the engine: page cache, SSD cache and backing files, for several processes. Its `read.rs`, `write.rs` and `flush.rs`
//!   are one path each; read them from top to bottom to understand the system.
//! - [`migrate`]: the leader, the worker that moves data between the tiers.
//! - [`DeviceCache`]: the engine in a private region, with a block device ([`DeviceFile`]) as its only file.
#![forbid(unsafe_code)]

mod device_cache;
mod device_file;
pub mod engine;
pub mod migrate;
#[cfg(test)]
mod test_engine;

pub use device_cache::{DeviceCache, DeviceCacheOptions, DeviceHandle, FRAMES_MIN};
pub use device_file::DeviceFile;
pub use migrate::Worker;
