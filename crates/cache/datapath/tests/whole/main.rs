//! What the engine promises, over files and devices in memory that fail, forget and are shared.
#![forbid(unsafe_code)]

mod device_cache;
mod kept;
mod leader;
