//! Which processes wait for a CPU: what the kernel says of their threads (proc(5)), which no other process can forge.
//!
//! A thread that holds a lock and gets no CPU is only slow, and has to be waited for. A thread that is stopped, or that sleeps, or that
//! never held the lock, does not wait for a CPU. So a waiter tells them apart, and on a machine with a free CPU nobody pretends.

use std::fs;
use std::time::{Duration, Instant};

/// The least time between two samples: a thread that runs meanwhile has used at least one tick of CPU time (10 ms).
const SAMPLE: Duration = Duration::from_millis(20);
/// A sample of a process with many threads takes at most one part in so many of the time.
const SHARE: u32 = 20;

/// A thread that was ready to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReadyThread {
    tid: u64,
    /// Ticks of CPU time that it has used.
    ticks: u64,
    /// How often it has slept.
    sleeps: u64,
}

/// Watches whether a thread of one process is ready to run and gets no CPU.
#[derive(Debug)]
pub(crate) struct StarvationWatch {
    pid: Option<u32>,
    ready: Vec<ReadyThread>,
    next: Instant,
    is_starved: bool,
    is_trusted: Option<bool>,
}

impl StarvationWatch {
    /// Watches a process from now on; none: nothing is known of it, so it is not starved.
    pub(crate) fn new(pid: Option<u32>) -> StarvationWatch {
        StarvationWatch { pid, ready: Vec::new(), next: Instant::now() + SAMPLE, is_starved: false, is_trusted: None }
    }

    /// Takes a sample when one is due. True: at the last sample a thread had waited for a CPU since the one before.
    pub(crate) fn is_starved(&mut self) -> bool {
        let begun = Instant::now();
        if let Some(pid) = self.pid.filter(|_| begun >= self.next) {
            let ready = ready_threads(pid);
            self.is_starved = ready.iter().any(|thread| self.ready.contains(thread));
            self.ready = ready;
            self.next = Instant::now() + SAMPLE.max(begun.elapsed() * SHARE);
        }
        self.is_starved
    }

    /// Returns whether the process runs with the rights of our user, or of root, and no others.
    pub(crate) fn is_trusted(&mut self) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        let find = |pid| pid == std::process::id() || users_of(pid).is_some_and(|users| users == [ours; 4] || users == [0; 4]);
        *self.is_trusted.get_or_insert_with(|| self.pid.is_some_and(find))
    }
}

/// The threads of a process that run or wait for a CPU.
fn ready_threads(pid: u32) -> Vec<ReadyThread> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.filter_map(|thread| ready_thread(pid, thread.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

fn ready_thread(pid: u32, tid: u64) -> Option<ReadyThread> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let ticks = ready_ticks(&stat)?;
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let sleeps = field(&status, "voluntary_ctxt_switches:")?.trim().parse().ok()?;
    Some(ReadyThread { tid, ticks, sleeps })
}

/// The CPU time in a line of `stat`, of a thread that is in state R. Its name may contain anything.
fn ready_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if fields.next() != Some("R") {
        return None;
    }
    let mut times = fields.skip(10).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// The real, effective, saved and file system user of a process: all of them, because a set-user-ID program keeps its caller's.
fn users_of(pid: u32) -> Option<[u32; 4]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users: Vec<u32> = field(&status, "Uid:")?.split_ascii_whitespace().filter_map(|user| user.parse().ok()).collect();
    users.try_into().ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod test {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name_is() {
        let line = |state: &str| format!("77 (a) R (b) {state} 1 1 1 0 -1 4194304 101 0 0 0 30 12 0 0 20 0 1 0 4495253");
        assert_eq!(ready_ticks(&line("R")), Some(42));
        assert!(["S", "D", "T", "t", "Z"].iter().all(|state| ready_ticks(&line(state)).is_none()));
        assert!(["", "77 (a", "77 (a) R", "77 (a) R 1 1 1 0 -1 4 1 0 0 0 x y"].iter().all(|line| ready_ticks(line).is_none()));
    }

    /// A thread of the lowest priority beside two that leave it nothing of their CPU; and a process that sleeps.
    #[test]
    #[cfg_attr(miri, ignore = "needs /proc")]
    fn who_gets_no_cpu_is_starved_and_who_sleeps_is_not() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        let one_cpu = || {
            let all = sched_getaffinity(None).expect("known");
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a CPU"));
            sched_setaffinity(None, &one).expect("pinned");
        };
        let (is_over, begun) = (AtomicBool::new(false), Instant::now());
        let spin = || {
            one_cpu();
            while !is_over.load(Relaxed) && begun.elapsed() < Duration::from_secs(60) {
                std::hint::spin_loop();
            }
        };
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19).expect("allowed");
                spin();
            });
            (0..2).for_each(|_| _ = scope.spawn(spin));
            let mut ours = StarvationWatch::new(Some(std::process::id()));
            let mut other = StarvationWatch::new(Some(sleeper.id()));
            let mut found = false;
            while !found && begun.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(5));
                assert!(!other.is_starved(), "it sleeps");
                found = ours.is_starved();
            }
            assert!(ours.is_trusted() && other.is_trusted(), "of our own user");
            is_over.store(true, Relaxed);
            found
        });
        sleeper.kill().and_then(|()| sleeper.wait()).expect("ended");
        assert!(found);
        if rustix::process::geteuid().is_root() {
            let mut stranger = std::process::Command::new("sleep").arg("60").uid(65_534).spawn().expect("started");
            assert!(!StarvationWatch::new(Some(stranger.id())).is_trusted(), "another user");
            stranger.kill().and_then(|()| stranger.wait()).expect("ended");
        }
        let mut nobody = StarvationWatch::new(None);
        assert!(!nobody.is_starved() && !nobody.is_trusted());
    }
}
