//! The end of serving a cached directory: it is unmounted, handed over to another program, or left for a moment.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachedfs::Instance;

use super::ending_signals::EndingSignals;
use super::handover::HandedMount;
use super::handover::program::{CheckedProgram, OWN_VERSION, Program};
use super::hold::{self, HoldEnd};
use super::mount_error::CachedMountError;
use super::names_file::NamesFile;
use super::options::CachedOptions;
use super::presence::Presence;
use super::restart::{self, AcceptedRestart, RestartReply};
use super::shared::CachedShared;

/// A mount that is served.
pub struct Mount {
    /// How the directory is mounted.
    pub options: CachedOptions,
    /// The mount point, without symbolic links.
    pub mountpoint: PathBuf,
    /// None if this process does not find its own program, and cannot be restarted.
    pub program: Option<Program>,
}

/// A mount that this process goes on with.
pub struct NextMount {
    /// What is known of it.
    pub handed: HandedMount,
    /// What came while nobody served it, and is still to be done.
    pub signals: Option<EndingSignals>,
}

/// How serving ended: with the connection and the restart that goes ahead, or none if the mount is gone.
pub type Served = Option<(Arc<OwnedFd>, AcceptedRestart)>;

/// How long the end of a mount waits for calls that close files.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Detaches from the cache. A request that was replied to a moment ago may still be closing its file.
fn leave(detach: impl Fn() -> Result<(), cachedfs::Error>) -> Result<(), cachedfs::Error> {
    let begun = Instant::now();
    loop {
        match detach() {
            Err(error) if error.errno() == rustix::io::Errno::BUSY.raw_os_error() && begun.elapsed() < CLOSING_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            left => return left,
        }
    }
}

/// Ends serving: leaves the cache, or hands the mount over to the new program. Returns the mount if that fails.
pub fn end(
    mount: &Mount,
    inner: Arc<CachedShared>,
    presence: Option<Presence>,
    names: Option<NamesFile>,
    served: Result<Served, CachedMountError>,
) -> Result<Option<NextMount>, CachedMountError> {
    inner.fs.end_checks();
    inner.end_listening();
    if let Ok(Some((device, accepted))) = served {
        return hand_over(mount, inner, presence, &device, accepted);
    }
    // What calls that have not returned will change is not known.
    if let Some(file) = names.filter(|_| inner.side.report().unfinished == 0) {
        file.save(&inner.fs);
    }
    let ended = close_and_leave(&inner, &mount.options.directory);
    // Another mount may have got the device number, by which the file is named.
    if presence.as_ref().is_none_or(Presence::is_current) {
        inner.side.withdraw();
    }
    // `hotshelf unmount` looks at the cache as soon as the presence ends: this process must not be in it any more.
    drop(inner);
    drop(presence);
    served?;
    ended.map(|()| None)
}

/// Closes all files and leaves the cache. If the slow side does not reply, that is left to the end of the process.
fn close_and_leave(inner: &Arc<CachedShared>, directory: &Path) -> Result<(), CachedMountError> {
    let closed = Arc::clone(inner);
    let close = move || {
        closed.opened.clear();
        closed.listings.clear();
        closed.fs.close();
        leave(|| closed.instance.detach())
    };
    match inner.side.run_while_side_replies(close) {
        Some(left) => left.map_err(CachedMountError::Leave),
        None => {
            let unfinished = inner.side.report().unfinished;
            Err(CachedMountError::Unfinished { directory: directory.to_owned(), unfinished })
        }
    }
}

/// Replaces the program of this process, or lets another process have the cache for itself. Returns with the mount after that, or if the
/// program cannot be replaced.
fn hand_over(
    mount: &Mount,
    inner: Arc<CachedShared>,
    presence: Option<Presence>,
    device: &OwnedFd,
    accepted: AcceptedRestart,
) -> Result<Option<NextMount>, CachedMountError> {
    let AcceptedRestart { client, program, paused_at_ns, handles: (files, listings), signals } = accepted;
    let (instance, changed) = (Arc::clone(&inner.instance), Arc::clone(&inner.changed));
    let elapsed_ms = || restart::monotonic_ns().saturating_sub(paused_at_ns) / 1_000_000;
    tracing::debug!(elapsed_ms = elapsed_ms(), files = files.len(), "nothing is under way");
    inner.opened.clear();
    inner.listings.clear();
    tracing::debug!(elapsed_ms = elapsed_ms(), "the files are closed");
    let names = inner.fs.hand_over_names();
    let directory = inner.fs.hand_over().map_err(|error| CachedMountError::HandOver(error.into()))?;
    drop(inner);
    let mut handed = HandedMount {
        paused_at_ns,
        version: OWN_VERSION.into(),
        mountpoint: mount.mountpoint.clone(),
        options: mount.options.clone(),
        device: device.try_clone().map_err(CachedMountError::HandOver)?,
        presence: presence.and_then(Presence::hand_over),
        client: Some(client.into()),
        directory,
        names,
        files,
        listings,
    };
    let Some(program) = program else {
        let next = let_others_have_it(instance, handed, signals);
        changed.open();
        return next;
    };
    let error = replace_program(&instance, &program, &handed, &signals);
    // Threads that were kept back end.
    changed.open();
    tracing::error!(%error, "no restart: the new program cannot be started, the mount is served on");
    if let Some(client) = handed.client.take() {
        restart::reply(&mut client.into(), &RestartReply::Failed { message: format!("the new program cannot be started: {error}") });
    }
    handed.set_passed_on(false).map_err(CachedMountError::HandOver)?;
    Ok(Some(NextMount { handed, signals: Some(signals) }))
}

/// Leaves the cache, and waits until the command that wants it for itself has done its work. None: the daemon was told to end meanwhile.
fn let_others_have_it(
    instance: Arc<Instance>,
    mut handed: HandedMount,
    signals: EndingSignals,
) -> Result<Option<NextMount>, CachedMountError> {
    leave(|| instance.detach_for_restart()).map_err(CachedMountError::Leave)?;
    // With them, this process closes the SSD, and gives back memory that the changed cache may need.
    drop(instance);
    Instance::forget_left(&handed.options.cache);
    let mut client = handed.client.take().map(UnixStream::from);
    let end = client.as_mut().map_or(HoldEnd::Alone, |client| hold::wait_to_go_on(client, &handed.options.cache, &signals));
    match end {
        HoldEnd::Changed(cache) => handed.options.cache = *cache,
        HoldEnd::Unchanged => {}
        HoldEnd::Alone => client = None,
        HoldEnd::End => {
            tracing::warn!("told to end while the cache is another's: the mount ends without being unmounted");
            return Ok(None);
        }
    }
    handed.client = client.map(OwnedFd::from);
    Ok(Some(NextMount { handed, signals: Some(signals) }))
}

/// Leaves the cache and replaces the program. Returns only if that fails.
fn replace_program(instance: &Instance, program: &CheckedProgram, handed: &HandedMount, signals: &EndingSignals) -> std::io::Error {
    if let Err(error) = leave(|| instance.detach_for_restart()) {
        return std::io::Error::other(format!("leaving the cache: {error}"));
    }
    tracing::debug!(elapsed_ms = restart::monotonic_ns().saturating_sub(handed.paused_at_ns) / 1_000_000, "the cache is left");
    fusedev::delay_ending_signals(true);
    if signals.has_come() {
        // The new program finds it pending.
        let _ = signal_hook::low_level::raise(signal_hook::consts::SIGTERM);
    }
    match handed.pass_on() {
        Ok(memory) => program.replace(&memory),
        Err(error) => error,
    }
}
