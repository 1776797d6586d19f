//! The broker over the NVMe driver over the software controller: what it refuses, and what is left of clients and brokers that are
//! killed. And the flight recorder of a process that is killed.
//!
//! FULL=1 kills 1,000 clients instead of 50.

mod leaks;
mod process;
mod recorder;
mod refused;
mod setting;
