//! What the block cache promises, over devices in memory that are slow, disordered, failing, forgetful and hanging.
#![forbid(unsafe_code)]

mod ahead;
mod bytes;
mod device;
mod faults;
mod kept;
mod leader;
mod model;
mod power;
mod threads;
mod writeback;
