//! What can be seen without moving anything: for status, for who does not take part, for calls by path.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagecache::{MarkFilter, SharedPages};
use rustix::io::Errno;
use shm::{ProcessSlot, ProcessSlots, Region};
use ssdcache::{FileKey, Mode, PAGE_BYTES, PageIndex, View};

use super::counters::Counters;
use super::layout::{Header, Layout, SegmentError, Sizes, Word};
use super::open::{Open, OpenFileError, errno_of};
use super::own_stamp::{Difference, OwnStamp, StampCheck as Compared, Writer, difference};
use super::record::{FileNo, Record, Records, Stamp, flag};
use super::stall::STALLED;
use super::{BackingFile, CacheEngine, EngineAttachError, RequestKind, SsdState};

/// A file with a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// Its number.
    pub no: FileNo,
    /// Its key.
    pub key: FileKey,
    /// Where it was when it was last looked for.
    pub path: PathBuf,
    /// Its length.
    pub size: u64,
    /// Its mode.
    pub mode: Mode,
    /// One bit for each process slot that has it open.
    pub open_by: u64,
    /// Changed outside while pages were dirty.
    pub is_conflict: bool,
    /// It has dirty pages, and nobody knows where it is.
    pub is_missing: bool,
    /// How many write-backs failed, and how the last did.
    pub failures: (u32, Option<Errno>),
    /// What failed could be done since.
    pub is_over: bool,
    /// Only an SSD that failed has pages of it.
    pub is_owed: bool,
}

impl Layout {
    /// Where the table of the process slots is.
    pub fn processes_at(&self) -> usize {
        self.processes
    }

    /// What was decided when the instance was made.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }
}

impl Records {
    fn seen(&self) -> Vec<FileStatus> {
        self.all().filter_map(|(no, record)| seen(no, record)).collect()
    }
}

fn seen(no: FileNo, record: Record<'_>) -> Option<FileStatus> {
    Some(FileStatus {
        no,
        key: record.key()?,
        path: record.path(),
        size: record.size().load(Ordering::Acquire),
        mode: record.mode(),
        open_by: record.open_by().load(Ordering::Acquire),
        is_conflict: record.has(flag::CONFLICT),
        is_missing: record.has(flag::MISSING),
        failures: record.failures(),
        is_over: record.is_over(),
        is_owed: record.has(flag::OWED),
    })
}

pub(super) fn ssd_state(header: &Header) -> SsdState {
    let failed = (header.ssd_failed() != 0).then(|| header.get(Word::SsdErrno));
    let wide = |word| header.wide(word).load(Ordering::Relaxed);
    SsdState {
        failed,
        live: wide(Word::SsdLive),
        dirty: wide(Word::SsdDirty),
        lost: wide(Word::Lost),
        unknown: header.get(Word::Unknown),
        is_unsure: header.ssd_failed() == super::layout::NEVER_OPENED,
        written_ever: wide(Word::SsdEver),
        found: wide(Word::SsdFound),
        recovery_ms: header.get(Word::RecoveryMs),
        leaders: header.get(Word::Term),
        known: header.get(Word::Known),
    }
}

/// A segment as somebody sees it who takes no part: no process slot, no locks, nothing is changed.
pub struct EngineStatus {
    header: Header,
    layout: Layout,
    processes: Arc<ProcessSlots>,
    pages: SharedPages,
    records: Records,
    counters: Counters,
}

impl EngineStatus {
    /// # Errors
    /// The segment cannot be used.
    pub fn at(region: &Arc<Region>, processes: &Arc<ProcessSlots>) -> Result<EngineStatus, EngineAttachError> {
        let layout = Layout::read(region)?;
        // Of no use but to name somebody: nothing that needs a process slot is called.
        let me = ProcessSlot(0);
        let damaged = |error: pagecache::DamagedError| EngineAttachError::Damaged(error.to_string());
        let pages = SharedPages::attach(region, layout.pages, layout.pages_bytes, processes, me).map_err(damaged)?;
        if layout.processes_at() + ProcessSlots::BYTES > region.len() {
            return Err(SegmentError::Damaged.into());
        }
        Ok(EngineStatus {
            header: Header::new(region),
            records: Records::new(region, layout.records, layout.sizes.files, processes, me),
            counters: Counters { region: Arc::clone(region), at: layout.counters, me },
            layout,
            processes: Arc::clone(processes),
            pages,
        })
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.header.mode()
    }

    /// What the leader last said of the SSD.
    pub fn ssd_state(&self) -> SsdState {
        ssd_state(&self.header)
    }

    /// Counters of all processes.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The page cache's books.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Who takes part.
    pub fn processes(&self) -> &ProcessSlots {
        &self.processes
    }

    /// What was decided when it was made.
    pub fn sizes(&self) -> Sizes {
        self.layout.sizes
    }

    /// Bytes of a file that only the SSD has: if it failed, and gives them back no more, they are lost.
    pub fn only_on_ssd(&self, file: &FileStatus) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let (Ok(view), Some(number)) =
            (View::attach(self.header.region(), self.layout.ssd, self.layout.ssd_bytes), self.records.get(file.no).on_ssd())
        else {
            return ranges;
        };
        let page = PAGE_BYTES as u64;
        for n in 0..file.size.div_ceil(page) {
            let is_dirty = matches!(view.lookup(number, file.key, PageIndex(n)), ssdcache::ViewLookup::Hit(found) if found.is_dirty());
            match ranges.last_mut() {
                _ if !is_dirty => {}
                Some(last) if last.end == n * page => last.end = (n + 1) * page,
                _ => ranges.push(n * page..(n + 1) * page),
            }
        }
        ranges.iter_mut().for_each(|range| range.end = range.end.min(file.size));
        ranges
    }

    /// Bytes of a file that are newer here than below.
    pub fn dirty_bytes(&self, file: &FileStatus) -> u64 {
        let mut marked = Vec::new();
        self.pages.marked(MarkFilter::File(pagecache::FileNo(file.no.0)), usize::MAX, &mut marked);
        let on_ssd: u64 = self.only_on_ssd(file).iter().map(|range| range.end - range.start).sum();
        on_ssd.max(marked.len() as u64 * PAGE_BYTES as u64).min(file.size)
    }

    /// Frames that may be marked before writers wait.
    pub fn dirty_limit(&self) -> u32 {
        self.header.get(Word::DirtyLimit)
    }

    /// All files with a record.
    pub fn files(&self) -> Vec<FileStatus> {
        self.records.seen()
    }
}

impl CacheEngine {
    /// As [`EngineStatus`], for one who takes part.
    ///
    /// # Errors
    /// The segment was damaged meanwhile.
    pub fn look(&self) -> Result<EngineStatus, EngineAttachError> {
        EngineStatus::at(self.header.region(), &self.processes)
    }

    /// Length, and when it was written last (ns since 1970), of a file with a record; none if what is below says that others
    /// changed it, and nothing of ours is newer.
    pub fn peek(&self, key: FileKey, below: Stamp) -> Option<(u64, u64)> {
        let no = self.records.find(key)?;
        let record = self.records.get(no);
        // Calls go past the cache: what is below counts, unless what was cached before is still to be written there. A window that a dead
        // leader left open says nothing of what was written past the cache.
        if record.mode().bypasses_cache(self.mode()) && !self.pages.marked_of(pagecache::FileNo(no.0)) {
            return None;
        }
        if record.own().differs(below) && !self.is_dirty(no).unwrap_or(false) {
            return None;
        }
        let found = (record.size().load(Ordering::Acquire), record.written().load(Ordering::Relaxed));
        (record.key() == Some(key)).then_some(found)
    }

    /// Whether a file has a record.
    pub fn knows(&self, key: FileKey) -> bool {
        self.records.find(key).is_some()
    }

    /// A file that not all who share the segment may see any more: what is dirty goes below, nothing of it stays here, neither bytes nor
    /// its name, and from then on all use it past the cache.
    ///
    /// # Errors
    /// What was dirty cannot be written: it stays.
    pub fn withdraw(&self, key: FileKey) -> Result<(), Errno> {
        let Some(no) = self.records.find(key) else { return Ok(()) };
        let record = self.records.get(no);
        if record.mode() != Mode::PassThrough {
            self.ask(RequestKind::Mode, no, Mode::PassThrough as u64, 0)?;
        } else if self.pages.marked_of(pagecache::FileNo(no.0)) {
            self.ask(RequestKind::Clean, no, 0, 0)?;
        }
        self.drop_cached(no, 0..u64::MAX)?;
        if !self.pages.wipe_free() {
            return Err(STALLED);
        }
        let _held = self.lock_records()?;
        if record.key() == Some(key) {
            record.set_path(std::path::Path::new(""));
            // Nobody has it open: it is as if it had never been here.
            if record.open_by().load(Ordering::Acquire) == 0 && !record.has(flag::OWED) {
                record.set_key(None);
            }
        }
        Ok(())
    }

    /// After a conflict: what is below counts, changes that were not written there are forgotten.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn discard(&self, key: FileKey, below: &dyn BackingFile) -> Result<(), Errno> {
        let Some(no) = self.records.find(key) else { return Ok(()) };
        match self.give_up_stranded(no, flag::CONFLICT, Some(below)) {
            // Somebody else has decided.
            Err(Errno::NOENT) => Ok(()),
            given_up => given_up,
        }
    }
}

/// What a caller says of the reads to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Advice {
    /// Nothing: found out by looking.
    #[default]
    Normal,
    /// From begin to end.
    Sequential,
    /// Here and there.
    Random,
}

impl Open {
    /// Reads ahead accordingly.
    pub fn advise(&self, advice: Advice) {
        self.stream.advice.store(advice as u32, Ordering::Relaxed);
    }

    /// Bytes of sequence to go by: what was seen, or what the caller says.
    pub(super) fn advised(&self, in_stream: u64, limit: u64) -> u64 {
        match self.stream.advice.load(Ordering::Relaxed) {
            advice if advice == Advice::Sequential as u32 => limit,
            advice if advice == Advice::Random as u32 => 0,
            _ => in_stream,
        }
    }

    /// Its times were set: they count, not when it was written.
    pub fn times_were_set(&self) {
        self.record().written().store(0, Ordering::Relaxed);
    }

    /// Why a write-back failed since this handle was last told; it is told now.
    pub fn untold(&self) -> Option<Errno> {
        let (failures, errno) = self.record().failures();
        let seen = self.stream.seen.swap(failures, Ordering::AcqRel);
        errno.filter(|_| seen != failures)
    }

    /// Another mode for the file, within the instance's, for all who have it open.
    ///
    /// # Errors
    /// Dirty pages that cannot be written.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        self.engine.ask(RequestKind::Mode, self.no, mode as u64, 0).map(drop)
    }
}

impl Open {
    /// Looks whether somebody else changed the file, and drops what is cached of it if so.
    ///
    /// The leader and those who write through change the file, too: a look counts only if the record said the same before and
    /// after it. Else it is not known, and looked at again; who writes all the time is one of us.
    ///
    /// # Errors
    /// `Conflict`: its bytes were changed, and it had dirty pages; each sync fails until its owner has decided.
    pub fn look_below(&self) -> Result<(), OpenFileError> {
        let own: OwnStamp<'_> = self.record().own();
        let stamp = || self.below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)));
        for _ in 0..LOOKS {
            match own.look(stamp)? {
                // Our own changes since do not end it.
                Compared::Ours(_) if self.record().has(flag::CONFLICT) => return Err(OpenFileError::Conflict),
                Compared::Ours(_) => return Ok(()),
                // Of a writer that could not close its window, and went on: who has the lock closes it.
                Compared::Busy if own.is_open_by(Writer::LockHolder) && self.engine.records.lock_of(self.no).try_lock().is_some() => {}
                Compared::Busy => continue,
                Compared::Changed(_) => {}
            }
            // Nobody writes through while the lock is held.
            let _held = self.engine.lock_file(self.no).map_err(OpenFileError::Failed)?;
            if let Compared::Changed(change) = own.look(stamp)?
                && self.drop_changed(&change)?
            {
                if difference(change.known, change.now) == Difference::Content {
                    self.times_were_set();
                }
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Looks at a file that changes while one looks.
pub(super) const LOOKS: usize = 10;
