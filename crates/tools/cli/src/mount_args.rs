//! The command line of `hotshelf mount`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use hybridfs::{Promotion, Size};
use mount::UringMode;
use mount::cached::{NamesMode, OfflinePolicy};

use crate::suggested::Suggested;

/// Holds the arguments of `hotshelf mount`.
/// The only definition of its settings: [`crate::mount_settings`] makes configuration keys and options of mount(8) of them.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// Directory on the small, fast device
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub ssd: Option<PathBuf>,
    /// Directory on the large, slow device
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub hdd: Option<PathBuf>,
    /// Cache whose SSD and memory serve the file data of DIRECTORY: its name, or the path of its SSD
    #[arg(long, value_name = "CACHE")]
    pub cache: Option<PathBuf>,
    /// Directory where the files appear; with --cache, first the directory that is cached
    #[arg(value_name = "MOUNTPOINT", value_hint = ValueHint::DirPath)]
    pub mountpoint: Option<PathBuf>,
    /// Directory where the files of a cached directory appear
    #[arg(hide = true, value_hint = ValueHint::DirPath, requires = "cache")]
    pub second: Option<PathBuf>,
    /// Settings from a TOML file; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Eviction policy: lru, lfu, fifo, s3-fifo or the path of a shared object
    #[arg(long, value_name = "NAME|FILE.so", value_parser = Suggested(&["lru", "lfu", "fifo", "s3-fifo"]), hide_possible_values = true)]
    pub policy: Option<String>,
    /// Demotion starts above this use of the SSD
    #[arg(long, value_name = "SIZE")]
    pub high: Option<Size>,
    /// Demotion stops below this use of the SSD
    #[arg(long, value_name = "SIZE")]
    pub low: Option<Size>,
    /// Space of the SSD kept free for writers that bypass the daemon
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<Size>,
    /// Smaller files do not move by themselves
    #[arg(long, value_name = "SIZE")]
    pub min_file_size: Option<Size>,
    /// Larger files are not promoted, and are demoted when they grow beyond it [default: 50%]
    #[arg(long, value_name = "SIZE")]
    pub max_file_size: Option<Size>,
    /// When a file of the HDD is promoted: second-touch, on-open (the open waits) or never
    #[arg(long, value_name = "WHEN", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(["second-touch", "on-open", "never"]).try_map(|when| when.parse::<Promotion>()))]
    pub promotion: Option<Promotion>,
    /// Files that stay on the SSD, relative to the mount point (may be given several times)
    #[arg(long = "pin", value_name = "GLOB")]
    pub pin: Vec<String>,
    /// Files that live on the HDD, relative to the mount point (may be given several times)
    #[arg(long, value_name = "GLOB")]
    pub hdd_only: Vec<String>,
    /// Limit of background moves per second [default: none]
    #[arg(long, value_name = "SIZE")]
    pub move_rate: Option<Size>,
    /// Two opens within this many seconds are a second touch
    #[arg(long, value_name = "SECONDS")]
    pub touch_window: Option<u32>,
    /// Stay in the foreground, log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// Let other users access the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Serve all requests with one thread
    #[arg(long)]
    pub single_thread: bool,
    /// Number of threads that serve requests; with io_uring, for each CPU
    #[arg(long, value_name = "N", conflicts_with = "single_thread", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Requests over io_uring, which is faster: auto (where the kernel offers it: see `hotshelf doctor`) or off [default: auto]
    #[arg(long, value_name = "WHEN", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(["auto", "off"]).try_map(|when| when.parse::<UringMode>()))]
    pub uring: Option<UringMode>,
    /// Take all file data through the daemon
    #[arg(long)]
    pub no_passthrough: bool,
    /// Let the kernel write back lazily: faster without passthrough; data neither closed nor flushed is lost with the daemon
    #[arg(long)]
    pub write_back: bool,
    /// Give each thread its own copy of the FUSE device (not over io_uring)
    #[arg(long)]
    pub clone_fd: bool,
    /// How long names and attributes are believed, seconds (by default of --cache: 1, with --names and a directory on a network: 60)
    #[arg(long, value_name = "SECONDS")]
    pub cache_ttl: Option<u64>,
    /// What remembers names and attributes with --cache: kernel (until --cache-ttl has passed), memory (they are answered at once also
    /// when they are older, and then read again in the background) or persistent (the same, and kept over remounts) [default: kernel]
    #[arg(long, value_name = "WHERE", requires = "cache", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(["kernel", "memory", "persistent"]).try_map(|names| names.parse::<NamesMode>()))]
    pub names: Option<NamesMode>,
    /// What becomes of writes with --cache: write-through (on the slow side when the call returns) or write-back (in the cache, durable
    /// after fsync; on the slow side later) [default: write-through]
    #[arg(long, value_name = "MODE", requires = "cache", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(["write-through", "write-back"]).try_map(|mode| cachedfs::mode_of(&mode)))]
    pub cache_mode: Option<cachedfs::Mode>,
    /// How long the directory of --cache may not reply before requests fail with ETIMEDOUT, seconds; 0: they wait for ever [default: 30]
    #[arg(long, value_name = "SECONDS", requires = "cache")]
    pub deadline: Option<u64>,
    /// What is written while the directory of --cache does not reply: read-only (nothing) or write-back (data of open files, into a cache
    /// that writes back) [default: read-only]
    #[arg(long, value_name = "POLICY", requires = "cache", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(["read-only", "write-back"]).try_map(|policy| policy.parse::<OfflinePolicy>()))]
    pub offline: Option<OfflinePolicy>,
    /// Refuse every change to the files
    #[arg(long)]
    pub read_only: bool,
    /// Pair these directories anew: give both a new identity
    #[arg(long)]
    pub adopt: bool,
    /// Log here instead of in .hotshelf/log on the SSD
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Write log lines as JSON objects
    #[arg(long)]
    pub log_json: bool,
    /// Log level: error, warn, info, debug or trace, or a filter [default: info]
    #[arg(long, value_name = "LEVEL", hide_possible_values = true,
          value_parser = Suggested(&["error", "warn", "info", "debug", "trace"]))]
    pub log_level: Option<String>,
    /// Options as mount(8) has them: allow_other,ro,noexec,policy=lfu,...
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Only look whether the command makes sense
    #[arg(long)]
    pub dry_run: bool,
    /// Tells the waiting parent that the mount answers.
    #[arg(long, hide = true)]
    pub ready_pipe: bool,
}
