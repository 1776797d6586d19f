//! The mover: takes files from one side to the other in the background.
//!
//! A move's life (each arrow is a function here):
//!
//! ```text
//!   asked --take--> running --copy--> copied --place--> duplicate --commit--> done
//!     ^               |                  |                  |
//!     |               +------------------+------------------+--> dropped (changed, used, removed)
//!     +---closed--- waiting (open without us)                    its copy is removed
//!     +---in time-- later (dropped, and nobody would ask again)
//! ```
//!
//! From `asked` to the end the file stays known (`KeptFor::Move`), also when the kernel forgets it. What is pinned is not queued but
//! walked through when nothing else is to be done: see `pinning`.
//!
//! What must stay true at every point, because a crash may come there: while the SSD holds the name, the
//! SSD's file is the valid one. So a copy on the HDD is harmless until the SSD's name goes, and a copy on
//! the SSD becomes the file the moment it gets the name; before that name is used it is durable. The
//! journal only tells recovery which duplicates on the HDD are ours to delete.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::copying::Copying;
use crate::dirs::Dir;
use crate::nodes::{KeptFor, Kind};
use crate::pair::{Hybrid, now_s};
use crate::pinning::{Pinning, Step, Walk};
use crate::placement::Verdict;
use crate::report::{LastMove, RunningMove, TierName};
use crate::tier::Result;

/// Why a file moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The SSD is above its high mark.
    HighMark = 1,
    /// Opened twice within the window.
    SecondTouch = 2,
    /// Opened, with `promotion = on-open`.
    OnOpen = 3,
    /// By `hotshelf migrate`.
    Asked = 4,
    /// Outgrew the largest size for the SSD.
    TooBig = 5,
    /// A write found its side full.
    Full = 6,
}

impl Reason {
    /// For people.
    pub fn text(code: u8) -> &'static str {
        match code {
            1 => "the SSD was above its high mark",
            2 => "second touch",
            3 => "opened (promotion on-open)",
            4 => "asked for",
            5 => "larger than the largest file for the SSD",
            6 => "a write found its side full",
            _ => "unknown",
        }
    }
}

/// How a move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file is on the other side.
    Done,
    /// It was there already.
    Already,
    /// Its data is used without us, or another move of it runs: later.
    Busy,
    /// It changed, or its name went: later, if it still should.
    Dropped,
    /// It stays for good, for this reason.
    Stays(&'static str),
    /// A system call failed.
    Failed(Errno),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub ino: u64,
    pub to: TierName,
    pub reason: Reason,
    /// It belongs on the SSD because of a pin.
    pub pinned: bool,
    /// Room it takes, as far as it is known.
    pub need: u64,
    /// How often it was put off.
    pub tries: u32,
}

/// When a move that could not be is tried again.
#[derive(Clone, Copy, Debug)]
enum Again {
    Closed,
    In(Duration),
}

impl Job {
    pub(crate) fn new(ino: u64, to: TierName, reason: Reason) -> Job {
        Job { ino, to, reason, pinned: false, need: 0, tries: 0 }
    }

    /// Whether a move that is dropped must be tried again: for these nobody asks a second time.
    fn comes_back(&self) -> bool {
        (self.pinned || self.reason == Reason::TooBig) && self.tries < TRIES_MAX
    }
}

/// Queue and books of the mover.
#[derive(Debug)]
pub struct Mover {
    state: Mutex<State>,
    wake: Condvar,
    /// Told whenever a move ends.
    ended: Condvar,
    paused: Condvar,
    pub(crate) duplicates: Mutex<HashMap<u64, Duplicate>>,
    /// Copies on the HDD that could not be removed, by their inodes: their moves stay in the journal.
    pub(crate) left_behind: Mutex<HashSet<u64>>,
    /// Through a pinned tree; held while a few names are looked at.
    pub(crate) walk: Mutex<Walk>,
    demoting: AtomicBool,
    /// Held by the worker that chooses a victim: two must not take what one is enough for.
    choosing: Mutex<()>,
    unparked_s: AtomicU32,
    stuck: Mutex<Stuck>,
    stop: AtomicBool,
    bytes_per_s: Option<u64>,
    /// Nanoseconds since `origin` until which the byte budget is used up.
    busy_until_ns: AtomicU64,
    /// Nanoseconds since `origin` when a file was last removed.
    removed_ns: AtomicU64,
    origin: Instant,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Job>,
    queued: HashSet<u64>,
    waiting: HashMap<u64, Job>,
    /// Not before their time.
    later: HashMap<u64, (Instant, Job)>,
    pins: Pinning,
    /// Taken from the queue by a worker and not done with.
    taken: HashSet<u64>,
    running: HashMap<u64, Progress>,
    /// Not to be tried before.
    resting: HashMap<u64, Instant>,
    /// Chosen to leave, and their sizes: room that is as good as free.
    leaving: HashMap<u64, u64>,
}

impl State {
    /// Whether a move of this file is asked for and not done with.
    fn is_asked(&self, ino: u64) -> bool {
        self.queued.contains(&ino) || self.waiting.contains_key(&ino) || self.taken.contains(&ino) || self.later.contains_key(&ino)
    }

    fn enqueue(&mut self, job: Job) {
        if self.queued.insert(job.ino) {
            self.queue.push_back(job);
        }
    }

    /// Queues what is due.
    fn bring_back(&mut self) {
        let now = Instant::now();
        let due: Vec<Job> = self.later.extract_if(|_, (at, _)| *at <= now).map(|(_, (_, job))| job).collect();
        due.into_iter().for_each(|job| self.enqueue(job));
    }

    /// When something is due that nobody tells of.
    fn next_due(&self) -> Option<Instant> {
        self.later.values().map(|(at, _)| *at).chain(self.pins.again_at()).min()
    }
}

#[derive(Clone, Debug)]
struct Progress {
    path: Vec<u8>,
    to: TierName,
    total: u64,
    done: Arc<AtomicU64>,
}

/// Demotions that fail one after the other: trying every file would only keep the disks busy.
#[derive(Debug, Default)]
struct Stuck {
    failures: u32,
    /// No demotion before.
    until: Option<Instant>,
    /// Bytes that were free on the HDD when a file did not fit there.
    hdd_full_at: Option<u64>,
    /// When that was last said.
    said: Option<Instant>,
}

/// A copy that has its name on the HDD while the SSD's file is the valid one: of a demotion before its end, or the
/// original of a promotion.
#[derive(Clone, Debug)]
pub(crate) struct Duplicate {
    pub dir: Arc<Dir>,
    pub name: OsString,
    pub hdd_ino: u64,
}

/// Waiting moves beyond this many are given up: the next touch asks again.
const QUEUE_MAX: usize = 1 << 16;
/// How often a move is tried that nobody would ask for again; the pauses between grow.
const TRIES_MAX: u32 = 8;
/// Demotions that may fail in a row before all of them wait.
const FAILURES_MAX: u32 = 16;
/// Bytes that must become free on a full HDD before demotions try again.
const ROOM_STEP: u64 = 64 << 10;
/// How long a file that could not move is left alone.
const REST: Duration = Duration::from_secs(30);
/// The same for one that was in use, or changed.
const SHORT_REST: Duration = Duration::from_secs(1);

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
            walk: Mutex::default(),
            demoting: AtomicBool::new(false),
            choosing: Mutex::default(),
            unparked_s: AtomicU32::new(0),
            stuck: Mutex::default(),
            stop: AtomicBool::new(false),
            bytes_per_s,
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

    /// The books of what is pinned. Whoever enters something makes the workers look at it.
    pub(crate) fn with_pins<T>(&self, change: impl FnOnce(&mut Pinning) -> T) -> T {
        let mut state = self.state.lock();
        let before = (state.pins.waits(), state.pins.again_at());
        let answer = change(&mut state.pins);
        if before != (state.pins.waits(), state.pins.again_at()) {
            self.wake.notify_one();
        }
        answer
    }

    /// A worker does this job without a queue, unless one of the same file is under way, or `keep` says that there is none.
    pub(crate) fn take(&self, job: Job, keep: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        let free = !state.is_asked(job.ino) && !state.running.contains_key(&job.ino);
        let taken = free && keep();
        if taken {
            state.taken.insert(job.ino);
        }
        taken
    }

    fn next_asked(&self) -> Option<Job> {
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

    /// Moves that were asked for and do not run. With none of these and none running, all that was asked for is done with.
    pub fn queue_len(&self) -> u64 {
        let state = self.state.lock();
        let about_to_run = state.taken.iter().filter(|ino| !state.running.contains_key(ino)).count();
        (state.queue.len() + state.waiting.len() + state.later.len() + about_to_run) as u64 + state.pins.len()
    }

    /// Moves running.
    pub fn running(&self) -> Vec<RunningMove> {
        let state = self.state.lock();
        let show = |progress: &Progress| RunningMove {
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

    /// Keeps to the byte budget.
    pub(crate) fn spend(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_s.filter(|rate| *rate > 0) else { return };
        let cost = bytes.saturating_mul(1_000_000_000) / rate;
        let now = self.origin.elapsed().as_nanos() as u64;
        let start = self.busy_until_ns.fetch_max(now, Ordering::Relaxed).max(now);
        self.busy_until_ns.fetch_add(cost, Ordering::Relaxed);
        // A piece may cost many seconds: whoever closes the file system does not wait for them.
        loop {
            let left = start.saturating_sub(self.origin.elapsed().as_nanos() as u64);
            if left == 0 || self.stopping() {
                return;
            }
            self.pause(Duration::from_nanos(left));
        }
    }
}

/// Lets other threads have the processor first: sched(7), a nice value is a thread's own.
pub fn give_way() {
    let _ = rustix::process::setpriority_process(None, 10);
}

impl Hybrid {
    /// Asks for a move in the background. The file stays known until that is done with.
    pub(crate) fn ask_move(&self, ino: u64, to: TierName, reason: Reason) {
        let mut state = self.mover.state.lock();
        // The next touch asks again; the next who outgrows the SSD may be nobody.
        let resting = to == TierName::Ssd && state.resting.get(&ino).is_some_and(|until| Instant::now() < *until);
        if resting || state.is_asked(ino) || state.running.get(&ino).is_some_and(|running| running.to == to) {
            return;
        }
        if state.queue.len() >= QUEUE_MAX {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        } else if self.nodes.keep(ino, KeptFor::Move, true) {
            state.enqueue(Job::new(ino, to, reason));
            self.mover.wake.notify_one();
        }
    }

    /// One worker: does what is asked, and keeps the SSD below its marks. Ends with the file system.
    pub(crate) fn move_worker(&self) {
        give_way();
        while let Some(job) = self.next_job() {
            self.do_job(job);
        }
    }

    pub(crate) fn do_job(&self, job: Job) {
        // Unpinned since it was asked for, it stays where it is.
        let wanted = !job.pinned || self.is_pinned(job.ino);
        let outcome = if wanted { self.move_file(job.ino, job.to, job.reason, &mut |_, _| {}) } else { Outcome::Already };
        tracing::debug!(ino = job.ino, to = %job.to, ?outcome, reason = ?job.reason, "move");
        self.after(job, outcome);
    }

    fn next_job(&self) -> Option<Job> {
        loop {
            if let Some(job) = self.next_now() {
                return Some(job);
            }
            let mut state = self.mover.state.lock();
            if self.mover.stopping() {
                return None;
            }
            if state.queue.is_empty() && !state.pins.waits() {
                match state.next_due() {
                    Some(due) => drop(self.mover.wake.wait_until(&mut state, due)),
                    None => self.mover.wake.wait(&mut state),
                }
            }
        }
    }

    /// What is to be done now: room first, then what was asked for, then what is pinned.
    pub(crate) fn next_now(&self) -> Option<Job> {
        while !self.mover.stopping() {
            if let Some(job) = self.next_demotion().or_else(|| self.mover.next_asked()) {
                return Some(job);
            }
            match self.next_pinned() {
                Step::Move(job) => return Some(job),
                Step::More => {}
                Step::Nothing => return None,
            }
        }
        None
    }

    fn next_demotion(&self) -> Option<Job> {
        let _one = self.mover.choosing.lock();
        let ino = self.must_demote().then(|| self.next_victim()).flatten()?;
        self.mover.state.lock().leaving.insert(ino, self.placement.size(ino).unwrap_or(0));
        Some(Job::new(ino, TierName::Hdd, Reason::HighMark))
    }

    /// Demotion begins above the high mark and ends below the low one.
    fn must_demote(&self) -> bool {
        let demoting = &self.mover.demoting;
        if self.config.read_only || self.tiers().iter().any(|tier| tier.read_only.load(Ordering::Relaxed)) {
            return false;
        }
        if self.mover.stuck.lock().until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        if self.space.above_high() || self.space.tight() {
            if !demoting.swap(true, Ordering::Relaxed) {
                self.look_at_pins_again();
            }
        } else if !self.space.above_low() {
            demoting.store(false, Ordering::Relaxed);
        }
        let leaving: u64 = self.mover.state.lock().leaving.values().sum();
        demoting.load(Ordering::Relaxed) && (self.space.above_low_without(leaving) || self.space.tight_without(leaving))
    }

    /// Now and then: with a million pinned files it takes a while.
    fn look_at_pins_again(&self) {
        const EVERY_S: u32 = 60;
        let now = now_s();
        if now.saturating_sub(self.mover.unparked_s.load(Ordering::Relaxed)) >= EVERY_S {
            self.mover.unparked_s.store(now, Ordering::Relaxed);
            self.placement.unpark();
        }
    }

    pub(crate) fn next_victim(&self) -> Option<u64> {
        let busy: HashSet<u64> = {
            let mut state = self.mover.state.lock();
            let now = Instant::now();
            state.resting.retain(|_, until| *until > now);
            state.running.keys().chain(state.leaving.keys()).chain(state.resting.keys()).copied().collect()
        };
        let victim = self.placement.victim(&mut |ino| {
            if self.is_pinned(ino) {
                Verdict::Pinned
            } else if busy.contains(&ino) || self.is_in_place(ino) {
                Verdict::NotNow
            } else {
                Verdict::Leaves
            }
        });
        if victim.is_none() {
            self.mover.demoting.store(false, Ordering::Relaxed);
        }
        victim
    }

    /// Whether a file's data is used without us.
    pub(crate) fn is_in_place(&self, ino: u64) -> bool {
        self.opens.lock().get(&ino).is_some_and(|open| open.held_in_place())
    }

    pub(crate) fn after(&self, job: Job, outcome: Outcome) {
        if job.reason == Reason::HighMark {
            self.rest(job.ino, outcome);
            return self.victim_ended(job.ino, outcome);
        }
        let again = self.comes_back(&job, outcome);
        if again.is_none() {
            if job.pinned {
                self.pin_ended(&job, outcome);
            }
            self.rest(job.ino, outcome);
        }
        let mut state = self.mover.state.lock();
        state.taken.remove(&job.ino);
        match again {
            Some(Again::Closed) => drop(state.waiting.insert(job.ino, job)),
            Some(Again::In(pause)) => drop(state.later.insert(job.ino, (Instant::now() + pause, Job { tries: job.tries + 1, ..job }))),
            None if state.is_asked(job.ino) => {}
            None => drop(self.nodes.keep(job.ino, KeptFor::Move, false)),
        }
        drop(state);
        // It may have been closed between the look and the note.
        if matches!(again, Some(Again::Closed)) && !self.is_in_place(job.ino) {
            self.mover.closed(job.ino);
        }
        let came_by_itself = job.to == TierName::Ssd && matches!(job.reason, Reason::SecondTouch | Reason::OnOpen);
        if outcome == Outcome::Done
            && came_by_itself
            && let Ok(attr) = self.getattr(job.ino)
        {
            // Who made it larger may have closed it before it was here.
            self.resized(job.ino, TierName::Ssd, &attr.stat);
        }
    }

    /// A file that is in use waits until it is closed, one for which nobody would ask again waits a while.
    fn comes_back(&self, job: &Job, outcome: Outcome) -> Option<Again> {
        let full = {
            let state = self.mover.state.lock();
            state.waiting.len().max(state.later.len()) >= QUEUE_MAX
        };
        if full || self.mover.stopping() {
            return None;
        }
        match outcome {
            Outcome::Busy if self.is_in_place(job.ino) => Some(Again::Closed),
            // Another move of it runs, or did: maybe to the other side.
            Outcome::Busy => Some(Again::In(SHORT_REST)),
            Outcome::Dropped if job.comes_back() && self.still_moves(job) => Some(Again::In(SHORT_REST * (1 << job.tries.min(TRIES_MAX)))),
            _ => None,
        }
    }

    fn still_moves(&self, job: &Job) -> bool {
        self.nodes.with(job.ino, |node| !node.nameless && node.tier() != job.to).unwrap_or(false)
    }

    fn rest(&self, ino: u64, outcome: Outcome) {
        let rest = match outcome {
            Outcome::Done | Outcome::Already => return,
            Outcome::Busy | Outcome::Dropped => SHORT_REST,
            Outcome::Stays(_) | Outcome::Failed(_) => REST,
        };
        self.mover.state.lock().resting.insert(ino, Instant::now() + rest);
    }

    fn victim_ended(&self, ino: u64, outcome: Outcome) {
        if matches!(outcome, Outcome::Stays(_)) {
            // More of these than a policy is asked for at once would keep every other file from leaving.
            self.placement.stays(ino);
        } else if outcome == Outcome::Dropped && !self.nodes.with(ino, |node| !node.nameless).unwrap_or(false) {
            // It would come up again and again.
            self.placement.left(ino);
        }
        self.demotion_ended(outcome);
        // Only now that its room is counted as free.
        self.mover.state.lock().leaving.remove(&ino);
    }

    fn demotion_ended(&self, outcome: Outcome) {
        match outcome {
            Outcome::Done => {
                self.mover.stuck.lock().failures = 0;
                let _ = self.space.refresh(self.tiers(), &self.config);
            }
            Outcome::Failed(_) => {
                let mut stuck = self.mover.stuck.lock();
                stuck.failures += 1;
                if stuck.failures >= FAILURES_MAX {
                    stuck.failures = 0;
                    stuck.until = Some(Instant::now() + REST);
                }
            }
            _ => {}
        }
    }

    /// Demotions that found the HDD full go on as soon as it has more room; called by the watcher.
    pub(crate) fn look_at_hdd_room(&self) {
        let free = self.space.of(TierName::Hdd).free;
        let mut stuck = self.mover.stuck.lock();
        let Some(then) = stuck.hdd_full_at else { return };
        let more_room = free > then + ROOM_STEP;
        if !more_room && (self.space.above_high() || self.space.tight()) {
            return;
        }
        *stuck = Stuck { said: stuck.said, ..Stuck::default() };
        drop(stuck);
        if more_room {
            self.mover.state.lock().resting.clear();
            self.mover.wake();
        }
    }

    /// A sentence for `status` while files should leave the SSD and find no room.
    pub(crate) fn hdd_is_full(&self) -> Option<String> {
        self.mover.stuck.lock().hdd_full_at?;
        let hdd = self.tier(TierName::Hdd).path.display();
        Some(format!("{hdd} is full: files that should leave the SSD stay there; they go on leaving when there is room again"))
    }

    /// Notes that a file found no room on the HDD; `true` when that is worth a line in the log.
    fn note_hdd_full(&self) -> bool {
        let _ = self.space.refresh(self.tiers(), &self.config);
        let mut stuck = self.mover.stuck.lock();
        stuck.hdd_full_at = Some(self.space.of(TierName::Hdd).free);
        let say = stuck.said.is_none_or(|said| said.elapsed() > Duration::from_secs(60));
        if say {
            stuck.said = Some(Instant::now());
        }
        say
    }

    /// Moves one file and waits for it. `progress` is told bytes done and in all.
    pub fn move_file(&self, ino: u64, to: TierName, reason: Reason, progress: &mut dyn FnMut(u64, u64)) -> Outcome {
        let done = Arc::new(AtomicU64::new(0));
        {
            let mut state = self.mover.state.lock();
            if state.running.contains_key(&ino) {
                return Outcome::Busy;
            }
            let path = self.nodes.path(ino).unwrap_or_default();
            state.running.insert(ino, Progress { path, to, total: 0, done: done.clone() });
        }
        let outcome = match self.try_move(ino, to, reason, &done, progress) {
            Ok(outcome) => outcome,
            Err(Errno::STALE | Errno::NOENT | Errno::CANCELED) => Outcome::Dropped,
            Err(error) => Outcome::Failed(error),
        };
        self.mover.state.lock().running.remove(&ino);
        self.book(ino, to, reason, outcome);
        self.mover.ended.notify_all();
        outcome
    }

    fn book(&self, ino: u64, to: TierName, reason: Reason, outcome: Outcome) {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Outcome::Done if to == TierName::Ssd => drop(count(&self.counters.promotions)),
            Outcome::Done => drop(count(&self.counters.demotions)),
            Outcome::Busy | Outcome::Dropped => drop(count(&self.counters.dropped)),
            Outcome::Failed(error) => {
                count(&self.counters.failed);
                let path = self.nodes.path(ino).unwrap_or_default();
                let path = String::from_utf8_lossy(&path).into_owned();
                let full = to == TierName::Hdd && matches!(error, Errno::NOSPC | Errno::DQUOT) && reason != Reason::Asked;
                if !full || self.note_hdd_full() {
                    tracing::warn!(path, %to, %error, "a move failed; the file stays where it is");
                }
            }
            Outcome::Already | Outcome::Stays(_) => {}
        }
        if outcome == Outcome::Done {
            let code = reason as u8 | if to == TierName::Hdd { 0x80 } else { 0 };
            self.nodes.change(ino, |node| node.last_move = (now_s(), code));
            if let Some(listener) = self.listener.read().clone() {
                listener.attributes_changed(ino);
            }
        }
    }

    fn try_move(
        &self,
        ino: u64,
        to: TierName,
        reason: Reason,
        done: &Arc<AtomicU64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome> {
        self.writable()?;
        // Asked after it was noted as running: closing waits for what runs.
        if self.mover.stopping() {
            return Ok(Outcome::Dropped);
        }
        let place = self.nodes.place(ino).ok_or(Errno::STALE)?;
        if place.kind != Kind::Regular {
            return Ok(Outcome::Stays("only regular files move"));
        }
        if place.nameless {
            return Ok(Outcome::Dropped);
        }
        if place.tier() == to {
            return Ok(Outcome::Already);
        }
        // A move takes the name from one side and gives it to the other: half of it would leave two files.
        if self.tier(TierName::Ssd).is_read_only() {
            return Ok(Outcome::Stays("the SSD's file system is read-only"));
        }
        if self.tier(TierName::Hdd).is_read_only() {
            return Ok(Outcome::Stays("the HDD's file system is read-only"));
        }
        if matches!(reason, Reason::SecondTouch | Reason::OnOpen) && self.tier(TierName::Ssd).is_troubled() {
            return Ok(Outcome::Stays("the SSD is degraded: nothing new goes there"));
        }
        let open = self.opens.lock().get(&ino).cloned();
        if open.as_ref().is_some_and(|open| open.held_in_place()) {
            return Ok(Outcome::Busy);
        }
        let mut job = Copying::begin(self, ino, place, to)?;
        if let Some(stays) = job.stays(self, reason) {
            return Ok(stays);
        }
        if let Some(state) = self.mover.state.lock().running.get_mut(&ino) {
            state.total = job.before.size;
        }
        let outcome = job.run(self, open.as_ref(), reason, done, progress);
        job.clean_up(self);
        if let Ok(Outcome::Done) = outcome {
            self.counters.moved_bytes.fetch_add(job.before.size, Ordering::Relaxed);
        }
        outcome
    }

    /// Takes back a copy that already has its name on the HDD: the file's name is about to change or go.
    /// The caller holds the file's gate, shared; the mover then finds its copy gone and drops the move.
    pub(crate) fn cancel_duplicate(&self, ino: u64) {
        let duplicate = self.mover.duplicates.lock().remove(&ino);
        if let Some(duplicate) = duplicate {
            self.remove_duplicate(&duplicate);
        }
    }

    /// The same for everything below a directory.
    pub(crate) fn cancel_duplicates_below(&self, dir: u64) {
        let mut duplicates = self.mover.duplicates.lock();
        let below: Vec<u64> = duplicates.keys().copied().filter(|ino| self.nodes.is_below(*ino, dir)).collect();
        for ino in below {
            if let Some(duplicate) = duplicates.remove(&ino) {
                self.remove_duplicate(&duplicate);
            }
        }
    }

    /// Durable when it returns: what is done to the SSD's name next may be durable at once, and must not be followed by
    /// the HDD's copy coming back.
    pub(crate) fn remove_duplicate(&self, duplicate: &Duplicate) {
        let hdd = self.tier(TierName::Hdd);
        let removed = duplicate.dir.must(TierName::Hdd).and_then(|dir| {
            let unlink = || hdd.unlink_if(dir, &duplicate.name, duplicate.hdd_ino);
            self.keeping_times(duplicate.dir.ino, hdd, dir, || hdd.as_owner(dir, unlink))?;
            hdd.sync_dir(dir)
        });
        if let Err(error) = removed {
            self.note_failure(TierName::Hdd, error);
            self.mover.left_behind.lock().insert(duplicate.hdd_ino);
        }
    }

    /// Waits for a move to end, not for long; `false` when the file system closes.
    pub fn wait_for_move(&self) -> bool {
        self.mover.wait_for_any(Duration::from_millis(100));
        !self.mover.stopping()
    }

    /// Whether these two are the ends of a move that runs now.
    pub(crate) fn moving(&self, ssd_ino: u64, hdd_ino: u64) -> bool {
        let duplicates = self.mover.duplicates.lock();
        if duplicates.values().any(|duplicate| duplicate.hdd_ino == hdd_ino) {
            return true;
        }
        drop(duplicates);
        let running: Vec<u64> = self.mover.state.lock().running.keys().copied().collect();
        running
            .into_iter()
            .any(|ino| self.nodes.with(ino, |node| node.backing.contains(&ssd_ino) || node.backing.contains(&hdd_ino)).unwrap_or(false))
    }

    /// What is remembered of a file's last move.
    pub(crate) fn last_move(&self, ino: u64) -> Option<LastMove> {
        let (at, code) = self.nodes.with(ino, |node| node.last_move)?;
        let to = if code & 0x80 != 0 { TierName::Hdd } else { TierName::Ssd };
        (code != 0).then(|| LastMove { at_s: u64::from(at), to, reason: Reason::text(code & 0x7f).into() })
    }
}

/// The errno of an error that came from a system call.
pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod test;
