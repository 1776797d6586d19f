//! The wiring. What a configuration names is opened here, once for all front doors; there is no logic besides.
#![forbid(unsafe_code)]

mod cache;
mod device;
mod disk;
mod queue;

pub use cache::open_cache;
/// Files through the cache, for programs in Rust: see examples/files.rs.
pub use cachedfs;
pub use device::{DeviceName, DeviceNameError, DeviceOptions};
pub use disk::{disk_on, open_disk};
/// Controllers by name.
pub use nvme::named::{FunctionName, open_controller};
pub use queue::{open_queue, open_shared_queue};
/// The library file system, for programs in Rust.
pub use rawfs;
