//! Models of what can go wrong, and oracles of what must be true afterwards. Nothing depends on this crate.
//!
//! A power cut is simulated at the block level, as CrashMonkey (OSDI 2018) does: [`recording`] serves the
//! disks of real file systems and writes every write and flush into a [`disk_log`]; [`power_cut`] makes from
//! it disks as they may be after the power went: what was flushed is there, of the rest any part is.
//! [`stamped`] contents tell which write a sector comes from, and [`durability`] knows which may be found.
//!
//! [`posix`] makes random system calls, to be compared.
//!
//! [`nvme`] is a drive's controller in software, for the driver of that name.
//!
//! [`golden`] keeps stored images of released formats.
//!
//! [`device`] has block devices that misbehave on purpose, each a [`block::Queue`] around another one.
#![forbid(unsafe_code)]

pub mod device;
pub mod disk_log;
pub mod durability;
pub mod golden;
pub mod nvme;
pub mod posix;
pub mod power_cut;
pub mod recording;
pub mod stamped;
