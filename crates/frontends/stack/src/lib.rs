//! Wiring: opens what a configuration names, once for all front ends, without further logic.
#![forbid(unsafe_code)]

mod cache;
mod device;
mod disk;
mod queue;

pub use cache::open_cache;
/// Files through the cache, for Rust programs: see examples/files.rs.
pub use cachedfs;
pub use device::{DeviceName, DeviceNameError, DeviceOptions};
pub use disk::{disk_on, open_disk};
/// Controllers by name.
pub use nvme::named::{FunctionName, open_controller};
pub use queue::{open_queue, open_shared_queue};
/// The library file system, for programs in Rust.
pub use rawfs;
