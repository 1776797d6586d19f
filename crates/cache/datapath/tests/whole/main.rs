//! Tests of the engine's guarantees, over files and devices in memory that fail, lose data and are shared.
#![forbid(unsafe_code)]

mod device_cache;
mod fetched_once;
mod kept;
mod leader;
