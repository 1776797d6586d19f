//! The migration worker: promotion, demotion and write-back, in one place.
//!
//! (Paper 000, section III.B, "The Migration Worker".) It is the thread of whichever process leads. Everything it does can be
//! done twice, for its successor does again what it had not ended: frames stay marked, requests posted, until it is durable.
//!
//! - [`Worker::step`]: one round: requests, old dirty frames, promotions, write-back, room. Nothing in it takes long.
//! - `frames.rs`: marked frames go to the SSD or below. `demote.rs`: dirty pages of the SSD go below; room in the log.
//! - `files.rs`: which file is which, its catalogue entry, its handle below. `asked.rs`: the requests.

mod asked;
mod demote;
mod files;
mod frames;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use block::{Error, Time};
use pagecache::shared::{Name, Which};
use rustix::io::Errno;
use shm::futex;
use ssdcache::{Admission, FileKey, Lookup, PAGE_BYTES, Page, PageIndex, Verdict, Version};

use crate::shelf::layout::Word;
use crate::shelf::log::{Log, Stop};
use crate::shelf::{Asked, CATALOGUE, Count, FileNo, Hint, Shelf};
use files::Known;

/// How long the leader sleeps when nothing is to be done: dead processes are looked for then.
const IDLE: Duration = Duration::from_millis(100);
/// Pages handled in one step, so that requests wait for no more.
const STEP_PAGES: usize = 256;
/// Pages of hints in one step.
const STEP_HINTS: usize = 256;
/// Frames are kept free from this share on, up to twice as many: 1 of 64.
const FREE_SHARE: u32 = 64;

/// Leads. See the module.
pub struct Worker {
    log: Option<Log>,
    admission: Option<Admission>,
    known: BTreeMap<FileKey, Known>,
    hints_read: u64,
    asked: Vec<Asked>,
    hints: Vec<Hint>,
    marked: Vec<(Name, u32)>,
    /// Where the write-back sweep has come to.
    swept: (FileKey, PageIndex),
    begun: Instant,
    last_reap: u32,
    last_idle_work: u32,
    below_reads: u64,
    making_room: bool,
    /// Dirty pages that the SSD cannot give back, and that were told.
    lost: HashSet<(FileKey, PageIndex)>,
    /// The file that is to be cut, and to which length, which its entry says already: a sync of it does not make that durable.
    cutting: Option<(FileKey, u64)>,
}

impl Worker {
    /// Takes the lead over: recovers the SSD, takes up what was asked.
    pub fn begin(shelf: &Shelf) -> Box<Worker> {
        shelf.header.word(Word::Term).fetch_add(1, Ordering::AcqRel);
        let mut worker = Box::new(Worker {
            log: None,
            admission: None,
            known: BTreeMap::new(),
            hints_read: 0,
            asked: Vec::new(),
            hints: Vec::new(),
            marked: Vec::new(),
            swept: (FileKey(0), PageIndex(0)),
            begun: Instant::now(),
            last_reap: shelf.world.now_ms(),
            last_idle_work: shelf.world.now_ms(),
            below_reads: 0,
            making_room: false,
            lost: HashSet::new(),
            cutting: None,
        });
        worker.open_log(shelf);
        // What the last one had taken is posted again; then the requests of the dead are reaped with them, and what they had begun
        // to cut is cut on the SSD too.
        shelf.requests.again();
        worker.reap(shelf);
        worker.end_others_writing(shelf);
        // What the last one told may be less: its marks that pages are below may not have been durable.
        worker.tell(shelf);
        worker
    }

    fn open_log(&mut self, shelf: &Shelf) {
        let (Some(device), Some(shape)) = (&shelf.plain, shelf.layout.sizes.ssd) else { return };
        // Each has a page there, or is open.
        let files = shape.slots().saturating_add(shelf.records.count).min(crate::shelf::FILES_MAX - 1);
        let begun = Instant::now();
        let held: Vec<_> = (shelf.records.all()).filter_map(|(_, record)| Some((record.key()?, record.on_ssd()?))).collect();
        let published = (&shelf.header.0, shelf.layout.ssd);
        match Log::open(&**device, files, published, &held, shelf.counters.clone()) {
            Ok((log, found)) => {
                if found.damaged > 0 || !found.suspect.is_empty() {
                    let (damaged, suspect) = (found.damaged, found.suspect.len());
                    shelf.world.report(&format!("the SSD cache is damaged: {damaged} segments incomplete, {suspect} dirty pages given up"));
                    shelf.header.wide(Word::Lost).fetch_add(suspect as u64, Ordering::Relaxed);
                }
                self.admission = Some(Admission::new(shelf.limits.admission, self.now()));
                shelf.header.wide(Word::SsdFound).store(log.books.len().0, Ordering::Relaxed);
                self.log = Some(log);
                shelf.header.set(Word::RecoveryMs, begun.elapsed().as_millis().min(u32::MAX.into()) as u32);
            }
            Err(error) => {
                shelf.world.report(&format!("the SSD cache cannot be opened: {error}"));
                shelf.header.set(Word::SsdErrno, Errno::IO.raw_os_error() as u32);
                shelf.header.set(Word::SsdFailed, NEVER_OPENED);
            }
        }
    }

    /// Leads until the process detaches.
    pub(crate) fn run(shelf: &Arc<Shelf>) {
        let mut worker = Worker::begin(shelf);
        while !shelf.stopping.load(Ordering::Acquire) {
            let bell = shelf.header.get(Word::Bell);
            if worker.step(shelf) {
                continue;
            }
            shelf.header.word(Word::Asleep).store(1, Ordering::SeqCst);
            if shelf.header.word(Word::Bell).load(Ordering::SeqCst) == bell {
                futex::wait(shelf.header.word(Word::Bell), bell, Some(worker.rest(shelf)));
            }
            shelf.header.word(Word::Asleep).store(0, Ordering::SeqCst);
        }
        worker.end();
    }

    /// Leaves the log in good order for the next one.
    pub fn end(&mut self) {
        if let Some(log) = &mut self.log {
            let _ = log.flush();
        }
    }

    /// Until when nothing is to be done: hints wait for a moment, so that they come together.
    fn rest(&self, shelf: &Shelf) -> Duration {
        if shelf.hints.waiting(self.hints_read) { Duration::from_millis(5) } else { IDLE }
    }

    /// One round; whether there was something to do.
    pub fn step(&mut self, shelf: &Shelf) -> bool {
        let now = shelf.world.now_ms();
        if now.wrapping_sub(self.last_reap) >= IDLE.as_millis() as u32 {
            self.last_reap = now;
            self.reap(shelf);
        }
        let mut busy = self.answer(shelf);
        busy |= self.age(shelf);
        busy |= self.promote(shelf);
        busy |= self.write_back_ahead(shelf);
        self.free_frames(shelf);
        self.tell(shelf);
        busy
    }

    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }

    /// Dead processes: their locks, frames, pins, requests and opens.
    fn reap(&mut self, shelf: &Shelf) {
        for dead in shelf.seats.dead() {
            shelf.pages.reap(dead);
            shelf.requests.reap(dead);
            for no in (0..shelf.records.count).map(FileNo) {
                if shelf.records.lock_of(no).owner() == Some(dead)
                    && let Some(held) = shelf.records.lock_of(no).take_over()
                {
                    self.mend(shelf, no);
                    drop(held);
                }
            }
            let lock = shelf.records.lock();
            if lock.owner() == Some(dead) {
                drop(lock.lock());
            }
            shelf.records.reap(dead);
            shelf.seats.clear(dead);
        }
    }

    /// Frames that have been dirty for long, or are too many.
    fn age(&mut self, shelf: &Shelf) -> bool {
        let count = shelf.pages.marked_count();
        if count == 0 {
            return false;
        }
        let crowded = count > shelf.header.get(Word::DirtyLimit) / 2;
        let which = if crowded {
            Which::All
        } else {
            let age = shelf.header.get(Word::DirtyAge);
            Which::OlderThan(shelf.world.now_ms().wrapping_sub(age))
        };
        let mut marked = std::mem::take(&mut self.marked);
        marked.clear();
        shelf.pages.marked(which, STEP_PAGES, &mut marked);
        let cleaned = if marked.is_empty() { 0 } else { self.clean_frames(shelf, &marked).0 };
        self.marked = marked;
        cleaned > 0
    }

    /// Pages that were read below more than once go to the SSD.
    fn promote(&mut self, shelf: &Shelf) -> bool {
        let (Some(log), Some(admission)) = (&mut self.log, &mut self.admission) else { return false };
        self.hints.clear();
        shelf.hints.take(&mut self.hints_read, STEP_HINTS, &mut self.hints);
        if self.hints.is_empty() || shelf.header.get(Word::SsdFailed) != 0 {
            return false;
        }
        let now = Time(self.begun.elapsed().as_nanos() as u64);
        let mut bytes = [0; PAGE_BYTES];
        let mut wanted = Vec::new();
        for hint in &self.hints {
            let record = shelf.records.get(hint.file);
            let Some(key) = record.key() else { continue };
            let page = PageIndex(hint.page);
            if log.books.lookup(key, page) != Lookup::Miss {
                continue;
            }
            let in_sequence = if hint.in_stream { u64::MAX } else { 0 };
            if admission.admit(now, key, page, in_sequence, record.rule()) == Verdict::Admit {
                wanted.push((key, hint.file, page));
            }
        }
        for (key, no, page) in wanted {
            if shelf.records.get(no).key() != Some(key) || !self.bytes_of(shelf, no, key, page, &mut bytes) || self.note(shelf, no).is_err()
            {
                continue;
            }
            let Some(log) = &mut self.log else { return true };
            match log.put(key, page, Version::Clean, &bytes) {
                Ok(()) => {
                    shelf.counters.add(Count::Promoted, 1);
                    if let Some(admission) = &mut self.admission {
                        admission.spend(now, PAGE_BYTES as u64);
                    }
                }
                Err(Stop::Room) => {
                    if self.make_room(shelf).is_err() {
                        break;
                    }
                }
                Err(stop) => {
                    self.stopped(shelf, stop);
                    break;
                }
            }
        }
        true
    }

    /// A page as it is below: from its frame, or read again if it has left. Not if it is marked: that goes its own way.
    fn bytes_of(&mut self, shelf: &Shelf, no: FileNo, key: FileKey, page: PageIndex, bytes: &mut Page) -> bool {
        let at = page.0 * PAGE_BYTES as u64;
        let size = shelf.records.get(no).size().load(Ordering::Acquire);
        if at >= size {
            // It is being cut off, and its frame goes last.
            return false;
        }
        if let Some(snapshot) = shelf.pages.snapshot(shelf.name(no, page.0), bytes) {
            return snapshot.marks.is_none();
        }
        let Ok(below) = self.below(shelf, key) else { return false };
        let Ok(got) = below.read_at(at, &mut bytes[..]) else { return false };
        let end = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
        bytes[got.min(end)..].fill(0);
        shelf.counters.add(Count::BelowRead, got as u64);
        true
    }

    /// Some frames are always free, so that a miss need not look for one.
    fn free_frames(&self, shelf: &Shelf) {
        let low = (shelf.layout.sizes.frames.frames / FREE_SHARE).max(1);
        if shelf.pages.free() < low {
            shelf.pages.evict_ahead(low, 2 * low);
        }
    }

    fn tell(&self, shelf: &Shelf) {
        if let Some(log) = &self.log {
            let (live, dirty) = log.books.len();
            // Those of the catalogue stay dirty for ever, and nobody waits for them.
            let dirty = dirty - u64::from(log.books.dirty_of(CATALOGUE));
            let ever = log.books.written_ever_pages() * PAGE_BYTES as u64;
            shelf.header.wide(Word::SsdLive).store(live, Ordering::Relaxed);
            shelf.header.wide(Word::SsdDirty).store(dirty, Ordering::Relaxed);
            shelf.header.wide(Word::SsdEver).store(ever, Ordering::Relaxed);
        }
    }

    /// What a stop means beyond the call that met it.
    fn stopped(&mut self, shelf: &Shelf, stop: Stop) -> Errno {
        match stop {
            Stop::Room => Errno::NOSPC,
            Stop::Never | Stop::Changed => Errno::INVAL,
            Stop::Failed(error) => {
                self.fail(shelf, error);
                Errno::IO
            }
        }
    }

    /// The SSD is not used any more, and everybody is told.
    fn fail(&mut self, shelf: &Shelf, error: Error) {
        if shelf.header.get(Word::SsdFailed) != 0 {
            return;
        }
        shelf.header.set(Word::SsdErrno, error.errno() as u32);
        shelf.header.set(Word::SsdFailed, FAILED);
        shelf.world.report(&format!("the SSD failed ({error}): from now on reads and writes go to the files below"));
    }

    /// Whether the log takes what is put.
    fn has_log(&self, shelf: &Shelf) -> bool {
        self.log.is_some() && shelf.header.get(Word::SsdFailed) == 0
    }
}

/// What `SsdFailed` says: worked once, and then not.
const FAILED: u32 = 1;
/// It says: what is on it is not known.
pub(crate) const NEVER_OPENED: u32 = 2;
