//! Mounting a cached directory, serving it and unmounting it.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use cachedfs::{Config, Instance};
use directoryfs::{DirectoryFs, KeptData};
use parking_lot::Mutex;
use rustix::fs::{OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::data::InstanceCache;
use super::filesystem::CachedFilesystem;
use super::handover::HandedMount;
use super::handover::program::{OWN_VERSION, Program};
use super::mount_error::CachedMountError;
use super::name_checks;
use super::names_file::{names_file, remember_names};
use super::options::CachedOptions;
use super::presence::Presence;
use super::restart::{AcceptedRestart, RestartControl, RestartReply, RestartServer};
use super::session_end::{Mount, NextMount, Served, end};
use super::shared::{CachedShared, unopened_reads};
use super::slow_side::SlowSide;
use super::takeover_limit::TakeoverLimit;
use super::{change_listener, mount_counts, removed_files, restart};
use crate::direct_writes::DirectWrites;
use crate::handles::HandleTable;
use crate::kernel_notifier::KernelNotifier;
use crate::late_errors::may_be_late;
use crate::read_ahead;
use crate::session::check_mountpoint;
use crate::simple_session;
use crate::source;
use crate::wire::{PreparedMount, ServeEnd, UringMode, uring_offered};

const SUBTYPE: &str = "hotshelf-cached";

/// How far the kernel reads ahead of a program that reads in sequence, bytes. A page fault of a mapped file brings as much around it, until
/// the kernel sees that faults are at random.
const READ_AHEAD: u64 = 1 << 20;
/// The same where the directory is on a network: 20 ms at 100 MB/s are 2 MB, and reading must not wait for each answer.
const READ_AHEAD_REMOTE: u64 = 4 << 20;

/// Mounts a directory, calls `ready` once the mount replies to requests, and serves it until it is unmounted or SIGTERM comes.
///
/// # Errors
/// The directory, the cache or the mount point cannot be used; or data could not be written back at the end.
pub fn run(options: &CachedOptions, ready: impl FnOnce()) -> Result<(), CachedMountError> {
    let program = program_of_this_process();
    let mountpoint = check_mountpoint(&options.session.mountpoint)?;
    let real = std::fs::canonicalize(&options.directory).unwrap_or_else(|_| options.directory.clone());
    if mountpoint.starts_with(&real) || real.starts_with(&mountpoint) {
        return Err(CachedMountError::Nested { directory: options.directory.clone(), mountpoint: options.session.mountpoint.clone() });
    }
    refuse_powerless(options)?;
    prepare_process();
    let instance = Instance::open(&options.cache)?;
    if options.mode.within(instance.mode()) != options.mode {
        return Err(CachedMountError::Mode(instance.mode()));
    }
    let mount = Mount { options: options.clone(), mountpoint, program };
    match serve_fresh(&mount, instance, ready)? {
        Some(next) => serve_on(mount.program, next),
        None => Ok(()),
    }
}

/// Goes on with a mount that the program before this one, in the same process, has served; `number` is the descriptor of its state.
///
/// # Errors
/// The state is not one of this version; or as [`run`]. The kernel then has nobody who serves the mount: calls fail with ENOTCONN.
pub fn take_over(number: RawFd) -> Result<(), CachedMountError> {
    let program = program_of_this_process();
    let limit = TakeoverLimit::start();
    prepare_process();
    let handed = HandedMount::take(number).map_err(CachedMountError::Takeover)?;
    drop(limit);
    serve_on(program, NextMount { handed, signals: None })
}

fn program_of_this_process() -> Option<Program> {
    Program::of_this_process().inspect_err(|error| tracing::warn!(%error, "the daemon cannot be restarted")).ok()
}

fn prepare_process() {
    // Modes of new files are the caller's business.
    rustix::process::umask(rustix::fs::Mode::empty());
    // Before the first thread is started. Root may use every block, and a daemon that writes for others must not.
    if let Err(error) = fusedev::give_up_reserved_resources() {
        tracing::warn!(%error, "quotas and reserved blocks do not bind what is written through this mount");
    }
    allow_many_files();
}

/// Serves a mount until it ends, over restarts that fail, and over times in which the cache is another's.
fn serve_on(program: Option<Program>, mut next: NextMount) -> Result<(), CachedMountError> {
    let handed = &next.handed;
    let mut mount = Mount { options: handed.options.clone(), mountpoint: handed.mountpoint.clone(), program };
    loop {
        let mut client = next.handed.client.take().map(UnixStream::from);
        let served = serve_taken_over(&mount, next, &mut client);
        if let (Err(error), Some(client)) = (&served, &mut client) {
            restart::reply(client, &RestartReply::Failed { message: format!("the mount is lost: {error}") });
        }
        match served? {
            Some(handed) => next = handed,
            None => return Ok(()),
        }
        mount.options = next.handed.options.clone();
    }
}

/// How long the cache may still be another's when a mount goes on.
const ATTACH_MAX: Duration = Duration::from_secs(30);

/// Attaches to the cache. The command that had it for itself may be ending at this moment.
fn attach_again(cache: &Config) -> Result<Arc<Instance>, cachedfs::Error> {
    let begun = Instant::now();
    loop {
        match Instance::open(cache) {
            Err(error) if error.errno() == Errno::BUSY.raw_os_error() && begun.elapsed() < ATTACH_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            attached => return attached,
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

/// Mounts and serves. Returns the mount if a restart failed: nobody serves it then.
fn serve_fresh(mount: &Mount, instance: Arc<Instance>, ready: impl FnOnce()) -> Result<Option<NextMount>, CachedMountError> {
    let options = &mount.options;
    let failed = |source| CachedMountError::Directory(directoryfs::OpenError { path: options.directory.clone(), source });
    let root = rustix::fs::open(&options.directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let root = root.map_err(failed)?;
    let (device, is_remote) = file_system_of(&root).map_err(failed)?;
    let cache = cache_of(&instance, &root, device).map_err(failed)?;
    let mut fs = DirectoryFs::open(&options.directory, cache, options.session.flags.suid).map_err(CachedMountError::Directory)?;
    let ttl = remember_names(options, &mut fs, is_remote);
    let names = names_file(options);
    if let Some(file) = &names {
        file.load(&fs);
    }
    let mut session = options.session.clone();
    let deadline = if is_remote || !may_use_uring(options) { options.deadline } else { Duration::ZERO };
    if !deadline.is_zero() {
        session.uring = UringMode::Off;
    } else if !options.deadline.is_zero() {
        tracing::info!("requests come over io_uring and have no deadline (--uring off gives them one)");
    }
    let side = SlowSide::new(&options.directory, root, deadline, options.offline, options.mode);
    let (inner, forgotten) = shared_state(options, &instance, fs, side, (device, is_remote), ttl);
    drop(instance);
    let mut presence = None;
    let served = simple_session::begin(CachedFilesystem { inner: Arc::clone(&inner) }, &session, SUBTYPE, &mount.mountpoint);
    let served = served.map_err(CachedMountError::Mount).and_then(|session| {
        removed_files::start(&inner, forgotten);
        name_checks::start(&inner);
        unopened_reads::start(&inner);
        change_listener::start(&inner, false);
        serve_session(mount, &inner, session, || {
            read_ahead::raise(&mount.mountpoint, if is_remote { READ_AHEAD_REMOTE } else { READ_AHEAD });
            presence = Presence::new(&options.cache, &mount.mountpoint);
            publish_side(&inner, presence.as_ref());
            ready();
        })
    });
    end(mount, inner, presence, names, served)
}

/// Returns whether requests may come over io_uring, where they have no deadline.
fn may_use_uring(options: &CachedOptions) -> bool {
    options.session.uring == UringMode::Auto && options.session.threads > 1 && uring_offered().is_ok()
}

/// Tells `hotshelf status` from now on whether the slow side replies, and what is read and written.
fn publish_side(inner: &CachedShared, presence: Option<&Presence>) {
    mount_counts::begin(&inner.instance, presence);
    if let Some(path) = presence.map(Presence::side_path) {
        inner.side.publish_to(path);
    }
}

/// Serves a mount that another program has served, or that this one could not hand over. Returns it if a restart failed.
fn serve_taken_over(mount: &Mount, next: NextMount, client: &mut Option<UnixStream>) -> Result<Option<NextMount>, CachedMountError> {
    let limit = TakeoverLimit::start();
    let NextMount { handed, signals } = next;
    let HandedMount {
        paused_at_ns,
        version,
        mountpoint: _,
        options,
        device: connection,
        presence,
        client: _,
        directory,
        names,
        files,
        listings,
    } = handed;
    let elapsed_ms = || restart::monotonic_ns().saturating_sub(paused_at_ns) / 1_000_000;
    tracing::debug!(elapsed_ms = elapsed_ms(), "the new program runs");
    let instance = attach_again(&options.cache)?;
    let names_file = names_file(&options);
    tracing::debug!(elapsed_ms = elapsed_ms(), "it has attached to the cache");
    let failed = |source| CachedMountError::Directory(directoryfs::OpenError { path: options.directory.clone(), source });
    let root = rustix::io::fcntl_dupfd_cloexec(&directory.root, 0).map_err(failed)?;
    let (device, is_remote) = file_system_of(&root).map_err(failed)?;
    let cache = cache_of(&instance, &root, device).map_err(failed)?;
    let mut fs = DirectoryFs::take_over(directory, cache, options.session.flags.suid).map_err(failed)?;
    let ttl = remember_names(&options, &mut fs, is_remote);
    if let Some(names) = names {
        fs.take_over_names(&names);
    }
    // Only mounts whose requests do not come over io_uring are handed over.
    let side = SlowSide::new(&options.directory, root, options.deadline, options.offline, options.mode);
    let (inner, forgotten) = shared_state(&options, &instance, fs, side, (device, is_remote), ttl);
    drop(instance);
    let files_count = files.len();
    inner.take_over_handles(files, listings);
    let presence = presence.and_then(|locked| Presence::resume(&options.cache, &mount.mountpoint, locked));
    publish_side(&inner, presence.as_ref());
    removed_files::start(&inner, forgotten);
    name_checks::start(&inner);
    unopened_reads::start(&inner);
    change_listener::start(&inner, true);
    let session = simple_session::resume(CachedFilesystem { inner: Arc::clone(&inner) }, &options.session, SUBTYPE, connection);
    let served = serve_session(mount, &inner, session, || {
        drop(limit);
        // They are watched again.
        if signals.is_some_and(|signals| signals.has_come()) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        }
        let pause_ms = elapsed_ms();
        tracing::info!(before = version, after = OWN_VERSION, pause_ms, files = files_count, "the mount is taken over");
        // A restart that failed has told the command so.
        if let Some(mut client) = client.take() {
            let done = RestartReply::Restarted { before: version, after: OWN_VERSION.into(), pause_ms, files: files_count };
            restart::reply(&mut client, &done);
        }
    });
    end(mount, inner, presence, names_file, served)
}

/// Creates the state that all requests share, and the receiver of data of removed files.
fn shared_state(
    options: &CachedOptions,
    instance: &Arc<Instance>,
    mut fs: DirectoryFs<InstanceCache>,
    side: SlowSide,
    (device, is_remote): (u64, bool),
    ttl: Duration,
) -> (Arc<CachedShared>, Receiver<KeptData>) {
    if let Some(watchdog) = &side.watchdog {
        fs.fail_while(watchdog.away_flag());
    }
    let changed: Arc<KernelNotifier> = Arc::default();
    let (forgotten, receiver) = std::sync::mpsc::sync_channel(removed_files::FORGOTTEN_MAX);
    let top = fs.path().unwrap_or_else(|| options.directory.clone());
    let shared = CachedShared {
        fs,
        top,
        flags: options.session.flags,
        device,
        pages: Default::default(),
        instance: Arc::clone(instance),
        opened: HandleTable::default(),
        listings: HandleTable::default(),
        changed: Arc::clone(&changed),
        direct_writes: DirectWrites::new(changed),
        ttl,
        mode: options.mode,
        is_remote,
        forgotten,
        side,
        listener: Default::default(),
    };
    (Arc::new(shared), receiver)
}

fn serve_session(
    mount: &Mount,
    inner: &Arc<CachedShared>,
    session: PreparedMount<CachedFilesystem>,
    ready: impl FnOnce(),
) -> Result<Served, CachedMountError> {
    let accepted: Arc<Mutex<Option<AcceptedRestart>>> = Arc::default();
    let (stopper, transport) = (session.stopper(), session.transport());
    let mut server = None;
    let ready = || {
        // Whoever is told that the mount is ready may use it.
        server = mount.program.clone().and_then(|program| {
            let (shared, device) = (Arc::clone(inner), source::device_at(&mount.mountpoint));
            let control = RestartControl { shared, stopper, transport, program, device, accepted: Arc::clone(&accepted) };
            let started = RestartServer::start(&mount.options.cache, control);
            started.inspect_err(|error| tracing::warn!(%error, "no socket for `hotshelf restart`")).ok()
        });
        ready();
    };
    let served = simple_session::serve_prepared(session, &mount.mountpoint, &inner.changed, ready);
    drop(server);
    match served? {
        ServeEnd::Stopped(device) => Ok(accepted.lock().take().map(|accepted| (device, accepted))),
        ServeEnd::Unmounted => Ok(None),
    }
}

/// Returns the device number of a directory's file system, and whether errors of writes may come late there.
fn file_system_of(root: &OwnedFd) -> Result<(u64, bool), Errno> {
    Ok((rustix::fs::fstat(root)?.st_dev, may_be_late(root)?))
}

/// Returns the cache's part in calls on a directory.
fn cache_of(instance: &Arc<Instance>, root: &OwnedFd, device: u64) -> Result<InstanceCache, Errno> {
    Ok(InstanceCache { instance: Arc::clone(instance), device, is_lasting: cachedfs::is_lasting(root.as_fd())? })
}

/// Raises the limit of open files to the hard limit: files that the kernel knows are held by descriptors, which take half of it.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of open files was not raised");
    }
}
