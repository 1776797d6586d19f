//! The status of an instance, for `hotshelf cache status` and `hs_status`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ssdcache::Mode;

/// The state of an instance. Counters start when the instance is created; bytes and pages are current values, unless stated otherwise.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The name of the instance in the configuration.
    pub name: String,
    /// The path of the segment; none if the memory is private.
    pub segment: Option<PathBuf>,
    /// The mode that is in force now, by its name.
    #[serde(with = "crate::config::mode")]
    pub mode: Mode,
    /// The origin of the mode: the settings, a command or the cache itself.
    pub mode_by: Option<String>,
    /// Why the cache changed the mode, if it did.
    pub mode_because: Option<String>,
    /// Seconds since the instance was created.
    pub uptime_s: u64,
    /// The processes that are attached to the instance.
    #[serde(rename = "seats")]
    pub processes: Vec<ProcessStatus>,
    /// The process id of the leader.
    pub leader_pid: Option<u32>,
    /// The page cache in memory.
    pub memory: Memory,
    /// The SSD of the instance.
    pub ssd: Option<Ssd>,
    /// The reads and writes of each tier.
    pub tiers: Vec<Tier>,
    /// Pages put on the SSD because they were read.
    pub promoted_pages: u64,
    /// Dirty pages that were written to the backing files.
    pub written_back_pages: u64,
    /// The number of write calls on backing files, after merging.
    pub below_writes: u64,
    /// The number of calls that waited for free memory.
    pub throttled: u64,
    /// The number of pages that were read ahead.
    pub read_ahead_pages: u64,
    /// Pages that were read from a backing file because they are next to a requested page.
    pub read_around_pages: u64,
    /// The number of calls of sync.
    pub syncs: u64,
    /// The number of leaders so far.
    pub leaders: u32,
    /// The number of files with a record.
    pub files: u32,
    /// The number of files that can have a record.
    pub files_max: u32,
    /// Bytes that are newer in the cache than in the backing files.
    pub dirty_bytes: u64,
    /// The number of dirty bytes at which writers wait.
    pub dirty_limit_bytes: u64,
    /// Acknowledged data that is lost or cannot be written, as exact ranges.
    pub lost: Vec<Lost>,
    /// Files whose dirty pages cannot be written until the user decides.
    pub stranded: Vec<Stranded>,
    /// The number of backing files that the leader has open, which is limited.
    pub leader_files: u32,
    /// Pages that were not put on the SSD, by reason.
    pub refused: RefusedPages,
    /// Messages for the user, such as configuration that differs from that of the running instance.
    pub notes: Vec<String>,
}

/// A process that is attached to the instance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// The number of its process slot.
    #[serde(rename = "seat")]
    pub slot: u8,
    /// Its process id when it attached, in its own pid namespace.
    pub pid: u32,
    /// Whether the process is alive.
    pub alive: bool,
    /// Whether the process is the leader.
    pub leads: bool,
}

/// The page cache in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The bytes of all pages together.
    pub bytes: u64,
    /// The number of page frames.
    pub pages: u64,
    /// Pages that are free now.
    pub free_pages: u64,
    /// Pages that are newer than the backing file.
    pub dirty_pages: u64,
    /// Pages that are pinned in memory.
    pub pinned_pages: u64,
    /// Bytes of the segment: the pages and all metadata.
    pub segment_bytes: u64,
}

/// The SSD of the instance.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ssd {
    /// The path of the file or device.
    pub path: PathBuf,
    /// The identity of the SSD, which formatting makes.
    pub uuid: String,
    /// Bytes that are available for pages.
    pub bytes: u64,
    /// Pages that are cached on it.
    pub pages: u64,
    /// Cached pages that are newer than the backing file.
    pub dirty_pages: u64,
    /// Bytes of memory for its metadata, in the segment and in the leader.
    pub books_bytes: u64,
    /// Bytes of the pages that were stored on it.
    pub user_bytes: u64,
    /// The number of bytes written to it since the instance was created.
    pub written_bytes: u64,
    /// The number of bytes written to it since it was formatted.
    pub written_ever_bytes: u64,
    /// `written_bytes` divided by `user_bytes`; 0 if nothing was stored.
    pub write_amplification: f64,
    /// The number of bytes that may be written to it in a day.
    pub bytes_per_day: Option<u64>,
    /// The number of bytes per day at the rate since the instance was created.
    pub written_per_day_bytes: u64,
    /// The number of segments of its log.
    pub segments: u32,
    /// The number of pages of a segment.
    pub segment_pages: u32,
    /// The duration of the last recovery, in milliseconds.
    pub recovery_ms: u64,
    /// Pages that the last recovery found.
    pub recovery_pages: u64,
    /// Pages that could not be read or failed their checksum.
    pub damaged_pages: u64,
    /// Dirty pages that were lost with it.
    pub lost_pages: u64,
    /// The failure of the SSD, if it failed.
    pub failed: Option<String>,
    /// Whether it is drained, and no process uses it.
    pub drained: bool,
}

/// The reads and writes of a tier.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tier {
    /// The name of the tier: `ram`, `ssd` or `below`.
    pub name: String,
    /// Pages that were read from it.
    pub hits: u64,
    /// The share of all read pages that it served, 0 to 1.
    pub ratio: f64,
    /// Bytes that were read from it.
    pub read_bytes: u64,
    /// Bytes that were written to it.
    pub written_bytes: u64,
    /// The latency of the reads that it served.
    pub read_latency: Latency,
    /// The latency of the writes that it handled.
    pub write_latency: Latency,
    /// The number of calls on it.
    pub requests: u64,
    /// The number of failed calls.
    pub errors: u64,
}

/// Counts of pages that were not put on the SSD, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedPages {
    /// Read for the first time: the second time counts.
    pub first_touch: u64,
    /// Read by a sequential stream.
    pub stream: u64,
    /// The daily write budget was used up. Counts written pages, too, which went to the backing file.
    pub budget: u64,
    /// Excluded by a rule of the configuration.
    pub rule: u64,
    /// The SSD's metadata had no room: too many files, or a position too far back in a file.
    pub full: u64,
}

/// Percentiles of a latency in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Half of all calls are faster.
    pub p50_us: f64,
    /// 9 of 10 calls are faster.
    pub p90_us: f64,
    /// 99 of 100 calls are faster.
    pub p99_us: f64,
    /// 999 of 1000 calls are faster.
    pub p999_us: f64,
    /// The slowest call of all.
    pub max_us: f64,
    /// The number of measured calls.
    pub count: u64,
}

/// A range that cannot be written, or that is lost.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// The path of the file.
    pub path: PathBuf,
    /// The first byte of the range.
    pub start: u64,
    /// The end of the range, exclusive.
    pub end: u64,
    /// What happened to the range.
    pub why: String,
}

/// A file whose dirty pages cannot be written until the user runs `hotshelf cache export`, `discard` or `force`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stranded {
    /// The path of the file when it was last open.
    pub path: PathBuf,
    /// `conflict`: another program changed it while pages were dirty. `missing`: another program moved or removed it.
    pub why: String,
    /// The number of bytes that only the cache has.
    pub dirty_bytes: u64,
}

/// Counters of the calls of one process: see [`crate::Instance::met`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Met {
    /// The number of pages that were not in memory.
    pub misses: u64,
    /// The number of calls that waited for free memory.
    pub waits: u64,
}
