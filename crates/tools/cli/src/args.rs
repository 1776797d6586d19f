//! The command line; man pages and completions are made from it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::cache::args::CacheArgs;
use crate::fs::args::FsArgs;
use crate::mount_settings::Layer;
use crate::nocache::NocacheArgs;
use crate::nvme::args::NvmeArgs;
use crate::queue::args::QueueArgs;
use crate::suggested::Suggested;

/// SSD and RAM cache in front of any slow storage, in user space.
#[derive(Debug, Parser)]
#[command(name = "hotshelf", version, arg_required_else_help = true)]
pub struct Cli {
    /// Print only errors and requested output: no progress, no confirmation
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more: each file that is copied or moved, and a daemon's log at level debug
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// The command that is to run.
    #[command(subcommand)]
    pub command: Command,
}

/// What `hotshelf set` takes, to be completed: settings, and the values of those that have few.
const SETTINGS: &[&str] = &[
    "high=",
    "low=",
    "reserve=",
    "min-file-size=",
    "max-file-size=",
    "move-rate=",
    "move-rate=none",
    "touch-window=",
    "policy=lru",
    "policy=lfu",
    "policy=fifo",
    "policy=s3-fifo",
    "promotion=second-touch",
    "promotion=on-open",
    "promotion=never",
];

/// Lists every command of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show an SSD directory and an HDD directory as one file system, or a directory with its file data in a cache
    #[command(after_help = "Example:\n  hotshelf mount --ssd /ssd/pool --hdd /hdd/pool /pool\n  \
                      hotshelf mount --cache /ssd/cache /nas /pool\n  \
                      mount -t fuse.hotshelf /ssd/pool:/hdd/pool /pool -o allow_other,policy=lfu\n\n\
                      With --cache, two directories are given: the one that is cached, and the mount point. Of the other options those\n\
                      apply that are about the mount itself: --allow-other, --read-only, --threads, --uring, --cache-ttl, --log-file, -o.")]
    Mount(Layer),
    /// Unmount cleanly
    #[command(visible_alias = "umount", after_help = "Example:\n  hotshelf unmount /pool")]
    Unmount(UnmountArgs),
    /// Show use, hits, moves and warnings of one mount or cache, or of all
    #[command(after_help = "Example:\n  hotshelf status /pool\n  hotshelf status --json | jq .[0].hit_ratio\n  hotshelf status /ssd/cache")]
    Status(StatusArgs),
    /// Tell where a file lives, why, and what would move it
    ///
    /// Of a file of a cached mount: how much of it is in memory and on the SSD, from its start to its end (# all, + some, . none).
    #[command(after_help = "Example:\n  hotshelf why /pool/photos/2024.tar\n  hotshelf why /pool/db /pool/photos")]
    Why(WhyArgs),
    /// Keep a file, or all below a directory, on the SSD
    #[command(after_help = "Example:\n  hotshelf pin /pool/db\n  hotshelf pin /pool/db /pool/photos")]
    Pin(PathArgs),
    /// Undo pin
    #[command(after_help = "Example:\n  hotshelf unpin /pool/db")]
    Unpin(PathArgs),
    /// Move a file, or all below a directory, to one side now
    #[command(after_help = "Example:\n  hotshelf migrate /pool/old-projects --to hdd\n  \
                      hotshelf migrate --dry-run /pool/old-projects /pool/photos --to hdd")]
    Migrate(MigrateArgs),
    /// Bring everything from one side to the other, which is complete alone then
    ///
    /// Files, links, pipes, devices and directories are brought over with owners, modes, ACLs, extended attributes, times and hard links.
    /// The mount can be used meanwhile: new files are made on the side that stays. What was stopped, also by a crash, goes on with the
    /// same command. In the end the tree is walked through once more; when nothing is left, the directory can be taken away after
    /// `hotshelf unmount`.
    #[command(after_help = "Example:\n  hotshelf retire --dry-run /pool ssd\n  hotshelf retire /pool ssd\n  \
                      hotshelf retire --ssd /ssd/pool --hdd /hdd/pool ssd")]
    Retire(RetireArgs),
    /// Restart the daemon of a cached mount with the program that is installed now; programs that use the mount go on
    #[command(after_help = "Example:\n  hotshelf restart /mnt/data\n\n\
                      For mounts made with `hotshelf mount --cache`, after an upgrade. Open files, locks and positions stay; programs\n\
                      wait, most often for less than a second. If the new program cannot take over, the old one serves on. Not over\n\
                      io_uring.")]
    Restart(RestartArgs),
    /// Change policy, marks, promotion and limits of a running mount, until it is unmounted
    #[command(after_help = "Example:\n  hotshelf set /pool high=95% low=85%\n  hotshelf set /pool policy=lfu reserve=5GiB\n  \
                      hotshelf set /pool promotion=never move-rate=20MiB\n\n\
                      Can be set: policy, high, low, reserve, min-file-size, max-file-size, promotion, move-rate (`none`: no limit),\n\
                      touch-window. `hotshelf status --json` shows what holds. Everything else needs a new mount: the directories,\n\
                      --pin and --hdd-only rules, --allow-other, --read-only, threads, io_uring, passthrough, --write-back,\n\
                      --cache-ttl and the log. `hotshelf pin` and `mount -o remount` work on a running mount, too.")]
    Set(SetArgs),
    /// Check an unmounted pair, or a cache that is not in use
    #[command(after_help = "Example:\n  hotshelf check /ssd/pool /hdd/pool\n  hotshelf check /ssd/pool /hdd/pool --repair\n  \
                      hotshelf check /ssd/cache")]
    Check(CheckArgs),
    /// Tell what this machine supports, what is missing and how to get it
    #[command(after_help = "Example:\n  hotshelf doctor --ssd /ssd/pool --hdd /hdd/pool")]
    Doctor(DoctorArgs),
    /// Repeat the experiments behind our figures, beside their peers
    #[command(after_help = "Example:\n  hotshelf bench list\n  hotshelf bench run block --size small --dir /mnt/ssd\n  \
                      hotshelf bench run block --device /dev/sdb --out results")]
    Bench(BenchArgs),
    /// Make caches of RAM and SSD that programs share, look at them, change them
    #[command(after_help = "Example:\n  hotshelf cache create /ssd/cache --size 100GiB\n  hotshelf cache status /ssd/cache\n  \
                      hotshelf cache flush /ssd/cache")]
    Cache(CacheArgs),
    /// Make file systems on raw devices and images, and use them
    #[command(after_help = "Example:\n  hotshelf fs mkfs /ssd/image --size 10GiB\n  hotshelf fs mount /ssd/image /mnt")]
    Fs(FsArgs),
    /// Take NVMe drives from the kernel to drive them from here, give them back, look at them
    #[command(after_help = "Example:\n  hotshelf nvme list\n  hotshelf nvme bind 0000:03:00.0\n  hotshelf fs mkfs nvme:0000:03:00.0/1")]
    Nvme(NvmeArgs),
    /// Hand out queues of devices to users, and say who may have them
    #[command(after_help = "Example:\n  hotshelf queue serve /dev/nvme0n1\n  hotshelf queue grant alice /dev/nvme0n1 --queues 4 \
                      --depth 256\n  hotshelf queue stat")]
    Queue(QueueArgs),
    /// Run a program whose files stay out of the page cache: every read comes from the device, every write reaches it
    #[command(after_help = "Example:\n  hotshelf nocache --path /data -- grep -r word /data\n  \
                      hotshelf nocache --device /dev/sdb -- fio job.fio\n\n\
                      Not seen, and said before: static, set-uid and Go programs, and those for musl.\n\
                      Not seen, and said when a ring is set up: reads and writes by io_uring (--no-io-uring refuses it).\n\
                      Not seen: system calls of a program's own assembly; such programs among the children; its own text.\n\
                      The kernel module kernel/nofscache sees all of these.")]
    Nocache(NocacheArgs),
    /// Goes on with a mount of the program before this one, in the same process.
    #[command(hide = true)]
    Takeover(TakeoverArgs),
    /// Print names of mounts or caches, one a line, for the shells' completion
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// Write man pages or completions into a directory
    #[command(hide = true, after_help = "Example:\n  hotshelf generate man target/man")]
    Generate(GenerateArgs),
}

/// Holds the arguments of `hotshelf unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// Directory where the files appear
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

/// Holds the arguments of `hotshelf status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The mount or the cache; all if none is given
    #[arg(value_name = "MOUNTPOINT|CACHE")]
    pub mountpoint: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Print metrics in the Prometheus text format
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

/// Holds the arguments of `hotshelf why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Files below a mount point
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// As JSON; a list if there are several
    #[arg(long)]
    pub json: bool,
}

/// Holds paths below mount points.
#[derive(Debug, Args)]
pub struct PathArgs {
    /// Files or directories below a mount
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Names one directory of a pair.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Side {
    /// The fast one.
    Ssd,
    /// The slow one.
    Hdd,
}

/// Holds the arguments of `hotshelf migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Files or directories below a mount
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Tier to which the files move
    #[arg(long, value_enum)]
    pub to: Side,
    /// Only say what would move
    #[arg(long)]
    pub dry_run: bool,
}

/// Holds the arguments of `hotshelf restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// Directory where the files appear
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
}

/// Holds the arguments of the hidden command that `hotshelf restart` makes a daemon call.
#[derive(Debug, Args)]
pub struct TakeoverArgs {
    /// Only say whether a state of this version can be taken over.
    #[arg(long, value_name = "VERSION")]
    pub check: Option<u32>,
    /// Number of the descriptor of the state.
    #[arg(required_unless_present = "check")]
    pub state: Option<i32>,
    /// The command that mounted, for those who look at the list of processes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<std::ffi::OsString>,
}

/// Holds the arguments of `hotshelf retire`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct RetireArgs {
    /// Directory where the files appear
    #[arg(required_unless_present = "ssd", conflicts_with = "ssd", value_hint = ValueHint::DirPath)]
    pub mountpoint: Option<PathBuf>,
    /// The side that holds nothing then
    #[arg(value_enum, required = true)]
    pub side: Option<Side>,
    /// The SSD directory of a pair that is not mounted
    #[arg(long, value_name = "DIR", requires = "hdd", value_hint = ValueHint::DirPath)]
    pub ssd: Option<PathBuf>,
    /// Directory on the large, slow device
    #[arg(long, value_name = "DIR", requires = "ssd", value_hint = ValueHint::DirPath)]
    pub hdd: Option<PathBuf>,
    /// Only look whether everything would fit
    #[arg(long)]
    pub dry_run: bool,
}

/// Holds the arguments of `hotshelf set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Directory where the files appear
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Settings to change, each as NAME=VALUE
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = Suggested(SETTINGS), hide_possible_values = true)]
    pub changes: Vec<String>,
    /// Only look whether it can be changed
    #[arg(long)]
    pub dry_run: bool,
}

/// Holds the arguments of `hotshelf check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The SSD directory of a pair; or, alone, a cache: the path of its SSD or its name
    #[arg(value_name = "SSD|CACHE")]
    pub ssd: PathBuf,
    /// Directory on the large, slow device
    pub hdd: Option<PathBuf>,
    /// Remove temporaries and needless copies; of a cache, what is damaged
    #[arg(long)]
    pub repair: bool,
    /// With --repair: only say what is found, and change nothing
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directory on the small, fast device
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub ssd: Option<PathBuf>,
    /// Directory on the large, slow device
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub hdd: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The command that is to run.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// Lists the commands of `hotshelf bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Name every experiment, its source and what it needs
    #[command(after_help = "Example:\n  hotshelf bench list")]
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Run experiments; write their figures and plots
    #[command(
        after_help = "Example:\n  hotshelf bench run all --small --out results\n  hotshelf bench run mount-bandwidth --dir /mnt/scratch\n  \
                      hotshelf bench run policies --trace my.trace.gz --cache 1%,10%"
    )]
    Run(BenchRunArgs),
    /// Make one HTML page of results, with charts
    #[command(after_help = "Example:\n  hotshelf bench report results -o report.html")]
    Report {
        /// Where `run` wrote them
        #[arg(value_name = "DIR", default_value = "bench-results")]
        dir: PathBuf,
        /// The page; its charts go into a directory beside it
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Report our results that became worse beyond the spread of both runs; exit 1 if there are any
    ///
    /// Judged is what has five runs or more on both sides: of fewer, too many lie apart by chance.
    #[command(after_help = "Example:\n  hotshelf bench compare results-before results-now")]
    Compare {
        /// Results before
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// Results now
        #[arg(value_name = "NOW")]
        now: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// How much of an experiment.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum BenchSize {
    /// Under a minute: shows that it works.
    Small,
    /// What is published.
    Full,
}

/// Holds the arguments of `hotshelf bench run`.
#[derive(Debug, Args)]
pub struct BenchRunArgs {
    /// Experiments to run, or `all` of them
    #[arg(required = true)]
    pub names: Vec<String>,
    /// A path, memory:SIZE or null [default: a scratch file]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<stack::DeviceName>,
    /// Writes may destroy what is on the device
    #[arg(long)]
    pub destroy_data: bool,
    /// Where scratch files are made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Scale of the data sets and run times
    #[arg(long, value_enum, default_value = "full")]
    pub size: BenchSize,
    /// The same as --size small
    #[arg(long, conflicts_with = "size")]
    pub small: bool,
    /// Leave out what --out has already, measured in the same way: goes on where a stopped run was
    #[arg(long)]
    pub resume: bool,
    /// How often everything is measured [default: 5, small: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A trace to replay (may be given several times): a page a line, or version,time,op,size,lbn; also gzip [default: made-up ones]
    #[arg(long, value_name = "FILE")]
    pub trace: Vec<PathBuf>,
    /// Sizes of the caches that traces are replayed with: shares of their pages, or numbers of pages
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub cache: Vec<bench::replay::CacheSize>,
    /// Where figures and plots are written
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    pub out: PathBuf,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}

/// Lists what `hotshelf generate` can write.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Product {
    /// Man pages.
    Man,
    /// Completions for bash, zsh and fish.
    Completions,
    /// The reference of commands, commands.md, and the table of keys in mount-configuration.md.
    Reference,
    /// The keys in the template of a configuration file, example.toml.
    Example,
}

/// Lists the kinds of names that `hotshelf complete` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NameKind {
    /// Mount points of pairs.
    Mounts,
    /// Caches that have settings.
    Caches,
    /// Both.
    All,
}

impl NameKind {
    /// Returns the word that stands for it on the command line.
    pub fn word(self) -> &'static str {
        match self {
            NameKind::Mounts => "mounts",
            NameKind::Caches => "caches",
            NameKind::All => "all",
        }
    }
}

/// Holds the arguments of `hotshelf complete`.
#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// Kind of names that are printed
    #[arg(value_enum)]
    pub kind: NameKind,
}

/// Holds the arguments of `hotshelf generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Kind of files that are written
    #[arg(value_enum)]
    pub what: Product,
    /// Directory in which the files are written
    pub dir: PathBuf,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_setting_of_a_running_mount_is_completed() {
        let known = |word: &str| word.split_once('=').is_some_and(|(name, _)| hybridfs::SETTINGS.contains(&name));
        assert!(SETTINGS.iter().all(|word| known(word)));
        assert!(hybridfs::SETTINGS.iter().all(|name| SETTINGS.iter().any(|word| word.starts_with(&format!("{name}=")))));
    }
}
