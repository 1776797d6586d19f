//! Mounting a file system that is not a pair, serving it and unmounting it.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{Config, MountOption, SessionACL};
use rustix::io::Errno;

use crate::kernel_notifier::KernelNotifier;
use crate::options::MountFlags;
use crate::session::{MountError, hint, unmount_patiently, watch_signals};
use crate::wire::{self, FileSystem, PreparedMount, ServeEnd, UringMode};

/// How to mount a file system.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The directory where the files appear.
    pub mountpoint: PathBuf,
    /// What mount(8) shows as the source.
    pub source: String,
    /// Whether other users may access the mount.
    pub allow_other: bool,
    /// Whether every change is refused.
    pub read_only: bool,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// Whether requests come over io_uring.
    pub uring: UringMode,
    /// The mount flags, as mount(8) names them.
    pub flags: MountFlags,
}

/// Mounts a file system, calls `ready` once it replies to requests, and serves it until it is unmounted or SIGTERM comes. `subtype` is
/// the type that mount(8) shows, without `fuse.`.
///
/// # Errors
/// The kernel refused the mount, or serving ended with an error.
pub fn serve<F: FileSystem + Clone>(
    filesystem: F,
    options: &SessionOptions,
    subtype: &str,
    mountpoint: &Path,
    changed: &KernelNotifier,
    ready: impl FnOnce(),
) -> Result<(), MountError> {
    let session = begin(filesystem, options, subtype, mountpoint)?;
    serve_prepared(session, mountpoint, changed, ready).map(drop)
}

/// Mounts a file system.
///
/// # Errors
/// The kernel refused the mount.
pub fn begin<F: FileSystem + Clone>(
    filesystem: F,
    options: &SessionOptions,
    subtype: &str,
    mountpoint: &Path,
) -> Result<PreparedMount<F>, MountError> {
    let directly = |device: &File| mount_directly(device, options, subtype, mountpoint);
    let begun = wire::begin(filesystem, mountpoint, config(options, subtype), options.uring, directly);
    begun.map_err(|source| MountError::Mount { path: mountpoint.to_owned(), hint: hint(&source), source })
}

/// Goes on with a mount that another process has served by this device.
pub fn resume<F: FileSystem>(filesystem: F, options: &SessionOptions, subtype: &str, device: OwnedFd) -> PreparedMount<F> {
    wire::resume(filesystem, device, config(options, subtype))
}

/// Calls `ready`, and serves a mount until it is unmounted, SIGTERM comes, or its stopper ends serving.
///
/// # Errors
/// Serving ended with an error.
pub fn serve_prepared<F: FileSystem>(
    session: PreparedMount<F>,
    mountpoint: &Path,
    changed: &KernelNotifier,
    ready: impl FnOnce(),
) -> Result<ServeEnd, MountError> {
    let stop: Arc<dyn Fn() + Send + Sync> = {
        let mountpoint = mountpoint.to_owned();
        Arc::new(move || unmount_patiently(&mountpoint))
    };
    changed.begin(session.device());
    let signals = watch_signals(stop);
    // The program before this one may have delayed them.
    fusedev::delay_ending_signals(false);
    ready();
    tracing::info!(mountpoint = %mountpoint.display(), "mounted");
    let served = session.run();
    if let Some(signals) = signals {
        signals.close();
    }
    if !matches!(served, Ok(ServeEnd::Stopped(_))) {
        tracing::info!(mountpoint = %mountpoint.display(), "unmounted");
    }
    served.map_err(|source| MountError::Serve { path: mountpoint.to_owned(), source })
}

fn mount_directly(device: &File, options: &SessionOptions, subtype: &str, mountpoint: &Path) -> rustix::io::Result<()> {
    use rustix::mount::MountFlags as Flags;
    let root = rustix::fs::stat(mountpoint)?.st_mode & 0o170_000;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode={root:o},user_id={uid},group_id={gid},default_permissions", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let given = options.flags;
    let chosen = [
        (!given.suid, Flags::NOSUID),
        (!given.dev, Flags::NODEV),
        (given.noexec, Flags::NOEXEC),
        (given.noatime, Flags::NOATIME),
        (options.read_only, Flags::RDONLY),
    ];
    let flags = chosen.into_iter().filter(|(on, _)| *on).fold(Flags::empty(), |flags, (_, flag)| flags | flag);
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(&*options.source, mountpoint, format!("fuse.{subtype}"), flags, Some(data.as_c_str()))
}

fn config(options: &SessionOptions, subtype: &str) -> Config {
    let flags = options.flags;
    let choose = |on: bool, yes: MountOption, no: MountOption| if on { yes } else { no };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype(subtype.into()),
        MountOption::DefaultPermissions,
        choose(flags.suid, MountOption::Suid, MountOption::NoSuid),
        choose(flags.dev, MountOption::Dev, MountOption::NoDev),
        choose(flags.noexec, MountOption::NoExec, MountOption::Exec),
        choose(options.read_only, MountOption::RO, MountOption::RW),
    ];
    if flags.noatime {
        config.mount_options.push(MountOption::NoAtime);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config
}
