//! Files through the cache, for the front ends.
//!
//! An [`Instance`] is a cache that processes share: a segment of memory, at most one SSD, and any number of backing files in ordinary file
//! systems. Its [`File`] follows POSIX (append, truncate, rename, unlink, holes). Calls on files that cannot be cached (pipes, devices,
//! directories, /proc, `O_PATH`) go to the kernel unchanged.
//!
//! - [`Config`] is the table `[cache]` of the configuration file; [`Options`] apply to one open.
//! - `ssd_name.rs`: what the name of an SSD means. `user_space_nvme.rs`: a cache SSD on a user-space NVMe driver.
//! - `image.rs`: creates, checks, resizes and removes an SSD that no process uses. `settings.rs`: the settings of named caches.
//! - [`AsyncReader`] are asynchronous reads.
//! - `open_file.rs`: opening a file by its name. `file.rs`: the calls on an open file. `file/position.rs`: those that use its position.
//!   `file/pinned.rs`: pages read in place. `plain.rs`: calls that go to the kernel unchanged.
//! - `cached_version.rs`: reads of files that are not open. `process_counts.rs`: what one process reads and writes.
//! - `advice.rs`, `stranded.rs`: what a user can do about a conflict.
#![forbid(unsafe_code)]

mod advice;
mod attach;
mod below;
mod cached;
mod cached_version;
mod changes;
mod config;
mod descriptor;
mod error;
mod file;
mod find;
mod forks;
mod group;
mod guarded;
pub mod image;
mod instance;
mod key;
mod limits;
mod names;
mod note;
mod number_calls;
mod open_file;
mod options;
mod place;
mod plain;
mod process_counts;
mod quick;
mod reads;
mod report;
mod rules;
mod settings;
mod ssd;
mod ssd_name;
mod status;
mod stranded;
pub mod user_space_nvme;
mod watch;

pub use attach::machine_memory_bytes;
pub use cached_version::{CachedVersion, KnownFile};
pub use config::{Admit, Config, RuleConfig, mode_name, mode_of};
pub use datapath::engine::{Residency, ResidencyPart};
pub use error::{Error, Kind};
pub use file::{File, Pinned, PinnedPage, Whence};
pub use guarded::{is_remote, unescape_octal};
pub use instance::{CacheVersions, Instance};
pub use key::{data_key, is_lasting};
pub use names::RemovedFile;
pub use note::{path_hash, state_directory};
pub use options::{Advice, Options};
pub use process_counts::{CountsBaseline, ProcessCounts, ProcessReport, ReadFrom};
pub use quick::FoundPage;
pub use reads::{AsyncReader, AsyncReaderOptions, Ended, Outcome, PreparedRead, Reading, SubmitResult};
pub use sizes::{Age, SettingError, Size};
pub use ssdcache::Mode;
pub use status::{Latency, Lost, Memory, Met, ProcessStatus, RefusedPages, Ssd, Status, Stranded, Tier};
pub use stranded::Exported;
