//! Threads of this process that are in a call of the kernel which cannot be interrupted, and do not get on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often threads are looked at.
const POLL: Duration = Duration::from_millis(50);

/// A thread that waits for something: its name, and how often it has waited before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WaitingThread {
    name: String,
    waits: u64,
}

/// Looks into the text of `/proc/PID/task/TID/status`. None: the thread runs, or can be interrupted.
fn waiting(status: &str) -> Option<WaitingThread> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    field("State")?.starts_with('D').then_some(())?;
    Some(WaitingThread { name: field("Name")?.to_owned(), waits: field("voluntary_ctxt_switches")?.parse().ok()? })
}

/// Returns all threads of this process that wait, by their numbers.
fn all_waiting() -> HashMap<String, WaitingThread> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_thread = |entry: std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        Some((entry.file_name().into_string().ok()?, waiting(&status)?))
    };
    threads.filter_map(of_thread).collect()
}

/// Waits until each thread that now waits has got on. Returns the name of one that has not by the deadline.
pub fn wait_for_all(deadline: Instant) -> Option<String> {
    let mut stuck = all_waiting();
    while !stuck.is_empty() && Instant::now() < deadline {
        std::thread::sleep(POLL);
        let now = all_waiting();
        stuck.retain(|number, thread| now.get(number) == Some(thread));
    }
    stuck.into_values().next().map(|thread| thread.name)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_interrupted_is_seen() {
        let status = "Name:\thotshelf-slow\nState:\tD (disk sleep)\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t1\n";
        assert_eq!(waiting(status), Some(WaitingThread { name: "hotshelf-slow".into(), waits: 150 }));
        assert_eq!(waiting(&status.replace("D (disk sleep)", "S (sleeping)")), None);
        assert_eq!(waiting(""), None);
    }

    #[test]
    fn nothing_is_stuck_here() {
        assert_eq!(wait_for_all(Instant::now() + Duration::from_secs(20)), None);
    }
}
