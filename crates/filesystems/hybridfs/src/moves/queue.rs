//! The state of the mover: its queue, its running moves and their results.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::backoff::Backoff;
use super::demotion_history::DemotionHistory;
use super::job::{Duplicate, MoveJob};
use super::promotion_feedback::PromotionFeedback;
use crate::pinning::progress::{PinProgress, PinWalk};
use crate::report::{MoveTrouble, RunningMove, TierName};

/// Waiting moves beyond this many are given up: the next touch asks again.
pub(super) const QUEUE_MAX: usize = 1 << 16;
/// Files that left the SSD whose reason is remembered, at least.
const LEFT_MAX: usize = 1 << 15;

/// When a move that could not be is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) enum RetryTime {
    Closed,
    In(Duration),
}

/// Holds the queue and the state of all moves.
#[derive(Debug)]
pub struct Mover {
    pub(super) state: Mutex<MoverState>,
    pub(super) wake: Condvar,
    /// Told whenever a move ends.
    pub(super) ended: Condvar,
    paused: Condvar,
    pub(crate) duplicates: Mutex<HashMap<u64, Duplicate>>,
    /// Copies on the HDD that could not be removed, by their inodes: their moves stay in the journal.
    pub(crate) left_behind: Mutex<HashSet<u64>>,
    /// Why files are on the HDD that were on the SSD.
    pub(crate) demotion_history: Mutex<DemotionHistory>,
    /// What becomes of promoted files.
    pub(crate) promotion_feedback: Mutex<PromotionFeedback>,
    /// Through a pinned tree; held while a few names are looked at.
    pub(crate) walk: Mutex<PinWalk>,
    pub(super) demoting: AtomicBool,
    /// Held by the worker that chooses a victim: two must not take what one is enough for.
    pub(super) choosing: Mutex<()>,
    pub(super) unparked_s: AtomicU32,
    pub(super) stuck: Mutex<DemotionStall>,
    stop: AtomicBool,
    /// 0: no limit.
    bytes_per_s: AtomicU64,
    /// Nanoseconds since `origin` until which the byte budget is used up.
    busy_until_ns: AtomicU64,
    /// Nanoseconds since `origin` when a file was last removed.
    removed_ns: AtomicU64,
    origin: Instant,
}

#[derive(Debug, Default)]
pub(super) struct MoverState {
    pub(super) queue: VecDeque<MoveJob>,
    pub(super) queued: HashSet<u64>,
    pub(super) waiting: HashMap<u64, MoveJob>,
    /// Not before their time.
    pub(super) later: HashMap<u64, (Instant, MoveJob)>,
    pub(super) pins: PinProgress,
    /// Taken from the queue by a worker and not done with.
    pub(super) taken: HashSet<u64>,
    pub(super) running: HashMap<u64, MoveProgress>,
    /// Not to be tried now.
    pub(super) backoff: Backoff,
    /// Chosen to leave, and their sizes: room that is as good as free.
    pub(super) leaving: HashMap<u64, u64>,
}

impl MoverState {
    /// Whether a move of this file was requested and has not ended.
    pub(super) fn is_asked(&self, ino: u64) -> bool {
        self.queued.contains(&ino) || self.waiting.contains_key(&ino) || self.taken.contains(&ino) || self.later.contains_key(&ino)
    }

    pub(super) fn enqueue(&mut self, job: MoveJob) {
        if self.queued.insert(job.ino) {
            self.queue.push_back(job);
        }
    }

    /// Queues what is due.
    pub(super) fn bring_back(&mut self) {
        let now = Instant::now();
        let due: Vec<MoveJob> = self.later.extract_if(|_, (at, _)| *at <= now).map(|(_, (_, job))| job).collect();
        due.into_iter().for_each(|job| self.enqueue(job));
    }

    /// When the next delayed move is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.values().map(|(at, _)| *at).chain(self.pins.again_at()).min()
    }
}

#[derive(Clone, Debug)]
pub(super) struct MoveProgress {
    pub(super) path: Vec<u8>,
    pub(super) to: TierName,
    pub(super) total: u64,
    pub(super) done: Arc<AtomicU64>,
}

/// Demotions that found the HDD full.
#[derive(Debug, Default)]
pub(super) struct DemotionStall {
    /// Bytes that were free on the HDD when a file did not fit there.
    pub(super) hdd_full_at: Option<u64>,
}

impl Mover {
    /// A mover with nothing to do.
    pub fn new(bytes_per_s: Option<u64>) -> Mover {
        Mover {
            state: Mutex::default(),
            wake: Condvar::new(),
            ended: Condvar::new(),
            paused: Condvar::new(),
            duplicates: Mutex::default(),
            left_behind: Mutex::default(),
            demotion_history: Mutex::new(DemotionHistory::new(LEFT_MAX)),
            promotion_feedback: Mutex::default(),
            walk: Mutex::default(),
            demoting: AtomicBool::new(false),
            choosing: Mutex::default(),
            unparked_s: AtomicU32::new(0),
            stuck: Mutex::default(),
            stop: AtomicBool::new(false),
            bytes_per_s: AtomicU64::new(bytes_per_s.unwrap_or(0)),
            busy_until_ns: AtomicU64::new(0),
            removed_ns: AtomicU64::new(0),
            origin: Instant::now(),
        }
    }

    /// Nobody has the file open: a move that waited for it goes on.
    pub fn closed(&self, ino: u64) {
        let mut state = self.state.lock();
        if let Some(job) = state.waiting.remove(&ino) {
            state.enqueue(job);
            self.wake.notify_one();
        }
    }

    /// Changes the progress of pinned files, and wakes the workers if there is something new to do.
    pub(crate) fn with_pins<T>(&self, change: impl FnOnce(&mut PinProgress) -> T) -> T {
        let mut state = self.state.lock();
        let before = (state.pins.waits(), state.pins.again_at());
        let answer = change(&mut state.pins);
        if before != (state.pins.waits(), state.pins.again_at()) {
            self.wake.notify_one();
        }
        answer
    }

    /// A worker does this job without a queue, unless one of the same file is under way, or `keep` says that there is none.
    pub(crate) fn take(&self, job: MoveJob, keep: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        let free = !state.is_asked(job.ino) && !state.running.contains_key(&job.ino);
        let taken = free && keep();
        if taken {
            state.taken.insert(job.ino);
        }
        taken
    }

    pub(super) fn next_asked(&self) -> Option<MoveJob> {
        let mut state = self.state.lock();
        state.bring_back();
        let job = state.queue.pop_front()?;
        state.queued.remove(&job.ino);
        state.taken.insert(job.ino);
        Some(job)
    }

    /// How far the walk through what is pinned has come; another worker goes on with it while this one moves a file.
    pub(crate) fn note_walk(&self, listed: u64, walking: bool) {
        let mut state = self.state.lock();
        state.pins.note_walk(listed, walking);
        if walking {
            self.wake.notify_one();
        }
    }

    /// Looks at the marks now.
    pub fn wake(&self) {
        self.wake.notify_all();
    }

    /// Ends the workers after the chunk they copy.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let _state = self.state.lock();
        self.wake.notify_all();
        self.ended.notify_all();
        self.paused.notify_all();
    }

    /// Whether the file system is closing.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns the number of requested moves that are not running. If it is 0 and none runs, all requests are complete.
    pub fn queue_len(&self) -> u64 {
        let state = self.state.lock();
        let about_to_run = state.taken.iter().filter(|ino| !state.running.contains_key(ino)).count();
        (state.queue.len() + state.waiting.len() + state.later.len() + about_to_run) as u64 + state.pins.len()
    }

    /// Returns the moves that are running now.
    pub fn running(&self) -> Vec<RunningMove> {
        let state = self.state.lock();
        let show = |progress: &MoveProgress| RunningMove {
            path: String::from_utf8_lossy(&progress.path).into_owned(),
            to: progress.to,
            done_bytes: progress.done.load(Ordering::Relaxed),
            total_bytes: progress.total,
        };
        state.running.values().map(show).collect()
    }

    /// A file lost its last name.
    pub(crate) fn note_removed(&self) {
        self.removed_ns.store(self.origin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether one did so lately that its room may not be free yet: the kernel forgets it late, and its file system then
    /// waits for what is being written to it.
    pub(crate) fn removed_lately(&self) -> bool {
        let at = self.removed_ns.load(Ordering::Relaxed);
        at != 0 && self.origin.elapsed() < Duration::from_nanos(at) + Duration::from_secs(2)
    }

    /// Until when nothing is to be moved to a side, because moves to it failed.
    pub(crate) fn side_rests(&self, to: TierName) -> Option<Instant> {
        self.state.lock().backoff.side_rests(to, Instant::now())
    }

    /// Why the last move of a file did not succeed, as long as it rests for that.
    pub(crate) fn why_it_rests(&self, ino: u64) -> Option<String> {
        self.state.lock().backoff.why(ino, Instant::now())
    }

    /// Why moves do not succeed.
    pub(crate) fn troubles(&self) -> Vec<MoveTrouble> {
        self.state.lock().backoff.report(Instant::now())
    }

    /// Opens within a residency that a file needs to come up; 0: as the policy has it.
    pub(crate) fn opens_wanted(&self) -> u32 {
        self.promotion_feedback.lock().opens_wanted()
    }

    /// Whether a file is not to be moved now.
    pub(crate) fn rests(&self, ino: u64) -> bool {
        self.state.lock().backoff.rests(ino, Instant::now())
    }

    /// Returns whether a move of this file is running.
    pub(crate) fn is_moving(&self, ino: u64) -> bool {
        self.state.lock().running.contains_key(&ino)
    }

    /// Whether a file is on its way to the HDD.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().running.values().any(|progress| progress.to == TierName::Hdd)
    }

    /// Waits until a move ends, the file system closes, or `limit` is over.
    pub fn wait_for_any(&self, limit: Duration) {
        let mut state = self.state.lock();
        self.ended.wait_for(&mut state, limit);
    }

    /// Waits until no move runs, at most `limit`: one asked for by hand is nobody's worker, and cleans up after itself too.
    pub fn wait_for_all(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.state.lock();
        while !state.running.is_empty() && Instant::now() < end {
            self.ended.wait_for(&mut state, Duration::from_millis(100));
        }
    }

    /// Waits, or until the file system closes.
    pub fn pause(&self, limit: Duration) {
        let mut state = self.state.lock();
        if !self.stopping() {
            self.paused.wait_for(&mut state, limit);
        }
    }

    /// The limit of background moves, bytes per second.
    pub fn rate(&self) -> Option<u64> {
        Some(self.bytes_per_s.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Changes it, also for the moves that run.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.bytes_per_s.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
        // What was spent at the old rate is not waited for.
        self.busy_until_ns.store(0, Ordering::Relaxed);
        self.paused.notify_all();
    }

    /// Keeps to the byte budget.
    pub(crate) fn spend(&self, bytes: u64) {
        let Some(rate) = self.rate() else { return };
        let cost = bytes.saturating_mul(1_000_000_000) / rate;
        let now = self.origin.elapsed().as_nanos() as u64;
        let start = self.busy_until_ns.fetch_max(now, Ordering::Relaxed).max(now);
        self.busy_until_ns.fetch_add(cost, Ordering::Relaxed);
        // A piece may cost many seconds: whoever closes the file system does not wait for them.
        loop {
            let left = start.saturating_sub(self.origin.elapsed().as_nanos() as u64);
            // The limit may be another one by now.
            if left == 0 || self.stopping() || self.rate() != Some(rate) {
                return;
            }
            self.pause(Duration::from_nanos(left));
        }
    }
}

/// Lowers the priority of this thread below that of serving threads; a nice value belongs to a thread (sched(7)).
pub fn yield_to_foreground() {
    let _ = rustix::process::setpriority_process(None, 10);
}
