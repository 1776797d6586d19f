//! What an instance says of itself, for `hotshelf cache status` and `hs_status`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ssdcache::Mode;

/// See the module. Counters are since the instance was made; bytes and pages are now, unless said.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Of the configuration.
    pub name: String,
    /// The segment's file; none if the memory is private.
    pub segment: Option<PathBuf>,
    /// The mode in force.
    #[serde(with = "crate::config::mode")]
    pub mode: Mode,
    /// Who said so: the settings, a command, the cache itself.
    pub mode_by: Option<String>,
    /// Why the mode is another than was asked for, if the cache changed it itself.
    pub mode_because: Option<String>,
    /// Seconds since the instance was made.
    pub uptime_s: u64,
    /// The processes that take part.
    #[serde(rename = "seats")]
    pub processes: Vec<ProcessStatus>,
    /// Who leads.
    pub leader_pid: Option<u32>,
    /// The page cache.
    pub memory: Memory,
    /// The SSD.
    pub ssd: Option<Ssd>,
    /// What came from and went to each tier.
    pub tiers: Vec<Tier>,
    /// Pages put on the SSD because they were read.
    pub promoted_pages: u64,
    /// Dirty pages that were written below.
    pub written_back_pages: u64,
    /// Calls that this took, after merging.
    pub below_writes: u64,
    /// Calls that waited for room.
    pub throttled: u64,
    /// Pages that were read ahead.
    pub read_ahead_pages: u64,
    /// Pages that came from below because they lay around one that was asked for.
    pub read_around_pages: u64,
    /// Calls of sync.
    pub syncs: u64,
    /// Leaders so far.
    pub leaders: u32,
    /// Files with a record, and how many are possible.
    pub files: u32,
    /// See `files`.
    pub files_max: u32,
    /// Bytes that are newer here than below.
    pub dirty_bytes: u64,
    /// At which writers wait.
    pub dirty_limit_bytes: u64,
    /// What was acknowledged and is gone, or cannot be written: exact ranges.
    pub lost: Vec<Lost>,
    /// Files with dirty pages that cannot be written until somebody decides.
    pub stranded: Vec<Stranded>,
    /// Files that the leader has at hand; bounded.
    pub leader_files: u32,
    /// Pages that were not put on the SSD, by reason.
    pub refused: Refused,
    /// What a person should know: configuration that differs from the running instance's, and the like.
    pub notes: Vec<String>,
}

/// A process that takes part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// The number of its process slot.
    #[serde(rename = "seat")]
    pub slot: u8,
    /// As it was when it sat down, in its own pid namespace.
    pub pid: u32,
    /// Whether it lives.
    pub alive: bool,
    /// Whether it leads.
    pub leads: bool,
}

/// The page cache.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Bytes of the pages.
    pub bytes: u64,
    /// Pages there is room for.
    pub pages: u64,
    /// Pages that hold nothing.
    pub free_pages: u64,
    /// Pages newer than what is below.
    pub dirty_pages: u64,
    /// Pages that stay.
    pub pinned_pages: u64,
    /// Bytes of the segment: the pages and all books.
    pub segment_bytes: u64,
}

/// The SSD.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ssd {
    /// File or device.
    pub path: PathBuf,
    /// What tells it apart.
    pub uuid: String,
    /// Bytes for pages.
    pub bytes: u64,
    /// Pages that are cached.
    pub pages: u64,
    /// Of them, newer than what is below.
    pub dirty_pages: u64,
    /// Memory of its books, bytes, in the segment and in the leader.
    pub books_bytes: u64,
    /// Bytes of pages that were put there.
    pub user_bytes: u64,
    /// Bytes written to it in all, this instance's life.
    pub written_bytes: u64,
    /// The same, since it was formatted.
    pub written_ever_bytes: u64,
    /// `written_bytes` by `user_bytes`; 0 if nothing was put.
    pub write_amplification: f64,
    /// What may be written to it in a day.
    pub bytes_per_day: Option<u64>,
    /// What is written in a day at the rate since the instance was made.
    pub written_per_day_bytes: u64,
    /// Segments of its log.
    pub segments: u32,
    /// Pages of each.
    pub segment_pages: u32,
    /// How long the last recovery took, milliseconds.
    pub recovery_ms: u64,
    /// Pages it found again.
    pub recovery_pages: u64,
    /// Pages that could not be read, or not as they were written.
    pub damaged_pages: u64,
    /// Dirty pages that were lost with it.
    pub lost_pages: u64,
    /// Whether it failed, in words.
    pub failed: Option<String>,
}

/// What came from and went to a tier.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tier {
    /// `ram`, `ssd` or `below`.
    pub name: String,
    /// Pages that were read from it.
    pub hits: u64,
    /// Of all pages read, the share that it served, 0 to 1.
    pub ratio: f64,
    /// Bytes read from it.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
    /// Of reads that it served.
    pub read_latency: Latency,
    /// Of writes that it took.
    pub write_latency: Latency,
    /// Calls.
    pub requests: u64,
    /// Failures.
    pub errors: u64,
}

/// Pages that were not put on the SSD, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// Read for the first time: the second time counts.
    pub first_touch: u64,
    /// Read in a stream.
    pub stream: u64,
    /// The day's bytes were used up; pages that were written, too, which went below.
    pub budget: u64,
    /// A rule says so.
    pub rule: u64,
    /// The SSD's books had no place: too many files, or too far back in one.
    pub full: u64,
}

/// Percentiles, microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Half are faster.
    pub p50_us: f64,
    /// 9 of 10 are.
    pub p90_us: f64,
    /// 99 of 100 are.
    pub p99_us: f64,
    /// 999 of 1000 are.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// How many were measured.
    pub count: u64,
}

/// What cannot be written, or is gone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// The file.
    pub path: PathBuf,
    /// First byte.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// What happened.
    pub why: String,
}

/// A file whose dirty pages cannot be written until somebody decides: `hotshelf cache export`, `discard` or `force`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stranded {
    /// Where it was when it was last open.
    pub path: PathBuf,
    /// `conflict`: another program changed it while pages were dirty. `missing`: another program moved or removed it.
    pub why: String,
    /// Bytes that only the cache has.
    pub dirty_bytes: u64,
}

/// What calls of one process met: see [`crate::Instance::met`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Met {
    /// Pages that were not in memory.
    pub misses: u64,
    /// Calls that waited for room in memory.
    pub waits: u64,
}
