//! Restarting the daemon of a mount with the program that is installed now: `hotshelf restart`.
//!
//! ```text
//!   command --"restart"--> old program: is there a program that can take over? ------- no: it says why, and serves on
//!                            readers pause; what is under way is answered ------------ not soon: it serves on
//!                            files are handed over, the cache is left, execve(2) ----- fails: it takes the mount back
//!                          new program: attaches to the cache, opens the files ------- fails: it ends, with it the mount
//!                            serves <--- the command gets its reply by the same connection
//! ```
//!
//! The socket is beside the segment of the cache, in a directory where the users of a group's cache may write, too. So the command asks
//! only a socket and a process of its own user: a mount is restarted by the user who mounted.

use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachedfs::{Config, Instance};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::ending_signals::EndingSignals;
use super::handover::HandedHandles;
use super::handover::program::{CheckedProgram, OWN_VERSION, Program};
use super::shared::CachedShared;
use super::stuck_threads;
use crate::control::{LineReader, connect};
use crate::socket_server::{SocketServer, send};
use crate::wire::{MountStopper, Transport};

const REQUEST: &[u8] = b"restart";
/// What the one asks who wants the cache for itself: see `hold.rs`.
const HOLD: &[u8] = b"hold";
/// How long a request or a reply may be.
pub const LINE_MAX: usize = 64 << 10;
/// How long a client may take to send its request.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// How long requests that are under way may take, in all, before the restart is given up.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// How long opening files that nobody has read yet may take; programs do not wait for it.
const OPENING_MAX: Duration = Duration::from_secs(30);
/// How long programs are kept waiting at a time for requests that are under way, at first and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
const POLL: Duration = Duration::from_millis(1);
/// How long a thread may be in one call.
const STUCK_MAX: Duration = Duration::from_secs(3);
const SILENT: &str = "the slow side does not reply: try again when it does";
/// How long the whole restart may take for the command.
pub const REPLY_MAX: Duration = Duration::from_secs(90);

/// What the command is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartReply {
    /// The mount is served by the new program.
    Restarted {
        /// The version before.
        before: String,
        /// The version now.
        after: String,
        /// How long no request was answered, in milliseconds.
        pause_ms: u64,
        /// Number of open files.
        files: usize,
    },
    /// The daemon has left the cache, and waits for the word to go on.
    Held,
    /// It is not, and why.
    Failed {
        /// A sentence.
        message: String,
    },
}

/// A restart that goes ahead: the readers end, and nothing is under way.
pub struct AcceptedRestart {
    /// The connection of the command that waits.
    pub client: UnixStream,
    /// The program that takes over. None: this one goes on, when the one that waits has done its work.
    pub program: Option<CheckedProgram>,
    /// When the mount ceased to reply, by the monotonic clock.
    pub paused_at_ns: u64,
    /// The open files and directories.
    pub handles: HandedHandles,
    /// What asks this process to end from now on.
    pub signals: EndingSignals,
}

/// Restarts a mount that is being served.
pub struct RestartControl {
    /// The state of the mount.
    pub shared: Arc<CachedShared>,
    /// Stops serving the mount between two requests.
    pub stopper: Arc<MountStopper>,
    /// Whether requests come over io_uring.
    pub transport: Arc<Transport>,
    /// The program of this process.
    pub program: Program,
    /// The device number of the mount, as `major:minor`.
    pub device: Option<String>,
    /// Where a restart that goes ahead is left for the thread that serves.
    pub accepted: Arc<Mutex<Option<AcceptedRestart>>>,
}

/// Returns nanoseconds of the monotonic clock, which goes on over an execve(2).
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Tells a command how its restart ended. It may have gone away.
pub fn reply(client: &mut UnixStream, reply: &RestartReply) {
    if let Err(error) = send(client, reply) {
        tracing::debug!(%error, "nobody waits for the reply to a restart");
    }
}

fn write_back_removed(shared: &CachedShared) -> Result<(), String> {
    let unwritten = |error| format!("data of a removed file that is still in use cannot be written to the slow side: {error}");
    shared.write_back_removed().map_err(unwritten)
}

fn open_promised(shared: &CachedShared) -> Result<(), String> {
    shared.open_promised().map_err(|error| format!("a file that a program has open cannot be opened on the slow side: {error}; try again"))
}

impl RestartControl {
    /// Prepares a restart, `with_program` by the program that is installed now. When it returns without an error, nothing is under way, and
    /// the readers are paused.
    fn prepare(&self, with_program: bool) -> Result<(Option<CheckedProgram>, u64, HandedHandles), String> {
        if self.transport.why_not().is_none() {
            return Err("its requests come over io_uring, which cannot be handed over: unmount, and mount with --uring off".into());
        }
        if self.shared.instance.config().private {
            return Err("its cache is private to the daemon, and would be lost: unmount, and mount again".into());
        }
        let program = if with_program { Some(self.program.check(self.device.as_deref())?) } else { None };
        self.refuse_silent_side()?;
        // The kernel ends the other threads when the program is replaced, and waits for those that are in a call.
        if let Some(name) = stuck_threads::wait_for_all(Instant::now() + STUCK_MAX) {
            return Err(format!("the thread {name} waits for a file system that does not reply: try again later"));
        }
        // Most of it while requests are answered.
        self.bounded(DRAIN_MAX, write_back_removed)?;
        self.bounded(OPENING_MAX, open_promised)?;
        let begun = Instant::now();
        loop {
            let paused_at_ns = self.pause(begun)?;
            let outcome = self.take_handles();
            if let Ok(Some(handles)) = outcome {
                return Ok((program, paused_at_ns, handles));
            }
            self.stopper.resume();
            outcome?;
            self.keep_trying(begun)?;
        }
    }

    /// Takes the open files while the readers are paused, and keeps notices to the kernel back. None: one is under way, which may wait for
    /// a request that the kernel has not given out yet, and with it the kernel when it ends its thread.
    fn take_handles(&self) -> Result<Option<HandedHandles>, String> {
        let handles = self.bounded(DRAIN_MAX, |shared| {
            write_back_removed(shared)?;
            shared.hand_over_handles().map_err(|error| format!("the open files cannot be handed over: {error}"))
        })?;
        let deadline = Instant::now() + PATIENCE.0;
        // Files that were opened just now may have pages to drop.
        if !self.is_idle_by(deadline) || !self.shared.changed.close(deadline) {
            return Ok(None);
        }
        // At last, as nothing starts them again while the mount is served.
        if !self.shared.side.end_probes(Instant::now() + PATIENCE.1) {
            self.shared.changed.open();
            return Err(SILENT.to_owned());
        }
        Ok(Some(handles))
    }

    /// Lets requests be answered before the next attempt, unless there have been enough.
    fn keep_trying(&self, begun: Instant) -> Result<(), String> {
        self.refuse_silent_side()?;
        if begun.elapsed() > DRAIN_MAX {
            return Err(format!("requests to the slow side have taken more than {} s: try again later", DRAIN_MAX.as_secs()));
        }
        std::thread::sleep(POLL * 20);
        Ok(())
    }

    fn refuse_silent_side(&self) -> Result<(), String> {
        self.shared.side.why_silent().map_or(Ok(()), Err)
    }

    /// Makes calls on the slow side, which may not reply.
    fn bounded<T, F>(&self, limit: Duration, work: F) -> Result<T, String>
    where
        T: Send + 'static,
        F: FnOnce(&CachedShared) -> Result<T, String> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let late = || format!("the slow side has not replied to all calls within {} s: try again (see `hotshelf status`)", limit.as_secs());
        self.shared.side.run_for(limit, move || work(&shared)).unwrap_or_else(|| Err(late()))
    }

    /// Pauses the readers while nothing is under way. Where a request takes long, others are served meanwhile: an invalidation may even
    /// wait for a request that the kernel has not given out yet. Returns when the pause began.
    fn pause(&self, begun: Instant) -> Result<u64, String> {
        let mut patience = PATIENCE.0;
        loop {
            let (paused_at_ns, deadline) = (monotonic_ns(), Instant::now() + patience);
            if self.stopper.pause(deadline) && self.is_idle_by(deadline) {
                return Ok(paused_at_ns);
            }
            self.stopper.resume();
            self.keep_trying(begun)?;
            patience = (patience * 2).min(PATIENCE.1);
        }
    }

    fn is_idle_by(&self, deadline: Instant) -> bool {
        let is_idle = || self.stopper.is_idle() && self.shared.direct_writes.is_idle();
        while !is_idle() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        is_idle()
    }

    /// Serves one client. Returns whether the restart goes ahead.
    fn serve(&self, mut client: UnixStream) -> bool {
        let request = client
            .set_write_timeout(Some(REQUEST_MAX))
            .and_then(|()| LineReader::new(client.try_clone()?, LINE_MAX).next(Some(Instant::now() + REQUEST_MAX), Some(REQUEST_MAX)));
        let prepared = match request {
            Ok(Some(line)) if line.trim_ascii_end() == REQUEST => self.prepare(true),
            Ok(Some(line)) if line.trim_ascii_end() == HOLD => self.prepare(false),
            Ok(_) => Err("not a request that this version knows".into()),
            Err(error) => Err(format!("no request: {error}")),
        };
        match prepared {
            Ok((program, paused_at_ns, handles)) => {
                match &program {
                    Some(program) => tracing::info!(program = %program.path().display(), version = OWN_VERSION, "restarting"),
                    None => tracing::info!("leaving the cache for a moment"),
                }
                let signals = EndingSignals::remember();
                *self.accepted.lock() = Some(AcceptedRestart { client, program, paused_at_ns, handles, signals });
                self.stopper.end();
                true
            }
            Err(message) => {
                tracing::warn!(%message, "no restart");
                reply(&mut client, &RestartReply::Failed { message });
                false
            }
        }
    }
}

/// The socket by which restarts are requested; ends when dropped.
pub struct RestartServer {
    _socket: SocketServer,
}

/// Returns the directory of the sockets of a cache's mounts, and the name of the one of the mount with this device number.
fn socket_of(cache: &Config, device: &str) -> Option<(PathBuf, String)> {
    Some((Instance::segment_path(cache).parent()?.to_owned(), format!("mount-{device}.sock")))
}

impl RestartServer {
    /// Listens beside the segment of the cache.
    ///
    /// # Errors
    /// The socket cannot be created there.
    pub fn start(cache: &Config, control: RestartControl) -> std::io::Result<RestartServer> {
        let (dir, name) = control.device.as_deref().and_then(|device| socket_of(cache, device)).ok_or(ErrorKind::NotFound)?;
        let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // Whoever has the device number serves the mount.
        let on_client = move |client| if control.serve(client) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        Ok(RestartServer { _socket: SocketServer::start(dir, &name, "restart", on_client)? })
    }
}

/// Asks the daemon of a mount of this user, which has this device number and uses this cache, to restart. Waits until the new program
/// serves it.
///
/// # Errors
/// The daemon cannot be reached, or ended.
pub fn restart(cache: &Config, device: &str) -> std::io::Result<RestartReply> {
    let deadline = Some(Instant::now() + REPLY_MAX);
    let mut out = connect_to(cache, device, deadline)?;
    out.write_all(REQUEST).and_then(|()| out.write_all(b"\n"))?;
    match LineReader::new(out, LINE_MAX).next(deadline, None)? {
        Some(line) => Ok(serde_json::from_slice(&line)?),
        None => Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the daemon ended")),
    }
}

/// Connects to the daemon of a mount of this user.
pub fn connect_to(cache: &Config, device: &str, deadline: Option<Instant>) -> std::io::Result<UnixStream> {
    let (dir, name) = socket_of(cache, device).ok_or(ErrorKind::NotFound)?;
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    connect(&dir, &name, rustix::process::geteuid().as_raw(), deadline)
}
