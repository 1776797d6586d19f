//! The command line of `hotshelf fs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hybridfs::Size;

/// `hotshelf fs`.
#[derive(Debug, Args)]
pub struct FsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: FsCommand,
}

/// Its commands.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Make an empty file system in a file or on a device
    #[command(after_help = "Example:\n  hotshelf fs mkfs /ssd/image --size 10GiB\n  hotshelf fs mkfs /dev/nvme0n1p3\n\n\
                      IMAGE is a file, which is made with --size if it is not there, or a block device.")]
    Mkfs(MkfsArgs),
    /// Show a file system in a directory, so that ordinary programs can use it
    #[command(after_help = "Example:\n  hotshelf fs mount /ssd/image /mnt\n  hotshelf unmount /mnt")]
    Mount(FsMountArgs),
    /// Look over a file system that is not in use, and explain what is wrong
    #[command(after_help = "Example:\n  hotshelf fs check /ssd/image")]
    Check(CheckArgs),
    /// Tell how full a file system is that is not in use
    #[command(after_help = "Example:\n  hotshelf fs df /ssd/image\n  hotshelf fs df /ssd/image --json | jq .data.free")]
    Df(DfArgs),
}

/// `hotshelf fs mkfs`.
#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// The file or block device
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// The size of a file that is made [default: what is there, or the whole device]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Room for names, attributes and small files [default: a sixteenth]
    #[arg(long, value_name = "SIZE")]
    pub metadata: Option<Size>,
    /// Room for the log [default: a hundredth, 1 to 64 MiB]
    #[arg(long, value_name = "SIZE")]
    pub log: Option<Size>,
    /// Overwrite what is there
    #[arg(long)]
    pub force: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

/// `hotshelf fs mount`.
#[derive(Debug, Args)]
pub struct FsMountArgs {
    /// The file or block device
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Where the files appear
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// Let other users in
    #[arg(long)]
    pub allow_other: bool,
    /// Refuse every change
    #[arg(long)]
    pub read_only: bool,
    /// Honour set-id bits
    #[arg(long)]
    pub suid: bool,
    /// Honour device files
    #[arg(long)]
    pub dev: bool,
    /// Memory for what was read, and as much for names and attributes [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Serve with this many threads [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Stay in the foreground, log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// Where the log goes [default: nowhere]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Said to the daemon by the command that starts it
    #[arg(long, hide = true)]
    pub ready_pipe: bool,
}

/// `hotshelf fs df`.
#[derive(Debug, Args)]
pub struct DfArgs {
    /// The file or block device
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

/// `hotshelf fs check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The file or block device
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}
