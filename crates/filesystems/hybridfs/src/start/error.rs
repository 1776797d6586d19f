//! The errors of a start.

use std::path::PathBuf;

use rustix::io::Errno;

use crate::hidden_dir::UntrustedHiddenDirError;
use crate::persist::PersistError;
use crate::placement::PlacementError;
use crate::report::TierName;

/// Why a pair cannot be opened: what happened, to what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory is missing.
    #[error("{path}: there is no such directory: create it, or mount the disk it is on")]
    Missing {
        /// As given.
        path: PathBuf,
    },
    /// Not a directory.
    #[error("{path} is not a directory: give the directory that holds (or shall hold) the files")]
    NotADirectory {
        /// As given.
        path: PathBuf,
    },
    /// Not ours.
    #[error("{path} belongs to user {owner}, not to you (user {you}): mount as its owner or as root")]
    WrongOwner {
        /// As given.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Us.
        you: u32,
    },
    /// One inside the other.
    #[error("{inner} is inside {outer}: the SSD directory, the HDD directory and the mount point must not contain each other")]
    Nested {
        /// The inner one.
        inner: PathBuf,
        /// The outer one.
        outer: PathBuf,
    },
    /// The other half is not there.
    #[error(
        "{path} has no hotshelf identity, but {other} belongs to a pair: is the disk mounted? \
         (if this really is a new directory for it, mount once with --adopt)"
    )]
    HalfMissing {
        /// The directory without identity.
        path: PathBuf,
        /// The one with.
        other: PathBuf,
    },
    /// Halves of different pairs.
    #[error("{ssd} and {hdd} belong to different pairs: check which directories go together (--adopt pairs them anew)")]
    OtherPair {
        /// The SSD directory.
        ssd: PathBuf,
        /// The HDD directory.
        hdd: PathBuf,
    },
    /// The directories are swapped.
    #[error("{path} is the {is} directory of its pair, not the {wanted} directory: exchange --ssd and --hdd")]
    Swapped {
        /// The directory.
        path: PathBuf,
        /// What it is.
        is: TierName,
        /// What it was given as.
        wanted: TierName,
    },
    /// Somebody else prepared it.
    #[error(
        "{path}/.hotshelf {what}, so it may have been prepared by somebody else: mount as that user, or see what is in it and \
         remove it (or give it to you with chown -R, and chmod go-w)"
    )]
    UntrustedHiddenDirError {
        /// The directory it is in.
        path: PathBuf,
        /// Its owner and mode.
        what: UntrustedHiddenDirError,
    },
    /// A foreign directory has the name of the hidden directory.
    #[error(
        "{path}/.hotshelf holds `{holds}` and nothing that says that hotshelf made it: see what it is; it belongs elsewhere, or if it \
         is left of a mount that was cut off, rename it"
    )]
    NotHidden {
        /// The directory it is in.
        path: PathBuf,
        /// What is in it.
        holds: String,
    },
    /// Another daemon has it.
    #[error("{path} is in use by another hotshelf: unmount that first (`hotshelf status` lists the mounts)")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The marks make no sense.
    #[error("--low {low} is above --high {high}: the low mark is where demotion stops")]
    Marks {
        /// As given.
        low: String,
        /// As given.
        high: String,
    },
    /// A system call failed.
    #[error("{path}: {doing}: {source}")]
    Os {
        /// What it was about.
        path: PathBuf,
        /// What we were doing.
        doing: &'static str,
        /// What the kernel said.
        source: Errno,
    },
    /// There is no hidden directory, and none can be made.
    #[error("{path} was never used by hotshelf and cannot be prepared read-only: mount it once with both directories writable")]
    NeverUsed {
        /// The directory.
        path: PathBuf,
    },
    /// The mount would give files a power that they do not have.
    #[error("{path} is on a file system mounted {flag}, which `-o {option}` would undo: mount without `-o {option}`, or remount that")]
    Powerless {
        /// The directory.
        path: PathBuf,
        /// As given.
        option: &'static str,
        /// What is against it.
        flag: &'static str,
    },
    /// The rules or the policy.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// One of our own files.
    #[error("{path}/{source}")]
    Persist {
        /// The directory it is in.
        path: PathBuf,
        /// What is wrong.
        source: PersistError,
    },
}
