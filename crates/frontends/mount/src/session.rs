//! Mounting, serving and unmounting.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, SessionACL};
use hybridfs::report::{Status, TierName, Why};
use hybridfs::{StartError, TieredFs};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use crate::control::{ControlHandler, ControlServer};
use crate::direct_writes::DirectWrites;
use crate::filesystem::{FuseFilesystem, MountShared};
use crate::handles::Handles;
use crate::kernel_notifier::KernelNotifier;
use crate::late_errors::directory_may_be_late;
use crate::modes::BypassModes;
use crate::options::{Options, PassthroughMode};
use crate::source;
use crate::unmount::unmount;
use crate::wire::{self, PreparedMount, Transport};

/// The reason why a mount failed: what happened, to which object, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The pair could not be opened.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The mount point is missing or no directory.
    #[error("the mount point {path} is not a directory: create it")]
    NoMountpoint {
        /// As given.
        path: PathBuf,
    },
    /// The daemon of another mount died there.
    #[error("the mount point {path} is a dead mount of {what} (its daemon is gone): `umount -l {path}`, then mount again")]
    Dead {
        /// As given.
        path: PathBuf,
        /// What was mounted there.
        what: String,
    },
    /// A file that bypasses the daemon is read with the SSD's own mount, whatever our descriptor says.
    #[error(
        "-o noatime cannot be done for files that bypass the daemon: mount the file system of {path} with noatime, or add --no-passthrough"
    )]
    AccessTimes {
        /// The SSD directory.
        path: PathBuf,
    },
    /// A hotshelf file system is already mounted there.
    #[error("{path} is in use: a hotshelf is mounted there already (`hotshelf unmount {path}`)")]
    InUse {
        /// As given.
        path: PathBuf,
    },
    /// Something else is mounted there; a mount over it would hide it.
    #[error("{path} is in use: a file system of type {kind} is mounted there (`umount {path}`, or choose another directory)")]
    Taken {
        /// As given.
        path: PathBuf,
        /// Its type.
        kind: String,
    },
    /// No FUSE for us.
    #[error("/dev/fuse cannot be opened: {source}: load the module (`modprobe fuse`) or let users read and write it (chmod 666)")]
    Device {
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The kernel or fusermount3 refused.
    #[error("mounting on {path}: {source}{hint}")]
    Mount {
        /// As given.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
        /// What may help.
        hint: &'static str,
    },
    /// Serving ended with an error.
    #[error("serving {path}: {source}")]
    Serve {
        /// As given.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
}

/// Mounts the pair, calls `ready` once it replies to requests, and serves it until it is unmounted or SIGTERM comes.
pub fn run(options: Options, ready: impl FnOnce()) -> Result<(), MountError> {
    take_away_dead_mounts(&options)?;
    let mountpoint = check_mountpoint(&options.mountpoint)?;
    for dir in [&options.hybrid.ssd, &options.hybrid.hdd] {
        if let Ok(dir) = std::fs::canonicalize(dir) {
            hybridfs::refuse_nested(&mountpoint, &dir)?;
        }
    }
    let ssd = std::fs::canonicalize(&options.hybrid.ssd).unwrap_or_else(|_| options.hybrid.ssd.clone());
    let hdd = std::fs::canonicalize(&options.hybrid.hdd).unwrap_or_else(|_| options.hybrid.hdd.clone());
    let bypasses = options.passthrough == PassthroughMode::Auto && is_privileged();
    if options.flags.noatime && bypasses && !rustix::fs::statvfs(&ssd).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOATIME)) {
        return Err(MountError::AccessTimes { path: ssd });
    }
    // Modes of new files are the caller's business.
    rustix::process::umask(rustix::fs::Mode::empty());
    // Before the first thread is started. Root may use every block, and a daemon that writes for others must not.
    if let Err(error) = fusedev::give_up_reserved_resources() {
        tracing::warn!(%error, "quotas and reserved blocks do not bind what is written through this mount");
    }
    let honours = hybridfs::HonouredFeatures { set_id: options.flags.suid, devices: options.flags.dev };
    let running = hybridfs::start(hybridfs::Config { honours, ..options.hybrid.clone() })?;
    // fusermount3 opens it with our rights too, and says less when it may not.
    if let Err(source) = File::options().read(true).write(true).open("/dev/fuse") {
        running.close();
        return Err(MountError::Device { source });
    }
    let inner = Arc::new(shared_state(&running.fs, &options));
    let filesystem = FuseFilesystem { inner: inner.clone() };
    let session = match begin(filesystem, &options, &mountpoint, &source::source_name(&ssd, &hdd)) {
        Ok(session) => session,
        Err(source) => {
            running.close();
            return Err(MountError::Mount { path: mountpoint, hint: hint(&source), source });
        }
    };
    if options.passthrough == PassthroughMode::WriteBack {
        let_gather(&mountpoint);
    }
    inner.changed.begin(session.device());
    running.fs.set_listener(inner.changed.clone());
    let stop: Arc<dyn Fn() + Send + Sync> = {
        let mountpoint = mountpoint.clone();
        Arc::new(move || unmount_patiently(&mountpoint))
    };
    let signals = watch_signals(stop.clone());
    let asked = Arc::new(MountControl { inner: inner.clone(), transport: session.transport(), mountpoint: mountpoint.clone(), stop });
    let control = start_control(&running.fs, asked);
    ready();
    tracing::info!(mountpoint = %mountpoint.display(), "mounted");
    let served = session.run();
    drop(control);
    if let Some(signals) = signals {
        signals.close();
    }
    running.fs.clear_listener();
    running.close();
    tracing::info!(mountpoint = %mountpoint.display(), "unmounted");
    served.map(drop).map_err(|source| MountError::Serve { path: mountpoint, source })
}

/// The state that all requests of a mount share.
fn shared_state(fs: &Arc<hybridfs::TieredFs>, options: &Options) -> MountShared {
    let why_not = match options.passthrough {
        PassthroughMode::Off => Some("switched off".to_owned()),
        PassthroughMode::WriteBack => Some("switched off by --write-back: the kernel caches writes".to_owned()),
        PassthroughMode::Auto if !is_privileged() => Some("passthrough needs CAP_SYS_ADMIN (mount as root)".to_owned()),
        PassthroughMode::Auto => None,
    };
    let changed: Arc<KernelNotifier> = Arc::default();
    MountShared {
        fs: fs.clone(),
        handles: Handles::default(),
        modes: BypassModes::new(why_not),
        gathers: options.passthrough == PassthroughMode::WriteBack,
        ttl: Duration::from_secs(options.cache_ttl_s),
        // If that is unknown, a request more does no harm.
        is_remote: [&options.hybrid.ssd, &options.hybrid.hdd].iter().any(|side| directory_may_be_late(side).unwrap_or(true)),
        checked: options.kernel_checks_permissions(),
        changed: changed.clone(),
        direct_writes: DirectWrites::new(changed),
    }
}

/// Of the memory that may hold writes not yet written, the kernel lets a FUSE mount use a hundredth: 40 MiB of 20 GiB. Beyond
/// that writers wait for us all the time. Only root may give it more.
fn let_gather(mountpoint: &Path) {
    const PERCENT: &str = "50";
    let Some(device) = source::device_at(mountpoint) else { return };
    if let Err(error) = std::fs::write(format!("/sys/class/bdi/{device}/max_ratio"), PERCENT) {
        tracing::info!(%error, "the kernel caches few dirty pages for an ordinary user's mount");
    }
}

/// For passthrough the kernel requires CAP_SYS_ADMIN in the initial user namespace.
fn is_privileged() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    effective.and_then(|caps| u64::from_str_radix(caps, 16).ok()).is_some_and(|caps| caps & CAP_SYS_ADMIN != 0)
}

/// A daemon that was killed leaves its mount behind, and every call there fails: one of the same pair is taken away, so that
/// mounting again needs nobody's help. Somebody else's is not ours to take.
fn take_away_dead_mounts(options: &Options) -> Result<(), MountError> {
    let path = &options.mountpoint;
    let real = |dir: &Path| std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let (ssd, hdd) = (real(&options.hybrid.ssd), real(&options.hybrid.hdd));
    // One mount may be on top of another.
    while source::is_dead(path) {
        let at = source::without_following(path);
        let there = source::mounted().unwrap_or_default().into_iter().rev().find(|mounted| mounted.mountpoint == at);
        let what = there.as_ref().map_or("another file system".to_owned(), |it| format!("{} and {}", it.ssd.display(), it.hdd.display()));
        let dead = || MountError::Dead { path: path.clone(), what };
        if !there.is_some_and(|mounted| mounted.ssd == ssd && mounted.hdd == hdd) {
            return Err(dead());
        }
        if let Err(refused) = unmount(&at, true) {
            tracing::warn!(mountpoint = %at.display(), %refused, "a dead mount of this pair cannot be removed");
            return Err(dead());
        }
        tracing::warn!(mountpoint = %at.display(), "removed the dead mount of this pair: its daemon had ended without unmounting");
    }
    Ok(())
}

pub(crate) fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let real = match std::fs::canonicalize(path) {
        Ok(real) if real.is_dir() => real,
        _ => return Err(MountError::NoMountpoint { path: path.to_owned() }),
    };
    let there = source::mounted().unwrap_or_default();
    if there.iter().any(|mounted| mounted.mountpoint == real) {
        return Err(MountError::InUse { path: path.to_owned() });
    }
    // systemd's automounter waits below the mount that it requested.
    if let Some(kind) = source::type_at(&real).filter(|kind| kind != "autofs") {
        return Err(MountError::Taken { path: path.to_owned(), kind });
    }
    Ok(real)
}

fn begin(
    filesystem: FuseFilesystem,
    options: &Options,
    mountpoint: &Path,
    source_name: &OsStr,
) -> std::io::Result<PreparedMount<FuseFilesystem>> {
    let config = fuse_config(options, &source_name.to_string_lossy());
    wire::begin(filesystem, mountpoint, config, options.uring, |device| mount_directly(device, options, mountpoint, source_name))
}

fn mount_directly(device: &File, options: &Options, mountpoint: &Path, source_name: &OsStr) -> rustix::io::Result<()> {
    use rustix::mount::MountFlags as Flags;
    let root = rustix::fs::stat(mountpoint)?.st_mode & 0o170_000;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode={root:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.kernel_checks_permissions() {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = Flags::empty();
    let given = options.flags;
    let chosen = [
        (!given.suid, Flags::NOSUID),
        (!given.dev, Flags::NODEV),
        (given.noexec, Flags::NOEXEC),
        (given.noatime, Flags::NOATIME),
        (options.hybrid.read_only, Flags::RDONLY),
    ];
    for (_, flag) in chosen.into_iter().filter(|(on, _)| *on) {
        flags |= flag;
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(source_name, mountpoint, source::FS_TYPE, flags, Some(data.as_c_str()))
}

fn fuse_config(options: &Options, fsname: &str) -> Config {
    let flags = options.flags;
    let mut config = Config::default();
    let choose = |on: bool, yes: MountOption, no: MountOption| if on { yes } else { no };
    config.mount_options = vec![
        MountOption::FSName(fsname.to_owned()),
        MountOption::Subtype("hotshelf".into()),
        choose(flags.suid, MountOption::Suid, MountOption::NoSuid),
        choose(flags.dev, MountOption::Dev, MountOption::NoDev),
        choose(options.hybrid.read_only, MountOption::RO, MountOption::RW),
    ];
    if options.kernel_checks_permissions() {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    if flags.noexec {
        config.mount_options.push(MountOption::NoExec);
    }
    if flags.noatime {
        config.mount_options.push(MountOption::NoAtime);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.clone_fd && options.threads > 1;
    config
}

pub(crate) fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => " (is /dev/fuse there, and for ordinary users fusermount3? `hotshelf doctor` checks)",
        std::io::ErrorKind::PermissionDenied => {
            " (an ordinary user needs fusermount3, a mount point of their own, and user_allow_other in /etc/fuse.conf for --allow-other)"
        }
        _ => "",
    }
}

/// Unmounts; while files are open, retries for 5 seconds, then detaches the mount.
pub(crate) fn unmount_patiently(mountpoint: &Path) {
    let begun = Instant::now();
    loop {
        let patient = begun.elapsed() < Duration::from_secs(5);
        match unmount(mountpoint, !patient) {
            Ok(()) => return,
            Err(refused) if patient && refused.busy => std::thread::sleep(Duration::from_millis(100)),
            Err(refused) => {
                tracing::warn!(%refused, "the mount could not be removed");
                return;
            }
        }
        if !patient {
            tracing::warn!("files are still open: the mount is detached and ends when they are closed");
        }
    }
}

pub(crate) fn watch_signals(stop: Arc<dyn Fn() + Send + Sync>) -> Option<signal_hook::iterator::Handle> {
    let wanted = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP];
    match signal_hook::iterator::Signals::new(wanted) {
        Ok(mut signals) => {
            let handle = signals.handle();
            std::thread::spawn(move || {
                for signal in signals.forever() {
                    tracing::info!(signal, "signal received: unmounting");
                    stop();
                }
            });
            Some(handle)
        }
        Err(error) => {
            tracing::error!(%error, "signals cannot be watched: unmount by `hotshelf unmount`");
            None
        }
    }
}

fn start_control(fs: &TieredFs, asked: Arc<MountControl>) -> Option<ControlServer> {
    let on = |tier| fs.hidden_dir(tier).and_then(|dir| ControlServer::start(dir, asked.clone()));
    // An SSD that cannot be written takes no socket.
    let started = on(TierName::Ssd).or_else(|error| on(TierName::Hdd).map_err(|_| error));
    started.map_err(|error| tracing::error!(%error, "no control socket: status, why, pin and migrate do not answer")).ok()
}

/// Answers the control socket.
struct MountControl {
    inner: Arc<MountShared>,
    transport: Arc<Transport>,
    mountpoint: PathBuf,
    stop: Arc<dyn Fn() + Send + Sync>,
}

impl ControlHandler for MountControl {
    fn status(&self) -> Status {
        let why_not = self.inner.modes.why_not();
        Status {
            mountpoint: self.mountpoint.display().to_string(),
            passthrough: why_not.is_none(),
            passthrough_reason: why_not,
            uring: self.transport.why_not().is_none(),
            uring_reason: self.transport.why_not().map(str::to_owned),
            ..self.inner.fs.status()
        }
    }

    fn why(&self, path: &[u8]) -> Result<Why, String> {
        self.inner.fs.why(path).map_err(|error| format!("{}: {error}", String::from_utf8_lossy(path)))
    }

    fn pin(&self, path: &[u8], on: bool) -> Result<String, String> {
        self.inner.fs.pin(path, on)
    }

    fn migrate(&self, path: &[u8], to: TierName, progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> Result<String, String> {
        // This thread is the asking client's own.
        hybridfs::yield_to_foreground();
        self.inner.fs.migrate(path, to, progress)
    }

    fn retire(&self, side: TierName, dry_run: bool, progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> Result<String, String> {
        hybridfs::yield_to_foreground();
        self.inner.fs.retire(side, dry_run, progress)
    }

    fn set(&self, changes: &BTreeMap<String, String>, dry_run: bool) -> Result<String, String> {
        self.inner.fs.set(changes, dry_run)
    }

    fn flush(&self) -> Result<String, String> {
        let saved = self.inner.fs.save_history();
        saved.map(|()| "the access history is saved".into()).map_err(|error| format!("the access history is not saved: {error}"))
    }

    fn stop(&self) {
        let stop = self.stop.clone();
        std::thread::spawn(move || stop());
    }
}
