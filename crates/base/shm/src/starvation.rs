//! Which processes wait for a CPU, as the kernel reports their threads (proc(5)): no other process can forge that.
//!
//! A thread that holds a lock and gets no CPU is only slow, and the waiter goes on waiting for it. A thread that is stopped, that sleeps or
//! that never held the lock does not wait for a CPU. Only a process of our own user or of root is sampled: any other could keep a thread
//! ready on purpose. A sample examines a bounded number of threads, however many the process has.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The least time between two samples: a thread that runs meanwhile has used at least one tick of CPU time (10 ms).
const SAMPLE: Duration = Duration::from_millis(20);
/// A sample takes at most one part in so many of the time.
const SHARE: u32 = 20;
/// Threads examined in one sample; the next sample goes on behind them.
const THREADS_MAX: usize = 256;
/// Bytes of a process's status that are read: its users are in the first lines, before the list of its groups, which may be long.
const STATUS_MAX: u64 = 4096;

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
    threads: ThreadList,
    next: Instant,
    is_starved: bool,
    is_trusted: Option<bool>,
}

/// The threads of a process, listed a few at a time and from the start again behind the last one.
#[derive(Debug)]
struct ThreadList {
    dir: PathBuf,
    listing: Option<fs::ReadDir>,
}

impl StarvationWatch {
    /// Watches a process from now on. Without a process number, nothing is known of the process, and it counts as not starved.
    pub(crate) fn new(pid: Option<u32>) -> StarvationWatch {
        let dir = pid.map(|pid| format!("/proc/{pid}/task")).unwrap_or_default().into();
        let threads = ThreadList { dir, listing: None };
        StarvationWatch { pid, ready: Vec::new(), threads, next: Instant::now() + SAMPLE, is_starved: false, is_trusted: None }
    }

    /// Takes a sample when one is due. Returns whether, at the last sample, a thread had waited for a CPU since the sample before. False
    /// for a process of another user, which is not sampled.
    pub(crate) fn is_starved(&mut self) -> bool {
        let begun = Instant::now();
        if begun >= self.next && self.is_trusted() {
            self.sample();
            self.next = Instant::now() + SAMPLE.max(begun.elapsed() * SHARE);
        }
        self.is_starved
    }

    /// Examines the threads that were ready at the last sample again; if none of them has waited since, examines the next ones.
    fn sample(&mut self) {
        let still: Vec<ReadyThread> = self.ready.iter().filter_map(|thread| self.threads.ready_thread(thread.tid)).collect();
        self.is_starved = still.iter().any(|thread| self.ready.contains(thread));
        self.ready = if self.is_starved { still } else { self.threads.next_ready() };
    }

    /// Returns whether the process runs with the rights of our user, or of root, and no others.
    fn is_trusted(&mut self) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        let find = |pid| pid == std::process::id() || users_of(pid).is_some_and(|users| users == [ours; 4] || users == [0; 4]);
        *self.is_trusted.get_or_insert_with(|| self.pid.is_some_and(find))
    }
}

impl ThreadList {
    /// Returns which of the next [`THREADS_MAX`] threads run or wait for a CPU.
    fn next_ready(&mut self) -> Vec<ReadyThread> {
        let mut listing = match self.listing.take() {
            Some(listing) => listing,
            None => match fs::read_dir(&self.dir) {
                Ok(listing) => listing,
                Err(_) => return Vec::new(),
            },
        };
        let threads: Vec<_> = listing.by_ref().take(THREADS_MAX).map_while(Result::ok).collect();
        self.listing = (threads.len() == THREADS_MAX).then_some(listing);
        threads.iter().filter_map(|thread| self.ready_thread(thread.file_name().to_str()?.parse().ok()?)).collect()
    }

    fn ready_thread(&self, tid: u64) -> Option<ReadyThread> {
        let thread = self.dir.join(tid.to_string());
        let ticks = ready_ticks(&fs::read_to_string(thread.join("stat")).ok()?)?;
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let sleeps = field(&status, "voluntary_ctxt_switches:")?.trim().parse().ok()?;
        Some(ReadyThread { tid, ticks, sleeps })
    }
}

/// Returns the CPU time in a line of `stat`, of a thread that is in state R. Its name may contain anything.
fn ready_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if fields.next() != Some("R") {
        return None;
    }
    let mut times = fields.skip(10).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Returns the real, effective, saved and file system user of a process: all of them, because a set-user-ID program keeps its caller's.
fn users_of(pid: u32) -> Option<[u32; 4]> {
    let mut status = Vec::new();
    fs::File::open(Path::new("/proc").join(pid.to_string()).join("status")).ok()?.take(STATUS_MAX).read_to_end(&mut status).ok()?;
    let users: Vec<u32> =
        field(&String::from_utf8_lossy(&status), "Uid:")?.split_ascii_whitespace().filter_map(|user| user.parse().ok()).collect();
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

    /// A process with many threads, in a directory of its own; each is ready and runs between samples, but for one.
    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_sample_is_bounded_and_a_starved_thread_behind_the_bound_is_found() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let count = 2 * THREADS_MAX as u64 + 7;
        let write = |tid: u64, ticks: u64| {
            let thread = dir.path().join(tid.to_string());
            fs::create_dir_all(&thread).expect("made");
            fs::write(thread.join("stat"), format!("{tid} (a) R 1 1 1 0 -1 4 1 0 0 0 {ticks} 0 0 0 20 0 1 0 4")).expect("written");
            fs::write(thread.join("status"), "voluntary_ctxt_switches:\t5\n").expect("written");
        };
        let watch_of = |pid: Option<u32>| {
            let mut watch = StarvationWatch::new(pid);
            watch.threads.dir = dir.path().to_owned();
            watch
        };
        let mut watch = watch_of(Some(std::process::id()));
        let mut seen = std::collections::BTreeSet::new();
        for ticks in 0..4 {
            (1..=count).for_each(|tid| write(tid, ticks));
            watch.sample();
            assert!(!watch.is_starved, "all have run");
            assert!(watch.ready.len() <= THREADS_MAX, "{} threads in one sample", watch.ready.len());
            seen.extend(watch.ready.iter().map(|thread| thread.tid));
        }
        assert_eq!(seen.len() as u64, count, "each has its turn");
        // The last one gets no CPU.
        let mut watch = watch_of(Some(std::process::id()));
        let mut is_found = false;
        for ticks in 100..106 {
            (1..count).for_each(|tid| write(tid, ticks));
            watch.sample();
            is_found |= watch.is_starved;
            assert_eq!(is_found, watch.is_starved, "as long as it gets no CPU");
        }
        assert!(is_found);
        // Of another user, the same threads are not sampled at all.
        let mut stranger = StarvationWatch { is_trusted: Some(false), ..watch_of(Some(std::process::id())) };
        for _ in 0..5 {
            std::thread::sleep(SAMPLE);
            assert!(!stranger.is_starved() && stranger.ready.is_empty());
        }
    }
}
