//! How long a call waits for other processes.
//!
//! A process that takes part may be stopped in the middle of anything, or mean to keep what it has. What others do with a disk takes as
//! long as that takes, and a slow one is no fault. So *who shows a pulse* ([`shm::ProcessSlots::watch`]) is waited for, and who shows none
//! for 0.4 s is not: the call answers ETIMEDOUT, and what it had begun is undecided until that process goes on or ends. A pulse can be
//! shown on purpose; so nothing is waited for longer than [`KEPT_MAX`] in which nothing happens.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shm::{LivenessWatch, OwnedLockGuard};

use super::counters::Count;
use super::{CacheEngine, FileNo};

/// What a call answers that a process which does not go on keeps from its end. What was asked of the leader may happen yet.
pub(crate) const STALLED: Errno = Errno::TIMEDOUT;

/// How long a living process may keep a file's lock or that of the table of records: longer than one call of the slowest disk takes. And
/// how long the leader may do nothing for anybody.
const KEPT_MAX: Duration = Duration::from_secs(600);
/// How often is looked whether the leader does anything.
const LOOK: Duration = Duration::from_secs(5);
/// How often a leader shows its pulse.
const PULSE: Duration = Duration::from_millis(100);
/// Tries of what others keep from being done, before the time counts.
const TRIES_FIRST: u32 = 16;
/// How long is tried after that.
const TRIED_MAX: Duration = Duration::from_millis(300);

/// Tries of what others may undo for ever, on purpose or because the shared memory is damaged: so many, and then so long.
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

    /// What each try waits for may be slow for good reasons: so many are always made.
    pub(crate) fn at_least(first: u32) -> Retries {
        Retries { first, left: first, begun: None }
    }

    /// Whether there is another one. The first is free.
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

/// With the leader.
pub(super) struct StallWatch<'a> {
    engine: &'a CacheEngine,
    leader: Option<LivenessWatch<'a>>,
    /// When it was seen to have done something, and what it had done by then.
    moved: Option<(Instant, u64)>,
    looked: Instant,
}

impl<'a> StallWatch<'a> {
    pub(super) fn new(engine: &'a CacheEngine) -> StallWatch<'a> {
        StallWatch { engine, leader: None, moved: None, looked: Instant::now() }
    }

    /// Nobody leads now: whoever does next has its own time.
    pub(super) fn begin_anew(&mut self) {
        self.leader = None;
    }

    /// Whether the leader was waited for for long enough. To be asked after each wait.
    pub(super) fn is_over(&mut self) -> bool {
        let engine = self.engine;
        if self.leader.get_or_insert_with(|| engine.processes.watch_leader()).is_silent() {
            engine.world.report("the process that leads the cache does not go on (stopped?): what needs it fails until it does or ends");
            return true;
        }
        if self.looked.elapsed() < LOOK {
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
    /// The lock of the table of records.
    ///
    /// # Errors
    /// [`STALLED`]: a process that does not go on keeps it.
    pub(crate) fn lock_records(&self) -> Result<OwnedLockGuard<'_>, Errno> {
        self.records.lock().lock_within(KEPT_MAX).ok_or_else(|| {
            self.world
                .report("the table of the cache's files is locked by a process that does not go on (stopped?): files cannot be opened");
            STALLED
        })
    }

    /// The file's lock, as somebody left it.
    ///
    /// # Errors
    /// [`STALLED`]: likewise. Only this file's users suffer from that.
    pub(super) fn hold_file(&self, no: FileNo) -> Result<OwnedLockGuard<'_>, Errno> {
        self.records.lock_of(no).lock_within(KEPT_MAX).ok_or_else(|| {
            let words = "a file is locked by a process that does not go on (stopped?): calls on that file fail until it does or ends";
            self.world.report(words);
            STALLED
        })
    }

    /// What this process asked for is undecided: a leader that does not go on may do it yet. Nobody uses the file before that is ended, by
    /// whoever has its lock next and can reach a leader. The file's lock is held.
    pub(super) fn leave_undecided(&self, no: FileNo) {
        let truncations = self.records.get(no).truncations();
        if truncations.load(Ordering::Acquire).is_multiple_of(2) {
            truncations.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Does what may wait for a disk, while another thread shows that this process lives.
    pub(super) fn beside_a_pulse<T>(&self, what: impl FnOnce() -> T) -> T {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beat = || {
                while !is_over.load(Ordering::Acquire) {
                    self.processes.answer_owner_queries();
                    std::thread::park_timeout(PULSE);
                }
            };
            // Without it the leader itself shows its pulse, between two calls of the kernel.
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
