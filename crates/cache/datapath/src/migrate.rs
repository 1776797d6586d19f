//! The migration worker: promotion, demotion and write-back, in one place.
//!
//! (Paper 000, section III.B, "The Migration Worker".) It is the thread of whichever process leads. Everything it does can be
//! done twice, for its successor does again what it had not ended: frames stay marked, requests posted, until it is durable.
//!
//! - [`Worker::step`]: one round: requests, old dirty frames, promotions, write-back, room. Nothing in it takes long.
//! - `frames.rs`: marked frames go to the SSD or below. `demote.rs`: dirty pages of the SSD go below; room in the log.
//! - `failed.rs`: what becomes of an SSD that fails, and of what only it had.
//! - `files.rs`: which file is which, its catalogue entry, its handle below. `asked.rs`: the requests.

mod demote;
mod failed;
mod files;
mod frames;
mod requests;

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

/// How long the leader sleeps when nothing is to be done: dead processes are looked for then.
const IDLE: Duration = Duration::from_millis(100);
/// Pages handled in one step, so that requests wait for no more.
const STEP_PAGES: usize = 256;
/// Pages of hints in one step.
const STEP_HINTS: usize = 256;
/// Promoted pages that are written in one batch, at least, with a page of summary.
const BATCH_WORTH_WRITING: usize = 32;
/// Frames that wait for a batch to be written, at most.
const STAGED_MOST: usize = 2 * BATCH_WORTH_WRITING;
/// So long who asks comes before what the last leader had not ended.
const TAKING_UP_MS: u32 = 1000;
/// Frames are kept free from this share on, up to twice as many: 1 of 64.
const FREE_SHARE: u32 = 64;

/// Leads. See the module.
pub struct Worker {
    log: Option<Log>,
    admission: Option<Admission>,
    known: BTreeMap<FileKey, Known>,
    hints_read: u64,
    asked: Vec<Request>,
    hints: Vec<Hint>,
    marked: Vec<(Name, u32)>,
    /// Frames of pages that nobody asked for, until the SSD has these.
    staged: Vec<Name>,
    /// Pages of the SSD that nobody asked for when they were put, less those that gave their place to one that was.
    unasked: u64,
    /// Where the write-back sweep has come to.
    swept: (FileKey, PageIndex),
    begun: Instant,
    /// When it took over, ms.
    took_over: u32,
    last_reap: u32,
    last_idle_work: u32,
    last_look_at_files: u32,
    /// Which entries were settled last.
    settled: FileKey,
    /// Counts uses of files below.
    uses: u64,
    below_reads: u64,
    making_room: bool,
    /// It is noted that nothing is dirty on the SSD, or that one that failed owes nothing.
    is_noted_clean: bool,
    /// Dirty pages that the SSD cannot give back, and that were told.
    lost: HashSet<(FileKey, PageIndex)>,
    /// The file that is to be cut, and to which length, which its entry says already: a sync of it does not make that durable.
    cutting: Option<(FileKey, u64)>,
    /// Files that the last leader was writing below when he died.
    unended: VecDeque<(FileNo, FileKey)>,
    /// When one of these could not be ended, ms.
    unended_failed: Option<u32>,
    /// Which record was last looked at for whether it may stay.
    looked_at: u32,
    /// Slots of the requests it is at: if it panics over one, that one has failed.
    at_hand: Vec<usize>,
    /// Slots that are watched because nothing happens in them.
    stale: StaleSlots,
    /// The words of the header that the leader alone writes, as it left them.
    own_words: [u32; OWN_WORDS.len()],
    /// More closed files have dirty pages than half of the handles there may be: the oldest are written back.
    is_crowded: bool,
    /// Of closed files with dirty pages some are not held: there were too many.
    has_others: bool,
    /// Since when files have dirty pages on the SSD, ms: those that are older than the dirty age are written back.
    dirty_since: HashMap<FileKey, u32>,
    /// The last of these that was written back because of that.
    last_due: FileKey,
}

/// See [`Worker::put_back`].
const OWN_WORDS: [Word; 9] = [
    Word::Mode,
    Word::SsdFailed,
    Word::SsdErrno,
    Word::DirtyLimit,
    Word::DirtyAge,
    Word::ReadAhead,
    Word::ReadAround,
    Word::Unknown,
    Word::Beginning,
];

impl Worker {
    /// Takes the lead over: recovers the SSD, takes up what was asked.
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
            last_look_at_files: engine.world.now_ms(),
            settled: FileKey(0),
            uses: 0,
            below_reads: 0,
            making_room: false,
            is_noted_clean: false,
            lost: HashSet::new(),
            cutting: None,
            unended: VecDeque::new(),
            unended_failed: None,
            last_due: FileKey(0),
            looked_at: 0,
            at_hand: Vec::new(),
            stale: StaleSlots::default(),
            own_words: [0; OWN_WORDS.len()],
            is_crowded: false,
            has_others: false,
            dirty_since: HashMap::new(),
        });
        // As it was last, if somebody wrote over it.
        engine.header.set_mode(engine.header.mode());
        worker.open_log(engine);
        // What the last one had taken is posted again; then the requests of the dead are reaped with them, and what they had begun
        // to cut is cut on the SSD too.
        engine.requests.again();
        worker.reap(engine, Duration::MAX);
        worker.take_up_writing(engine);
        let now = engine.world.now_ms();
        let dirty = worker.log.as_ref().map_or(Vec::new(), |log| log.books.dirty_files());
        worker.dirty_since = dirty.into_iter().filter(|key| *key != CATALOGUE).map(|key| (key, now)).collect();
        Worker::forget_held(engine);
        worker.hold_others(engine);
        // What the last one told may be less: its marks that pages are below may not have been durable.
        worker.tell(engine);
        engine.header.set(Word::Beginning, 0);
        worker.keep_words(engine);
        worker
    }

    /// Remembers the words that it alone writes.
    fn keep_words(&mut self, engine: &CacheEngine) {
        self.own_words = OWN_WORDS.map(|word| engine.header.word(word).load(Ordering::Relaxed));
    }

    /// Words that somebody else wrote over are as they were.
    fn put_back(&self, engine: &CacheEngine) {
        for (word, own) in OWN_WORDS.into_iter().zip(self.own_words) {
            if engine.header.word(word).load(Ordering::Relaxed) != own {
                engine.header.set(word, own);
            }
        }
    }

    /// It panicked: what it was at has failed, so that its successor does not panic over the same.
    fn give_up(&self, engine: &CacheEngine) {
        self.at_hand.iter().for_each(|slot| engine.requests.answer(*slot, Err(Errno::IO)));
    }

    /// A leader panicked before it could lead: who waits for one is told that there is none.
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
        worker.note_names(engine);
        worker.end();
    }

    /// Leaves the log in good order for the next one.
    pub fn end(&mut self) {
        if let Some(log) = &mut self.log {
            let _ = log.flush();
        }
    }

    /// Until when nothing is to be done: hints wait for a moment, so that they come together.
    fn rest(&self, engine: &CacheEngine) -> Duration {
        if engine.hints.waiting(self.hints_read) { Duration::from_millis(5) } else { IDLE }
    }

    /// One round; whether there was something to do.
    pub fn step(&mut self, engine: &CacheEngine) -> bool {
        let now = engine.world.now_ms();
        self.put_back(engine);
        if now.wrapping_sub(self.last_reap) >= IDLE.as_millis() as u32 {
            self.last_reap = now;
            engine.processes.answer_owner_queries();
            self.reap(engine, IDLE);
            engine.requests.recycle(&mut self.stale, now);
        }
        let mut busy = self.answer(engine);
        // It takes as long as the disk below: who waits comes first, for a while; and a sync does it itself.
        if !busy || now.wrapping_sub(self.took_over) >= TAKING_UP_MS {
            busy |= self.end_others_writing(engine);
        }
        busy |= self.age(engine);
        busy |= self.promote(engine);
        busy |= self.write_back_ahead(engine);
        busy |= self.write_back_held(engine);
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

    /// Dead processes: their locks, frames, pins, requests and opens. No more of them than in that time, and one at least: somebody may
    /// have written into the table that all process slots are the dead's, and requests wait.
    fn reap(&mut self, engine: &CacheEngine, at_most: Duration) {
        let begun = Instant::now();
        for dead in engine.processes.dead() {
            engine.pages.reap(dead);
            engine.requests.reap(dead);
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
            engine.processes.clear(dead);
            if begun.elapsed() > at_most {
                break;
            }
        }
    }

    /// Frames that have been dirty for long, or are too many.
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

    /// Pages that were read below go to the SSD, if they are worth it.
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

    /// Error: the log takes no more now.
    fn promote_one(&mut self, engine: &CacheEngine, hint: &Hint) -> Result<(), Errno> {
        let now = self.now();
        let (Some(log), Some(admission)) = (&self.log, &mut self.admission) else { return Err(Errno::NODEV) };
        let record = engine.records.get(hint.file);
        let (Some(key), page) = (record.key(), PageIndex(hint.page)) else { return Ok(()) };
        if log.books.lookup(key, page) != LookupResult::Miss {
            return Ok(());
        }
        if hint.is_around {
            self.staged.push(engine.name(hint.file, hint.page));
            if !log.books.has_room() {
                return Ok(());
            }
        }
        let in_sequence = if hint.in_stream { u64::MAX } else { 0 };
        // What was asked for once is worth more than what was not, and may have its place.
        let instead = !log.books.has_room() && self.unasked > 0;
        let refused = match admission.admit(now, key, page, in_sequence, record.rule(), instead || log.books.has_room()) {
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

    /// What was promoted can be read when its batch is written. A summary for each few pages is no waste.
    fn close_batch(&mut self, engine: &CacheEngine) {
        let Some(log) = &mut self.log else { return };
        if log.waiting() >= BATCH_WORTH_WRITING
            && let Err(stop) = log.seal()
        {
            self.stopped(engine, stop);
        }
    }

    /// What nobody asked for stays in frames until the SSD can be read for it, and makes room for what is.
    fn release_staged(&mut self, engine: &CacheEngine) {
        if self.log.as_ref().is_none_or(|log| log.waiting() == 0) || self.staged.len() > STAGED_MOST {
            self.staged.drain(..).for_each(|name| _ = engine.pages.release(name));
        }
    }

    /// A page as it is below: from its frame. Not if it is marked: that goes its own way. One that has left its frame is read again
    /// if that is fast: readers of a slow disk have better use for it.
    fn bytes_of(&mut self, engine: &CacheEngine, hint: &Hint, key: FileKey, bytes: &mut Page) -> bool {
        let at = hint.page * PAGE_BYTES as u64;
        let size = engine.records.get(hint.file).size().load(Ordering::Acquire);
        if at >= size {
            // It is being cut off, and its frame goes last.
            return false;
        }
        if let Some(snapshot) = engine.pages.snapshot(engine.name(hint.file, hint.page), bytes) {
            return snapshot.marks.is_none();
        }
        if hint.was_slow || hint.is_around {
            return false;
        }
        let Ok(below) = self.below(engine, key) else { return false };
        let Ok(got) = below.read_at(at, &mut bytes[..]) else { return false };
        let end = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
        bytes[got.min(end)..].fill(0);
        engine.counters.add(Count::BelowRead, got as u64);
        true
    }

    /// Some frames are always free, so that a miss need not look for one.
    fn free_frames(&self, engine: &CacheEngine) {
        let low = (engine.layout.sizes.frames.frames / FREE_SHARE).max(1);
        if engine.pages.free() < low {
            engine.pages.evict_ahead(low, 2 * low);
        }
    }

    fn tell(&self, engine: &CacheEngine) {
        engine.header.set(Word::Known, self.known.len() as u32);
        // Where its bytes are counted, they are for what was asked for.
        let is_counted = engine.limits.admission.bytes_per_day != u64::MAX;
        let has_room = self.has_log(engine) && !is_counted && self.log.as_ref().is_some_and(|log| log.books.has_room());
        engine.header.set(Word::SsdRoom, has_room.into());
        if let Some(log) = &self.log {
            let (live, dirty) = log.books.len();
            // Those of the catalogue stay dirty for ever, and nobody waits for them.
            let dirty = dirty.saturating_sub(u64::from(log.books.dirty_of(CATALOGUE))) + u64::from(engine.header.get(Word::Unknown));
            let ever = log.books.written_ever_pages() * PAGE_BYTES as u64;
            engine.header.wide(Word::SsdLive).store(live, Ordering::Relaxed);
            engine.header.wide(Word::SsdDirty).store(dirty, Ordering::Relaxed);
            engine.header.wide(Word::SsdEver).store(ever, Ordering::Relaxed);
        }
    }

    /// What a stop means beyond the call that met it.
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

    /// Whether the log takes what is put.
    fn has_log(&self, engine: &CacheEngine) -> bool {
        self.log.is_some() && engine.header.ssd_failed() == 0
    }
}
