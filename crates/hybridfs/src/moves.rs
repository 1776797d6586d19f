//! The mover: takes files from one side to the other in the background.
//!
//! A move's life (each arrow is a function here):
//!
//! ```text
//!   asked --take--> running --copy--> copied --place--> duplicate --commit--> done
//!     ^               |                  |                  |
//!     |               +------------------+------------------+--> dropped (changed, used, removed)
//!     +---closed--- waiting (open without us)                    its copy is removed
//! ```
//!
//! What must stay true at every point, because a crash may come there: while the SSD holds the name, the
//! SSD's file is the valid one. So a copy on the HDD is harmless until the SSD's name goes, and a copy on
//! the SSD becomes the file the moment it gets the name; before that name is used it is durable. The
//! journal only tells recovery which duplicates on the HDD are ours to delete.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::copy;
use crate::dirs::Dir;
use crate::nodes::{Kind, Place};
use crate::open::{Changed, OpenInode};
use crate::pair::{Hybrid, now_s};
use crate::persist::MoveRecord;
use crate::report::{LastMove, RunningMove, TierName};
use crate::tier::{Result, Stat};

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
struct Job {
    ino: u64,
    to: TierName,
    reason: Reason,
}

/// Queue and books of the mover.
#[derive(Debug)]
pub struct Mover {
    state: Mutex<State>,
    wake: Condvar,
    /// Told whenever a move ends.
    ended: Condvar,
    paused: Condvar,
    duplicates: Mutex<HashMap<u64, Duplicate>>,
    demoting: AtomicBool,
    stop: AtomicBool,
    bytes_per_s: Option<u64>,
    /// Nanoseconds since `origin` until which the byte budget is used up.
    busy_until_ns: AtomicU64,
    origin: Instant,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Job>,
    queued: HashSet<u64>,
    waiting: HashMap<u64, Job>,
    running: HashMap<u64, Progress>,
    /// Not to be tried before.
    resting: HashMap<u64, Instant>,
}

#[derive(Clone, Debug)]
struct Progress {
    path: Vec<u8>,
    to: TierName,
    total: u64,
    done: Arc<AtomicU64>,
}

/// A copy that has its name on the HDD while the SSD's file is still the valid one.
#[derive(Debug)]
struct Duplicate {
    dir: Arc<Dir>,
    name: OsString,
    target_ino: u64,
}

/// Waiting moves beyond this many are not noted: the next touch asks again.
const QUEUE_MAX: usize = 1 << 16;
/// How long a file that could not move is left alone.
const REST: Duration = Duration::from_secs(30);
/// What changed during a copy is copied again while the writers go on, until it is this little.
const CATCH_UP_BYTES: u64 = 8 << 20;
const CATCH_UP_ROUNDS: usize = 6;

impl Mover {
    /// A mover with nothing to do.
    pub fn new(bytes_per_s: Option<u64>) -> Mover {
        Mover {
            state: Mutex::default(),
            wake: Condvar::new(),
            ended: Condvar::new(),
            paused: Condvar::new(),
            duplicates: Mutex::default(),
            demoting: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            bytes_per_s,
            busy_until_ns: AtomicU64::new(0),
            origin: Instant::now(),
        }
    }

    /// Asks for a move in the background.
    pub fn ask(&self, ino: u64, to: TierName, reason: Reason) {
        let mut state = self.state.lock();
        let resting = state.resting.get(&ino).is_some_and(|until| Instant::now() < *until);
        let known = state.queued.contains(&ino) || state.running.contains_key(&ino) || state.waiting.contains_key(&ino);
        if known || resting || state.queue.len() >= QUEUE_MAX {
            return;
        }
        state.queued.insert(ino);
        state.queue.push_back(Job { ino, to, reason });
        drop(state);
        self.wake.notify_one();
    }

    /// Nobody has the file open: a move that waited for it goes on.
    pub fn closed(&self, ino: u64) {
        let mut state = self.state.lock();
        if let Some(job) = state.waiting.remove(&ino)
            && state.queued.insert(ino)
        {
            state.queue.push_back(job);
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

    /// Moves waiting.
    pub fn queue_len(&self) -> u64 {
        let state = self.state.lock();
        (state.queue.len() + state.waiting.len()) as u64
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

    /// Waits until a move ends, the file system closes, or `limit` is over.
    pub fn wait_for_any(&self, limit: Duration) {
        let mut state = self.state.lock();
        self.ended.wait_for(&mut state, limit);
    }

    /// Waits, or until the file system closes.
    pub fn pause(&self, limit: Duration) {
        let mut state = self.state.lock();
        if !self.stopping() {
            self.paused.wait_for(&mut state, limit);
        }
    }

    /// Keeps to the byte budget.
    fn spend(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_s.filter(|rate| *rate > 0) else { return };
        let cost = bytes.saturating_mul(1_000_000_000) / rate;
        let now = self.origin.elapsed().as_nanos() as u64;
        let start = self.busy_until_ns.fetch_max(now, Ordering::Relaxed).max(now);
        self.busy_until_ns.fetch_add(cost, Ordering::Relaxed);
        if start > now {
            std::thread::sleep(Duration::from_nanos((start - now).min(1_000_000_000)));
        }
    }
}

impl Hybrid {
    /// One worker: does what is asked, and keeps the SSD below its marks. Ends with the file system.
    pub(crate) fn move_worker(&self) {
        while let Some(job) = self.next_job() {
            let outcome = self.move_file(job.ino, job.to, job.reason, &mut |_, _| {});
            tracing::debug!(ino = job.ino, to = %job.to, ?outcome, reason = ?job.reason, "move");
            self.after(job, outcome);
        }
    }

    fn next_job(&self) -> Option<Job> {
        loop {
            if self.mover.stopping() {
                return None;
            }
            if self.must_demote()
                && let Some(ino) = self.next_victim()
            {
                return Some(Job { ino, to: TierName::Hdd, reason: Reason::HighMark });
            }
            let mut state = self.mover.state.lock();
            if let Some(job) = state.queue.pop_front() {
                state.queued.remove(&job.ino);
                return Some(job);
            }
            if !self.mover.stopping() {
                self.mover.wake.wait(&mut state);
            }
        }
    }

    /// Demotion begins above the high mark and ends below the low one.
    fn must_demote(&self) -> bool {
        let demoting = &self.mover.demoting;
        if self.config.read_only {
            return false;
        }
        if self.space.above_high() || self.space.tight() {
            demoting.store(true, Ordering::Relaxed);
        } else if !self.space.above_low() {
            demoting.store(false, Ordering::Relaxed);
        }
        demoting.load(Ordering::Relaxed)
    }

    fn next_victim(&self) -> Option<u64> {
        let busy: HashSet<u64> = {
            let mut state = self.mover.state.lock();
            let now = Instant::now();
            state.resting.retain(|_, until| *until > now);
            state.running.keys().chain(state.resting.keys()).copied().collect()
        };
        let victim = self.placement.victim(&mut |ino| !busy.contains(&ino) && !self.is_in_place(ino) && !self.is_pinned(ino));
        if victim.is_none() {
            self.mover.demoting.store(false, Ordering::Relaxed);
        }
        victim
    }

    /// Whether a file's data is used without us.
    fn is_in_place(&self, ino: u64) -> bool {
        self.opens.lock().get(&ino).is_some_and(|open| open.held_in_place())
    }

    fn after(&self, job: Job, outcome: Outcome) {
        let mut state = self.mover.state.lock();
        match outcome {
            Outcome::Done | Outcome::Already => {}
            Outcome::Busy if job.reason != Reason::HighMark && state.waiting.len() < QUEUE_MAX => {
                state.waiting.insert(job.ino, job);
                drop(state);
                // It may have been closed between the look and the note.
                if !self.is_in_place(job.ino) {
                    self.mover.closed(job.ino);
                }
                return;
            }
            Outcome::Busy | Outcome::Dropped => {
                state.resting.insert(job.ino, Instant::now() + Duration::from_secs(1));
            }
            Outcome::Stays(_) | Outcome::Failed(_) => {
                state.resting.insert(job.ino, Instant::now() + REST);
            }
        }
        drop(state);
        if job.reason == Reason::HighMark && outcome == Outcome::Done {
            let _ = self.space.refresh(self.tiers(), &self.config);
        }
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
                tracing::warn!(path, %to, %error, "a move failed; the file stays where it is");
                self.note_failure(to, error);
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
        if let Some(duplicate) = self.mover.duplicates.lock().remove(&ino) {
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

    fn remove_duplicate(&self, duplicate: &Duplicate) {
        let hdd = self.tier(TierName::Hdd);
        let removed = duplicate.dir.must(TierName::Hdd).and_then(|dir| hdd.unlink_if(dir, &duplicate.name, duplicate.target_ino));
        if let Err(error) = removed {
            self.note_failure(TierName::Hdd, error);
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
        if duplicates.values().any(|duplicate| duplicate.target_ino == hdd_ino) {
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

/// A move between its first look at the file and its end.
struct Copying {
    ino: u64,
    place: Place,
    to: TierName,
    source_dir: Arc<Dir>,
    source: OwnedFd,
    before: Stat,
    tmp: Option<(OsString, OwnedFd, u64)>,
}

impl Copying {
    fn begin(fs: &Hybrid, ino: u64, place: Place, to: TierName) -> Result<Copying> {
        let from = fs.tier(to.other());
        let source_dir = fs.dir(place.parent)?;
        let dir = source_dir.must(from.name)?;
        let quiet = from.open_at(dir, &place.name, OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK);
        let source = match quiet {
            Err(Errno::PERM) => from.open_at(dir, &place.name, OFlags::RDONLY | OFlags::NONBLOCK)?,
            other => other?,
        };
        let before = from.stat_fd(source.as_fd())?;
        if Some(before.ino) != place.on(from.name) || !before.is_file() {
            return Err(Errno::STALE);
        }
        Ok(Copying { ino, place, to, source_dir, source, before, tmp: None })
    }

    /// Why this file does not move at all.
    fn stays(&self, fs: &Hybrid, reason: Reason) -> Option<Outcome> {
        if self.before.nlink > 1 {
            return Some(Outcome::Stays("it has several hard links"));
        }
        if self.before.foreign {
            return Some(Outcome::Stays("it is on a file system mounted below the directory"));
        }
        let small = self.before.size < fs.config.min_file_bytes;
        if small && matches!(reason, Reason::SecondTouch | Reason::OnOpen | Reason::HighMark) {
            return Some(Outcome::Stays("it is smaller than the smallest file that moves"));
        }
        match self.to {
            TierName::Hdd if !fs.space.fits_hdd(self.before.blocks * 512) => Some(Outcome::Failed(Errno::NOSPC)),
            TierName::Hdd => None,
            TierName::Ssd => self.stays_below(fs, reason),
        }
    }

    fn stays_below(&self, fs: &Hybrid, reason: Reason) -> Option<Outcome> {
        let need = self.before.blocks * 512;
        let by_itself = matches!(reason, Reason::SecondTouch | Reason::OnOpen);
        if by_itself && (self.before.size > fs.space.max_file() || need > fs.space.high()) {
            return Some(Outcome::Stays("it is larger than the largest file for the SSD"));
        }
        if by_itself && fs.nodes.path(self.ino).is_some_and(|path| fs.placement.belongs_on_hdd(&path)) {
            return Some(Outcome::Stays("a rule keeps it on the HDD"));
        }
        // Algorithm 1: files leave until the new one fits below the mark.
        for _ in 0..10_000 {
            let _ = fs.space.refresh(fs.tiers(), &fs.config);
            if need <= fs.space.room_below_high() && fs.space.fits_ssd(need) {
                return None;
            }
            let victim = fs.next_victim().filter(|victim| *victim != self.ino)?;
            let outcome = fs.move_file(victim, TierName::Hdd, Reason::HighMark, &mut |_, _| {});
            fs.after(Job { ino: victim, to: TierName::Hdd, reason: Reason::HighMark }, outcome);
            if fs.mover.stopping() {
                return Some(Outcome::Dropped);
            }
        }
        (!fs.space.fits_ssd(need)).then_some(Outcome::Failed(Errno::NOSPC))
    }

    fn run(
        &mut self,
        fs: &Hybrid,
        open: Option<&Arc<OpenInode>>,
        reason: Reason,
        done: &Arc<AtomicU64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome> {
        if let Some(open) = open {
            let mut track = open.track.lock();
            if track.is_some() {
                return Ok(Outcome::Busy);
            }
            *track = Some(Changed::default());
        }
        let outcome = self.run_tracked(fs, open, reason, done, progress);
        if let Some(open) = open {
            *open.track.lock() = None;
        }
        outcome
    }

    fn run_tracked(
        &mut self,
        fs: &Hybrid,
        open: Option<&Arc<OpenInode>>,
        reason: Reason,
        done: &Arc<AtomicU64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome> {
        let target_dir = fs.ensure_dir(self.place.parent, self.to)?;
        fs.note_marks(self.to)?;
        self.copy_all(fs, reason, done, progress)?;
        if let Some(open) = open {
            self.catch_up(fs, open, reason)?;
        }
        let (tmp_name, file, target_ino) = self.tmp.as_ref().ok_or(Errno::STALE)?;
        if open.is_none() {
            self.dress(fs, file)?;
            rustix::fs::fsync(file)?;
        }
        crate::crash::point("move copied");
        let record = MoveRecord {
            to: self.to,
            path: fs.nodes.path(self.ino).ok_or(Errno::STALE)?,
            ino: self.ino,
            source_ino: self.before.ino,
            target_ino: *target_ino,
            size: self.before.size,
            mtime: self.before.mtime,
        };
        let entry = fs.journal.begin(&record).map_err(errno)?;
        crate::crash::point("move journaled");
        let step = Step { copying: self, fs, open, target_dir, tmp_name, target_ino: *target_ino };
        let outcome = match self.to {
            TierName::Hdd => step.demote(),
            TierName::Ssd => step.promote(),
        };
        crate::crash::point("move ended");
        fs.journal.end(entry).map_err(errno)?;
        let outcome = outcome?;
        if outcome == Outcome::Done {
            self.tmp = None;
        }
        Ok(outcome)
    }

    fn copy_all(&mut self, fs: &Hybrid, reason: Reason, done: &Arc<AtomicU64>, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let target = fs.tier(self.to);
        let name = OsString::from(fs.tmp_name(self.ino));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&target.tmp, &*name, flags, Mode::RUSR | Mode::WUSR)?;
        let ino = target.stat_fd(file.as_fd())?.ino;
        let (_, file, _) = self.tmp.insert((name, file, ino));
        crate::crash::point("move temporary made");
        let total = self.before.size;
        let mut pacer = Pacer::new(fs, self.ino, reason);
        copy::data(self.source.as_fd(), file.as_fd(), total, &mut |bytes| {
            pacer.wait(bytes)?;
            let so_far = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress(so_far.min(total), total);
            Ok(())
        })
    }

    /// Copies again what was written meanwhile, until it is little.
    fn catch_up(&self, fs: &Hybrid, open: &Arc<OpenInode>, reason: Reason) -> Result<()> {
        for _ in 0..CATCH_UP_ROUNDS {
            let changed = open.track.lock().replace(Changed::default()).unwrap_or_default();
            if !changed.all && changed.bytes() <= CATCH_UP_BYTES {
                if let Some(track) = open.track.lock().as_mut() {
                    track.ranges.extend(changed.ranges);
                }
                break;
            }
            self.copy_changed(&changed, Some(&mut Pacer::new(fs, self.ino, reason)))?;
        }
        let (_, file, _) = self.tmp.as_ref().ok_or(Errno::STALE)?;
        // The bulk is safe before the writers are stopped for the rest.
        rustix::fs::fdatasync(file)
    }

    fn copy_changed(&self, changed: &Changed, mut pacer: Option<&mut Pacer<'_>>) -> Result<()> {
        let (_, file, _) = self.tmp.as_ref().ok_or(Errno::STALE)?;
        let size = rustix::fs::fstat(&self.source)?.st_size as u64;
        if changed.all {
            rustix::fs::ftruncate(file, 0)?;
            return copy::data(self.source.as_fd(), file.as_fd(), size, &mut |bytes| {
                pacer.as_mut().map_or(Ok(()), |pacer| pacer.wait(bytes))
            });
        }
        rustix::fs::ftruncate(file, size)?;
        let mut buffer = vec![0u8; copy::CHUNK];
        for (start, end) in &changed.ranges {
            let mut at = *start;
            while at < *end {
                let want = (end - at).min(copy::CHUNK as u64) as usize;
                if let Some(pacer) = pacer.as_mut() {
                    pacer.wait(want as u64)?;
                }
                match copy::range(self.source.as_fd(), file.as_fd(), at, &mut buffer[..want])? {
                    0 => break,
                    copied => at += copied,
                }
            }
        }
        Ok(())
    }

    fn dress(&self, fs: &Hybrid, file: &OwnedFd) -> Result<()> {
        let (_, _, target_ino) = self.tmp.as_ref().ok_or(Errno::STALE)?;
        let stat = fs.tier(self.to.other()).stat_fd(self.source.as_fd())?;
        fs.mark_or_warn(self.to, file.as_fd(), *target_ino, self.ino)?;
        copy::attributes(self.source.as_fd(), file.as_fd(), &stat)
    }

    /// Removes the temporary of a move that did not end well.
    fn clean_up(&mut self, fs: &Hybrid) {
        if let Some((name, _, ino)) = self.tmp.take() {
            let target = fs.tier(self.to);
            let _ = target.unlink_if(target.tmp.as_fd(), &name, ino);
        }
    }
}

/// The last steps of a move, from a complete copy on.
struct Step<'a> {
    copying: &'a Copying,
    fs: &'a Hybrid,
    open: Option<&'a Arc<OpenInode>>,
    target_dir: Arc<Dir>,
    tmp_name: &'a OsStr,
    target_ino: u64,
}

impl Step<'_> {
    fn demote(&self) -> Result<Outcome> {
        let (fs, copying) = (self.fs, self.copying);
        let (ssd, hdd) = (fs.tier(TierName::Ssd), fs.tier(TierName::Hdd));
        let target = self.target_dir.must(TierName::Hdd)?;
        {
            let _gate = fs.gate(copying.ino).write();
            if !self.unchanged()? {
                return Ok(Outcome::Dropped);
            }
            hdd.rename(hdd.tmp.as_fd(), self.tmp_name, target, &copying.place.name, RenameFlags::NOREPLACE)?;
            let duplicate = Duplicate { dir: self.target_dir.clone(), name: copying.place.name.clone(), target_ino: self.target_ino };
            fs.mover.duplicates.lock().insert(copying.ino, duplicate);
        }
        crate::crash::point("demotion placed");
        let synced = hdd.sync_dir(target);
        let _gate = fs.gate(copying.ino).write();
        let mine = fs.mover.duplicates.lock().remove(&copying.ino);
        let Some(duplicate) = mine else { return Ok(Outcome::Dropped) };
        let committed = synced.and_then(|()| {
            self.with_writers_stopped(|| {
                let source = copying.source_dir.must(TierName::Ssd)?;
                ssd.unlink(source, &copying.place.name)?;
                crate::crash::point("demotion unlinked");
                // The name is gone: whatever the flush says, the HDD's copy is the file now.
                if let Err(error) = ssd.sync_dir(source) {
                    fs.note_failure(TierName::Ssd, error);
                }
                Ok(())
            })
        });
        match committed {
            Ok(true) => {
                fs.placement.left(copying.ino);
                self.changed_sides([0, self.target_ino]);
                // On the HDD only the kernel's interest keeps a node.
                fs.nodes.track(copying.ino, false);
                Ok(Outcome::Done)
            }
            Ok(false) => {
                fs.remove_duplicate(&duplicate);
                Ok(Outcome::Dropped)
            }
            Err(error) => {
                fs.remove_duplicate(&duplicate);
                Err(error)
            }
        }
    }

    fn promote(&self) -> Result<Outcome> {
        let (fs, copying) = (self.fs, self.copying);
        let (ssd, hdd) = (fs.tier(TierName::Ssd), fs.tier(TierName::Hdd));
        let target = self.target_dir.must(TierName::Ssd)?;
        let mut safe = Ok(());
        {
            let _gate = fs.gate(copying.ino).write();
            let committed = self.with_writers_stopped(|| {
                ssd.rename(ssd.tmp.as_fd(), self.tmp_name, target, &copying.place.name, RenameFlags::NOREPLACE)?;
                crate::crash::point("promotion placed");
                // From here on the SSD's file counts; it must not be lost again once it may be written to.
                safe = ssd.sync_dir(target);
                Ok(())
            })?;
            if !committed {
                return Ok(Outcome::Dropped);
            }
            self.changed_sides([self.target_ino, 0]);
        }
        // A name that may not be safe is no reason to give up the copy on the HDD.
        safe?;
        crate::crash::point("promotion synced");
        let source = copying.source_dir.must(TierName::Hdd)?;
        hdd.unlink_if(source, &copying.place.name, copying.before.ino)?;
        crate::crash::point("promotion unlinked");
        hdd.sync_dir(source)?;
        let (last_open, opens) = fs.placement.heat(copying.ino).unwrap_or((now_s(), 1));
        fs.placement.arrived(copying.ino, copying.before.size, last_open, opens);
        fs.nodes.track(copying.ino, true);
        Ok(Outcome::Done)
    }

    /// Whether the file is still the one that was copied, under the name it had.
    fn unchanged(&self) -> Result<bool> {
        let copying = self.copying;
        let place = self.fs.nodes.place(copying.ino);
        let same_name = place.is_some_and(|place| place == copying.place);
        let opened_since = self.open.is_none() && self.fs.opens.lock().contains_key(&copying.ino);
        let now = self.fs.tier(copying.to.other()).stat_fd(copying.source.as_fd())?;
        let untouched = self.open.is_some() || !now.changed_since(&copying.before);
        Ok(same_name && !opened_since && now.nlink == 1 && untouched)
    }

    /// Does `commit` while nobody can write the file; an open file goes on with the copy. `false`: it
    /// changed in a way that was not copied.
    fn with_writers_stopped(&self, commit: impl FnOnce() -> Result<()>) -> Result<bool> {
        if !self.unchanged()? {
            return Ok(false);
        }
        let Some(open) = self.open else { return commit().map(|()| true) };
        let mut io = open.io.write();
        if open.held_in_place() {
            return Ok(false);
        }
        let changed = open.track.lock().replace(Changed::default()).unwrap_or_default();
        self.copying.copy_changed(&changed, None)?;
        let (_, file, _) = self.copying.tmp.as_ref().ok_or(Errno::STALE)?;
        self.copying.dress(self.fs, file)?;
        rustix::fs::fsync(file)?;
        let file = Arc::new(file.try_clone().map_err(errno)?);
        commit()?;
        io.tier = self.copying.to;
        io.rd = None;
        io.wr = None;
        io.rw = Some(file);
        Ok(true)
    }

    fn changed_sides(&self, backing: [u64; 2]) {
        self.fs.nodes.change(self.copying.ino, |node| node.backing = backing);
        self.fs.moves_seen.fetch_add(1, Ordering::AcqRel);
    }
}

/// Keeps a copy within its limits and out of the way.
struct Pacer<'a> {
    fs: &'a Hybrid,
    ino: u64,
    urgent: bool,
    last: Instant,
}

impl<'a> Pacer<'a> {
    fn new(fs: &'a Hybrid, ino: u64, reason: Reason) -> Pacer<'a> {
        // Somebody waits for these.
        let urgent = matches!(reason, Reason::Full | Reason::OnOpen) || fs.space.tight();
        Pacer { fs, ino, urgent, last: Instant::now() }
    }

    fn wait(&mut self, bytes: u64) -> Result<()> {
        if self.fs.mover.stopping() || self.fs.is_in_place(self.ino) {
            return Err(Errno::CANCELED);
        }
        self.fs.mover.spend(bytes);
        if !self.urgent && !self.fs.opens.lock().is_empty() {
            // Others are at work: use no more than half of the time.
            std::thread::sleep(self.last.elapsed().min(Duration::from_millis(50)));
        }
        self.last = Instant::now();
        Ok(())
    }
}

/// The errno of an error that came from a system call.
pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
