//! The broker over the NVMe driver over the software controller: what it refuses, and what killed clients and brokers leave. Also the
//! flight recorder of a killed process.
//!
//! FULL=1 kills 1,000 clients instead of 50.

mod leaks;
mod process;
mod recorder;
mod refused;
mod setting;
