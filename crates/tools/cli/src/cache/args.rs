//! The command line of `hotshelf cache`.

use std::path::PathBuf;

use cachedfs::{Age, Mode, Size};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

/// The modes by name, which a shell completes.
fn modes() -> impl TypedValueParser<Value = Mode> {
    let names = ["write-back", "write-through", "write-around", "read-only", "pass-through"];
    PossibleValuesParser::new(names).try_map(|name| cachedfs::mode_of(&name))
}

/// Holds the arguments of `hotshelf cache`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// The command that is to run.
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// Lists the commands of `hotshelf cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Make a cache: format its SSD, and write down its settings
    #[command(after_help = "Example:\n  hotshelf cache create /ssd/cache --size 100GiB --memory 4GiB\n  \
                      hotshelf cache create /dev/nvme0n1p3 --name fast --mode write-through\n  \
                      hotshelf cache create scratch --memory 2GiB\n\n\
                      CACHE is a file, which is made, or a block device; or a name: that cache has memory and no SSD.\n\
                      Rules by file name are written into the settings file, whose path is printed.")]
    Create(Box<CreateArgs>),
    /// Load a cache into memory now, and keep it there until `detach`
    #[command(after_help = "Example:\n  hotshelf cache attach /ssd/cache")]
    Attach(AttachArgs),
    /// End what `attach` began
    #[command(after_help = "Example:\n  hotshelf cache detach /ssd/cache")]
    Detach(DetachArgs),
    /// The same as `attach` in the foreground, until ended by a signal; does the cache's work while it leads
    #[command(after_help = "Example:\n  hotshelf cache serve /ssd/cache")]
    Serve(ServeArgs),
    /// Show hits, latencies, bytes, wear, dirty pages and attached processes
    #[command(after_help = "Example:\n  hotshelf cache status /ssd/cache\n  hotshelf cache status --json | jq .tiers[0].ratio\n  \
                      hotshelf cache status --all --prometheus > /var/lib/prometheus/node-exporter/hotshelf.prom")]
    Status(StatusArgs),
    /// Show the rates, again and again
    #[command(after_help = "Example:\n  hotshelf cache top /ssd/cache --interval 2s")]
    Top(TopArgs),
    /// Write all dirty data to the backing files
    #[command(after_help = "Example:\n  hotshelf cache flush /ssd/cache\n  hotshelf cache flush /ssd/cache --discard-lost")]
    Flush(FlushArgs),
    /// Save a file as the cache has it, after another program changed, moved or removed it
    #[command(after_help = "Example:\n  hotshelf cache export /data/table.db /tmp/table.db\n\n\
                      `hotshelf cache status` names these files. Nothing else is changed: afterwards `discard` or `force` decides.")]
    Export(ExportArgs),
    /// Discard what the cache holds of such a file: the backing file is valid
    #[command(after_help = "Example:\n  hotshelf cache discard /data/table.db")]
    Discard(StrandedArgs),
    /// Write what the cache has of such a file over the file
    #[command(after_help = "Example:\n  hotshelf cache force /data/table.db\n\n\
                      Pages that are newer in the cache replace those of the file, which gets the length that it has in the cache.")]
    Force(StrandedArgs),
    /// Read files into the cache now, so that they are on its SSD when they are needed
    #[command(after_help = "Example:\n  hotshelf cache warm /data/models --limit 200MiB\n  \
                      find /data -name '*.parquet' -mtime -7 | hotshelf cache warm --list -\n\n\
                      What the SSD has already is not read again: a command that was interrupted goes on where it was. A cache without an \
                      SSD gets them into its memory.")]
    Warm(WarmArgs),
    /// Write files back and remove them from the cache's memory and SSD
    #[command(after_help = "Example:\n  hotshelf cache evict /data/old-project\n\n\
                      Nothing is lost: dirty data is written to the slow side first, and stays where that fails. Later reads come from the \
                      slow side.")]
    Evict(EvictArgs),
    /// Change what becomes of writes, while the cache is in use
    #[command(after_help = "Example:\n  hotshelf cache mode /ssd/cache write-through\n\n\
                      write-back     writes are on the SSD (without one: in memory) first, and below later\n\
                      write-through  writes are below first, and then on the SSD\n\
                      write-around   writes are below only\n\
                      read-only      no writes\n\
                      pass-through   the cache is not used")]
    Mode(ModeArgs),
    /// Change the size of the SSD file, or of the memory
    #[command(after_help = "Example:\n  hotshelf cache resize /ssd/cache --size 200GiB\n  hotshelf cache resize fast --memory 8GiB\n\n\
                      While it is mounted programs wait until it has the new size: less than a second to grow, and as long as copying \
                      what is kept to shrink. Other programs that use the cache have to end first.")]
    Resize(ResizeArgs),
    /// Write back what only the SSD has and stop using it, so that it can be taken away while the cache stays in use
    #[command(after_help = "Example:\n  hotshelf cache drain /ssd/cache\n  umount /ssd\n  hotshelf cache drain --undo /ssd/cache\n\n\
                      The cache has its memory alone until --undo. Its mounts go on, programs wait for a moment. `hotshelf cache \
                      destroy` removes a drained SSD for good.")]
    Drain(DrainArgs),
    /// Check the SSD of a cache that is not in use
    #[command(after_help = "Example:\n  hotshelf cache check /ssd/cache\n  hotshelf cache check /ssd/cache --repair")]
    Check(CheckArgs),
    /// Remove a cache: its SSD file or what marks its device, and its settings
    #[command(after_help = "Example:\n  hotshelf cache destroy /ssd/cache")]
    Destroy(DestroyArgs),
}

/// Which cache, where one need not be named.
#[derive(Debug, Args)]
pub struct Which {
    /// The path of its SSD, or its name [default: that of $HOTSHELF_CONFIG, else `default`]
    #[arg(value_name = "CACHE")]
    pub cache: Option<PathBuf>,
    /// Its settings are in this file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Which cache, where it has to be named.
#[derive(Debug, Args)]
pub struct This {
    /// The path of its SSD, or its name
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Its settings are in this file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Holds the arguments of `hotshelf cache create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// A file, a block device, a name, or an NVMe namespace to be driven by the programs: nvme:0000:03:00.0/1, vfio-user:SOCKET/1
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// What the cache is called [default: the last part of its path]
    #[arg(long)]
    pub name: Option<String>,
    /// Bytes of the file; a share is of what is free there [default: all of a device]
    #[arg(long)]
    pub size: Option<Size>,
    /// Memory for pages; a share is of RAM [default: a quarter of RAM, at most 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Of an NVMe namespace: write its controller's flight recorder to this file, in shared memory (/dev/shm)
    #[arg(long, value_name = "FILE")]
    pub record_file: Option<PathBuf>,
    /// Write policy: write-back, write-through, write-around, read-only or pass-through [default: write-back]
    #[arg(long, value_parser = modes(), hide_possible_values = true)]
    pub mode: Option<Mode>,
    /// Members of this group may take part
    #[arg(long)]
    pub group: Option<String>,
    /// Dirty pages before writers wait; a share is of the memory [default: 20%]
    #[arg(long, value_name = "SIZE")]
    pub dirty_limit: Option<Size>,
    /// Dirty pages are written below at this age [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub dirty_age: Option<Age>,
    /// Most that is read ahead of a sequential reader [default: 512KiB]
    #[arg(long, value_name = "SIZE")]
    pub read_ahead: Option<Size>,
    /// Most that is read around a requested page from a slow disk, while the SSD has room for it [default: 128KiB]
    #[arg(long, value_name = "SIZE")]
    pub read_around: Option<Size>,
    /// Most that is written to the SSD in a day [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub bytes_per_day: Option<Size>,
    /// Sequential reads longer than this are treated as streaming and not kept on the SSD [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    pub stream_cutoff: Option<Size>,
    /// Pages go to the SSD when they are read for the first time
    #[arg(long)]
    pub first_touch: bool,
    /// Read and write the backing files with O_DIRECT
    #[arg(long)]
    pub direct: bool,
    /// Files that may be known at once [default: 65536]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..1 << 20))]
    pub files: Option<u32>,
    /// Where its shared memory is: in a tmpfs [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// The shared memory stays unchanged when the last process detaches
    #[arg(long)]
    pub keep: bool,
    /// Overwrite data that the device or file holds
    #[arg(long)]
    pub force: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// How the log of a process in the background or foreground is.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Write log lines as JSON objects
    #[arg(long)]
    pub log_json: bool,
    /// error, warn, info, debug or trace, or a filter [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Holds the arguments of `hotshelf cache attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Selects the cache, if there are several.
    #[command(flatten)]
    pub which: Which,
    /// Log into this file [default: no log]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Options for the log of the process.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Holds the arguments of `hotshelf cache detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// Selects the cache, if there are several.
    #[command(flatten)]
    pub which: Which,
    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub timeout: Age,
}

/// Holds the arguments of `hotshelf cache serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Selects the cache, if there are several.
    #[command(flatten)]
    pub which: Which,
    /// Options for the log of the process.
    #[command(flatten)]
    pub log: LogArgs,
    /// Tells the waiting parent that the cache is there.
    #[arg(long, hide = true)]
    pub ready_pipe: bool,
}

/// Holds the arguments of `hotshelf cache status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Selects the cache, if there are several.
    #[command(flatten)]
    pub which: Which,
    /// All that are in use or have settings
    #[arg(long, conflicts_with_all = ["cache", "config"])]
    pub all: bool,
    /// Print the report as JSON
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print metrics in the Prometheus text format
    #[arg(long)]
    pub prometheus: bool,
}

/// Holds the arguments of `hotshelf cache top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Selects the cache, if there are several.
    #[command(flatten)]
    pub which: Which,
    /// Time between two updates of the screen
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Age,
    /// End after so many times [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// As JSON, one line each time
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf cache flush`.
#[derive(Debug, Args)]
pub struct FlushArgs {
    /// Selects the cache, if there are several.
    #[command(flatten)]
    pub which: Which,
    /// Give up what only an SSD that failed has: what is in the files counts from then on
    #[arg(long)]
    pub discard_lost: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The cache of a file.
#[derive(Debug, Args)]
pub struct CacheOf {
    /// The path of its SSD, or its name [default: that of $HOTSHELF_CONFIG, else `default`]
    #[arg(long, value_name = "CACHE")]
    pub cache: Option<PathBuf>,
    /// Its settings are in this file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf cache export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The file, where it is or was
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File to create with the exported data
    #[arg(value_name = "TO")]
    pub to: PathBuf,
    /// Selects the cache that holds the file.
    #[command(flatten)]
    pub of: CacheOf,
}

/// `hotshelf cache discard` and `force`.
#[derive(Debug, Args)]
pub struct StrandedArgs {
    /// The file, where it is or was
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Selects the cache that holds the file.
    #[command(flatten)]
    pub of: CacheOf,
}

/// Holds the arguments of `hotshelf cache warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// Files, or directories with all files below
    #[arg(value_name = "PATH", required_unless_present = "list")]
    pub paths: Vec<PathBuf>,
    /// Read further paths from this file, one a line; - for the standard input
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// Most that is read in a second [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<Size>,
    /// Selects the cache, for files that are not below a cached mount.
    #[command(flatten)]
    pub of: CacheOf,
}

/// Holds the arguments of `hotshelf cache evict`.
#[derive(Debug, Args)]
pub struct EvictArgs {
    /// Files, or directories with all files below
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Selects the cache, for files that are not below a cached mount.
    #[command(flatten)]
    pub of: CacheOf,
}

/// Holds the arguments of `hotshelf cache mode`.
#[derive(Debug, Args)]
pub struct ModeArgs {
    /// Names the cache that is meant.
    #[command(flatten)]
    pub this: This,
    /// The mode from now on
    #[arg(value_name = "MODE", value_parser = modes(), hide_possible_values = true)]
    pub mode: Mode,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf cache resize`.
#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// Names the cache that is meant.
    #[command(flatten)]
    pub this: This,
    /// Of the SSD file; a share is of what is free there and what it has
    #[arg(long, required_unless_present = "memory")]
    pub size: Option<Size>,
    /// Of the memory; a share is of RAM
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Only say what would be done, or what prevents it
    #[arg(long)]
    pub dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf cache drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Names the cache that is meant.
    #[command(flatten)]
    pub this: This,
    /// Use the SSD of the cache again
    #[arg(long)]
    pub undo: bool,
    /// Make the SSD's file, of this size, if another SSD is there now and has none
    #[arg(long, requires = "undo")]
    pub size: Option<Size>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf cache check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Names the cache that is meant.
    #[command(flatten)]
    pub this: This,
    /// Drop what is damaged, so that the cache can be used
    #[arg(long)]
    pub repair: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf cache destroy`.
#[derive(Debug, Args)]
pub struct DestroyArgs {
    /// Names the cache that is meant.
    #[command(flatten)]
    pub this: This,
    /// Also when it holds the only copy of something
    #[arg(long)]
    pub discard: bool,
    /// Only say what would be removed, or what prevents it
    #[arg(long)]
    pub dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}
