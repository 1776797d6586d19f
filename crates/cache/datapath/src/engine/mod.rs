// long: the engine is the sum of its parts, and this lists and wires all of them.
//! The page engine of the cache stack: pages of numbered files in RAM, on the SSD and in backing files.
//!
//! (Paper 000, section III.) Several processes share one segment ([`Layout`]). A read ([`read`]) checks the frames, then the SSD's map,
//! then the backing file. All misses are submitted in one batch, and copied into frames on completion. A write ([`write`]) completes when
//! its data is in a frame. The leader moves data afterwards ([`crate::migrate`]). Other processes send it requests ([`request`]);
//! [`flush`] sends the requests that make data durable.
//!
//! Five rules make this correct:
//! 1. The newest version of a page is in a frame, marked, until the work that the mark stands for is done and durable.
//! 2. Only the leader writes to the SSD and the backing files, one call after the other. The exception is write-through: the writer
//!    writes, and holds the file's lock.
//! 3. Only the processes access shared memory: no device and no kernel call does. So once a process slot is dead, all operations of that
//!    process have ended.
//! 4. Every request is idempotent.
//! 5. After a miss, a reader inserts what it read from the backing file only if no write to the page came between (tickets). A page of the
//!    SSD goes into a frame at its second request: a clean page need not be in one (docs/decisions/24-reads-from-the-ssd.md).
//!
//! [`AsyncReader`] does the same without blocking: it reads pages of the SSD through a queue that it owns.

mod async_reader;
pub(crate) mod cached_version;
mod catalogue;
mod change_notices;
mod counters;
mod dirty_records;
mod fast_path;
mod fetch_marks;
mod flush;
pub(crate) mod kept_record;
pub(crate) mod layout;
pub(crate) mod log;
mod not_open;
pub(crate) mod open;
pub(crate) mod own_stamp;
mod past;
mod prepared;
mod read;
mod read_around;
mod reads_in_flight;
pub(crate) mod record;
mod record_path;
mod removed;
mod request;
mod residency;
mod ssd;
mod stall;
mod stamp;
mod status;
mod stranded;
mod stream;
mod write;
mod write_times;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use block::Device;
use pagecache::{Name, SharedPages};
use parking_lot::Mutex;
use read_around::ReadAround;
use reads_in_flight::ReadsInFlight;
use rustix::io::Errno;
use shm::{ProcessSlot, ProcessSlots, Region, futex};
use ssdcache::{FileKey, Mode, PAGE_BYTES, View};

pub use async_reader::{AsyncReader, AsyncReaderOptions, Outcome, SubmitResult};
pub use cached_version::CachedVersion;
pub use catalogue::{CATALOGUE, CUT_BELOW, Entry, place};
pub use change_notices::ListeningRound;
pub use counters::{Count, Counters, Tier, bucket_ns, percentile};
pub use fast_path::FoundPage;
use kept_record::RecordUsers;
pub use layout::{FILES_MAX, Layout, SETTINGS_BYTES, SegmentError, Sizes, VERSION as SEGMENT_VERSION};
use layout::{Header, Word};
pub use open::{Open, OpenFileError, OpenOptions};
pub use past::PastCall;
pub use prepared::PreparedRead;
pub(crate) use record::flag;
pub use record::{FILE_BYTES_MAX, FileNo, PATH_MAX, errno_from};
use record::{Records, code_of};
pub(crate) use request::{Hint, Request, RequestKind, RequestState, StaleSlots};
use request::{Hints, Requests};
pub use residency::{Residency, ResidencyPart};
use ssd::SsdQueues;
use stall::StallWatch;
pub(crate) use stall::{Retries, STALLED};
pub use stamp::Stamp;
pub use status::{Advice, EngineStatus, FileStatus};

/// Sleep of a requester before it checks whether a leader exists: the first time, and each later time.
const SLEEP_FIRST: Duration = Duration::from_millis(2);
const SLEEP_AGAIN: Duration = Duration::from_millis(20);
/// How long a requester tries to find a free slot. The leader frees unused slots within half a second.
const POST_MAX: Duration = Duration::from_secs(5);
/// How often a request is posted again after its slot was taken away.
const ASKED_ANEW: u32 = 100;

/// An open backing file. Its calls block.
pub trait BackingFile: Send + Sync {
    /// Reads as pread does: fewer bytes are read only at the end of the file.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// Writes all bytes of `from`.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// Makes written data and the length durable.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn sync(&self) -> io::Result<()>;
    /// Sets the length, as ftruncate does.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Punches a hole: the range reads as zeroes, and the length stays.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
    /// Sets the modification time, ns since 1970: the time of the last write by a program, not of the write-back.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn set_mtime(&self, ns: u64) -> io::Result<()>;
    /// Returns the file's stamp, as fstat reports it.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn stamp(&self) -> io::Result<Stamp>;
    /// Returns whether the file has no name any more.
    fn is_removed(&self) -> bool {
        false
    }
    /// Returns whether the file is open. If not, nothing but its stamp is known.
    fn is_open(&self) -> bool {
        true
    }
    /// Returns whether the name by which it was opened is gone and the file is still there, under another name.
    fn has_lost_name(&self) -> bool {
        false
    }
    /// Returns the current path of the file, if it is known.
    fn path(&self) -> Option<std::path::PathBuf> {
        None
    }
}

/// The surroundings of the engine: backing files, clocks and reports.
pub trait Environment: Send + Sync {
    /// Opens the backing file of this key, for the leader. `path` is its last known path, `pids` are the processes that have it open.
    ///
    /// # Errors
    /// Returns ENOENT if the file is gone, so that its cached data is no longer needed; else the error of the kernel.
    fn open(&self, key: FileKey, path: &std::path::Path, pids: &[u32], writable: bool) -> io::Result<Arc<dyn BackingFile>>;
    /// Returns how many backing files the leader may have open at a time.
    fn handles_max(&self) -> usize {
        64
    }
    /// Returns a clock in milliseconds that is the same in all processes; it wraps.
    fn now_ms(&self) -> u32;
    /// Returns the time in nanoseconds since 1970; coarse resolution is enough.
    fn realtime_ns(&self) -> u64;
    /// Returns whether the content of a file with this path and stamp must be durable, as nobody has changed it for long.
    fn is_durable_by_age(&self, _path: &std::path::Path, _stamp: Stamp) -> bool {
        false
    }
    /// Reports an event that the operator should know: a failing SSD, lost pages.
    fn report(&self, words: &str);
    /// Returns whether cached data of a file may stay where other processes see it. `_path` is the file's last known path.
    fn may_keep(&self, _key: FileKey, _path: &std::path::Path) -> bool {
        true
    }
    /// Makes the names in a directory durable, as fsync of the directory does.
    ///
    /// # Errors
    /// Returns the error of the kernel: names may be the old ones after a loss of power.
    fn sync_directory(&self, _path: &std::path::Path) -> io::Result<()> {
        Ok(())
    }
    /// Returns whether the note says that the SSD has no dirty data, and none can have been written since.
    fn is_clean(&self) -> bool {
        false
    }
    /// Writes durably that the SSD has no dirty data, or that this is no longer so.
    ///
    /// # Errors
    /// Returns the error of the kernel: the note must not be relied on.
    fn note_clean(&self, _is_clean: bool) -> io::Result<()> {
        Ok(())
    }
    /// Writes durably that the SSD's content must not be used again, because the SSD failed and the files are written without it.
    /// `_is_owed`: the SSD also has data that no backing file has.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn note_void(&self, _is_owed: bool) -> io::Result<()> {
        Ok(())
    }
}

/// The parts that an engine is built from.
pub struct Parts {
    /// The shared memory segment of the instance.
    pub region: Arc<Region>,
    /// The opened process slots of the segment.
    pub processes: Arc<ProcessSlots>,
    /// The SSD for readers, with any driver.
    pub device: Option<Arc<dyn Device>>,
    /// The SSD for the leader: a driver whose calls end when the process dies (no io_uring).
    pub plain: Option<Arc<dyn Device>>,
    /// The environment: backing files, clocks and reports.
    pub world: Arc<dyn Environment>,
    /// The limits that the leader keeps.
    pub limits: Limits,
}

/// The limits that the leader keeps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// The age at which marked pages are written, ms.
    pub dirty_age_ms: u32,
    /// The percentage of frames that may be marked before writers wait.
    pub dirty_percent: u32,
    /// The percentage of the SSD's pages that are dirty before dirty pages are written back.
    pub ssd_dirty_percent: u32,
    /// The maximum number of bytes to read ahead of a stream.
    pub read_ahead: u32,
    /// The maximum number of bytes to read from the backing file around a requested page, while the SSD has room. 0: only the page.
    pub read_around: u32,
    /// If a read of a single page takes less than this, nothing is read around it. Zero: latency is not measured.
    pub slow_below: Duration,
    /// The limits of admission to the SSD.
    pub admission: ssdcache::AdmissionLimits,
}

impl Limits {
    /// Returns the default limits for an SSD of `slots` slots; 0: no SSD.
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

/// The reason why a segment could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum EngineAttachError {
    /// The segment cannot be used.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// All process slots are taken.
    #[error("{0}")]
    NoProcessSlot(String),
    /// The page cache of the segment, or its map of the SSD, is damaged.
    #[error("the segment is damaged: {0}")]
    Damaged(String),
}

/// The part of one process in an instance.
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
    pub(crate) ssd_queues: Option<SsdQueues>,
    pub(crate) plain: Option<Arc<dyn Device>>,
    pub(crate) world: Arc<dyn Environment>,
    pub(crate) limits: Limits,
    pub(crate) around: ReadAround,
    pub(crate) reads_in_flight: ReadsInFlight,
    /// The users of records in this process, by file.
    pub(crate) opens: Mutex<std::collections::HashMap<FileNo, RecordUsers>>,
    /// The leader, if requesters run its steps (tests, and a single process without threads).
    inline: Mutex<Option<Box<dyn InlineLeader>>>,
    is_inline: AtomicBool,
    /// The engine that owns the inline leader, if that is another one.
    led_by: OnceLock<Weak<CacheEngine>>,
    pub(crate) stopping: AtomicBool,
    /// The process slots of listeners that did not look at a change in time, and have not since.
    stuck_listeners: std::sync::atomic::AtomicU64,
    /// The counts of their rounds at that time.
    stuck_at: [std::sync::atomic::AtomicU32; ProcessSlots::COUNT],
}

impl CacheEngine {
    /// Formats a segment in a zeroed region, which needs the length that [`Layout::of`] computes. Attach comes after.
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
        // Until the first leader has looked, the SSD may have dirty pages of any file.
        set(Word::Unrecorded, if sizes.ssd.is_some() { u32::MAX } else { 0 });
        Layout::ready(region);
    }

    /// Records in a segment without an SSD that the intended SSD cannot be used.
    pub fn without_ssd(region: &Region, errno: i32) {
        region.u32(Word::SsdErrno as usize).store(errno as u32, Ordering::Relaxed);
        region.u32(Word::SsdFailed as usize).store(layout::FAILED, Ordering::Relaxed);
    }

    /// Attaches to the instance and takes a process slot.
    ///
    /// # Errors
    /// See [`EngineAttachError`].
    pub fn attach(parts: Parts) -> Result<Arc<CacheEngine>, EngineAttachError> {
        let Parts { region, processes, device, plain, world, limits } = parts;
        let layout = Layout::read(&region)?;
        let me = processes.attach().map_err(|error| EngineAttachError::NoProcessSlot(error.to_string()))?;
        let attached = CacheEngine::assemble(&region, layout, &processes, me);
        let (pages, view) = attached.inspect_err(|_| processes.detach(me))?;
        let engine = Arc::new(CacheEngine {
            records: Records::new(&region, layout.records, layout.sizes.files, &processes, me),
            requests: Requests { region: Arc::clone(&region), at: layout.requests, files: layout.sizes.files },
            hints: Hints { region: Arc::clone(&region), at: layout.hints },
            counters: Counters { region: Arc::clone(&region), at: layout.counters, me },
            header: Header::new(&region),
            reads_in_flight: ReadsInFlight::new(&region, layout.fetch_marks, &processes, me),
            layout,
            processes,
            me,
            pages,
            view,
            ssd_queues: device.map(SsdQueues::new),
            plain,
            world,
            limits,
            around: ReadAround::new(limits.slow_below),
            opens: Mutex::default(),
            inline: Mutex::new(None),
            is_inline: AtomicBool::new(false),
            led_by: OnceLock::new(),
            stopping: AtomicBool::new(false),
            stuck_listeners: std::sync::atomic::AtomicU64::new(0),
            stuck_at: [const { std::sync::atomic::AtomicU32::new(0) }; ProcessSlots::COUNT],
        });
        // Whoever had this process slot may have died.
        engine.forget_listener(me);
        Ok(engine)
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

    /// Returns the mode of the instance.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.header.mode()
    }

    /// Returns how many mode changes of the instance or of files were made. A change is counted when it is in force. A change that ends
    /// pass-through is also counted before: no call past the cache begins any more.
    #[inline]
    pub fn mode_changes(&self) -> u32 {
        // In one order with the counts of calls past the cache (`Open::begin_past`).
        self.header.word(Word::ModeChanges).load(Ordering::SeqCst)
    }

    /// Returns whether there is an SSD that works.
    pub fn has_ssd(&self) -> bool {
        self.view.is_some() && self.header.ssd_failed() == 0
    }

    /// Returns the process slot of this process.
    pub fn process_slot(&self) -> ProcessSlot {
        self.me
    }

    /// Returns the counters of all processes.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn count_ssd_hits(&self, pages: u64) {
        self.counters.add(Count::SsdHits, pages);
        self.counters.add(Count::SsdRead, pages * PAGE_BYTES as u64);
    }

    /// Returns the metadata of the page cache.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Returns the process slots of the instance.
    pub fn processes(&self) -> &ProcessSlots {
        &self.processes
    }

    /// Returns the sizes that the instance was made with.
    pub fn sizes(&self) -> Sizes {
        self.layout.sizes
    }

    /// Returns the state of the SSD that the leader last published.
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

    /// Returns whether a leader exists and has completed its start. Makes a system call.
    pub(crate) fn is_led(&self) -> bool {
        self.header.get(Word::Beginning) == 0
            && (self.is_inline.load(Ordering::Acquire) || self.led_by.get().is_some() || self.processes.leader().is_some())
    }

    /// Reports to the leader a page that was read from the backing file.
    pub(crate) fn hint(&self, hint: Hint) {
        // A leader that is awake checks for hints before it sleeps.
        if self.hints.tell(hint) && self.header.word(Word::Asleep).load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// Sends a request to the leader and waits for the answer.
    ///
    /// # Errors
    /// Returns the leader's error; ESHUTDOWN after this process detached; [`STALLED`] if the leader makes no progress.
    pub(crate) fn ask(&self, kind: RequestKind, file: FileNo, a: u64, b: u64) -> Result<u32, Errno> {
        self.ask_while(kind, file, a, b, &|| true).unwrap_or(Err(Errno::SHUTDOWN))
    }

    /// Like `ask`, while `waits` returns true; None: the requester gave up. `waits` is evaluated every 20 ms.
    pub(crate) fn ask_while(
        &self,
        kind: RequestKind,
        file: FileNo,
        a: u64,
        b: u64,
        waits: &dyn Fn() -> bool,
    ) -> Option<Result<u32, Errno>> {
        let mut stall_watch = StallWatch::new(self);
        // Another process with write access can take our slots away: the number of attempts is bounded.
        for _ in 0..ASKED_ANEW {
            let Some(posted) = self.post(kind, file, a, b) else { return Some(Err(Errno::IO)) };
            match self.wait_for(&posted, waits, &mut stall_watch) {
                Some(RequestState::Done(answer)) => return Some(answer),
                Some(RequestState::Lost) => {}
                Some(RequestState::Open) | None => return None,
            }
        }
        Some(Err(Errno::IO))
    }

    /// Returns None if no slot became free for so long that another process must hold them on purpose.
    fn post(&self, kind: RequestKind, file: FileNo, a: u64, b: u64) -> Option<request::Posted<'_>> {
        let mut begun = None;
        loop {
            if let Some(posted) = self.requests.post(self.me, kind, file, a, b) {
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

    /// Returns None if the requester gave up.
    fn wait_for(&self, posted: &request::Posted<'_>, waits: &dyn Fn() -> bool, stall_watch: &mut StallWatch<'_>) -> Option<RequestState> {
        let mut sleep = SLEEP_FIRST;
        loop {
            let wait = if self.step_inline() { Duration::ZERO } else { sleep };
            match posted.wait(wait) {
                RequestState::Open => {}
                ended => return Some(ended),
            }
            let is_led = wait.is_zero() || self.processes.leader().is_some();
            if !is_led {
                // Processes that can lead check only now and then; a request waits, so wake them now.
                self.processes.nudge();
                stall_watch.begin_anew();
            }
            sleep = SLEEP_AGAIN;
            if self.stopping.load(Ordering::Acquire) {
                return Some(RequestState::Done(Err(Errno::SHUTDOWN)));
            }
            if !waits() {
                return None;
            }
            if is_led && !wait.is_zero() && stall_watch.is_over() {
                return Some(RequestState::Done(Err(STALLED)));
            }
        }
    }

    pub(crate) fn set_inline(&self, leader: Box<dyn InlineLeader>) {
        *self.inline.lock() = Some(leader);
        self.is_inline.store(true, Ordering::Release);
    }

    /// Makes requests run the steps of another engine's leader in this process.
    pub fn follow_inline(&self, leader: &Arc<CacheEngine>) {
        let _ = self.led_by.set(Arc::downgrade(leader));
    }

    /// Runs the next step of the inline leader. Returns whether there is one.
    pub fn step_inline(&self) -> bool {
        if let Some(leader) = self.led_by.get().and_then(Weak::upgrade) {
            return leader.step_inline();
        }
        if !self.is_inline.load(Ordering::Acquire) {
            return false;
        }
        if let Some(mut leader) = self.inline.try_lock()
            && let Some(leader) = leader.as_mut()
        {
            leader.step(self);
        }
        true
    }

    /// Gives up the process slot. Close files first; marked pages stay in the segment for later processes.
    pub fn detach(&self) {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.set_listening(false);
        self.ring();
        self.processes.nudge();
        self.close_all_records();
    }

    /// Frees the process slot; call it after the worker has ended.
    pub fn free_process_slot(&self) {
        self.reads_in_flight.leave();
        self.processes.detach(self.me);
    }

    /// Changes the instance's mode for all processes, when that is safe. Returns when all data is as the new mode requires.
    ///
    /// # Errors
    /// Returns an error if dirty pages cannot be written.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        self.ask(RequestKind::ModeOfAll, FileNo(u32::MAX), mode as u64, 0).map(drop)
    }

    /// Gives up the data that only a failed SSD had; the backing files count. Returns the number of pages given up.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn accept_losses(&self) -> Result<u32, Errno> {
        self.ask(RequestKind::Accept, FileNo(u32::MAX), 0, 0)
    }

    /// Waits until the first leader has checked the SSD.
    ///
    /// # Errors
    /// EIO: the SSD cannot be used, and its content is unknown.
    pub fn ready(&self) -> Result<(), Errno> {
        self.ask(RequestKind::Open, FileNo(u32::MAX), 0, 0).map(drop)
    }

    #[inline]
    pub(crate) fn name(&self, no: FileNo, page: u64) -> Name {
        Name { file: pagecache::FileNo(no.0), page: pagecache::PageIndex(page) }
    }
}

/// A leader whose steps are run by the threads that send requests to it.
pub(crate) trait InlineLeader: Send {
    /// Runs one round of the leader's work; returns whether there was work to do.
    fn step(&mut self, engine: &CacheEngine) -> bool;
}

/// The state of the SSD that the leader last published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SsdState {
    /// The errno of the SSD's failure; after it the SSD is not used any more.
    pub failed: Option<u32>,
    /// The number of valid pages on the SSD.
    pub live: u64,
    /// The number of them that are newer than the backing file.
    pub dirty: u64,
    /// The number of dirty pages that were lost with the SSD.
    pub lost: u64,
    /// The number of dirty pages only on the SSD, of files that cannot be named.
    pub unknown: u32,
    /// Whether the content of the SSD is unknown.
    pub is_unsure: bool,
    /// Bytes written to the SSD since it was formatted.
    pub written_ever: u64,
    /// The number of pages that the last recovery found.
    pub found: u64,
    /// The duration of the last leader's recovery, ms.
    pub recovery_ms: u32,
    /// The number of leaders so far.
    pub leaders: u32,
    /// The number of files that the leader has loaded.
    pub known: u32,
}
