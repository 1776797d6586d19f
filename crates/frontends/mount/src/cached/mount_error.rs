//! Why a cached directory is not mounted, or does not end as it should.

use std::path::PathBuf;

use cachedfs::Mode;

use super::handover::FormatError;
use crate::session::MountError;

/// The reason why a cached directory is not mounted, or was not unmounted well.
#[derive(Debug, thiserror::Error)]
pub enum CachedMountError {
    /// The mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The directory on the slow side.
    #[error("{0}")]
    Directory(directoryfs::OpenError),
    /// The directory would be hidden by its own mount.
    #[error("{directory} and the mount point {mountpoint} contain each other: choose a mount point outside of the directory")]
    Nested {
        /// As given.
        directory: PathBuf,
        /// As given.
        mountpoint: PathBuf,
    },
    /// A flag that the file system of the directory does not allow.
    #[error(
        "-o {flag}: the file system of {directory} is mounted no{flag}, and files of it get no power by this mount: leave the option out"
    )]
    Powerless {
        /// As given.
        directory: PathBuf,
        /// The option of mount(8).
        flag: &'static str,
    },
    /// Files may not be written back in the mode of the cache.
    #[error(
        "the cache is in mode {}, so that files of a mount cannot be written back: leave out --cache-mode, or change the mode with \
         `hotshelf cache mode`",
        cachedfs::mode_name(*.0)
    )]
    Mode(Mode),
    /// The cache could not be attached to.
    #[error(transparent)]
    Cache(#[from] cachedfs::Error),
    /// The slow side did not reply when the mount ended.
    #[error(
        "{directory} does not reply: the mount has ended without closing its files ({unfinished} calls are not finished). Data that is not \
         written back stays in the cache: `hotshelf cache status` shows it, and it is written when the directory is mounted again"
    )]
    Unfinished {
        /// As given.
        directory: PathBuf,
        /// Calls on the slow side that have not returned.
        unfinished: usize,
    },
    /// The state of a mount that another program has served cannot be used.
    #[error("the mount cannot be taken over: its state is unusable ({0})")]
    Takeover(FormatError),
    /// The mount could neither be handed over nor taken back.
    #[error("the mount cannot be handed over: {0}")]
    HandOver(std::io::Error),
    /// The cache reported an error when the mount left it.
    #[error("leaving the cache: {0}")]
    Leave(cachedfs::Error),
}
