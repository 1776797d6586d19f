//! The command line of `hotshelf nvme`.

use clap::{Args, Subcommand};
use pci::Address;

/// Holds the arguments of `hotshelf nvme`.
#[derive(Debug, Args)]
pub struct NvmeArgs {
    /// The command that is to run.
    #[command(subcommand)]
    pub command: NvmeCommand,
}

/// Lists the commands of `hotshelf nvme`.
#[derive(Debug, Subcommand)]
pub enum NvmeCommand {
    /// Show the NVMe drives of this machine, who drives them and what they are used for
    #[command(after_help = "Example:\n  hotshelf nvme list\n  hotshelf nvme list --json | jq '.[] | select(.uses == [])'")]
    List(ListArgs),
    /// Take a drive from the kernel, so that programs here can drive it themselves
    #[command(after_help = "Example:\n  hotshelf nvme bind 0000:03:00.0\n  hotshelf nvme bind 0000:03:00.0 --user alice\n  \
                      hotshelf fs mkfs nvme:0000:03:00.0/1\n\n\
                      UnmountError while the drive has a mounted file system, swap, a part of a RAID or volume group, or an open user. \
                      Its data stays as it is; its block devices are gone until `unbind`. Only root may.")]
    Bind(BindArgs),
    /// Give a drive back to the kernel
    #[command(after_help = "Example:\n  hotshelf nvme unbind 0000:03:00.0\n\nRefused while a program has it open.")]
    Unbind(UnbindArgs),
    /// Show what a drive says of itself and of its namespaces
    #[command(after_help = "Example:\n  hotshelf nvme identify 0000:03:00.0\n  hotshelf nvme identify /dev/nvme0 --json\n\n\
                      Works on drives that are bound to vfio-pci and on those of the kernel.")]
    Identify(DriveArgs),
    /// Show the health of a drive
    #[command(after_help = "Example:\n  hotshelf nvme smart 0000:03:00.0\n  hotshelf nvme smart /dev/nvme0 --json\n\n\
                      Exit status: 0 well, 1 the drive warns, or it cannot be asked, 2 wrong usage.")]
    Smart(DriveArgs),
    /// Tell what is missing for driving NVMe drives from here, and how to get it
    #[command(after_help = "Example:\n  hotshelf nvme doctor\n  hotshelf nvme doctor 0000:03:00.0 --json")]
    Doctor(DoctorArgs),
}

/// Holds the arguments of `hotshelf nvme list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf nvme bind`.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// The drive, as `list` shows it
    #[arg(value_name = "ADDRESS")]
    pub address: Address,
    /// Give it to this user, by name or number: they need no root then
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

/// Holds the arguments of `hotshelf nvme unbind`.
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// The drive, as `list` shows it
    #[arg(value_name = "ADDRESS")]
    pub address: Address,
}

/// `hotshelf nvme identify` and `smart`.
#[derive(Debug, Args)]
pub struct DriveArgs {
    /// An address, or the kernel's node (/dev/nvme0)
    #[arg(value_name = "ADDRESS|NODE")]
    pub drive: String,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Holds the arguments of `hotshelf nvme doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only this drive [default: all]
    #[arg(value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}
