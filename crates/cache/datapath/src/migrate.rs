// long: the state of the leader, and all that it does in one step.
//! The migration worker: promotion, demotion and write-back, in one place.
//!
//! (Paper 000, section III.B, "The Migration Worker".) It runs in a thread of the leader process. Every operation is idempotent: a new
//! leader repeats whatever the last one had not finished. Frames stay marked and requests stay posted until their effect is durable.
//!
//! - [`Worker::step`]: one round: requests, old dirty frames, promotions, write-back, room. No part of it takes long.
//! - `frames.rs`: writes marked frames to the SSD or the backing file. `demote.rs`: writes dirty SSD pages to backing files; frees log
//!   space.
//! - `failed.rs`: handles a failed SSD, and the pages that only it had.
//! - `lead.rs`: how a process leads. `window.rs`: what makes a change by the leader known as ours.
//! - `files.rs`: identifies files; keeps their backing-file handles. `entries.rs`: their catalogue entries. `truncations.rs`: truncates
//!   them, also again after a crash.
//! - `requests.rs`: serves requests.

mod demote;
mod dirty_records;
mod entries;
mod failed;
mod files;
mod frames;
mod lead;
mod requests;
mod truncations;
mod window;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use block::Time;
use pagecache::{MarkFilter, Name};
use rustix::io::Errno;
use shm::futex;
use ssdcache::{Admission, AdmissionVerdict, FileKey, LookupResult, PAGE_BYTES, Page, PageIndex, PageVersion};

use crate::engine::layout::Word;
use crate::engine::log::{Log, Stop};
use crate::engine::{CATALOGUE, CacheEngine, Count, FileNo, Hint, Request, StaleSlots};
use files::Known;

/// How long the leader sleeps when it is idle; it then checks for dead processes.
const IDLE: Duration = Duration::from_millis(100);
/// Pages handled in one step, at most: it bounds how long requests wait.
const STEP_PAGES: usize = 256;
/// Pages of hints in one step.
const STEP_HINTS: usize = 256;
/// Promoted pages in a batch before it is written, at least: each batch costs a page of summary.
const BATCH_WORTH_WRITING: usize = 32;
/// Frames that wait for their batch to be written, at most.
const STAGED_MOST: usize = 2 * BATCH_WORTH_WRITING;
/// How long new requests take precedence over the unfinished writes of the last leader.
const TAKING_UP_MS: u32 = 1000;
/// How long after a failed write the file is tried again, ms. Requests do not wait for that.
const RETRY_MS: u32 = 1000;
/// How long a leader that leaves writes back files whose names are not known.
const LEAVING_MAX: Duration = Duration::from_secs(1);
/// Eviction keeps between one and two frames of this many free.
const FREE_SHARE: u32 = 64;

/// The migration worker of the leader process: it moves pages between frames, SSD and backing files.
pub struct Worker {
    log: Option<Log>,
    admission: Option<Admission>,
    known: BTreeMap<FileKey, Known>,
    hints_read: u64,
    asked: Vec<Request>,
    hints: Vec<Hint>,
    marked: Vec<(Name, u32)>,
    /// Frames of pages that were read around a request, kept until the SSD has these pages.
    staged: Vec<Name>,
    /// Pages read around a request that were put on the SSD, less those whose place a requested page has taken.
    unasked: u64,
    /// The position of the write-back sweep.
    swept: (FileKey, PageIndex),
    begun: Instant,
    /// When this leader took over, in ms.
    took_over: u32,
    last_reap: u32,
    last_idle_work: u32,
    last_files_check: u32,
    /// The file whose entry was settled last.
    settled: FileKey,
    /// Pages of the catalogue, from before this leader, that may have truncations which are not settled yet.
    unread: Vec<PageIndex>,
    /// Counts uses of backing files.
    uses: u64,
    below_reads: u64,
    making_room: bool,
    /// A note says that the SSD has no dirty pages, or that a failed SSD owes none.
    is_noted_clean: bool,
    /// Dirty pages that the SSD cannot return and that were reported.
    lost: HashSet<(FileKey, PageIndex)>,
    /// The file that is to be truncated, and its new length. The entry has that length already; a sync of the file does not make it
    /// durable.
    cutting: Option<(FileKey, u64)>,
    /// Whether an entry was put since the last flush that says of a truncation of a backing file that it is durable.
    is_cut_settled: bool,
    /// Files that the last leader was writing to their backing files when it died.
    unended: VecDeque<(FileNo, FileKey)>,
    /// When finishing one of these last failed, in ms.
    unended_failed: Option<u32>,
    /// The record that was last checked for whether it may stay.
    looked_at: u32,
    /// Since when opens wait for the lock of the table, in ms.
    table_kept: Option<u32>,
    /// Whether the leader has waited for that lock in this step.
    is_table_kept: bool,
    /// Slots of the requests in progress: if the worker panics, they fail.
    at_hand: Vec<usize>,
    /// Slots that are watched because they make no progress.
    stale: StaleSlots,
    /// The header words that only the leader writes, with the values it last stored.
    own_words: [u32; OWN_WORDS.len()],
    /// Whether closed files with dirty pages use more than half of the handles: the oldest are then written back.
    is_crowded: bool,
    /// Whether some closed files with dirty pages are not held, because there were too many.
    has_others: bool,
    /// Since when each file has dirty pages on the SSD, in ms: files older than the dirty age are written back.
    dirty_since: HashMap<FileKey, u32>,
    /// The removed file whose data is being dropped: making room for that does not write it back.
    dropping: Option<FileKey>,
    /// The records that stay because the SSD has dirty pages of their files.
    dirty_records: HashMap<FileNo, FileKey>,
    /// The last file that was written back for its age.
    last_due: FileKey,
    /// Held files whose present name is not known: each step writes one back.
    nameless: VecDeque<FileKey>,
    /// The last file whose name on the SSD was compared with its present one.
    named: FileKey,
}

/// The header words that [`Worker::put_back`] restores.
const OWN_WORDS: [Word; 10] = [
    Word::Mode,
    Word::SsdFailed,
    Word::SsdErrno,
    Word::DirtyLimit,
    Word::DirtyAge,
    Word::ReadAhead,
    Word::ReadAround,
    Word::Unknown,
    Word::Beginning,
    Word::Unrecorded,
];

impl Worker {
    /// Takes the lead: recovers the SSD and takes over pending requests.
    pub fn begin(engine: &CacheEngine) -> Box<Worker> {
        engine.header.set(Word::Beginning, 1);
        engine.header.word(Word::Term).fetch_add(1, Ordering::AcqRel);
        let mut worker = Box::new(Worker {
            log: None,
            admission: None,
            known: BTreeMap::new(),
            hints_read: 0,
            asked: Vec::new(),
            hints: Vec::new(),
            marked: Vec::new(),
            staged: Vec::new(),
            unasked: 0,
            swept: (FileKey(0), PageIndex(0)),
            begun: Instant::now(),
            took_over: engine.world.now_ms(),
            last_reap: engine.world.now_ms(),
            last_idle_work: engine.world.now_ms(),
            last_files_check: engine.world.now_ms(),
            settled: FileKey(0),
            unread: Vec::new(),
            uses: 0,
            below_reads: 0,
            making_room: false,
            is_noted_clean: false,
            lost: HashSet::new(),
            cutting: None,
            is_cut_settled: false,
            unended: VecDeque::new(),
            unended_failed: None,
            last_due: FileKey(0),
            looked_at: 0,
            table_kept: None,
            is_table_kept: false,
            at_hand: Vec::new(),
            stale: StaleSlots::default(),
            own_words: [0; OWN_WORDS.len()],
            is_crowded: false,
            has_others: false,
            dirty_since: HashMap::new(),
            dropping: None,
            dirty_records: HashMap::new(),
            nameless: VecDeque::new(),
            named: FileKey(0),
        });
        // Restores a valid mode if the word was overwritten.
        engine.header.set_mode(engine.header.mode());
        // The last leader may have died after it had changed a mode and before it counted that.
        requests::count_mode_change(engine);
        worker.open_log(engine);
        worker.collect_entries(engine);
        // Requests that the last leader had taken are posted again. Then dead processes are reaped with their requests, and truncations
        // that they had started are repeated on the SSD.
        engine.requests.again();
        worker.reap(engine, Duration::MAX);
        worker.take_up_writing(engine);
        worker.take_over_dirty_files(engine);
        Worker::forget_held(engine);
        worker.hold_others(engine);
        // The last leader may have published less: its marks for pages already written to backing files may not have been durable.
        worker.tell(engine);
        engine.header.set(Word::Beginning, 0);
        worker.keep_words(engine);
        worker
    }

    /// Remembers the words that only the leader writes.
    fn keep_words(&mut self, engine: &CacheEngine) {
        self.own_words = OWN_WORDS.map(|word| engine.header.word(word).load(Ordering::Relaxed));
    }

    /// Restores the leader's words if another process overwrote them.
    fn put_back(&self, engine: &CacheEngine) {
        for (word, own) in OWN_WORDS.into_iter().zip(self.own_words) {
            if engine.header.word(word).load(Ordering::Relaxed) != own {
                engine.header.set(word, own);
            }
        }
    }

    /// Fails the requests in progress after a panic, so that the next leader does not panic over the same ones.
    fn give_up(&self, engine: &CacheEngine) {
        self.at_hand.iter().for_each(|slot| engine.requests.answer(*slot, Err(Errno::IO)));
    }

    /// Fails all waiting requests: a leader panicked before it could lead, so there is no leader.
    pub(crate) fn refuse_all(engine: &CacheEngine) {
        let mut asked = Vec::new();
        engine.requests.take(&mut asked);
        asked.iter().for_each(|asked| engine.requests.answer(asked.slot, Err(Errno::IO)));
    }

    /// Leads until the process detaches.
    pub(crate) fn run(engine: &Arc<CacheEngine>) {
        let mut worker = Worker::begin(engine);
        while !engine.stopping.load(Ordering::Acquire) {
            let bell = engine.header.get(Word::Bell);
            match catch_unwind(AssertUnwindSafe(|| worker.step(engine))) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(panic) => {
                    worker.give_up(engine);
                    resume_unwind(panic);
                }
            }
            engine.header.word(Word::Asleep).store(1, Ordering::SeqCst);
            if engine.header.word(Word::Bell).load(Ordering::SeqCst) == bell {
                futex::wait(engine.header.word(Word::Bell), bell, Some(worker.rest(engine)));
            }
            engine.header.word(Word::Asleep).store(0, Ordering::SeqCst);
        }
        worker.leave(engine);
        worker.end();
    }

    /// Records for the next leader where the files are that this one holds.
    fn leave(&mut self, engine: &CacheEngine) {
        let begun = Instant::now();
        self.note_names(engine, || engine.lock_records().ok());
        while begun.elapsed() < LEAVING_MAX && self.clean_nameless(engine) {}
    }

    /// Flushes the log, so that the next leader finds it complete.
    pub fn end(&mut self) {
        if let Some(log) = &mut self.log {
            let _ = log.flush();
        }
    }

    /// Returns how long the worker may sleep. Waiting hints delay it briefly, so that they come in batches.
    fn rest(&self, engine: &CacheEngine) -> Duration {
        if engine.hints.waiting(self.hints_read) { Duration::from_millis(5) } else { IDLE }
    }

    /// Runs one round; returns whether there was work to do.
    pub fn step(&mut self, engine: &CacheEngine) -> bool {
        let now = engine.world.now_ms();
        self.put_back(engine);
        if now.wrapping_sub(self.last_reap) >= IDLE.as_millis() as u32 {
            self.last_reap = now;
            engine.show_pulse();
            self.reap(engine, IDLE);
            engine.requests.recycle(&mut self.stale, now);
        }
        let mut busy = self.answer(engine);
        // This is as slow as the backing disk: waiting callers come first for `TAKING_UP_MS`. A sync does it itself.
        if !busy || now.wrapping_sub(self.took_over) >= TAKING_UP_MS {
            busy |= self.end_others_writing(engine);
        }
        busy |= self.age(engine);
        busy |= self.promote(engine);
        busy |= self.write_back_ahead(engine);
        busy |= self.write_back_held(engine);
        busy |= self.clean_nameless(engine);
        busy |= self.bound_files(engine, now);
        self.free_frames(engine);
        self.tell(engine);
        self.note_clean(engine);
        self.keep_words(engine);
        busy
    }

    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }

    /// Reaps dead processes: their locks, frames, pins, requests and opens. It handles at least one, and stops after `at_most`. A process
    /// may have overwritten the table so that all process slots look dead, and requests wait.
    fn reap(&mut self, engine: &CacheEngine, at_most: Duration) {
        let begun = Instant::now();
        for dead in engine.processes.dead() {
            engine.pages.reap(dead);
            engine.requests.reap(dead);
            engine.reads_in_flight.reap(dead);
            for no in (0..engine.records.count).map(FileNo) {
                if engine.records.lock_of(no).owner() == Some(dead)
                    && let Some(held) = engine.records.lock_of(no).take_over()
                {
                    match self.mend(engine, no) {
                        Ok(()) => drop(held),
                        Err(_) => held.abandon(),
                    }
                }
            }
            drop(engine.records.lock().take_over());
            engine.records.reap(dead);
            engine.forget_listener(dead);
            // Its death has closed its files, of which some may have dirty pages.
            self.hold_others(engine);
            engine.processes.clear(dead);
            if begun.elapsed() > at_most {
                break;
            }
        }
    }

    /// Cleans frames that have been dirty for long, or that are too many.
    fn age(&mut self, engine: &CacheEngine) -> bool {
        let count = engine.pages.marked_count();
        if count == 0 {
            return false;
        }
        let crowded = count > engine.header.get(Word::DirtyLimit) / 2;
        let which = if crowded {
            MarkFilter::All
        } else {
            let age = engine.header.get(Word::DirtyAge);
            MarkFilter::OlderThan(engine.world.now_ms().wrapping_sub(age))
        };
        let mut marked = std::mem::take(&mut self.marked);
        marked.clear();
        engine.pages.marked(which, STEP_PAGES, &mut marked);
        let cleaned = if marked.is_empty() { 0 } else { self.clean_frames(engine, &marked).0 };
        self.marked = marked;
        cleaned > 0
    }

    /// Promotes pages that were read from backing files to the SSD, if admission accepts them.
    fn promote(&mut self, engine: &CacheEngine) -> bool {
        let mut hints = std::mem::take(&mut self.hints);
        hints.clear();
        engine.hints.take(&mut self.hints_read, STEP_HINTS, &mut hints);
        let busy = !hints.is_empty() && self.has_log(engine);
        if busy && hints.iter().try_for_each(|hint| self.promote_one(engine, hint)).is_ok() {
            self.close_batch(engine);
        }
        self.release_staged(engine);
        self.hints = hints;
        busy
    }

    /// Promotes one page. An error means that the log accepts no more pages now.
    fn promote_one(&mut self, engine: &CacheEngine, hint: &Hint) -> Result<(), Errno> {
        let now = self.now();
        let (Some(log), Some(admission)) = (&self.log, &mut self.admission) else { return Err(Errno::NODEV) };
        let record = engine.records.get(hint.file);
        let (Some(key), page) = (record.key(), PageIndex(hint.page)) else { return Ok(()) };
        if log.cache.lookup(key, page) != LookupResult::Miss {
            return Ok(());
        }
        if hint.is_around {
            self.staged.push(engine.name(hint.file, hint.page));
            if !log.cache.has_room() {
                return Ok(());
            }
        }
        let in_sequence = if hint.in_stream { u64::MAX } else { 0 };
        // A requested page is worth more than one read around a request, and may replace it.
        let instead = !log.cache.has_room() && self.unasked > 0;
        let refused = match admission.admit(now, key, page, in_sequence, record.rule(), instead || log.cache.has_room()) {
            AdmissionVerdict::Admit => None,
            AdmissionVerdict::First => Some(Count::RefusedFirst),
            AdmissionVerdict::Stream => Some(Count::RefusedStream),
            AdmissionVerdict::Budget => Some(Count::RefusedBudget),
            AdmissionVerdict::Rule => Some(Count::RefusedRule),
        };
        if let Some(why) = refused {
            engine.counters.add(why, 1);
            return Ok(());
        }
        let mut bytes = [0; PAGE_BYTES];
        if !self.bytes_of(engine, hint, key, &mut bytes) {
            if let Some(admission) = &mut self.admission {
                admission.remember(key, page);
            }
            return Ok(());
        }
        if self.note(engine, hint.file).is_err() {
            return Ok(());
        }
        let Some(log) = &mut self.log else { return Err(Errno::NODEV) };
        match log.put(key, page, PageVersion::Clean, &bytes) {
            Ok(()) => {
                engine.counters.add(Count::Promoted, 1);
                if hint.is_around {
                    self.unasked += 1;
                } else if instead {
                    self.unasked = self.unasked.saturating_sub(1);
                }
                if let Some(admission) = &mut self.admission {
                    admission.spend(now, PAGE_BYTES as u64);
                }
                self.room_ahead(engine)
            }
            Err(Stop::Room) => self.make_room(engine),
            Err(Stop::Never) => {
                engine.counters.add(Count::RefusedFull, 1);
                Ok(())
            }
            Err(stop) => Err(self.stopped(engine, stop)),
        }
    }

    /// Seals the batch when it is large enough for its summary: promoted pages can be read once their batch is written.
    fn close_batch(&mut self, engine: &CacheEngine) {
        let Some(log) = &mut self.log else { return };
        if log.waiting() >= BATCH_WORTH_WRITING
            && let Err(stop) = log.seal()
        {
            self.stopped(engine, stop);
        }
    }

    /// Releases the frames of pages read around requests once the SSD can serve them: requested pages need the room.
    fn release_staged(&mut self, engine: &CacheEngine) {
        if self.log.as_ref().is_none_or(|log| log.waiting() == 0) || self.staged.len() > STAGED_MOST {
            self.staged.drain(..).for_each(|name| _ = engine.pages.release(name));
        }
    }

    /// Copies a page as the backing file has it, from its frame. A marked page is refused: write-back handles it. An evicted page is read
    /// again only if the disk is fast: readers of a slow disk have better use for it.
    fn bytes_of(&mut self, engine: &CacheEngine, hint: &Hint, key: FileKey, bytes: &mut Page) -> bool {
        let at = hint.page * PAGE_BYTES as u64;
        let size = engine.records.get(hint.file).size().load(Ordering::Acquire);
        if at >= size {
            // The page is being truncated; its frame is dropped last.
            return false;
        }
        let end = usize::try_from(size - at).map_or(PAGE_BYTES, |left| left.min(PAGE_BYTES));
        if let Some(snapshot) = engine.pages.snapshot(engine.name(hint.file, hint.page), bytes) {
            bytes[end..].fill(0); // A reader may have inserted it during a truncation.
            return snapshot.marks.is_none();
        }
        if hint.was_slow || hint.is_around {
            return false;
        }
        let Ok(below) = self.below(engine, key) else { return false };
        let Ok(got) = below.read_at(at, &mut bytes[..]) else { return false };
        bytes[got.min(end)..].fill(0);
        engine.counters.add(Count::BelowRead, got as u64);
        true
    }

    /// Keeps some frames free, so that a miss need not search for one.
    fn free_frames(&self, engine: &CacheEngine) {
        let low = (engine.layout.sizes.frames.frames / FREE_SHARE).max(1);
        if engine.pages.free() < low {
            engine.pages.evict_ahead(low, 2 * low);
        }
    }

    fn tell(&self, engine: &CacheEngine) {
        engine.header.set(Word::Known, self.known.len() as u32);
        // With a daily write limit, the SSD's writes are reserved for requested pages.
        let is_counted = engine.limits.admission.bytes_per_day != u64::MAX;
        let has_room = self.has_log(engine) && !is_counted && self.log.as_ref().is_some_and(|log| log.cache.has_room());
        engine.header.set(Word::SsdRoom, has_room.into());
        if let Some(log) = &self.log {
            let (live, dirty) = log.cache.len();
            // Entries of the catalogue stay dirty forever; no caller waits for them.
            let dirty = dirty.saturating_sub(u64::from(log.cache.dirty_of(CATALOGUE))) + u64::from(engine.header.get(Word::Unknown));
            let ever = log.cache.written_ever_pages() * PAGE_BYTES as u64;
            engine.header.wide(Word::SsdLive).store(live, Ordering::Relaxed);
            engine.header.wide(Word::SsdDirty).store(dirty, Ordering::Relaxed);
            engine.header.wide(Word::SsdEver).store(ever, Ordering::Relaxed);
        }
    }

    /// Handles the consequences of a stop; returns the error for its caller.
    fn stopped(&mut self, engine: &CacheEngine, stop: Stop) -> Errno {
        match stop {
            Stop::Room => Errno::NOSPC,
            Stop::Never | Stop::Changed => Errno::INVAL,
            Stop::Failed(error) => {
                self.fail(engine, error, &error.to_string());
                Errno::IO
            }
        }
    }

    /// Returns whether the log accepts pages.
    fn has_log(&self, engine: &CacheEngine) -> bool {
        self.log.is_some() && engine.header.ssd_failed() == 0
    }
}
