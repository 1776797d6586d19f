//! How to mount a pair.

use std::path::PathBuf;

use crate::wire::UringMode;

/// Everything `run` needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory where the files appear.
    pub mountpoint: PathBuf,
    /// The pair and its rules.
    pub hybrid: hybridfs::Config,
    /// Let other users in (the kernel then checks permissions by mode and ACL).
    pub allow_other: bool,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// Give each thread its own copy of the FUSE device.
    pub clone_fd: bool,
    /// Whether requests come over io_uring.
    pub uring: UringMode,
    /// Whether file data may bypass the daemon.
    pub passthrough: PassthroughMode,
    /// How long the kernel may trust names and attributes, seconds.
    pub cache_ttl_s: u64,
    /// The mount flags, as mount(8) names them.
    pub flags: MountFlags,
}

/// Whether file data may bypass the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassthroughMode {
    /// Where the kernel and our privileges allow it.
    Auto,
    /// Never.
    Off,
    /// Never; the kernel caches writes in its page cache until they are flushed or the file is closed.
    WriteBack,
}

/// The flags mount(8) knows; FUSE's defaults are nosuid and nodev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Honour set-id bits and file capabilities.
    pub suid: bool,
    /// Whether device files are honoured.
    pub dev: bool,
    /// Whether the kernel refuses to execute files.
    pub noexec: bool,
    /// Do not update access times.
    pub noatime: bool,
}

impl Options {
    /// Whether the kernel checks modes and ACLs. Not when nobody but root may enter, for whom all is permitted: the check
    /// would cost a request for the directory's attributes at each change of its names.
    pub fn kernel_checks_permissions(&self) -> bool {
        self.allow_other || !rustix::process::geteuid().is_root()
    }

    /// The defaults for a pair and a place.
    pub fn new(hybrid: hybridfs::Config, mountpoint: PathBuf) -> Self {
        Options {
            mountpoint,
            hybrid,
            allow_other: false,
            threads: 8,
            clone_fd: false,
            uring: UringMode::Auto,
            passthrough: PassthroughMode::Auto,
            cache_ttl_s: 3600,
            flags: MountFlags::default(),
        }
    }
}
