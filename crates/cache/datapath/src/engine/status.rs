//! Inspection without moving data: for status commands, for processes that are not attached, and for calls by path.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagecache::{Marks, SharedPages};
use rustix::io::Errno;
use shm::{ProcessSlot, ProcessSlots, Region};
use ssdcache::{FileKey, Mode, PAGE_BYTES, PageIndex, View};

use super::counters::Counters;
use super::layout::{Header, Layout, SegmentError, Sizes, Word};
use super::open::{Open, OpenFileError, errno_of};
use super::own_stamp::{Difference, OwnStamp, StampCheck as Compared, TRIES_MAX, Writer, difference};
use super::record::{FileNo, Record, Records, flag};
use super::stall::STALLED;
use super::stamp::Stamp;
use super::{BackingFile, CacheEngine, EngineAttachError, RequestKind, SsdState};

/// The status of a file with a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// The number of the file's record.
    pub no: FileNo,
    /// The key of the file.
    pub key: FileKey,
    /// The last known path of the file.
    pub path: PathBuf,
    /// The length of the file, bytes.
    pub size: u64,
    /// The cache mode of the file.
    pub mode: Mode,
    /// One bit for each process slot that has the file open.
    pub open_by: u64,
    /// Whether another program changed the file while pages were dirty.
    pub is_conflict: bool,
    /// Whether the file has dirty pages and its location is unknown.
    pub is_missing: bool,
    /// The number of failed write-backs, and the error of the last one.
    pub failures: (u32, Option<Errno>),
    /// Whether the failed work was done since.
    pub is_over: bool,
    /// Whether pages of the file are only on a failed SSD.
    pub is_owed: bool,
}

impl Layout {
    /// Returns the position of the process slots in the segment, bytes.
    pub fn processes_at(&self) -> usize {
        self.processes
    }

    /// Returns the sizes that were set when the instance was made.
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

/// A read-only view of a segment for a process that is not attached: it has no process slot, takes no locks and changes nothing.
pub struct EngineStatus {
    header: Header,
    layout: Layout,
    processes: Arc<ProcessSlots>,
    pages: SharedPages,
    records: Records,
    counters: Counters,
}

impl EngineStatus {
    /// Opens a view of the segment in `region`.
    ///
    /// # Errors
    /// Returns an error if the segment cannot be used.
    pub fn at(region: &Arc<Region>, processes: &Arc<ProcessSlots>) -> Result<EngineStatus, EngineAttachError> {
        let layout = Layout::read(region)?;
        // This slot only names an owner: nothing that needs a process slot is called.
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

    /// Returns the mode in force.
    pub fn mode(&self) -> Mode {
        self.header.mode()
    }

    /// Returns the state of the SSD that the leader last published.
    pub fn ssd_state(&self) -> SsdState {
        ssd_state(&self.header)
    }

    /// Returns the counters of all processes.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the metadata of the page cache.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Returns the process slots of the instance.
    pub fn processes(&self) -> &ProcessSlots {
        &self.processes
    }

    /// Returns the sizes that were set when the instance was made.
    pub fn sizes(&self) -> Sizes {
        self.layout.sizes
    }

    /// Returns the byte ranges of a file that only the SSD has: they are lost if it fails and stays unreadable.
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

    /// Returns how many bytes of a file are newer in the cache than in the backing file.
    pub fn dirty_bytes(&self, file: &FileStatus) -> u64 {
        let (page, in_memory) = (PAGE_BYTES as u64, self.pages.dirty_of(pagecache::FileNo(file.no.0)));
        let on_ssd = self.only_on_ssd(file);
        let pages = on_ssd.iter().flat_map(|range| range.start / page..range.end.div_ceil(page));
        let others = pages.filter(|page| !in_memory.contains(&pagecache::PageIndex(*page))).count();
        ((in_memory.len() + others) as u64 * page).min(file.size)
    }

    /// Returns how many frames may be marked before writers wait.
    pub fn dirty_limit(&self) -> u32 {
        self.header.get(Word::DirtyLimit)
    }

    /// Returns the status of all files with a record.
    pub fn files(&self) -> Vec<FileStatus> {
        self.records.seen()
    }
}

impl CacheEngine {
    /// Returns an [`EngineStatus`] of this instance.
    ///
    /// # Errors
    /// Returns an error if the segment was damaged meanwhile.
    pub fn status(&self) -> Result<EngineStatus, EngineAttachError> {
        EngineStatus::at(self.header.region(), &self.processes)
    }

    /// Returns the length and last write time (ns since 1970) of a file with a record. None if the stamp `below` shows a change by another
    /// program, and no cached data is newer.
    pub fn peek(&self, key: FileKey, below: Stamp) -> Option<(u64, u64)> {
        let no = self.records.find(key)?;
        let record = self.records.get(no);
        // Calls bypass the cache: the backing file counts, unless data cached before is still to be written there. A window that a dead
        // leader left open tells nothing about what was written past the cache.
        if record.mode().bypasses_cache(self.mode()) && !self.pages.marked_of(pagecache::FileNo(no.0)) {
            return None;
        }
        if record.own().differs(below) && !self.is_dirty(no).unwrap_or(false) {
            return None;
        }
        let found = (record.size().load(Ordering::Acquire), self.write_time(no, below));
        (record.key() == Some(key)).then_some(found)
    }

    /// Returns the time of the last write, ns since 1970, or 0 if the backing file's attributes `below` show that time or a later one.
    /// While pages are dirty their write is the last change, also of a file whose time was set to one in the future before.
    pub(super) fn write_time(&self, no: FileNo, below: Stamp) -> u64 {
        let record = self.records.get(no);
        let written = record.written().load(Ordering::Relaxed);
        // Only the leader knows whether the SSD has dirty pages. It is not asked in other modes: the noted time is a little older than that
        // of the backing file there, so that each call would ask.
        let is_dirty = || match record.mode().within(self.mode()).keeps_dirty() {
            true => self.is_dirty(no).unwrap_or(false),
            false => self.pages.has_marked(pagecache::FileNo(no.0), Marks::DIRTY),
        };
        let is_shown = match written.cast_signed().cmp(&below.mtime) {
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Less => written == 0 || !is_dirty(),
        };
        if is_shown { 0 } else { written }
    }

    /// Returns whether a file has pages that its backing file does not have yet.
    ///
    /// # Errors
    /// Returns the error of the leader: the SSD may have dirty pages of the file.
    pub fn has_newer_pages(&self, key: FileKey) -> Result<bool, Errno> {
        self.has_record(key)?;
        Ok(self.records.find(key).is_some_and(|no| self.is_dirty(no).unwrap_or(true)))
    }

    /// Returns the last known path of a file that has a record.
    pub fn known_path(&self, key: FileKey) -> Option<PathBuf> {
        let record = self.records.get(self.records.find(key)?);
        let path = record.path();
        (record.key() == Some(key)).then_some(path)
    }

    /// Returns whether a file has a record. One of which the SSD has dirty pages since before a restart gets it now.
    ///
    /// # Errors
    /// Returns the error of the leader: the SSD may have dirty pages of the file.
    pub fn knows(&self, key: FileKey) -> Result<bool, Errno> {
        self.has_record(key)
    }

    /// Withdraws a file that some users of the segment may no longer see. Its dirty data is written back, its bytes and its name are
    /// removed from the segment, and from then on all users bypass the cache.
    ///
    /// # Errors
    /// Returns an error if dirty data cannot be written: it stays.
    pub fn withdraw(&self, key: FileKey) -> Result<(), Errno> {
        self.has_record(key)?;
        let Some(no) = self.records.find(key) else { return Ok(()) };
        let kept = {
            let _table = self.lock_records()?;
            self.keep_record(no, key)
        };
        // Its record was freed just now.
        let Some(kept) = kept else { return Ok(()) };
        let (record, file) = (self.records.get(no), pagecache::FileNo(no.0));
        if record.mode() != Mode::PassThrough {
            self.ask(RequestKind::Mode, no, Mode::PassThrough as u64, 0)?;
        }
        let mut ask = |kind, a| match kind {
            // The leader would open and sync the file for nothing.
            RequestKind::Clean if !self.pages.marked_of(file) && !self.is_dirty(no)? => Ok(0),
            _ => self.ask(kind, no, a, 0),
        };
        // The leader may not be able to open the file, and all that may be stale is dropped anyway.
        let lock = || match self.lock_file_to(no, true) {
            // A process that has stopped does not keep the pages where they may not stay.
            Err(STALLED) => Ok(None),
            held => held.map(Some),
        };
        for _ in 0..TRIES_MAX {
            self.clean_and_drop(no, &lock, &mut || true, &mut ask)?;
            self.close_left_window(no);
            if !self.pages.wipe_free() {
                return Err(STALLED);
            }
            let _table = self.lock_records()?;
            if record.key() != Some(key) {
                // Another process wrote over the record.
                return Err(Errno::IO);
            }
            if self.pages.has_pages(file) {
                // A process that has not noticed pass-through yet has read the file since.
                continue;
            }
            record.set_path(std::path::Path::new(""));
            drop(kept);
            // In another mode, a process has opened it meanwhile, and the SSD may have dirty pages of it.
            if record.mode() == Mode::PassThrough {
                self.free_closed(no, key);
            }
            return Ok(());
        }
        Err(STALLED)
    }

    /// Closes the window that a dead owner of the file's lock left open. No page of the file is cached; the next check of the file takes
    /// that owner's change for one by another program.
    fn close_left_window(&self, no: FileNo) {
        let own = self.records.get(no).own();
        if own.is_open_by(Writer::LockHolder)
            && let Some(held) = self.records.lock_of(no).try_lock()
        {
            if held.was_abandoned() {
                held.abandon();
            } else {
                let Ok(()) = own.close(Writer::LockHolder, || Ok::<_, std::convert::Infallible>(own.get()));
            }
        }
    }

    /// Discards changes that were not written after a conflict: the backing file counts.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn discard(&self, key: FileKey, below: &dyn BackingFile) -> Result<(), Errno> {
        let Some(no) = self.records.find(key) else { return Ok(()) };
        match self.give_up_stranded(no, flag::CONFLICT, Some(below)) {
            // Another process has decided.
            Err(Errno::NOENT) => Ok(()),
            given_up => given_up,
        }
    }
}

/// A caller's advice about its coming reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Advice {
    /// No advice: the access pattern is detected.
    #[default]
    Normal,
    /// Reads go from start to end.
    Sequential,
    /// Reads go to random places.
    Random,
}

impl Open {
    /// Sets how the following reads are read ahead.
    pub fn advise(&self, advice: Advice) {
        self.stream.advice.store(advice as u32, Ordering::Relaxed);
    }

    /// Returns the bytes of sequential reading to assume: the number seen, or what the caller's advice says.
    pub(super) fn advised(&self, in_stream: u64, limit: u64) -> u64 {
        match self.stream.advice.load(Ordering::Relaxed) {
            advice if advice == Advice::Sequential as u32 => limit,
            advice if advice == Advice::Random as u32 => 0,
            _ => in_stream,
        }
    }

    /// Records that the file's times were set: these count, not the time of the last write. `written` is [`Open::written_ns`] from before
    /// all dirty pages were written back for that: the time of a write that came since stays.
    pub fn times_were_set(&self, written: u64) {
        self.record().times_were_set(written, || self.is_dirty().unwrap_or(true));
    }

    /// Returns why a write-back failed, if this handle has not reported it yet.
    pub fn take_unreported(&self) -> Option<Errno> {
        let (failures, errno) = self.record().failures();
        let seen = self.stream.seen.swap(failures, Ordering::AcqRel);
        errno.filter(|_| seen != failures)
    }

    /// Changes the file's mode for all processes that have it open, within the instance's mode.
    ///
    /// # Errors
    /// Returns an error if dirty pages cannot be written.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        self.engine.ask(RequestKind::Mode, self.no, mode as u64, 0).map(drop)
    }
}

impl Open {
    /// Checks whether another program changed the file, and if so drops its cached pages.
    ///
    /// The leader and write-through writers change the file, too. So a check counts only if the record is the same before and after it;
    /// else it is repeated. If it never is, a process of the instance writes all the time.
    ///
    /// # Errors
    /// `Conflict`: the content changed, and there were dirty pages. Each sync fails until the owner decides.
    pub fn look_below(&self) -> Result<(), OpenFileError> {
        let own: OwnStamp<'_> = self.record().own();
        let stamp = || self.below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)));
        for _ in 0..TRIES_MAX {
            match own.look(stamp)? {
                // Changes of our own since do not resolve the conflict.
                Compared::Ours(_) if self.record().has(flag::CONFLICT) => return Err(OpenFileError::Conflict),
                Compared::Ours(_) => return Ok(()),
                // A writer could not close its window and went on: the next owner of the lock closes it.
                Compared::Busy if own.is_open_by(Writer::LockHolder) && self.engine.records.lock_of(self.no).try_lock().is_some() => {}
                Compared::Busy => continue,
                Compared::Changed(_) => {}
            }
            // Nobody writes through while the lock is held.
            let _held = self.engine.lock_file(self.no).map_err(OpenFileError::Failed)?;
            let written = self.written_ns();
            if let Compared::Changed(change) = own.look(stamp)?
                && self.drop_changed(&change)?
            {
                if difference(change.known, change.now) == Difference::Content {
                    self.times_were_set(written);
                }
                return Ok(());
            }
        }
        Ok(())
    }
}
