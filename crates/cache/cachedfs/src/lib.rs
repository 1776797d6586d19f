//! Files through the cache: what front doors call.
//!
//! An [`Instance`] is a cache that processes share: a segment of memory, at most one SSD, and any files below, which live in ordinary
//! file systems. A [`File`] of it behaves as the kernel's would (POSIX: append, truncate, rename, unlink, holes), only faster. What
//! cannot be cached (pipes, devices, directories, /proc, `O_PATH`) is passed to the kernel, each call as it is.
//!
//! - [`Config`] is the table `[cache]` of the configuration file; [`Options`] are what one open asks for.
//! - `user_space_nvme.rs`: an SSD that programs drive themselves, by the process that leads.
//! - `image.rs`: the SSD while nobody uses it: making, looking over, removing. `settings.rs`: where settings are.
//! - [`Reads`] are reads that nobody stands and waits for.
//! - `file.rs`: the calls on an open file. `file/position.rs`: those from its position. `file/lent.rs`: its pages, looked at in place.
//!   `plain.rs`: those that go to the kernel as they are.
#![forbid(unsafe_code)]

mod attach;
mod below;
mod cached;
mod config;
mod error;
mod file;
mod forks;
mod group;
pub mod image;
mod instance;
mod key;
mod limits;
mod note;
mod options;
mod place;
mod plain;
mod quick;
mod reads;
mod report;
mod rules;
mod settings;
mod size;
mod ssd;
mod status;
mod stranded;
pub mod user_space_nvme;
mod watch;

pub use attach::machine_memory_bytes;
pub use config::{Admit, Config, RuleConfig, mode_name, mode_of};
pub use error::{Error, Kind};
pub use file::{File, Pinned, PinnedPage, Whence};
pub use instance::Instance;
pub use options::{Advice, Options};
pub use quick::{Not, Thought};
pub use reads::{Begun, Ended, Expected, Outcome, Reading, Reads, ReadsOptions};
pub use size::{Age, BadSetting, Size};
pub use ssdcache::Mode;
pub use status::{Latency, Lost, Memory, Met, ProcessStatus, Refused, Ssd, Status, Stranded, Tier};
pub use stranded::Exported;
