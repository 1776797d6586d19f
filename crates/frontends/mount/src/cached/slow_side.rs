//! What a cached mount does while its slow side does not reply: what it serves, what it reports, and how it ends.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use cachedfs::Mode;
use directoryfs::Stat;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::side_status::SideStatus;
use super::status_file;
use crate::wire::{SideChange, SideReport, Watchdog, opcodes};

/// The interval of rounds while the mount ends.
const TICK: Duration = Duration::from_millis(100);
/// The state is written to its file at most so often.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of a mount waits for a side that is away.
const ENDING_AWAY: Duration = Duration::from_secs(2);
/// How long the end of a mount waits for a sign of life of a side that was there.
const ENDING_SILENT: Duration = Duration::from_secs(10);

/// What is written while the slow side is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfflinePolicy {
    /// Nothing.
    #[default]
    ReadOnly,
    /// Data of open files, into the cache, as far as it needs nothing of the slow side.
    WriteBack,
}

impl OfflinePolicy {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            OfflinePolicy::ReadOnly => "read-only",
            OfflinePolicy::WriteBack => "write-back",
        }
    }
}

impl FromStr for OfflinePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read-only" => Ok(OfflinePolicy::ReadOnly),
            "write-back" => Ok(OfflinePolicy::WriteBack),
            _ => Err(format!("`{text}` is not a policy: read-only or write-back")),
        }
    }
}

/// The slow side of a mount, as its requests see it.
pub struct SlowSide {
    /// Bounds how long requests take. None: nothing does.
    pub watchdog: Option<Arc<Watchdog>>,
    directory: PathBuf,
    may_write_away: bool,
    /// The file from which `hotshelf status` reads.
    status_path: OnceLock<PathBuf>,
    published: Mutex<(SideReport, Option<Instant>)>,
}

impl SlowSide {
    /// Prepares the side of a directory, which is open as `top`. Requests wait `deadline` at most (zero: for ever).
    pub fn new(directory: &Path, top: OwnedFd, deadline: Duration, offline: OfflinePolicy, mode: Mode) -> SlowSide {
        let watchdog = (!deadline.is_zero()).then(|| Arc::new(Watchdog::new(deadline, Box::new(move || probe(&top)))));
        SlowSide {
            watchdog,
            directory: directory.to_owned(),
            may_write_away: offline == OfflinePolicy::WriteBack && mode == Mode::WriteBack,
            status_path: OnceLock::new(),
            published: Mutex::default(),
        }
    }

    /// Returns whether the side has not replied for the deadline.
    pub fn is_away(&self) -> bool {
        self.watchdog.as_ref().is_some_and(|watchdog| watchdog.is_away())
    }

    /// Returns whether a request of this kind may be served while the side is away.
    pub fn serves_away(&self, opcode: u32) -> bool {
        match opcode {
            opcodes::READ | opcodes::RELEASE | opcodes::RELEASEDIR | opcodes::ACCESS | opcodes::IOCTL => true,
            opcodes::WRITE => self.may_write_away,
            // Those that the file system does not have are refused without the side, and all later ones.
            opcodes::GETLK | opcodes::SETLK | opcodes::SETLKW | opcodes::BMAP | opcodes::POLL => true,
            _ => opcode > opcodes::COPY_FILE_RANGE,
        }
    }

    /// Sets the file from which `hotshelf status` reads. If nothing is known of the side, there is none: one that is there is of another
    /// mount, which had the same device number and was killed.
    pub fn publish_to(&self, path: PathBuf) {
        let _ = self.status_path.set(path);
        if self.watchdog.is_none() {
            self.withdraw();
        }
        self.publish();
    }

    /// Writes changes of the state to the log, and to the file for `hotshelf status`.
    pub fn publish(&self) {
        let Some(watchdog) = &self.watchdog else { return };
        let report = watchdog.report();
        let change = watchdog.take_change();
        let directory = self.directory.display();
        match change {
            Some(SideChange::Away) => {
                tracing::warn!(%directory, "the slow side does not reply: only what is cached is served until it does");
            }
            Some(SideChange::Back(after)) => {
                tracing::warn!(%directory, seconds = after.as_secs(), timed_out = report.timed_out, "the slow side replies again");
            }
            None => {}
        }
        let mut published = self.published.lock();
        let is_due = published.1.is_none_or(|last| last.elapsed() >= PUBLISH_INTERVAL);
        if published.1.is_some() && (published.0 == report || change.is_none() && !is_due) {
            return;
        }
        let Some(path) = self.status_path.get() else { return };
        *published = (report, Some(Instant::now()));
        let away_since = report.away_since.map(|since| since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
        let SideReport { timed_out, unfinished, timed_out_total, failed_total, .. } = report;
        let status = SideStatus { away_since, timed_out, unfinished, timed_out_total, failed_total };
        if let Err(error) = status_file::write(path, &status) {
            tracing::debug!(path = %path.display(), %error, "the state of the slow side is not shown");
        }
    }

    /// Removes the file for `hotshelf status`.
    pub fn withdraw(&self) {
        if let Some(path) = self.status_path.get() {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Runs `work` on another thread, and returns its result. None: the slow side does not reply, and the work may never end. Without a
    /// watchdog the work is done here, however long it takes.
    pub fn run_while_side_replies<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let Some(watchdog) = &self.watchdog else { return Some(work()) };
        let (send, result) = std::sync::mpsc::channel();
        let started = std::thread::Builder::new().name("ending".into()).spawn(move || drop(send.send(work())));
        if let Err(error) = started {
            tracing::error!(%error, "no thread for the end of the mount");
            return None;
        }
        if let Err(error) = watchdog.start_probes() {
            tracing::warn!(%error, "whether the slow side replies is not known");
        }
        let begun = Instant::now();
        let mut last = begun;
        loop {
            match result.recv_timeout(TICK) {
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            watchdog.tick(now - last);
            watchdog.want_probe();
            last = now;
            if watchdog.is_away() && begun.elapsed() >= ENDING_AWAY || watchdog.silence() >= ENDING_SILENT {
                return None;
            }
        }
    }

    /// Runs `work` on another thread, and returns its result. None: it has not ended within `limit`, and may never end. Without a watchdog
    /// the work is done here, however long it takes.
    pub fn run_for<T: Send + 'static>(&self, limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if self.watchdog.is_none() {
            return Some(work());
        }
        let (send, result) = std::sync::mpsc::channel();
        let started = std::thread::Builder::new().name("hotshelf-wait".into()).spawn(move || drop(send.send(work())));
        started.inspect_err(|error| tracing::error!(%error, "no thread for a call on the slow side")).ok()?;
        result.recv_timeout(limit).ok()
    }

    /// Returns why nothing that needs the side can be done now, if it does not reply.
    pub fn why_silent(&self) -> Option<String> {
        let (report, directory) = (self.report(), self.directory.display());
        match report.unfinished {
            _ if report.away_since.is_some() => Some(format!("{directory} does not reply: try again when it does (see `hotshelf status`)")),
            0 => None,
            1 => Some(format!("1 call on {directory} has not returned: try again when it has")),
            count => Some(format!("{count} calls on {directory} have not returned: try again when they have")),
        }
    }

    /// Ends the probes of the side, as the process is about to have another program. False: one does not return.
    pub fn end_probes(&self, deadline: Instant) -> bool {
        self.watchdog.as_ref().is_none_or(|watchdog| watchdog.end_probes(deadline))
    }

    /// Returns what is known of the side now.
    pub fn report(&self) -> SideReport {
        self.watchdog.as_ref().map(|watchdog| watchdog.report()).unwrap_or_default()
    }
}

/// Asks the server of the directory for what no file system in between has in its memory: sshfs keeps attributes for 20 seconds, and no
/// name that nobody has asked for.
fn probe(top: &OwnedFd) -> Result<(), Errno> {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    Stat::newest_of(top.as_fd())?;
    let number = PROBES.fetch_add(1, Relaxed);
    let name = format!(".hotshelf-probe-{}-{number}", std::process::id());
    match rustix::fs::openat(top, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, rustix::fs::Mode::empty()) {
        Ok(_) | Err(Errno::NOENT) => rustix::fs::fstatfs(top).map(drop),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn top(dir: &tempfile::TempDir) -> OwnedFd {
        rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty()).expect("opens")
    }

    #[test]
    fn what_is_written_while_the_side_is_away_is_a_choice() {
        let dir = tempfile::tempdir().expect("a directory");
        for (offline, mode, writes) in
            [("read-only", Mode::WriteBack, false), ("write-back", Mode::WriteThrough, false), ("write-back", Mode::WriteBack, true)]
        {
            let side = SlowSide::new(dir.path(), top(&dir), Duration::from_secs(1), offline.parse().expect("a policy"), mode);
            assert_eq!(side.serves_away(opcodes::WRITE), writes);
            assert!(side.serves_away(opcodes::READ) && side.serves_away(1000) && !side.serves_away(opcodes::LOOKUP));
            assert!(!side.is_away());
        }
        assert!("off".parse::<OfflinePolicy>().is_err());
    }

    #[test]
    fn work_at_the_end_is_done_while_the_side_replies() {
        let dir = tempfile::tempdir().expect("a directory");
        for deadline in [Duration::ZERO, Duration::from_secs(1)] {
            let side = SlowSide::new(dir.path(), top(&dir), deadline, OfflinePolicy::ReadOnly, Mode::WriteThrough);
            let path = dir.path().join("status");
            // As a mount that was killed leaves it.
            std::fs::write(&path, "stale").expect("written");
            side.publish_to(path.clone());
            let shown = std::fs::read(&path).ok();
            assert_eq!(shown.is_some(), !deadline.is_zero());
            assert_ne!(shown.as_deref(), Some(&b"stale"[..]));
            assert_eq!(side.run_while_side_replies(|| 5), Some(5));
            assert_eq!((side.run_for(Duration::from_secs(30), || 6), side.why_silent()), (Some(6), None));
            assert!(side.end_probes(Instant::now() + Duration::from_secs(30)));
            side.withdraw();
            assert!(!path.exists());
        }
    }
}
