//! Mounting an image, serving it and unmounting it.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, MountOption, SessionACL};
use parking_lot::{Condvar, Mutex};
use rawfs::fs::Fs;
use rustix::io::Errno;

use super::image_filesystem::{ImageFilesystem, ImageShared, SetId};
use super::nodes::Nodes;
use crate::direct_writes::DirectWrites;
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::options::MountFlags;
use crate::session::{MountError, check_mountpoint, hint, unmount_patiently, watch_signals};
use crate::wire::{self, PreparedMount, UringMode};

/// Time after which writes are durable without a sync; ext4 has the same default.
const COMMIT: Duration = Duration::from_secs(5);
/// As mount(8) shows it.
const FS_TYPE: &str = "fuse.hotshelf-image";

/// The image that is mounted on exactly this directory, if one is.
pub fn image_at(path: &Path) -> Option<PathBuf> {
    crate::source::type_at(path).filter(|kind| kind == FS_TYPE).and_then(|_| crate::source::source_at(path))
}

/// Whether a process has an image for itself.
pub fn is_in_use(image: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let refused = |file: File| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    File::open(image).is_ok_and(refused)
}

/// How to mount an image.
#[derive(Clone, Debug)]
pub struct RawOptions {
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

/// Why an image is not mounted, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RawMountError {
    /// The mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Closing the image.
    #[error("closing the image: {0}")]
    Close(rawfs::fs::Error),
}

/// Mounts a file system, calls `ready` once it replies to requests, and serves it until it is unmounted or SIGTERM comes; closes it.
pub fn run(fs: Fs, options: &RawOptions, ready: impl FnOnce()) -> Result<(), RawMountError> {
    let mountpoint = check_mountpoint(&options.mountpoint)?;
    // Modes of new files are the caller's business.
    rustix::process::umask(rustix::fs::Mode::empty());
    let changed: Arc<KernelNotifier> = Arc::default();
    let direct_writes = DirectWrites::new(changed.clone());
    let (nodes, opened, set_id) = (Nodes::default(), HandleTable::default(), SetId::default());
    let inner = Arc::new(ImageShared { fs, nodes, opened, changed, direct_writes, set_id });
    let served = serve(&inner, options, &mountpoint, ready);
    inner.opened.clear();
    inner.nodes.clear();
    let saved = inner.fs.sync();
    let closed = match Arc::into_inner(inner) {
        Some(inner) => inner.fs.close(),
        // A request is still under way: all is saved, and the next opening looks into the log.
        None => Ok(()),
    };
    served?;
    saved.and(closed).map_err(RawMountError::Close)
}

fn serve(inner: &Arc<ImageShared>, options: &RawOptions, mountpoint: &Path, ready: impl FnOnce()) -> Result<(), MountError> {
    let filesystem = ImageFilesystem { inner: Arc::clone(inner) };
    let failed = |source: std::io::Error| MountError::Mount { path: mountpoint.to_owned(), hint: hint(&source), source };
    let session = begin(filesystem, options, mountpoint).map_err(failed)?;
    let stop: Arc<dyn Fn() + Send + Sync> = {
        let mountpoint = mountpoint.to_owned();
        Arc::new(move || unmount_patiently(&mountpoint))
    };
    inner.changed.begin(session.notifier());
    let signals = watch_signals(stop);
    let committer = CommitThread::start(inner);
    ready();
    tracing::info!(mountpoint = %mountpoint.display(), "mounted");
    let served = session.run();
    committer.end();
    if let Some(signals) = signals {
        signals.close();
    }
    tracing::info!(mountpoint = %mountpoint.display(), "unmounted");
    served.map_err(|source| MountError::Serve { path: mountpoint.to_owned(), source })
}

fn begin(filesystem: ImageFilesystem, options: &RawOptions, mountpoint: &Path) -> std::io::Result<PreparedMount<ImageFilesystem>> {
    wire::begin(filesystem, mountpoint, config(options), options.uring, |device| mount_directly(device, options, mountpoint))
}

fn mount_directly(device: &File, options: &RawOptions, mountpoint: &Path) -> rustix::io::Result<()> {
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
    rustix::mount::mount(&*options.source, mountpoint, FS_TYPE, flags, Some(data.as_c_str()))
}

fn config(options: &RawOptions) -> Config {
    let flags = options.flags;
    let choose = |on: bool, yes: MountOption, no: MountOption| if on { yes } else { no };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("hotshelf-image".into()),
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

/// Commits now and then what nobody syncs.
struct CommitThread {
    thread: Option<std::thread::JoinHandle<()>>,
    over: Arc<(Mutex<bool>, Condvar)>,
}

impl CommitThread {
    fn start(inner: &Arc<ImageShared>) -> CommitThread {
        let over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (theirs, inner) = (Arc::clone(&over), Arc::clone(inner));
        let started = std::thread::Builder::new().name("committer".into()).spawn(move || {
            let mut ended = theirs.0.lock();
            while !*ended {
                let _ = theirs.1.wait_for(&mut ended, COMMIT);
                if let Err(error) = inner.fs.sync() {
                    tracing::error!(%error, "what was written is not on the device");
                }
            }
        });
        let thread = started.map_err(|error| tracing::error!(%error, "no thread: only fsync makes anything durable")).ok();
        CommitThread { thread, over }
    }

    fn end(self) {
        *self.over.0.lock() = true;
        self.over.1.notify_one();
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}
