//! Limits on how long a call waits for other processes.
//!
//! A process may be stopped at any point, or keep a resource on purpose. Disk I/O of others may take long, and a slow disk is no fault. So
//! a call waits for a process *that shows a pulse* ([`shm::ProcessSlots::watch`]). If one shows none for 0.4 s, although it does not wait
//! for a CPU, the call fails with ETIMEDOUT, and its work is undecided until that process continues or ends. A pulse can be faked; so a
//! wait without progress lasts at most [`KEPT_MAX`].

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shm::{LivenessWatch, OwnedLockGuard};

use super::counters::Count;
use super::{CacheEngine, FileNo};

/// The error of a call that a stalled process blocks. A request to the leader may still be carried out.
pub(crate) const STALLED: Errno = Errno::TIMEDOUT;

/// How long a live process may hold the lock of a file or of the table of records: longer than one call on the slowest disk. Also how long
/// the leader may make no progress.
const KEPT_MAX: Duration = Duration::from_secs(600);
/// How long the leader waits for the lock of the table at a time, before it does other work.
const SOON: Duration = Duration::from_millis(10);
/// The interval of checks whether the leader makes progress.
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// The interval at which a leader shows its pulse.
const PULSE: Duration = Duration::from_millis(100);
/// The number of tries against other processes before the time limit applies.
const TRIES_FIRST: u32 = 16;
/// The duration of tries after that.
const TRIED_MAX: Duration = Duration::from_millis(300);

/// Bounds retries of work that others may undo for ever, on purpose or because the shared memory is damaged. First a number of tries, then
/// a duration.
#[derive(Debug)]
pub(crate) struct Retries {
    first: u32,
    left: u32,
    begun: Option<std::time::Instant>,
}

impl Retries {
    pub(crate) fn new() -> Retries {
        Retries::at_least(TRIES_FIRST)
    }

    /// Makes at least this many tries, because each may wait for something that is slow with reason.
    pub(crate) fn at_least(first: u32) -> Retries {
        Retries { first, left: first, begun: None }
    }

    /// Returns whether another try is allowed. The first always is.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        if self.left == self.first {
            self.left = self.left.saturating_sub(1);
            return true;
        }
        self.again_after()
    }

    #[cold]
    fn again_after(&mut self) -> bool {
        let begun = *self.begun.get_or_insert_with(std::time::Instant::now);
        if self.left > 0 {
            self.left -= 1;
            return true;
        }
        begun.elapsed() < TRIED_MAX
    }
}

/// Watches whether the leader makes progress during a wait.
pub(super) struct StallWatch<'a> {
    engine: &'a CacheEngine,
    leader: Option<LivenessWatch<'a>>,
    /// When the leader was last seen to make progress, and its counters then.
    moved: Option<(Instant, u64)>,
    looked: Instant,
}

impl<'a> StallWatch<'a> {
    pub(super) fn new(engine: &'a CacheEngine) -> StallWatch<'a> {
        StallWatch { engine, leader: None, moved: None, looked: Instant::now() }
    }

    /// Forgets the leader, because there is none now: the next one gets its full time.
    pub(super) fn begin_anew(&mut self) {
        self.leader = None;
    }

    /// Returns whether the leader has stalled. Call it after each wait.
    pub(super) fn is_over(&mut self) -> bool {
        let engine = self.engine;
        if self.leader.get_or_insert_with(|| engine.processes.watch_leader()).is_silent() {
            engine.world.report("the process that leads the cache does not go on (stopped?): what needs it fails until it does or ends");
            return true;
        }
        if self.looked.elapsed() < CHECK_PERIOD {
            return false;
        }
        self.looked = Instant::now();
        let done = [Count::BelowRead, Count::BelowWritten, Count::SsdWritten].into_iter();
        let done = done.fold(0_u64, |all, count| all.wrapping_add(engine.counters.sum(count)));
        match &mut self.moved {
            Some((since, seen)) if *seen == done => {
                let is_over = since.elapsed() >= KEPT_MAX;
                if is_over {
                    engine.world.report("the process that leads the cache has not answered or done anything for ten minutes: a call fails");
                }
                is_over
            }
            moved => {
                *moved = Some((Instant::now(), done));
                false
            }
        }
    }
}

impl CacheEngine {
    /// Takes the lock of the table of records.
    ///
    /// # Errors
    /// [`STALLED`]: a process that makes no progress keeps it.
    pub(crate) fn lock_records(&self) -> Result<OwnedLockGuard<'_>, Errno> {
        self.records.lock().lock_within(KEPT_MAX).ok_or_else(|| {
            self.world
                .report("the table of the cache's files is locked by a process that does not go on (stopped?): files cannot be opened");
            STALLED
        })
    }

    /// Takes the lock of the table of records for the leader, which others wait for. `None`: it is not free soon.
    pub(crate) fn lock_records_soon(&self) -> Option<OwnedLockGuard<'_>> {
        self.records.lock().lock_within(SOON)
    }

    /// Takes the file's lock without repairing what a dead owner left.
    ///
    /// # Errors
    /// [`STALLED`]: likewise. Only this file's users are affected.
    pub(super) fn hold_file(&self, no: FileNo) -> Result<OwnedLockGuard<'_>, Errno> {
        self.records.lock_of(no).lock_within(KEPT_MAX).ok_or_else(|| {
            let words = "a file is locked by a process that does not go on (stopped?): calls on that file fail until it does or ends";
            self.world.report(words);
            STALLED
        })
    }

    /// Marks a request of this process as undecided: a stalled leader may still carry it out. The file cannot be used until the next owner
    /// of its lock that reaches a leader completes the work. The file's lock is held.
    pub(super) fn leave_undecided(&self, no: FileNo) {
        let truncations = self.records.get(no).truncations();
        if truncations.load(Ordering::Acquire).is_multiple_of(2) {
            truncations.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Shows this process's pulse, and denies what others claim in its name.
    pub(crate) fn show_pulse(&self) {
        self.processes.answer_owner_queries();
        self.reads_in_flight.restore_marks();
    }

    /// Does work that may wait for a disk, while another thread shows this process's pulse.
    pub(crate) fn beside_a_pulse<T>(&self, what: impl FnOnce() -> T) -> T {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beat = || {
                while !is_over.load(Ordering::Acquire) {
                    self.show_pulse();
                    std::thread::park_timeout(PULSE);
                }
            };
            // If the thread cannot start, the leader itself shows its pulse between two system calls.
            let pulse = std::thread::Builder::new().name("hotshelf-pulse".into()).spawn_scoped(scope, beat);
            let done = what();
            is_over.store(true, Ordering::Release);
            if let Ok(pulse) = pulse {
                pulse.thread().unpark();
            }
            done
        })
    }
}
