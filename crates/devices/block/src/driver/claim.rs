//! Ensures that one program at a time writes to a device: the lock, its holder, and retries while a dead process still holds it.
//!
//! When a process ends, requests of its ring that are in flight keep the file open and locked. This lasts until the disk has completed
//! them and a kernel thread has cleaned up. The kernel signals no event for that, so the lock is retried.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::device::OpenError;

/// The time to retry if a live process holds the lock, which may just have closed its ring.
const CLOSED: Duration = Duration::from_millis(200);
/// The time to retry if a dead process (kill -9) holds the lock: on a busy disk its requests take long.
const LEFT_BEHIND: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// The process that holds a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Process(u32),
    /// A process that has ended with requests in flight.
    Ended(u32),
}

/// Measures how long a device has been retried.
pub(super) struct RetryTimer(Instant);

impl RetryTimer {
    pub(super) fn begin() -> RetryTimer {
        RetryTimer(Instant::now())
    }

    /// Returns whether to retry; if so, pauses first.
    pub(super) fn lasts(&self, limit: Duration) -> bool {
        let lasts = self.0.elapsed() < limit;
        if lasts {
            std::thread::sleep(PAUSE);
        }
        lasts
    }
}

/// Locks an open file, with retries.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    let timer = RetryTimer::begin();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            locked => return locked.map_err(|error| OpenError::system(format!("locking {}", path.display()), error)),
        }
        let holder = locked_by(file);
        // Inside a PID namespace the kernel does not report processes that have ended.
        let limit = if let Some(Holder::Process(_)) = holder { CLOSED } else { LEFT_BEHIND };
        if !timer.lasts(limit) {
            return Err(refused(holder, path));
        }
    }
}

/// Returns how long to retry a device that cannot be opened: if no process holds a lock, it is mounted, or part of another device.
pub(super) fn claim_timeout(path: &Path) -> Duration {
    let holder = File::open(path).ok().and_then(|file| locked_by(&file));
    if let Some(Holder::Ended(_)) = holder { LEFT_BEHIND } else { CLOSED }
}

fn refused(holder: Option<Holder>, path: &Path) -> OpenError {
    let path = path.display();
    let what = match holder {
        Some(Holder::Process(pid)) => {
            format!("{path} is in use by process {pid}: one program at a time writes to it; end that one, or let it do the work")
        }
        Some(Holder::Ended(pid)) => {
            format!("{path} is in use by process {pid}, which has ended with requests under way: try again when the disk has answered them")
        }
        None => {
            format!("{path} is in use: one program at a time writes to it; end that one, or let it do the work")
        }
    };
    OpenError::refused(what, &Errno::BUSY.into())
}

/// Returns the process that has locked the file, if the kernel reports it (proc_locks(5)).
fn locked_by(file: &File) -> Option<Holder> {
    let stat = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains(" FLOCK ") && line.split_whitespace().any(|word| word == wanted))?;
    let pid = line.split_whitespace().nth(4)?.parse().ok()?;
    Some(if is_alive(pid) { Holder::Process(pid) } else { Holder::Ended(pid) })
}

/// Returns whether a process is alive; a zombie is not. A process hidden from this user counts as alive.
fn is_alive(pid: u32) -> bool {
    let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH);
    if pid.try_into().ok().and_then(Pid::from_raw).is_some_and(is_gone) {
        return false;
    }
    // The state follows the name, which can contain any character (proc_pid_stat(5)).
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    fn process() -> std::process::Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat")
    }

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        assert!(is_alive(std::process::id()));
        let mut child = process();
        assert!(is_alive(child.id()));
        child.kill().expect("killed");
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().expect("waited for");
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn who_has_a_file_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(locked_by(file.as_file()), None);
        lock(file.as_file(), file.path()).expect("free");
        assert_eq!(locked_by(file.as_file()), Some(Holder::Process(std::process::id())));
        let words = lock(&file.reopen().expect("opened"), file.path()).expect_err("taken").to_string();
        assert!(words.contains(&format!("in use by process {}: one program", std::process::id())), "{words}");
    }

    /// flock(1) locks the file and passes it to the program that it starts, like a ring that is not yet cleaned up.
    #[test]
    fn what_a_process_left_behind_is_waited_for() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let child = ["sh", "-c", "echo; exec sleep 0.7"];
        let mut flock = Command::new("flock").arg(file.path()).args(child).stdout(Stdio::piped()).spawn().expect("flock");
        let pid = flock.id();
        flock.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("the program runs");
        flock.kill().expect("killed");
        flock.wait().expect("waited for");
        assert_ne!(locked_by(file.as_file()), Some(Holder::Process(pid)), "it has ended");
        lock(file.as_file(), file.path()).expect("waited for");
    }
}
