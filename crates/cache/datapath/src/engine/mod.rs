//! The page engine of the cache stack: pages of numbered files in RAM, on the SSD, and below.
//!
//! (Paper 000, section III.) Several processes share one segment ([`Layout`]). A read goes one way, [`read`]: frames, then the SSD's
//! map, then the file below; what was missed is submitted in one batch, and copied into frames when it is there. A write
//! ([`write`]) goes into a frame and is done. All that moves data afterwards is the leader's: [`crate::migrate`]. Others ask him
//! ([`request`]); [`flush`] is the asking.
//!
//! Why it holds, in five rules:
//! 1. The newest version of a page is in a frame, marked, until what the mark says is done and durable.
//! 2. The SSD and the files below are written by the leader alone, one call after the other (except write-through: by the writer,
//!    under the file's lock).
//! 3. Nobody but the processes themselves touches shared memory: no device, no kernel call. So what a dead one had begun is
//!    over when its process slot is dead.
//! 4. Every request can be done twice.
//! 5. A reader who found nothing puts what he read below into a frame only if nobody wrote the page meanwhile (tickets). What the SSD
//!    has goes into a frame when it is asked for again: a clean page need not be in one (docs/decisions/24-reads-from-the-ssd.md).
//!
//! [`reads`] is the same for who does not wait: what the SSD has comes through one queue of his own.

mod async_reader;
mod catalogue;
mod counters;
mod fast_path;
mod flush;
pub(crate) mod layout;
pub(crate) mod log;
pub(crate) mod open;
pub(crate) mod own_stamp;
mod prepared;
mod read;
mod read_around;
pub(crate) mod record;
mod request;
mod ssd;
mod stall;
mod status;
mod stranded;
mod write;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use block::Device;
use pagecache::{Name, SharedPages};
use parking_lot::Mutex;
use read_around::ReadAround;
use rustix::io::Errno;
use shm::{ProcessSlot, ProcessSlots, Region, futex};
use ssdcache::{FileKey, Mode, PAGE_BYTES, View};

pub use crate::migrate::Worker;
pub use async_reader::{AsyncReader, AsyncReaderOptions, Outcome, SubmitResult};
pub use catalogue::{CATALOGUE, Entry, place};
pub use counters::{Count, Counters, Tier, bucket_ns, percentile};
pub use fast_path::PageHint;
pub use layout::{FILES_MAX, Layout, SETTINGS_BYTES, SegmentError, Sizes};
use layout::{Header, Word};
pub use open::{Open, OpenFileError, OpenOptions};
pub use prepared::PreparedRead;
pub(crate) use record::flag;
pub use record::{FILE_BYTES_MAX, FileNo, PATH_MAX, Stamp, errno_from};
use record::{Records, code_of};
pub(crate) use request::{Hint, Request, RequestKind, RequestState, StaleSlots};
use request::{Hints, Requests};
use ssd::SsdQueues;
pub(crate) use stall::Retries;
use stall::{STALLED, StallWatch};
pub use status::{Advice, EngineStatus, FileStatus};

/// How long an asker sleeps before he looks whether somebody still leads, at first and then.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long an asker looks for a free slot. The leader frees those that nobody uses within half a second.
const POST_MAX: Duration = Duration::from_secs(5);
/// How often a request is posted whose slot was taken away.
const ASKED_ANEW: u32 = 100;
/// A leader whose thread panicked leads again after this, unless another process leads by then.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A file below, open. Calls block.
pub trait BackingFile: Send + Sync {
    /// As pread: fewer bytes only at the end.
    ///
    /// # Errors
    /// The kernel's.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// All of it.
    ///
    /// # Errors
    /// The kernel's.
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// What was written survives, with the length.
    ///
    /// # Errors
    /// The kernel's.
    fn sync(&self) -> io::Result<()>;
    /// ftruncate.
    ///
    /// # Errors
    /// The kernel's.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// The range reads as zeroes, the length stays.
    ///
    /// # Errors
    /// The kernel's.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
    /// Gives it this time of modification, ns since 1970: that of the last write, not of our writing it back.
    ///
    /// # Errors
    /// The kernel's.
    fn set_mtime(&self, ns: u64) -> io::Result<()>;
    /// fstat.
    ///
    /// # Errors
    /// The kernel's.
    fn stamp(&self) -> io::Result<Stamp>;
    /// Returns whether it has no name any more.
    fn is_removed(&self) -> bool {
        false
    }
    /// Returns where the file is now, if that can be told.
    fn path(&self) -> Option<std::path::PathBuf> {
        None
    }
}

/// What lies around the engine: the files below, and the time.
pub trait Environment: Send + Sync {
    /// Opens the file of this key, for the leader; `path` is where it was, `process slots` the processes that have it open.
    ///
    /// # Errors
    /// It is gone (ENOENT: nothing of it matters any more), or the kernel's.
    fn open(&self, key: FileKey, path: &std::path::Path, pids: &[u32], writable: bool) -> io::Result<Arc<dyn BackingFile>>;
    /// Returns how many files below the leader may have open at a time.
    fn handles_max(&self) -> usize {
        64
    }
    /// Milliseconds, the same in all processes; wraps.
    fn now_ms(&self) -> u32;
    /// Nanoseconds since 1970; coarse is good enough.
    fn realtime_ns(&self) -> u64;
    /// Something people should know: a failing SSD, lost pages.
    fn report(&self, words: &str);
    /// Whether what is cached of a file may stay where others see it. It was at this path.
    fn may_keep(&self, _key: FileKey, _path: &std::path::Path) -> bool {
        true
    }
    /// Whether it was noted that nothing was dirty on the SSD, and nothing can have become so since.
    fn is_clean(&self) -> bool {
        false
    }
    /// Notes that, durably, or that it is so no more.
    ///
    /// # Errors
    /// The kernel's: it may not be relied on.
    fn note_clean(&self, _is_clean: bool) -> io::Result<()> {
        Ok(())
    }
    /// Notes, durably, that what the SSD holds is not to be used again: it failed, and the files are written without it. `is_owed`:
    /// and it has what no file has.
    ///
    /// # Errors
    /// The kernel's.
    fn note_void(&self, _is_owed: bool) -> io::Result<()> {
        Ok(())
    }
}

/// What an engine is made of.
pub struct Parts {
    /// The segment.
    pub region: Arc<Region>,
    /// Its process slots, opened.
    pub processes: Arc<ProcessSlots>,
    /// The SSD, for readers: any driver.
    pub device: Option<Arc<dyn Device>>,
    /// The SSD again, for the leader: a driver whose calls are over when the process is dead (no io_uring).
    pub plain: Option<Arc<dyn Device>>,
    /// The rest.
    pub world: Arc<dyn Environment>,
    /// What the leader keeps to.
    pub limits: Limits,
}

/// What the leader keeps to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Marked pages are written at this age, ms.
    pub dirty_age_ms: u32,
    /// Writers wait when so many of a hundred frames are marked.
    pub dirty_percent: u32,
    /// Dirty pages on the SSD are written back from so many of a hundred of its pages on.
    pub ssd_dirty_percent: u32,
    /// Bytes that are read ahead of a stream, at most.
    pub read_ahead: u32,
    /// Bytes that are read below around a page that is asked for, at most, while the SSD has room; 0: that page alone.
    pub read_around: u32,
    /// If the page alone takes less, nothing is read around it. Zero: that is not measured.
    pub slow_below: Duration,
    /// What is admitted to the SSD.
    pub admission: ssdcache::AdmissionLimits,
}

impl Limits {
    /// For an SSD of so many slots; 0: none.
    pub fn new(slots: u32) -> Limits {
        let admission = ssdcache::AdmissionLimits::new(slots);
        Limits {
            dirty_age_ms: 5_000,
            dirty_percent: 40,
            ssd_dirty_percent: 30,
            read_ahead: 512 << 10,
            read_around: 128 << 10,
            slow_below: Duration::from_millis(1),
            admission,
        }
    }
}

/// Why a segment was not attached.
#[derive(Debug, thiserror::Error)]
pub enum EngineAttachError {
    /// The segment itself.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// All process slots are taken.
    #[error("{0}")]
    NoProcessSlot(String),
    /// Its page cache, or its map of the SSD, is damaged.
    #[error("the segment is damaged: {0}")]
    Damaged(String),
}

/// One process's part in an instance.
pub struct CacheEngine {
    pub(crate) header: Header,
    pub(crate) layout: Layout,
    pub(crate) processes: Arc<ProcessSlots>,
    pub(crate) me: ProcessSlot,
    pub(crate) pages: SharedPages,
    pub(crate) view: Option<View>,
    pub(crate) records: Records,
    pub(crate) requests: Requests,
    pub(crate) hints: Hints,
    pub(crate) counters: Counters,
    pub(crate) lanes: Option<SsdQueues>,
    pub(crate) plain: Option<Arc<dyn Device>>,
    pub(crate) world: Arc<dyn Environment>,
    pub(crate) limits: Limits,
    pub(crate) around: ReadAround,
    /// Opens of this process, by file.
    pub(crate) opens: Mutex<std::collections::HashMap<FileNo, u32>>,
    /// The leader, where he is stepped by who asks (tests, and one process without threads).
    inline: Mutex<Option<Box<Worker>>>,
    is_inline: AtomicBool,
    /// The one that has him, if another one does.
    led_by: OnceLock<Weak<CacheEngine>>,
    pub(crate) stopping: AtomicBool,
}

impl CacheEngine {
    /// Makes a segment in a region of zeroes (see [`Layout::of`] for how long it has to be). Then attach.
    pub fn format(region: &Region, sizes: Sizes, limits: &Limits, mode: Mode, seed: u64, settings: &str) {
        let layout = Layout::of(sizes);
        assert!(layout.bytes <= region.len(), "a segment of {} bytes in a region of {}", layout.bytes, region.len());
        layout.format(region, seed, settings);
        let set = |word: Word, value: u32| region.u32(word as usize).store(value, Ordering::Relaxed);
        set(Word::Mode, code_of(mode));
        set(Word::DirtyAge, limits.dirty_age_ms);
        set(Word::DirtyLimit, ((u64::from(sizes.frames.frames) * u64::from(limits.dirty_percent)) / 100).max(1) as u32);
        set(Word::ReadAhead, limits.read_ahead);
        set(Word::ReadAround, limits.read_around);
        Layout::ready(region);
    }

    /// Of a segment that was made for no SSD, as the one it should have had cannot be used: it says so.
    pub fn without_ssd(region: &Region, errno: i32) {
        region.u32(Word::SsdErrno as usize).store(errno as u32, Ordering::Relaxed);
        region.u32(Word::SsdFailed as usize).store(layout::FAILED, Ordering::Relaxed);
    }

    /// Takes a process slot.
    ///
    /// # Errors
    /// As [`EngineAttachError`] says.
    pub fn attach(parts: Parts) -> Result<Arc<CacheEngine>, EngineAttachError> {
        let Parts { region, processes, device, plain, world, limits } = parts;
        let layout = Layout::read(&region)?;
        let me = processes.attach().map_err(|error| EngineAttachError::NoProcessSlot(error.to_string()))?;
        let attached = CacheEngine::assemble(&region, layout, &processes, me);
        let (pages, view) = attached.inspect_err(|_| processes.detach(me))?;
        Ok(Arc::new(CacheEngine {
            records: Records::new(&region, layout.records, layout.sizes.files, &processes, me),
            requests: Requests { region: Arc::clone(&region), at: layout.requests, files: layout.sizes.files },
            hints: Hints { region: Arc::clone(&region), at: layout.hints },
            counters: Counters { region: Arc::clone(&region), at: layout.counters, me },
            header: Header::new(&region),
            layout,
            processes,
            me,
            pages,
            view,
            lanes: device.map(SsdQueues::new),
            plain,
            world,
            limits,
            around: ReadAround::new(limits.slow_below),
            opens: Mutex::default(),
            inline: Mutex::new(None),
            is_inline: AtomicBool::new(false),
            led_by: OnceLock::new(),
            stopping: AtomicBool::new(false),
        }))
    }

    fn assemble(
        region: &Arc<Region>,
        layout: Layout,
        processes: &Arc<ProcessSlots>,
        me: ProcessSlot,
    ) -> Result<(SharedPages, Option<View>), EngineAttachError> {
        let damaged = |error: &dyn std::fmt::Display| EngineAttachError::Damaged(error.to_string());
        let pages = SharedPages::attach(region, layout.pages, layout.pages_bytes, processes, me).map_err(|error| damaged(&error))?;
        let view = match layout.sizes.ssd {
            Some(_) => Some(View::attach(region, layout.ssd, layout.ssd_bytes).map_err(|error| damaged(&error))?),
            None => None,
        };
        Ok((pages, view))
    }

    /// The instance's mode.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.header.mode()
    }

    /// Counts the changes of mode, of the instance or of a file: each is in force when it is counted.
    #[inline]
    pub fn mode_changes(&self) -> u32 {
        self.header.get(Word::ModeChanges)
    }

    /// Whether there is an SSD, and it works.
    pub fn has_ssd(&self) -> bool {
        self.view.is_some() && self.header.ssd_failed() == 0
    }

    /// Counters of all processes.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn count_ssd_hits(&self, pages: u64) {
        self.counters.add(Count::SsdHits, pages);
        self.counters.add(Count::SsdRead, pages * PAGE_BYTES as u64);
    }

    /// The page cache's books.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Who takes part.
    pub fn processes(&self) -> &ProcessSlots {
        &self.processes
    }

    /// Sizes.
    pub fn sizes(&self) -> Sizes {
        self.layout.sizes
    }

    /// What the leader last said of the SSD.
    pub fn ssd_state(&self) -> SsdState {
        status::ssd_state(&self.header)
    }

    /// Wakes the leader.
    pub(crate) fn ring(&self) {
        self.header.word(Word::Bell).fetch_add(1, Ordering::SeqCst);
        if self.header.word(Word::Asleep).load(Ordering::SeqCst) != 0 {
            futex::wake(self.header.word(Word::Bell), u32::MAX);
        }
    }

    /// Whether somebody leads, and has taken everything up. A call of the kernel.
    pub(crate) fn is_led(&self) -> bool {
        self.header.get(Word::Beginning) == 0
            && (self.is_inline.load(Ordering::Acquire) || self.led_by.get().is_some() || self.processes.leader().is_some())
    }

    /// Tells the leader of a page that was read below.
    pub(crate) fn hint(&self, hint: Hint) {
        // He who is awake looks for more before he sleeps.
        if self.hints.tell(hint) && self.header.word(Word::Asleep).load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// Asks the leader, and waits for his answer.
    ///
    /// # Errors
    /// His; ESHUTDOWN when this process has detached; [`STALLED`] if he does not go on.
    pub(crate) fn ask(&self, ask: RequestKind, file: FileNo, a: u64, b: u64) -> Result<u32, Errno> {
        self.ask_while(ask, file, a, b, &|| true).unwrap_or(Err(Errno::SHUTDOWN))
    }

    /// As above, as long as the asker wants to wait; none: he did not. He is asked every 20 ms.
    pub(crate) fn ask_while(&self, ask: RequestKind, file: FileNo, a: u64, b: u64, waits: &dyn Fn() -> bool) -> Option<Result<u32, Errno>> {
        let mut patience = StallWatch::new(self);
        // Somebody who may write to the slots takes them away from us: no more than so often.
        for _ in 0..ASKED_ANEW {
            let Some(posted) = self.post(ask, file, a, b) else { return Some(Err(Errno::IO)) };
            match self.wait_for(&posted, waits, &mut patience) {
                Some(RequestState::Done(answer)) => return Some(answer),
                Some(RequestState::Lost) => {}
                Some(RequestState::Open) | None => return None,
            }
        }
        Some(Err(Errno::IO))
    }

    /// None: no slot has become free for so long that somebody keeps them on purpose.
    fn post(&self, ask: RequestKind, file: FileNo, a: u64, b: u64) -> Option<request::Posted<'_>> {
        let mut begun = None;
        loop {
            if let Some(posted) = self.requests.post(self.me, ask, file, a, b) {
                self.ring();
                return Some(posted);
            }
            self.ring();
            self.step_inline();
            if begun.get_or_insert_with(std::time::Instant::now).elapsed() > POST_MAX {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// None: the asker waits no more.
    fn wait_for(&self, posted: &request::Posted<'_>, waits: &dyn Fn() -> bool, patience: &mut StallWatch<'_>) -> Option<RequestState> {
        let mut sleep = LOOK_FIRST;
        loop {
            let wait = if self.step_inline() { Duration::ZERO } else { sleep };
            match posted.wait(wait) {
                RequestState::Open => {}
                ended => return Some(ended),
            }
            let is_led = wait.is_zero() || self.processes.leader().is_some();
            if !is_led {
                // Who would lead looks now and then; somebody waits, so he looks at once.
                self.processes.nudge();
                patience.begin_anew();
            }
            sleep = LOOK_AGAIN;
            if self.stopping.load(Ordering::Acquire) {
                return Some(RequestState::Done(Err(Errno::SHUTDOWN)));
            }
            if !waits() {
                return None;
            }
            if is_led && !wait.is_zero() && patience.is_over() {
                return Some(RequestState::Done(Err(STALLED)));
            }
        }
    }

    /// Lets who asks do the leader's work. For one process without threads, and for simulations.
    pub fn lead_inline(&self, worker: Box<Worker>) {
        *self.inline.lock() = Some(worker);
        self.is_inline.store(true, Ordering::Release);
    }

    /// The leader is another one's of this process, who is stepped by whoever asks.
    pub fn follow_inline(&self, leader: &Arc<CacheEngine>) {
        let _ = self.led_by.set(Arc::downgrade(leader));
    }

    /// Does the leader's next piece of work, if he is stepped; whether he is.
    pub fn step_inline(&self) -> bool {
        if let Some(leader) = self.led_by.get().and_then(Weak::upgrade) {
            return leader.step_inline();
        }
        if !self.is_inline.load(Ordering::Acquire) {
            return false;
        }
        if let Some(mut worker) = self.inline.try_lock()
            && let Some(worker) = worker.as_mut()
        {
            worker.step(self);
        }
        true
    }

    /// Works as leader until the process detaches: waits for the place, takes it, works. In a thread of its own.
    pub fn work(self: &Arc<Self>) {
        while self.processes.lead_unless(&self.stopping) {
            let ended = self.beside_a_pulse(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Worker::run(self))));
            // Whatever ended it: another leads from here.
            self.processes.resign();
            if ended.is_err() {
                if self.header.get(Word::Beginning) != 0 {
                    Worker::refuse_all(self);
                }
                self.world.report("the thread that leads the cache ended by a mistake inside hotshelf: another goes on; please report it");
                std::thread::sleep(AGAIN_AFTER);
            }
        }
    }

    /// Gives up the process slot. Files have to be closed before; marked pages stay in the segment for who comes after.
    pub fn detach(&self) {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ring();
        self.processes.nudge();
        for no in self.opens.lock().drain().map(|(no, _)| no) {
            self.records.get(no).open_by().fetch_and(!(1 << self.me.0), Ordering::AcqRel);
        }
    }

    /// After the worker has ended.
    pub fn free_process_slot(&self) {
        self.processes.detach(self.me);
    }

    /// The instance's mode changes for all, when it is safe; ends when everything is as the new mode wants it.
    ///
    /// # Errors
    /// Dirty pages that cannot be written.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        self.ask(RequestKind::ModeOfAll, FileNo(u32::MAX), mode as u64, 0).map(drop)
    }

    /// What only an SSD that failed had is given up, and what is below counts; how many pages these are.
    ///
    /// # Errors
    /// The leader's.
    pub fn accept_losses(&self) -> Result<u32, Errno> {
        self.ask(RequestKind::Accept, FileNo(u32::MAX), 0, 0)
    }

    /// Waits until the first leader has looked at the SSD.
    ///
    /// # Errors
    /// EIO: it cannot be used, and nobody knows what is on it.
    pub fn ready(&self) -> Result<(), Errno> {
        self.ask(RequestKind::Open, FileNo(u32::MAX), 0, 0).map(drop)
    }

    #[inline]
    pub(crate) fn name(&self, no: FileNo, page: u64) -> Name {
        Name { file: pagecache::FileNo(no.0), page: pagecache::PageIndex(page) }
    }
}

/// What the leader last said of the SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SsdState {
    /// It failed, with this errno; it is not used any more.
    pub failed: Option<u32>,
    /// Pages there.
    pub live: u64,
    /// Of these newer than below.
    pub dirty: u64,
    /// Dirty pages that were lost with it.
    pub lost: u64,
    /// Dirty pages that only it had, of files that nobody can name.
    pub unknown: u32,
    /// Nobody knows what is on it.
    pub is_unsure: bool,
    /// Bytes written to it since it was formatted.
    pub written_ever: u64,
    /// Pages that the last recovery found.
    pub found: u64,
    /// How long the last leader's recovery took.
    pub recovery_ms: u32,
    /// How many leaders there were.
    pub leaders: u32,
    /// Files that the leader has at hand.
    pub known: u32,
}

/// Where a stream has come to.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The byte after the last one read.
    pub(crate) next: AtomicU64,
    /// Bytes read in sequence.
    pub(crate) run: AtomicU64,
    /// What the caller says of his reads, see [`Advice`].
    pub(crate) advice: AtomicU32,
    /// Failures of the file that this handle was told of.
    pub(crate) seen: AtomicU32,
}
