//! Mounting a cached directory, serving it and unmounting it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachedfs::{Instance, Mode};
use directoryfs::DirectoryFs;
use rustix::fs::{OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::data::InstanceCache;
use super::filesystem::{CachedFilesystem, CachedShared};
use super::name_checks;
use super::names_file::NamesFile;
use super::presence::Presence;
use super::removed_files;
use crate::direct_writes::DirectWrites;
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::late_errors::may_be_late;
use crate::read_ahead;
use crate::session::{MountError, check_mountpoint};
use crate::simple_session::{self, SessionOptions};
use crate::source;

const SUBTYPE: &str = "hotshelf-cached";
/// The type as mount(8) shows it.
const FS_TYPE: &str = "fuse.hotshelf-cached";

/// How far the kernel reads ahead of a program that reads in sequence, bytes. A page fault of a mapped file brings as much around it, until
/// the kernel sees that faults are at random.
const READ_AHEAD: u64 = 1 << 20;
/// The same where the directory is on a network: 20 ms at 100 MB/s are 2 MB, and reading must not wait for each answer.
const READ_AHEAD_REMOTE: u64 = 4 << 20;

/// How long names and attributes are believed by default.
const TTL: Duration = Duration::from_secs(1);
/// The same where the user wants them remembered, of a directory on a network: the longest time of NFS (acregmax and acdirmax in nfs(5)).
const TTL_REMEMBERED: Duration = Duration::from_secs(60);

/// A cached directory that is mounted, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedMount {
    /// The directory where the files appear.
    pub mountpoint: PathBuf,
    /// The cache: its name, or the path of its SSD.
    pub cache: PathBuf,
    /// The directory on the slow side.
    pub directory: PathBuf,
    /// The user who mounted it. What another user's mount says of its cache is not to be believed.
    pub owner: u32,
}

impl CachedMount {
    /// Returns whether this user mounted it.
    pub fn is_ours(&self) -> bool {
        self.owner == rustix::process::geteuid().as_raw()
    }

    /// Returns the device number of the mount as `major:minor`, while it is mounted.
    pub fn device(&self) -> Option<String> {
        source::device_at(&self.mountpoint)
    }
}

/// Returns all cached directories that are mounted.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn mounts() -> std::io::Result<Vec<CachedMount>> {
    let to_mount = |found: source::MountEntry| CachedMount {
        mountpoint: found.mountpoint,
        cache: found.ssd,
        directory: found.hdd,
        owner: found.owner,
    };
    Ok(source::mounted_as(FS_TYPE)?.into_iter().map(to_mount).collect())
}

/// Returns the cached directory that is mounted on exactly this directory, if one is on top.
pub fn mount_at(path: &Path) -> Option<CachedMount> {
    source::type_at(path).filter(|kind| kind == FS_TYPE)?;
    mounts().ok()?.into_iter().rev().find(|found| found.mountpoint == path)
}

/// Whether the daemon remembers names and attributes, and answers with them although they are older than the time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamesMode {
    /// No: only the kernel does, for the time to live.
    #[default]
    Kernel,
    /// In memory, until the directory is unmounted.
    Memory,
    /// In memory, and in a file while the directory is not mounted.
    Persistent,
}

impl std::str::FromStr for NamesMode {
    type Err = String;

    fn from_str(name: &str) -> Result<NamesMode, String> {
        match name {
            "kernel" => Ok(NamesMode::Kernel),
            "memory" => Ok(NamesMode::Memory),
            "persistent" => Ok(NamesMode::Persistent),
            _ => Err(format!("`{name}`: kernel, memory or persistent")),
        }
    }
}

/// How to mount a cached directory.
#[derive(Clone, Debug)]
pub struct CachedOptions {
    /// The directory on the slow side.
    pub directory: PathBuf,
    /// The cache that serves the file data.
    pub cache: cachedfs::Config,
    /// What becomes of writes: write-through or write-back.
    pub mode: Mode,
    /// How long names and attributes are believed. Other programs may change the directory at any time. Default: 1 s, and 60 s where names
    /// are remembered of a directory on a network.
    pub ttl: Option<Duration>,
    /// Whether names and attributes are remembered for longer than that.
    pub names: NamesMode,
    /// The mount point and its flags.
    pub session: SessionOptions,
}

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
    /// The cache reported an error when the mount left it.
    #[error("leaving the cache: {0}")]
    Leave(cachedfs::Error),
}

/// Mounts a directory, calls `ready` once the mount replies to requests, and serves it until it is unmounted or SIGTERM comes.
///
/// # Errors
/// The directory, the cache or the mount point cannot be used; or data could not be written back at the end.
pub fn run(options: &CachedOptions, ready: impl FnOnce()) -> Result<(), CachedMountError> {
    let mountpoint = check_mountpoint(&options.session.mountpoint)?;
    let real = std::fs::canonicalize(&options.directory).unwrap_or_else(|_| options.directory.clone());
    if mountpoint.starts_with(&real) || real.starts_with(&mountpoint) {
        return Err(CachedMountError::Nested { directory: options.directory.clone(), mountpoint: options.session.mountpoint.clone() });
    }
    refuse_powerless(options)?;
    // Modes of new files are the caller's business.
    rustix::process::umask(rustix::fs::Mode::empty());
    // Before the first thread is started. Root may use every block, and a daemon that writes for others must not.
    if let Err(error) = fusedev::give_up_reserved_resources() {
        tracing::warn!(%error, "quotas and reserved blocks do not bind what is written through this mount");
    }
    allow_many_files();
    let instance = Instance::open(&options.cache)?;
    if options.mode.within(instance.mode()) != options.mode {
        return Err(CachedMountError::Mode(instance.mode()));
    }
    let mut presence = None;
    let served = serve(&instance, options, &mountpoint, || {
        presence = Presence::new(&options.cache, &mountpoint);
        ready();
    });
    let left = leave(&instance);
    drop(presence);
    served?;
    left.map_err(CachedMountError::Leave)
}

/// How long the end of a mount waits for calls that close files.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Detaches from the cache. A request that was replied to a moment ago may still be closing its file.
fn leave(instance: &Instance) -> Result<(), cachedfs::Error> {
    let begun = Instant::now();
    loop {
        match instance.detach() {
            Err(error) if error.errno() == rustix::io::Errno::BUSY.raw_os_error() && begun.elapsed() < CLOSING_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            left => return left,
        }
    }
}

/// Refuses flags that the directory's own mount does not allow.
fn refuse_powerless(options: &CachedOptions) -> Result<(), CachedMountError> {
    let Ok(fs) = rustix::fs::statvfs(&options.directory) else { return Ok(()) };
    let flags = options.session.flags;
    let refused = [
        (flags.suid && fs.f_flag.contains(StatVfsMountFlags::NOSUID), "suid"),
        (flags.dev && fs.f_flag.contains(StatVfsMountFlags::NODEV), "dev"),
    ];
    match refused.iter().find(|(is_refused, _)| *is_refused) {
        Some((_, flag)) => Err(CachedMountError::Powerless { directory: options.directory.clone(), flag }),
        None => Ok(()),
    }
}

fn serve(instance: &Arc<Instance>, options: &CachedOptions, mountpoint: &Path, ready: impl FnOnce()) -> Result<(), CachedMountError> {
    let failed = |source| CachedMountError::Directory(directoryfs::OpenError { path: options.directory.clone(), source });
    let (device, is_remote) = file_system_of(&options.directory).map_err(failed)?;
    let cache = InstanceCache { instance: Arc::clone(instance), device };
    let ttl = options.ttl.unwrap_or(if is_remote && options.names != NamesMode::Kernel { TTL_REMEMBERED } else { TTL });
    let mut fs = DirectoryFs::open(&options.directory, cache, options.session.flags.suid).map_err(CachedMountError::Directory)?;
    if options.names != NamesMode::Kernel {
        fs.remember_names(ttl);
    }
    let names_file = if options.names == NamesMode::Persistent { NamesFile::of(&options.directory) } else { None };
    if let Some(file) = &names_file {
        file.load(&fs);
    }
    let changed: Arc<KernelNotifier> = Arc::default();
    let (forgotten, receiver) = std::sync::mpsc::sync_channel(removed_files::FORGOTTEN_MAX);
    let inner = Arc::new(CachedShared {
        fs,
        flags: options.session.flags,
        device,
        pages: Default::default(),
        instance: Arc::clone(instance),
        opened: HandleTable::default(),
        listings: HandleTable::default(),
        changed: Arc::clone(&changed),
        direct_writes: DirectWrites::new(Arc::clone(&changed)),
        ttl,
        mode: options.mode,
        is_remote,
        forgotten,
    });
    let filesystem = CachedFilesystem { inner: Arc::clone(&inner) };
    removed_files::start(&inner, receiver);
    if options.names != NamesMode::Kernel {
        name_checks::start(&inner);
    }
    let ready = || {
        read_ahead::raise(mountpoint, if is_remote { READ_AHEAD_REMOTE } else { READ_AHEAD });
        ready();
    };
    let served = simple_session::serve(filesystem, &options.session, SUBTYPE, mountpoint, &changed, ready);
    inner.fs.end_checks();
    inner.opened.clear();
    inner.listings.clear();
    if let Some(file) = &names_file {
        file.save(&inner.fs);
    }
    inner.fs.close();
    Ok(served?)
}

/// Returns the device number of a directory's file system, and whether errors of writes may come late there.
fn file_system_of(directory: &Path) -> Result<(u64, bool), Errno> {
    let root = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    Ok((rustix::fs::fstat(&root)?.st_dev, may_be_late(&root)?))
}

/// Raises the limit of open files to the hard limit: files that the kernel knows are held by descriptors, which take half of it.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of open files was not raised");
    }
}
