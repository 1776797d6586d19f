//! Models of failures, and oracles of the state that must hold afterwards. Only tests and `bench` depend on this crate.
//!
//! Power cuts are simulated at the block level, as in CrashMonkey (OSDI 2018): [`recording`] serves the disks of real file systems and
//! records every write and flush in a [`disk_log`]. [`power_cut`] derives from it the disks as a power cut may leave them: flushed data is
//! present, and any part of the rest. [`stamped`] contents identify the write of a sector, and [`durability`] knows which writes may be
//! found.
//!
//! [`posix`] generates random system calls, for comparisons.
//!
//! [`nvme`] is an NVMe controller in software, for the driver of that name.
//!
//! [`golden`] keeps stored images of released formats.
//!
//! [`device`] has block devices that misbehave on purpose, each a [`block::Queue`] around another one.
#![forbid(unsafe_code)]

pub mod device;
pub mod disk_log;
pub mod durability;
pub mod durability_mark;
pub mod golden;
pub mod nvme;
pub mod posix;
pub mod power_cut;
pub mod recording;
pub mod stamped;
