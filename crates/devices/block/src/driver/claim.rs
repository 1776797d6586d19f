//! One program at a time writes to a device: its lock, who has it, and how long to wait for what a process left behind.
//!
//! What a ring had under way when its process ended keeps the file, with its lock, until the disk has answered and a thread of the
//! kernel has cleared up. There is nothing to wait for, so it is tried again.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::device::OpenError;

/// For a ring of a process that goes on, closed a moment ago.
const CLOSED: Duration = Duration::from_millis(200);
/// For one of a process that has ended, as by kill -9: on a busy disk its requests take their time.
const LEFT_BEHIND: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Who has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Process(u32),
    /// A process that has ended, with requests under way.
    Ended(u32),
}

/// How long a device was tried already.
pub(super) struct RetryTimer(Instant);

impl RetryTimer {
    pub(super) fn begin() -> RetryTimer {
        RetryTimer(Instant::now())
    }

    /// Whether to try once more, after a pause.
    pub(super) fn lasts(&self, limit: Duration) -> bool {
        let lasts = self.0.elapsed() < limit;
        if lasts {
            std::thread::sleep(PAUSE);
        }
        lasts
    }
}

/// Takes the lock of a file that was opened.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    let patience = RetryTimer::begin();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            locked => return locked.map_err(|error| OpenError::system(format!("locking {}", path.display()), error)),
        }
        let holder = locked_by(file);
        // Within a PID namespace the kernel does not tell of processes that have ended.
        let limit = if let Some(Holder::Process(_)) = holder { CLOSED } else { LEFT_BEHIND };
        if !patience.lasts(limit) {
            return Err(refused(holder, path));
        }
    }
}

/// How long to try a device that cannot even be opened: without a lock it is mounted, or a part of something.
pub(super) fn patience_with_device(path: &Path) -> Duration {
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

/// The process that has the file locked, as far as the kernel tells (proc_locks(5)).
fn locked_by(file: &File) -> Option<Holder> {
    let stat = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains(" FLOCK ") && line.split_whitespace().any(|word| word == wanted))?;
    let pid = line.split_whitespace().nth(4)?.parse().ok()?;
    Some(if is_alive(pid) { Holder::Process(pid) } else { Holder::Ended(pid) })
}

/// Whether a process runs: not one that has ended and was not waited for. One that is hidden from this user runs.
fn is_alive(pid: u32) -> bool {
    let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH);
    if pid.try_into().ok().and_then(Pid::from_raw).is_some_and(is_gone) {
        return false;
    }
    // The state follows the name, which may have anything in it (proc_pid_stat(5)).
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
    fn who_has_a_file_is_told() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(locked_by(file.as_file()), None);
        lock(file.as_file(), file.path()).expect("free");
        assert_eq!(locked_by(file.as_file()), Some(Holder::Process(std::process::id())));
        let words = lock(&file.reopen().expect("opened"), file.path()).expect_err("taken").to_string();
        assert!(words.contains(&format!("in use by process {}: one program", std::process::id())), "{words}");
    }

    /// flock(1) locks, and hands the open file on to the program it starts: as a ring does that is not cleared up yet.
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
