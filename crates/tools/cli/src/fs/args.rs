//! The command line of `hotshelf fs`.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use hybridfs::Size;
use mount::UringMode;

/// Holds the arguments of `hotshelf fs`.
#[derive(Debug, Args)]
pub struct FsArgs {
    /// The command that is to run.
    #[command(subcommand)]
    pub command: FsCommand,
}

/// Lists the commands of `hotshelf fs`.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Make an empty file system in a file or on a device
    #[command(after_help = "Example:\n  hotshelf fs mkfs /ssd/image --size 10GiB\n  hotshelf fs mkfs /dev/nvme0n1p3\n\n\
                      IMAGE is a file, which is made with --size if it is not there, or a block device.")]
    Mkfs(MkfsArgs),
    /// Show a file system in a directory, so that ordinary programs can use it
    #[command(after_help = "Example:\n  hotshelf fs mount /ssd/image /mnt\n  hotshelf unmount /mnt")]
    Mount(FsMountArgs),
    /// Check a file system that is not in use, and explain what is wrong
    #[command(after_help = "Example:\n  hotshelf fs check /ssd/image\n  hotshelf fs check --repair /ssd/image\n\n\
                      Without --repair nothing is written. Exit status: 0 clean, 1 something is wrong (and left), 2 wrong usage.")]
    Check(CheckArgs),
    /// Show what lies on the device: superblocks, log, every key and record; also of a damaged image
    #[command(after_help = "Example:\n  hotshelf fs dump /ssd/image | grep '/etc/'\n  hotshelf fs dump /ssd/image /etc/passwd")]
    Dump(DumpArgs),
    /// Make a file system larger, or smaller, that is not in use
    #[command(after_help = "Example:\n  hotshelf fs resize /ssd/image 20GiB\n  hotshelf fs resize /dev/vg/volume\n\n\
                      A file gets the size too. Room for names and attributes stays as it was made.")]
    Resize(ResizeArgs),
    /// Copy files and directories into an image, with all their attributes
    #[command(
        after_help = "Example:\n  hotshelf fs import /ssd/image /etc /var/lib/app /backup\n  hotshelf fs import /ssd/image photos/. /\n\n\
                      DEST is a directory in the image, made if it is not there. SRC/. is what is in SRC."
    )]
    Import(ImportArgs),
    /// Copy files and directories out of an image, with all their attributes
    #[command(
        after_help = "Example:\n  hotshelf fs export /ssd/image /backup/etc /tmp/restored\n  hotshelf fs export /ssd/image / /tmp/all\n\n\
                      SRC is a path in the image; DIR is made if it is not there. / and SRC/. are what is in them."
    )]
    Export(ExportArgs),
    /// Tell how full a file system is that is not in use
    #[command(after_help = "Example:\n  hotshelf fs df /ssd/image\n  hotshelf fs df /ssd/image --json | jq .data.free")]
    Df(DfArgs),
    /// Work in a file system without mounting it: commands by hand or from a script
    #[command(after_help = super::shell::manual())]
    Shell(super::shell::ShellArgs),
}

impl FsCommand {
    /// The image that an existing file system is looked for in.
    pub fn image(&self) -> Option<&Path> {
        match self {
            FsCommand::Mkfs(_) | FsCommand::Shell(_) => None,
            FsCommand::Mount(args) => Some(&args.image),
            FsCommand::Check(args) => Some(&args.image),
            FsCommand::Dump(args) => Some(&args.image),
            FsCommand::Resize(args) => Some(&args.image),
            FsCommand::Import(args) => Some(&args.image),
            FsCommand::Export(args) => Some(&args.image),
            FsCommand::Df(args) => Some(&args.image),
        }
    }
}

/// Holds the arguments of `hotshelf fs mkfs`.
#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// The file, block device, or vfio-user:SOCKET
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
    /// Overwrite data that the device or file holds
    #[arg(long)]
    pub force: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf fs mount`.
#[derive(Debug, Args)]
pub struct FsMountArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Directory where the files appear
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// Let other users access the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Refuse every change to the files
    #[arg(long)]
    pub read_only: bool,
    /// Honour set-user-ID and set-group-ID bits
    #[arg(long)]
    pub suid: bool,
    /// Honour device files in the image
    #[arg(long)]
    pub dev: bool,
    /// Memory in all, but for files in use: divided between names, content and what is not written yet [default: about 300MiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Number of threads that serve requests; with io_uring, for each CPU [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Requests over io_uring, which is faster: auto (where the kernel offers it: see `hotshelf doctor`) or off [default: auto]
    #[arg(long, value_name = "WHEN", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(["auto", "off"]).try_map(|when| when.parse::<UringMode>()))]
    pub uring: Option<UringMode>,
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

/// Holds the arguments of `hotshelf fs df`.
#[derive(Debug, Args)]
pub struct DfArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf fs check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Put right what can be put right without giving away what can still be read; what has lost its place goes to lost+found
    #[arg(long)]
    pub repair: bool,
    /// With --repair: only say what is found, and change nothing
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
    /// With --repair: where the bytes of a file are not those that were written, those that are there count from now on
    #[arg(long, requires = "repair")]
    pub accept_data: bool,
    /// Skip the content of files: check names, attributes and the owners of blocks
    #[arg(long, conflicts_with = "accept_data")]
    pub no_data: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

impl CheckArgs {
    /// Returns whether the check may write to the image.
    pub fn repairs(&self) -> bool {
        self.repair && !self.dry_run
    }
}

/// Holds the arguments of `hotshelf fs dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Only this file: its record and where its blocks are
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf fs resize`.
#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// The new size [default: all of the file or device]
    #[arg(value_name = "SIZE")]
    pub size: Option<Size>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf fs import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// What goes in, and the directory in the image that it goes to
    #[arg(value_name = "SRC... DEST", required = true, num_args = 2..)]
    pub paths: Vec<PathBuf>,
    /// Replace files that are there
    #[arg(long)]
    pub force: bool,
}

/// Holds the arguments of `hotshelf fs export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The file, block device, or vfio-user:SOCKET
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// What comes out, and the directory that it goes to
    #[arg(value_name = "SRC... DIR", required = true, num_args = 2..)]
    pub paths: Vec<PathBuf>,
    /// Replace files that are there
    #[arg(long)]
    pub force: bool,
}
