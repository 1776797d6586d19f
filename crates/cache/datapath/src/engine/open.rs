//! A file comes and goes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagecache::{FileNameHash, Leftover, Marks};
use rustix::io::Errno;
use shm::OwnedLockGuard;
use ssdcache::{AdmissionRule, FileKey, Mode, PAGE_BYTES};

use super::layout::{NEVER_OPENED, Word};
use super::own_stamp::{Change, Difference, Writer, difference};
use super::record::{CachedRecord, FileNo, PATH_MAX, Record, Stamp, errno_from, flag};
use super::request::RequestKind;
use super::stall::STALLED;
use super::{BackingFile, CacheEngine, Stream};

/// One user's open file.
pub struct Open {
    pub(super) engine: Arc<CacheEngine>,
    pub(super) no: FileNo,
    pub(super) of: FileNameHash,
    pub(super) key: FileKey,
    pub(super) record: CachedRecord,
    pub(super) below: Arc<dyn BackingFile>,
    pub(super) stream: Stream,
}

/// Why a file is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenFileError {
    /// Use it without the cache.
    #[error("no record is free for it: too many files are open")]
    NoRecord,
    /// Use it without the cache.
    #[error("its path is longer than {PATH_MAX} bytes")]
    LongPath,
    /// Its owner has to decide.
    #[error("it was changed outside of the cache while the cache held newer pages of it")]
    Conflict,
    /// The SSD cannot be read, and may have newer pages of it.
    #[error("the cache's SSD cannot be read, and may hold newer pages of it than there are below")]
    Unsure,
    /// The leader could not take it in.
    #[error("the cache: {0}")]
    Failed(Errno),
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// The mode wanted: the file has the one that trusts the SSD least of all its opens, within the instance's at each call.
    pub mode: Mode,
    /// Admission to the SSD.
    pub rule: AdmissionRule,
}

impl CacheEngine {
    /// Takes in a file that was opened.
    ///
    /// # Errors
    /// As [`OpenFileError`] says.
    pub fn open(self: &Arc<Self>, key: FileKey, path: &Path, how: OpenOptions, below: Arc<dyn BackingFile>) -> Result<Open, OpenFileError> {
        use std::os::unix::ffi::OsStrExt;
        if path.as_os_str().as_bytes().len() > PATH_MAX || key.0 == 0 {
            return Err(OpenFileError::LongPath);
        }
        let (no, is_new) = self.record_for(key, path, how, &*below)?;
        let record = self.records.kept(no);
        let of = FileNameHash::new(pagecache::FileNo(no.0));
        let open = Open { engine: Arc::clone(self), no, of, key, record, below, stream: Stream::default() };
        open.stream.seen.store(self.records.get(no).failures().0, Ordering::Relaxed);
        // Who finds a record that is not taken in yet asks again: it is answered at once.
        if self.view.is_some() && self.records.get(no).on_ssd().is_none() && self.has_ssd() {
            let told = self.ask(RequestKind::Open, no, 0, 0);
            if told.is_err() && self.is_unsure(no) {
                return Err(OpenFileError::Unsure);
            }
            told.map_err(OpenFileError::Failed)?;
        }
        if self.is_unsure(no) {
            return Err(OpenFileError::Unsure);
        }
        if is_new && self.view.is_none() {
            return Ok(open);
        }
        if self.records.get(no).has(flag::CONFLICT) {
            return Err(OpenFileError::Conflict);
        }
        if how.mode > self.records.get(no).mode() {
            self.ask(RequestKind::Mode, no, how.mode as u64, 0).map_err(OpenFileError::Failed)?;
        }
        if open.bypasses_cache() && self.view.is_some() && open.is_dirty().map_err(OpenFileError::Failed)? {
            // Left on the SSD in another mode; from here on it is read below.
            open.clean().map_err(OpenFileError::Failed)?;
        }
        // Looked at anew: the leader may just have ended what a crash had cut off.
        open.look_below()?;
        Ok(open)
    }

    /// Whether an SSD that failed may have pages of it that nobody knows of.
    fn is_unsure(&self, no: FileNo) -> bool {
        match self.header.ssd_failed() {
            0 => false,
            NEVER_OPENED => true,
            _ => self.header.get(Word::Unknown) != 0 && self.records.get(no).on_ssd().is_none(),
        }
    }

    fn record_for(&self, key: FileKey, path: &Path, how: OpenOptions, below: &dyn BackingFile) -> Result<(FileNo, bool), OpenFileError> {
        let _held = self.lock_records().map_err(OpenFileError::Failed)?;
        let mut opens = self.opens.lock();
        let found = self.records.find(key);
        let no = match found {
            Some(no) => no,
            None => self.free_record(key, &opens).ok_or(OpenFileError::NoRecord)?,
        };
        let record = self.records.get(no);
        if found.is_none() {
            // Looked at only now that nobody of us has it: who had it a moment ago may have written to it.
            let stamp = below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)))?;
            record.clear();
            record.set_path(path);
            record.size().store(stamp.size, Ordering::Release);
            record.own().begin(stamp);
            record.set_mode(how.mode);
            record.flags().store(flag::UNSYNCED, Ordering::Release);
            record.set_key(Some(key));
        } else if record.path() != path {
            record.set_path(path);
        }
        if found.is_some() && record.open_by().load(Ordering::Acquire) == 0 && how.mode < record.mode() && !record.has(flag::MAPPED) {
            // Those who asked for less trust in the cache have closed it. What was done past the cache is found by the look that follows.
            record.set_mode(how.mode);
            self.header.word(Word::ModeChanges).fetch_add(1, Ordering::AcqRel);
        }
        record.flags().fetch_and(!flag::MISSING, Ordering::AcqRel);
        if found.is_some() && record.has(flag::OWED) {
            // It may have been taken for shorter than it is, while nothing told.
            let stamp = below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)))?;
            record.size().fetch_max(stamp.size, Ordering::AcqRel);
        }
        if how.rule != AdmissionRule::Normal || found.is_none() {
            record.set_rule(how.rule);
        }
        record.used().store(self.world.now_ms(), Ordering::Relaxed);
        record.open_by().fetch_or(1 << self.me.0, Ordering::AcqRel);
        *opens.entry(no).or_default() += 1;
        Ok((no, found.is_none()))
    }

    /// A record nobody has open, without dirty pages; what was cached in RAM under it goes. The lock is held. `opens`: what this process
    /// has
    /// open, whatever the segment says.
    pub(crate) fn free_record(&self, key: FileKey, opens: &HashMap<FileNo, u32>) -> Option<FileNo> {
        // One that is free and open at once, somebody else made free under those who have it open.
        let is_open = |no: FileNo, record: Record<'_>| record.open_by().load(Ordering::Acquire) != 0 || opens.contains_key(&no);
        if let Some((no, record)) = self.records.set_of(key).find(|(no, record)| record.is_free() && !is_open(*no, *record)) {
            if !record.is_given_back() {
                // Likewise: frames of the file that had it must not become this one's.
                (self.pages.invalidate(pagecache::FileNo(no.0), 0..u64::MAX) == Leftover::None).then_some(())?;
            }
            return Some(no);
        }
        let now = self.world.now_ms();
        let mut closed: Vec<_> = (self.records.set_of(key))
            .filter(|(no, record)| !is_open(*no, *record) && !record.has(flag::OWED | flag::STRANDED))
            .map(|(no, record)| (now.wrapping_sub(record.used().load(Ordering::Relaxed)), no))
            .collect();
        closed.sort_unstable_by(|a, b| b.cmp(a));
        let no = closed.into_iter().map(|(_, no)| no).find(|no| self.pages.drop_clean(pagecache::FileNo(no.0)) == Leftover::None)?;
        self.records.get(no).set_key(None);
        Some(no)
    }
}

impl CacheEngine {
    /// The file's lock; what a dead owner had begun is ended first.
    ///
    /// # Errors
    /// [`STALLED`]: a process that does not go on keeps it, or what was begun with it from being ended. Only this file's users suffer
    /// from that.
    pub(crate) fn lock_file(&self, no: FileNo) -> Result<OwnedLockGuard<'_>, Errno> {
        let held = self.hold_file(no)?;
        // Who truncates has the lock, or changes the file: now that we have it, nobody does, whatever the words say.
        let record = self.records.get(no);
        let is_begun = || record.truncations().load(Ordering::Acquire) % 2 == 1 || record.own().is_open_by(Writer::LockHolder);
        if held.was_abandoned() || is_begun() {
            let mended = self.mend(no, &mut |ask, a, b| self.ask(ask, no, a, b).map(drop));
            if let Err(errno) = mended {
                held.abandon();
                return Err(errno);
            }
        }
        Ok(held)
    }

    /// Ends what the lock's last owner had begun when he died: a truncation, a write that is below and not in the frames, or one that
    /// makes the file longer and has not told.
    ///
    /// # Errors
    /// [`STALLED`]: it is not ended, and the next owner has to.
    pub(crate) fn mend(&self, no: FileNo, ask: &mut dyn FnMut(RequestKind, u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
        let unless_stalled = |result: Result<(), Errno>| if result == Err(STALLED) { result } else { Ok(()) };
        let record = self.records.get(no);
        if record.truncations().load(Ordering::Acquire) % 2 == 1 {
            // If that fails the file is longer below than its users think, which the next truncation mends.
            unless_stalled(self.truncate(no, record.size().load(Ordering::Acquire), ask))?;
            record.truncations().fetch_add(1, Ordering::AcqRel);
        }
        if record.own().is_open_by(Writer::LockHolder) {
            // If that fails the window stays open, and nobody takes what is below for a change from outside.
            unless_stalled(ask(RequestKind::Stale, 0, 0))?;
        }
        self.drop_behind_end(no)
    }

    /// What is in frames behind the end: put there by who died before he told of it. The file's lock is held; who lives, and was
    /// overtaken by a truncation, writes it again after this.
    ///
    /// # Errors
    /// [`STALLED`]: some may be there still.
    pub(crate) fn drop_behind_end(&self, no: FileNo) -> Result<(), Errno> {
        let (len, page) = (self.records.get(no).size().load(Ordering::Acquire), PAGE_BYTES as u64);
        self.cut_tail(no, len)?;
        self.drop_frames(no, len.div_ceil(page)..u64::MAX)
    }

    /// The rest of the frame the file ends in is zero.
    pub(crate) fn cut_tail(&self, no: FileNo, len: u64) -> Result<(), Errno> {
        let page = PAGE_BYTES as u64;
        let is_cut = len.is_multiple_of(page) || self.pages.cut_tail(self.name(no, len / page), (len % page) as usize);
        if is_cut { Ok(()) } else { Err(STALLED) }
    }

    /// Nothing of these pages is in frames any more.
    ///
    /// # Errors
    /// [`STALLED`]: some may be there still.
    pub(crate) fn drop_frames(&self, no: FileNo, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        match self.pages.invalidate(pagecache::FileNo(no.0), pages) {
            Leftover::Stuck => Err(STALLED),
            _ => Ok(()),
        }
    }

    /// Frames behind the end go, and the rest of the last one is zero; the leader does the same on the SSD and below.
    pub(super) fn truncate(
        &self,
        no: FileNo,
        len: u64,
        ask: &mut dyn FnMut(RequestKind, u64, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // The leader cuts the frame, too, before it can put it anywhere; but somebody may have brought it as it was.
        ask(RequestKind::Truncate, len, 0)?;
        self.cut_tail(no, len)?;
        // Last: while they are there nobody sees what is older, on the SSD or below.
        self.drop_frames(no, len.div_ceil(PAGE_BYTES as u64)..u64::MAX)
    }

    /// Returns whether pages of the file are newer than the file.
    pub(super) fn is_dirty(&self, no: FileNo) -> Result<bool, Errno> {
        Ok(self.pages.has_marked(pagecache::FileNo(no.0), Marks::DIRTY)
            || (self.view.is_some() && self.ask(RequestKind::Open, no, 1, 0)? > 0))
    }

    /// Drops what is cached of a file and not newer than the file: on the SSD first, durably, for the frames cover what is older there.
    pub(crate) fn drop_not_dirty(&self, no: FileNo, ask: &mut dyn FnMut(RequestKind) -> Result<(), Errno>) -> Result<(), Errno> {
        if self.has_ssd() {
            ask(RequestKind::DropClean)?;
        }
        match self.pages.drop_without(pagecache::FileNo(no.0), Marks::DIRTY) {
            Leftover::Stuck => Err(STALLED),
            _ => Ok(()),
        }
    }

    /// Drops the frames of these pages that have no mark. Returns whether no marked one is left.
    ///
    /// # Errors
    /// [`STALLED`]: some may be there still.
    pub(crate) fn drop_unmarked(&self, no: FileNo, pages: std::ops::Range<u64>) -> Result<bool, Errno> {
        let marks = Marks::DIRTY | Marks::SSD_STALE;
        match self.pages.drop_range_without(pagecache::FileNo(no.0), pages, marks) {
            Leftover::Stuck => Err(STALLED),
            left => Ok(left == Leftover::None),
        }
    }

    /// Gives up what is cached of a file, dirty or not; the file as it is below counts. None: nobody knows where that is. The file's
    /// lock is held.
    pub(super) fn give_up(&self, no: FileNo, below: Option<&dyn BackingFile>) -> Result<(), Errno> {
        let record = self.records.get(no);
        let own = record.own();
        own.open(Writer::LockHolder);
        let is_conflict = record.has(flag::CONFLICT);
        let stamp = || below.map_or(Ok(own.get()), |below| below.stamp().map_err(|error| errno_of(&error)));
        let now = stamp();
        let dropped = now.and_then(|now| {
            self.drop_cached(no, 0..u64::MAX)?;
            if below.is_some() {
                record.size().store(now.size, Ordering::Release);
            }
            record.flags().fetch_and(!flag::STRANDED, Ordering::AcqRel);
            record.succeeded();
            Ok(())
        });
        if dropped == Err(STALLED) {
            self.leave_undecided(no);
        }
        // In a conflict the leader writes nothing, so what was changed since then is found by the next look.
        own.close(Writer::LockHolder, || if is_conflict { now } else { stamp() })?;
        dropped
    }

    /// As above, if that is still to be decided.
    ///
    /// # Errors
    /// ENOENT: somebody else has decided, and what is dirty now is newer. The leader's.
    pub(super) fn give_up_stranded(&self, no: FileNo, why: u32, below: Option<&dyn BackingFile>) -> Result<(), Errno> {
        let _held = self.lock_file(no)?;
        if self.records.get(no).has(why) { self.give_up(no, below) } else { Err(Errno::NOENT) }
    }

    /// Nothing of these pages is cached any more. The leader does it where there is an SSD: the frames go when what they were
    /// newer than is gone for good.
    pub(super) fn drop_cached(&self, no: FileNo, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        if self.view.is_some() {
            return self.ask(RequestKind::Drop, no, pages.start, pages.end).map(drop);
        }
        self.drop_frames(no, pages)
    }
}

impl Open {
    /// The length all users see.
    #[inline]
    pub fn size(&self) -> u64 {
        self.record.size().load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn record(&self) -> Record<'_> {
        self.record.get()
    }

    /// Its key.
    pub fn key(&self) -> FileKey {
        self.key
    }

    /// Whether the record is still this file's.
    #[inline(always)]
    pub(super) fn is_ours(&self) -> bool {
        self.record.is_of(self.key)
    }

    /// Looks whether the file's record is whole, before anything is done by it.
    ///
    /// # Errors
    /// EIO: somebody wrote over it. No other file suffers from that.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.record().is_sound(self.key) { Ok(()) } else { Err(self.broken()) }
    }

    #[cold]
    #[inline(never)]
    fn broken(&self) -> Errno {
        let words = "the record of a file in the cache's shared memory is broken: somebody wrote over it; calls on that file fail";
        self.engine.world.report(words);
        Errno::IO
    }

    /// Its record.
    pub fn no(&self) -> FileNo {
        self.no
    }

    /// The engine.
    #[inline]
    pub fn engine(&self) -> &Arc<CacheEngine> {
        &self.engine
    }

    /// The file's mode.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.record().mode().within(self.engine.mode())
    }

    /// Returns whether its calls bypass the cache.
    #[inline]
    pub fn bypasses_cache(&self) -> bool {
        self.record().mode().bypasses_cache(self.engine.mode())
    }

    /// Whether that is write-back.
    #[inline(always)]
    pub(super) fn is_write_back(&self) -> bool {
        self.record().is_write_back() && self.engine.header.is_write_back()
    }

    /// Whether a look at the file below shows a change that is not ours.
    pub fn is_changed(&self, now: Stamp) -> bool {
        self.record().own().differs(now)
    }

    /// Whether pages of it are newer than below. What is only older on the SSD than below does not count.
    ///
    /// # Errors
    /// The leader's.
    pub fn is_dirty(&self) -> Result<bool, Errno> {
        self.check()?;
        self.engine.is_dirty(self.no)
    }

    /// The leader opens it below now: later it may not be allowed to, and what was written would have no way there.
    ///
    /// # Errors
    /// The leader's.
    pub fn prepare_to_write(&self) -> Result<(), Errno> {
        self.engine.ask(RequestKind::Open, self.no, 2, 0).map(drop)
    }

    /// Somebody else changed the file: what is cached of it and not dirty is dropped, without a word. The file's lock is held. False:
    /// one of us changed it meanwhile, and it is to be looked at again.
    ///
    /// # Errors
    /// `Conflict`: its bytes were changed, and it had dirty pages. Nothing is dropped, and each sync fails until its owner has decided.
    pub(super) fn drop_changed(&self, change: &Change) -> Result<bool, OpenFileError> {
        let record = self.record();
        let size = record.size().load(Ordering::Acquire);
        let is_content = difference(change.known, change.now) == Difference::Content;
        // The change is known last of all: who looks before that finds it, too, and so does who comes after our death.
        for is_dropped in [false, true] {
            // Also of pages that were as below, and were written since: then they have bytes from before the change.
            if is_content && self.is_dirty().map_err(OpenFileError::Failed)? {
                // The leader may have changed it since: then it is not known whose change that was.
                if record.own().is_open() || record.own().get() != change.known {
                    return Ok(false);
                }
                self.mark_conflict();
                return Err(OpenFileError::Conflict);
            }
            if !is_dropped {
                let mut ask = |ask| self.engine.ask(ask, self.no, 0, 0).map(drop);
                self.engine.drop_not_dirty(self.no, &mut ask).map_err(OpenFileError::Failed)?;
            }
        }
        if is_content {
            // Whoever wrote since we looked keeps the length he gave it.
            let _ = record.size().compare_exchange(size, change.now.size, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(record.own().adopt(change, Writer::LockHolder))
    }

    /// Its owner has to decide. The leader says so, also to who comes after a restart.
    fn mark_conflict(&self) {
        let record = self.record();
        if !record.has(flag::CONFLICT) {
            let _ = self.engine.ask(RequestKind::Conflict, self.no, 0, 0);
            record.flags().fetch_or(flag::CONFLICT, Ordering::AcqRel);
        }
    }

    /// Nothing of it is cached any more, dirty or not: its owner wants what is below.
    ///
    /// # Errors
    /// The leader's.
    pub fn discard(&self) -> Result<(), Errno> {
        let _held = self.engine.lock_file(self.no)?;
        self.engine.give_up(self.no, Some(&*self.below))
    }

    /// It has no name any more: nothing of it needs to be kept when it is closed.
    pub fn unlinked(&self) {
        self.record().flags().fetch_or(flag::UNLINKED, Ordering::AcqRel);
    }

    /// It has another name.
    pub fn renamed(&self, path: &Path) {
        // Else it is looked for by its old name, and by the processes that have it open.
        let Ok(_held) = self.engine.lock_records() else { return };
        self.record().set_path(path);
    }

    /// Does what changes the file's attributes below in our name (chmod, rename): afterwards that is no change from outside.
    ///
    /// # Errors
    /// What `change` answers.
    pub fn ours<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        Open::ours_of(&[self], change)
    }

    /// Likewise what may change its size or its time of modification (fallocate, utimens).
    ///
    /// # Errors
    /// What `change` answers, or the leader.
    pub fn ours_timed<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.engine.has_ssd() && !self.record().has(flag::THROUGH) {
            // The file's entry on the SSD says so first, durably: else, after a crash, that would be another program's change.
            self.engine.ask(RequestKind::Through, self.no, 0, 0)?;
        }
        self.ours(change)
    }

    /// Likewise what changes several files, such as an exchange of names.
    ///
    /// # Errors
    /// What `change` answers.
    pub fn ours_of<T>(opens: &[&Open], change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        // One order for everybody who takes several of these locks.
        let mut opens = opens.to_vec();
        opens.sort_unstable_by_key(|open| open.no);
        opens.dedup_by_key(|open| open.no);
        let _held: Vec<OwnedLockGuard<'_>> = opens.iter().map(|open| open.engine.lock_file(open.no)).collect::<Result<_, _>>()?;
        opens.iter().try_for_each(|open| open.look_locked())?;
        opens.iter().for_each(|open| open.record().own().open(Writer::LockHolder));
        let result = change();
        for open in &opens {
            let record = open.record();
            record.flags().fetch_or(flag::UNSYNCED, Ordering::AcqRel);
            let before = record.own().get().size;
            // If that fails the window stays open, and the next owner of the lock closes it.
            let _ = record.own().close(Writer::LockHolder, || open.below.stamp());
            let after = record.own().get().size;
            if result.is_ok() && after > before {
                record.size().fetch_max(after, Ordering::AcqRel);
            }
        }
        result
    }

    /// Before our own change hides another program's: what that changed is dropped, or is a conflict, which stays marked, and each sync
    /// says so. The file's lock is held.
    ///
    /// # Errors
    /// It is not known what is below, or what is cached could not be dropped.
    pub(super) fn look_locked(&self) -> Result<(), Errno> {
        for _ in 0..super::status::LOOKS {
            let super::own_stamp::StampCheck::Changed(change) =
                self.record().own().look(|| self.below.stamp()).map_err(|error| errno_of(&error))?
            else {
                return Ok(());
            };
            match self.drop_changed(&change) {
                Err(OpenFileError::Failed(errno)) => return Err(errno),
                Ok(false) => {}
                Ok(true) | Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Drops the frames of these pages that are not newer than the file. Returns whether no newer one is left.
    ///
    /// # Errors
    /// ETIMEDOUT: a process that does not go on keeps one.
    pub fn drop_clean_range(&self, pages: std::ops::Range<u64>) -> Result<bool, Errno> {
        self.engine.drop_unmarked(self.no, pages)
    }

    /// Nothing of these pages is cached any more: they were written past the cache.
    ///
    /// # Errors
    /// The leader's.
    pub fn drop_pages(&self, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        self.engine.drop_cached(self.no, pages)
    }

    /// When it was written last, ns since 1970; 0: not since it was opened first.
    pub fn written_ns(&self) -> u64 {
        self.record().written().load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let engine = &self.engine;
        let record = engine.records.get(self.no);
        let is_last_here = engine.opens.lock().get(&self.no).is_some_and(|count| *count == 1);
        if is_last_here && !engine.stopping.load(Ordering::Acquire) && self.has_to_be_held() {
            // While this process still has it open, wherever it was moved to. If that fails it is looked for by its name.
            let _ = engine.ask(RequestKind::Hold, self.no, 0, 0);
        }
        let is_last = {
            let mut opens = engine.opens.lock();
            let Some(count) = opens.get_mut(&self.no) else { return };
            *count -= 1;
            let is_last = *count == 0;
            if is_last {
                opens.remove(&self.no);
            }
            // Under the lock: an open in another thread sets the bit after us.
            is_last && record.open_by().fetch_and(!(1 << engine.me.0), Ordering::AcqRel) == 1 << engine.me.0
        };
        if is_last && record.has(flag::UNLINKED) && record.key() == Some(self.key) {
            if engine.stopping.load(Ordering::Acquire) {
                let _ = engine.drop_frames(self.no, 0..u64::MAX);
            } else {
                let _ = engine.drop_cached(self.no, 0..u64::MAX);
            }
        }
    }
}

impl Open {
    /// Whether it has dirty pages, and only processes that have it open know where it is.
    fn has_to_be_held(&self) -> bool {
        let record = self.record();
        if record.has(flag::HELD | flag::UNLINKED) || record.key() != Some(self.key) || !self.engine.processes.is_alive(self.engine.me) {
            return false;
        }
        if record.written().load(Ordering::Relaxed) == 0 {
            return false;
        }
        // What the SSD has of it the leader knows.
        self.engine.view.is_some() || self.engine.pages.has_marked(pagecache::FileNo(self.no.0), Marks::DIRTY)
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, errno_from)
}
