//! The command line of `hotshelf queue`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hybridfs::Size;

/// Holds the arguments of `hotshelf queue`.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// The command that is to run.
    #[command(subcommand)]
    pub command: QueueCommand,
}

/// Lists the commands of `hotshelf queue`.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// Show the grants: who may have queues of which device
    #[command(after_help = "Example:\n  hotshelf queue list\n  hotshelf queue list --json | jq .[].device")]
    List(ListArgs),
    /// Allow a user, or a group, queues of a device
    #[command(after_help = "Example:\n  hotshelf queue grant alice /dev/nvme0n1 --queues 4 --depth 256 --first 0 --blocks 2097152\n  \
                      hotshelf queue grant @readers /srv/image --read-only --rate 200MiB\n\n\
                      A grant of the same user, device and blocks is replaced, and its open queues are closed.\n\
                      Only grants of processes' own (effective) groups count, no supplementary ones.\n\
                      Whoever holds blocks reads what was left there: erase them before you grant them to somebody else.")]
    Grant(GrantArgs),
    /// Take grants back, and close their queues
    #[command(after_help = "Example:\n  hotshelf queue revoke 3\n  hotshelf queue revoke --user alice --device /dev/nvme0n1")]
    Revoke(RevokeArgs),
    /// Show the queues that are open, and what they did
    #[command(after_help = "Example:\n  hotshelf queue stat\n  hotshelf queue stat --json")]
    Stat(StatArgs),
    /// Run the queue broker in the foreground
    #[command(after_help = "Example:\n  hotshelf queue serve /dev/nvme0n1 /dev/nvme1n1\n  \
                      hotshelf queue serve --socket /tmp/q.sock --journal /tmp/grants memory:64MiB\n\n\
                      DEVICE is a file, a block device, the character node of an NVMe namespace (/dev/ng0n1), vfio-user:SOCKET, \
                      memory:SIZE, or null.")]
    Serve(ServeArgs),
    /// Try what a grant gives: open queues, read a block by each
    #[command(
        after_help = "Example:\n  hotshelf queue try /dev/nvme0n1\n  hotshelf queue try /dev/nvme0n1 --queues 4 --depth 64 --read-only"
    )]
    Try(TryArgs),
    /// Show the last commands of a drive's queues, from a flight recorder's file
    #[command(after_help = "Example:\n  hotshelf queue record /dev/shm/hotshelf-nvme\n  \
                      hotshelf queue record --queue 1 --text /dev/shm/hotshelf-nvme.0 > tests/hang.txt\n\n\
                      The user-space NVMe driver writes FILE while it runs; it is there after the process was killed. What went wrong \
                      is in FILE.0 to FILE.15. The text can be flown again into the software controller, as a test.")]
    Record(RecordArgs),
}

/// Holds the arguments of `hotshelf queue record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// File that the flight recorder wrote
    pub file: PathBuf,
    /// Only this queue; 0 is the admin queue
    #[arg(long, value_name = "N")]
    pub queue: Option<u16>,
    /// As text for a test
    #[arg(long, conflicts_with = "json")]
    pub text: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the path of the broker's socket.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// The broker's socket [default: hotshelf/queues.sock in $XDG_RUNTIME_DIR if it is there, else in /run]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Holds the path of the broker's policy file.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Selects the socket of the broker.
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Change this journal itself, while no broker has it [default: the broker's; if none runs, /var/lib/hotshelf/grants for
    /// root, else hotshelf/grants in $XDG_STATE_HOME]
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
}

/// Holds the arguments of `hotshelf queue list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Selects the policy file of the broker.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf queue grant`.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// Selects the policy file of the broker.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// To whom: a user's name or number, or @ and a group's
    #[arg(value_name = "USER|@GROUP")]
    pub who: String,
    /// Of which device, as `serve` names it
    pub device: String,
    /// Most queues open at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub queues: u32,
    /// Most requests in flight on each
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// First block, in blocks of the device
    #[arg(long, value_name = "BLOCK", default_value_t = 0)]
    pub first: u64,
    /// Number of blocks [default: to the end of the device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub blocks: Option<u64>,
    /// Allow the client to read but not to write
    #[arg(long)]
    pub read_only: bool,
    /// Most shared memory for buffers, of each connection
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: Size,
    /// Most bytes per second, all its queues together [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// Most requests per second, all its queues together [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf queue revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Selects the policy file of the broker.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// The grants, by the numbers that `list` shows
    #[arg(value_name = "GRANT", required_unless_present_any = ["user", "device"], conflicts_with_all = ["user", "device"])]
    pub grants: Vec<u64>,
    /// All grants of this user, or @ and a group
    #[arg(long, value_name = "USER|@GROUP")]
    pub user: Option<String>,
    /// All grants of this device
    #[arg(long)]
    pub device: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf queue stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// Selects the socket of the broker.
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf queue serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where clients connect [default: /run/hotshelf/queues.sock for root, else hotshelf/queues.sock in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The journal of grants [default: /var/lib/hotshelf/grants for root, else hotshelf/grants in $XDG_STATE_HOME]
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Devices whose queues the broker grants to clients
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
    /// Open them for reading only
    #[arg(long)]
    pub read_only: bool,
    /// Write the flight recorder of a controller to this file, in shared memory (/dev/shm): `hotshelf queue record` reads it
    #[arg(long, value_name = "FILE")]
    pub record_file: Option<PathBuf>,
    /// Poll for this many microseconds after the last request before sleeping [default: 50; 0 with a single CPU]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub spin: Option<u64>,
    /// Write log lines as JSON objects
    #[arg(long)]
    pub log_json: bool,
    /// error, warn, info, debug or trace, or a filter [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Holds the arguments of `hotshelf queue try`.
#[derive(Debug, Args)]
pub struct TryArgs {
    /// Selects the socket of the broker.
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Of which device, as `serve` names it
    pub device: String,
    /// Number of queues to request from the broker
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u32,
    /// Requests in flight on each: a power of two
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: u32,
    /// First block; together with --blocks [default: all of the grant]
    #[arg(long, value_name = "BLOCK", requires = "blocks")]
    pub first: Option<u64>,
    /// Number of blocks to request from the broker
    #[arg(long, value_name = "N", requires = "first")]
    pub blocks: Option<u64>,
    /// Request queues that can read but not write
    #[arg(long)]
    pub read_only: bool,
    /// Keep the queues until standard input ends
    #[arg(long)]
    pub hold: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}
