//! The wiring. What a configuration names is opened here, once for all front doors; there is no logic besides.
#![forbid(unsafe_code)]

mod device;
mod queue;

pub use device::{BadDevice, DeviceName, DeviceOptions};
pub use queue::{open_queue, open_shared_queue};
