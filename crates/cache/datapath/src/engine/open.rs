// long: opening a file, and each reason for which its pages may not be trusted then.
//! Opening and closing of cached files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagecache::{Leftover, Marks};
use rustix::io::Errno;
use shm::OwnedLockGuard;
use ssdcache::{AdmissionRule, FileKey, Mode, PAGE_BYTES};

use super::kept_record::RecordUsers;
use super::layout::{NEVER_OPENED, Word};
use super::own_stamp::{Change, Difference, Writer, difference};
use super::record::{CachedRecord, FileNo, PATH_MAX, Record, errno_from, flag};
use super::request::RequestKind;
use super::stall::STALLED;
use super::stamp::Stamp;
use super::stream::Stream;
use super::{BackingFile, CacheEngine};

/// An open file of one user of the engine.
pub struct Open {
    pub(super) engine: Arc<CacheEngine>,
    pub(super) no: FileNo,
    pub(super) key: FileKey,
    pub(super) record: CachedRecord,
    pub(super) below: Arc<dyn BackingFile>,
    pub(super) stream: Stream,
}

/// The reason why a file is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenFileError {
    /// No record is free: use the file without the cache.
    #[error("no record is free for it: too many files are open")]
    NoRecord,
    /// The path is too long: use the file without the cache.
    #[error("its path is longer than {PATH_MAX} bytes")]
    LongPath,
    /// The file's owner has to resolve a conflict.
    #[error("it was changed outside of the cache while the cache held newer pages of it")]
    Conflict,
    /// The SSD cannot be read, and may have newer pages of the file.
    #[error("the cache's SSD cannot be read, and may hold newer pages of it than there are below")]
    Unsure,
    /// The leader could not register the file.
    #[error("the cache: {0}")]
    Failed(Errno),
}

/// Options for opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// The mode wanted. The file gets the mode that trusts the SSD least among all its opens, within the instance's mode at each call.
    pub mode: Mode,
    /// The rule for admission of its pages to the SSD.
    pub rule: AdmissionRule,
    /// Whether the mode of a file that has a record stays: the file is opened for one call on its name or its attributes.
    pub keeps_mode: bool,
}

impl Record<'_> {
    /// Makes a free record that of a file, which has this stamp. The lock of the table is held.
    pub(super) fn begin(self, key: FileKey, path: &Path, stamp: Stamp, mode: Mode) {
        self.clear();
        self.set_path(path);
        self.size().store(stamp.size, Ordering::Release);
        self.own().begin(stamp);
        self.set_mode(mode);
        self.flags().store(flag::UNSYNCED, Ordering::Release);
        self.set_key(Some(key));
    }
}

impl CacheEngine {
    /// Registers an opened file with the cache.
    ///
    /// # Errors
    /// See [`OpenFileError`].
    pub fn open(self: &Arc<Self>, key: FileKey, path: &Path, how: OpenOptions, below: Arc<dyn BackingFile>) -> Result<Open, OpenFileError> {
        use std::os::unix::ffi::OsStrExt;
        let is_long = path.as_os_str().as_bytes().len() > PATH_MAX;
        if key.0 == 0 || is_long && !self.has_record(key).map_err(OpenFileError::Failed)? {
            return Err(if self.may_owe_any_file() { OpenFileError::Unsure } else { OpenFileError::LongPath });
        }
        let (no, is_new) = self.record_or_room_for(key, path, how, &*below)?;
        let record = self.records.kept(no);
        let open = Open { engine: Arc::clone(self), no, key, record, below, stream: Stream::default() };
        open.stream.seen.store(self.records.get(no).failures().0, Ordering::Relaxed);
        // The leader of an SSD that has just failed may not have named all files yet that have dirty pages there. These words come first:
        // a file that it has named by then is found to be registered.
        let is_needed = self.has_ssd() || self.header.get(Word::Unknown) != 0;
        // A caller that finds a record not yet registered sends the request again: the leader answers at once.
        let record = self.records.get(no);
        let is_registered = record.on_ssd().is_some() && !record.has(flag::UNCOMPARED);
        if self.view.is_some() && !is_registered && (is_needed || record.has(flag::UNCOMPARED)) {
            let outcome = self.ask(RequestKind::Open, no, 0, 0);
            if outcome.is_err() && self.is_unsure(no) {
                return Err(OpenFileError::Unsure);
            }
            outcome.map_err(OpenFileError::Failed)?;
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
        if !how.keeps_mode && how.mode > self.records.get(no).mode() {
            self.ask(RequestKind::Mode, no, how.mode as u64, 0).map_err(OpenFileError::Failed)?;
        }
        if open.bypasses_cache() && self.view.is_some() && open.is_dirty().map_err(OpenFileError::Failed)? {
            // Dirty data left on the SSD from another mode; from here on the file is read from the backing file.
            open.clean().map_err(OpenFileError::Failed)?;
        }
        if !open.bypasses_cache() {
            // Otherwise a call past the cache that began in pass-through changes the file after the check, and nothing finds that.
            open.wait_for_past().map_err(OpenFileError::Failed)?;
        }
        // Check again: the leader may just have completed what a crash interrupted.
        open.look_below()?;
        Ok(open)
    }

    /// Records that a call of this process moved directories, all at once: files in them are found there. `moved` returns pairs of the
    /// old and the present path. It is called under the lock of the table: of two moves, the last to be recorded finds the present path.
    pub fn directories_moved(&self, moved: impl FnOnce() -> Vec<(PathBuf, PathBuf)>) {
        // Without the lock, the files are still found by the processes that have them open.
        let Ok(_held) = self.lock_records() else { return };
        let moved = moved();
        for (_, record) in self.records.all().filter(|(_, record)| !record.has(flag::MISSING)) {
            let path = record.path();
            let below = |(from, to): &(PathBuf, PathBuf)| {
                let rest = path.strip_prefix(from).ok().filter(|rest| !rest.as_os_str().is_empty())?;
                Some(to.join(rest))
            };
            if let Some(path) = moved.iter().find_map(below).filter(|path| path.as_os_str().len() <= PATH_MAX) {
                record.set_path(&path);
            }
        }
    }

    /// Returns whether a failed SSD may have unknown pages of the file.
    fn is_unsure(&self, no: FileNo) -> bool {
        match self.header.ssd_failed() {
            0 => false,
            NEVER_OPENED => true,
            _ => self.header.get(Word::Unknown) != 0 && self.records.get(no).on_ssd().is_none(),
        }
    }

    /// Returns the record of a file that this process opens, and whether it was made now.
    pub(crate) fn record_for(
        &self,
        key: FileKey,
        path: &Path,
        how: OpenOptions,
        below: &dyn BackingFile,
    ) -> Result<(FileNo, bool), OpenFileError> {
        let _held = self.lock_records().map_err(OpenFileError::Failed)?;
        let mut opens = self.opens.lock();
        let found = self.records.find(key);
        if let Some(no) = found
            && self.records.get(no).has(flag::UNLINKED)
            && !below.is_removed()
        {
            // It got a name again, or another file has its key, which it may be where the keys are numbers of a server.
            self.records.get(no).flags().fetch_and(!flag::UNLINKED, Ordering::AcqRel);
        }
        let no = match found {
            Some(no) => no,
            // The record that the caller found was freed.
            None if path.as_os_str().len() > PATH_MAX => return Err(OpenFileError::LongPath),
            None => self.free_record(key, &opens).ok_or(OpenFileError::NoRecord)?,
        };
        let record = self.records.get(no);
        let is_same_path = found.is_some() && record.path() == path;
        // The caller found the path before it had the lock, and a rename may have recorded another one since.
        let present = if is_same_path { None } else { below.path().filter(|path| path.as_os_str().len() <= PATH_MAX) };
        let path = present.as_deref().unwrap_or(path);
        if found.is_none() {
            // Take the stamp only now that no process of the instance has the file: the last one may just have written to it.
            let stamp = below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)))?;
            record.begin(key, path, stamp, how.mode);
        } else if !is_same_path && path.as_os_str().len() <= PATH_MAX {
            record.set_path(path);
        }
        // A file that is only kept, or read without being open, does not decide how others use it.
        let is_open_here = opens.get(&no).is_some_and(|users| users.opens > 0);
        let is_open_elsewhere = record.open_by().load(Ordering::Acquire) & !(1 << self.me.0) != 0;
        let may_trust_more = !is_open_here && !is_open_elsewhere && !how.keeps_mode && !record.has(flag::MAPPED);
        if found.is_some() && may_trust_more && how.mode < record.mode() {
            // The opens that trusted the cache less are closed. The check that follows finds changes made past the cache.
            record.set_mode(how.mode);
            self.header.word(Word::ModeChanges).fetch_add(1, Ordering::AcqRel);
        }
        record.flags().fetch_and(!flag::MISSING, Ordering::AcqRel);
        // Before its truncation is repeated, the backing file may have bytes behind the end.
        if found.is_some() && record.has(flag::OWED) && !record.has(flag::UNCOMPARED) {
            // The record may have a length that is too short, from a time when no process reported changes.
            let stamp = below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)))?;
            record.size().fetch_max(stamp.size, Ordering::AcqRel);
        }
        if how.rule != AdmissionRule::Normal || found.is_none() {
            record.set_rule(how.rule);
        }
        record.used().store(self.world.now_ms(), Ordering::Relaxed);
        record.set_open_by(self.me);
        opens.entry(no).or_default().opens += 1;
        Ok((no, found.is_none()))
    }

    /// Frees the record of a file that no process has open, with the frames of it that are left. Returns false if it has to stay. The lock
    /// of the table is held.
    pub(crate) fn free_closed(&self, no: FileNo, key: FileKey) -> bool {
        let record = self.records.get(no);
        let is_open = record.open_by().load(Ordering::Acquire) != 0 || self.opens.lock().contains_key(&no);
        if is_open || record.key() != Some(key) || record.has(flag::OWED | flag::STRANDED | flag::DIRTY_ON_SSD) {
            return false;
        }
        // A process may have opened the file, read or written it, and closed it again, since its pages were dropped.
        if self.pages.drop_clean(pagecache::FileNo(no.0)) != Leftover::None || record.has(flag::DIRTY_ON_SSD) {
            return false;
        }
        record.set_path(Path::new(""));
        record.set_key(None);
        true
    }

    /// Returns a record that no process has open, without dirty pages, and drops the frames cached under it. The lock is held. `opens`:
    /// the records that this process uses, whatever the segment says.
    pub(crate) fn free_record(&self, key: FileKey, opens: &HashMap<FileNo, RecordUsers>) -> Option<FileNo> {
        // A record both free and open was freed by a foreign write, while processes have it open.
        let is_open = |no: FileNo, record: Record<'_>| record.open_by().load(Ordering::Acquire) != 0 || opens.contains_key(&no);
        if let Some((no, record)) = self.records.set_of(key).find(|(no, record)| record.is_free() && !is_open(*no, *record)) {
            if !record.is_given_back() {
                // Likewise after a foreign write: frames of the record's last file must not pass to this one.
                (self.pages.invalidate(pagecache::FileNo(no.0), 0..u64::MAX) == Leftover::None).then_some(())?;
            }
            return Some(no);
        }
        let now = self.world.now_ms();
        let mut closed: Vec<_> = (self.records.set_of(key))
            .filter(|(no, record)| !is_open(*no, *record) && !record.has(flag::OWED | flag::STRANDED | flag::DIRTY_ON_SSD))
            .map(|(no, record)| (now.wrapping_sub(record.used().load(Ordering::Relaxed)), no))
            .collect();
        closed.sort_unstable_by(|a, b| b.cmp(a));
        let is_given_up = |no: &FileNo| {
            // The leader sets the flag before it clears the marks of frames that it has put on the SSD.
            self.pages.drop_clean(pagecache::FileNo(no.0)) == Leftover::None && !self.records.get(*no).has(flag::DIRTY_ON_SSD)
        };
        let no = closed.into_iter().map(|(_, no)| no).find(is_given_up)?;
        self.records.get(no).set_key(None);
        Some(no)
    }
}

impl CacheEngine {
    /// Takes the file's lock, and completes the unfinished work of an owner that died.
    ///
    /// # Errors
    /// [`STALLED`]: a process that makes no progress keeps the lock, or blocks that unfinished work. An error of the SSD or of the backing
    /// file prevents that work. Only users of this file are affected.
    pub(crate) fn lock_file(&self, no: FileNo) -> Result<OwnedLockGuard<'_>, Errno> {
        self.lock_file_to(no, false)
    }

    /// Takes the file's lock as [`CacheEngine::lock_file`] does. `give_up`: the caller drops everything that is cached, so that the stale
    /// pages need not be found first. For a missing file they cannot be.
    pub(super) fn lock_file_to(&self, no: FileNo, give_up: bool) -> Result<OwnedLockGuard<'_>, Errno> {
        let held = self.hold_file(no)?;
        // Truncations and changes of the file need the lock: now that we have it nobody does either, whatever the words say.
        let record = self.records.get(no);
        let is_begun = || record.truncations().load(Ordering::Acquire) % 2 == 1 || record.own().is_open_by(Writer::LockHolder);
        if held.was_abandoned() || is_begun() {
            let is_skipped = |ask| give_up && ask == RequestKind::Stale;
            let mended = self.mend(no, &mut |ask, a, b| if is_skipped(ask) { Ok(()) } else { self.ask(ask, no, a, b).map(drop) });
            if let Err(errno) = mended {
                held.abandon();
                return Err(errno);
            }
        }
        Ok(held)
    }

    /// Completes what the lock's last owner left unfinished when it died: a truncation; a write that reached the backing file but not the
    /// frames; or one that extends the file but did not publish the new length.
    ///
    /// # Errors
    /// [`STALLED`], or the error of the SSD or of the backing file: it is not completed, and the next owner has to complete it.
    pub(crate) fn mend(&self, no: FileNo, ask: &mut dyn FnMut(RequestKind, u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
        let unless_stalled = |result: Result<(), Errno>| if result == Err(STALLED) { result } else { Ok(()) };
        let record = self.records.get(no);
        if record.truncations().load(Ordering::Acquire) % 2 == 1 {
            // If that fails, the backing file is longer than the length users see, which the next truncation repairs.
            unless_stalled(self.truncate(no, record.size().load(Ordering::Acquire), ask))?;
            record.truncations().fetch_add(1, Ordering::AcqRel);
        }
        if record.own().is_open_by(Writer::LockHolder) {
            // If that fails, the next change of ours must not close the window: frames may have older bytes than the file.
            ask(RequestKind::Stale, 0, 0)?;
        }
        self.drop_behind_end(no)
    }

    /// Drops the frames past the end of the file: a writer put them there and died before it published the length. The file's lock is
    /// held. A live writer that a truncation overtook writes its data again afterwards.
    ///
    /// # Errors
    /// [`STALLED`]: some frames may still be there.
    pub(crate) fn drop_behind_end(&self, no: FileNo) -> Result<(), Errno> {
        let (len, page) = (self.records.get(no).size().load(Ordering::Acquire), PAGE_BYTES as u64);
        self.cut_tail(no, len)?;
        self.drop_frames(no, len.div_ceil(page)..u64::MAX)
    }

    /// Zeroes the frame that the file ends in, past the end.
    pub(crate) fn cut_tail(&self, no: FileNo, len: u64) -> Result<(), Errno> {
        let page = PAGE_BYTES as u64;
        let is_cut = len.is_multiple_of(page) || self.pages.cut_tail(self.name(no, len / page), (len % page) as usize);
        if is_cut { Ok(()) } else { Err(STALLED) }
    }

    /// Drops all frames of these pages.
    ///
    /// # Errors
    /// [`STALLED`]: some frames may still be there.
    pub(crate) fn drop_frames(&self, no: FileNo, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        match self.pages.invalidate(pagecache::FileNo(no.0), pages) {
            Leftover::Stuck => Err(STALLED),
            _ => Ok(()),
        }
    }

    /// Drops the frames past the new end, and zeroes the rest of the last one. The leader does the same on the SSD and in the backing
    /// file.
    pub(super) fn truncate(
        &self,
        no: FileNo,
        len: u64,
        ask: &mut dyn FnMut(RequestKind, u64, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // The leader also truncates the frame before writing it anywhere; but a reader may have inserted the old bytes since.
        ask(RequestKind::Truncate, len, 0)?;
        self.cut_tail(no, len)?;
        // This comes last: while the frames are there, nobody sees the older bytes on the SSD or in the backing file.
        self.drop_frames(no, len.div_ceil(PAGE_BYTES as u64)..u64::MAX)
    }

    /// Returns whether cached pages are newer than the backing file.
    pub(super) fn is_dirty(&self, no: FileNo) -> Result<bool, Errno> {
        self.is_dirty_by(no, &mut |kind, a| self.ask(kind, no, a, 0))
    }

    /// Drops cached pages that are not newer than the backing file. The SSD's go first, durably, for the frames cover older pages there.
    pub(crate) fn drop_not_dirty(&self, no: FileNo, ask: &mut dyn FnMut(RequestKind) -> Result<(), Errno>) -> Result<(), Errno> {
        if self.has_ssd() {
            ask(RequestKind::DropClean)?;
        }
        match self.pages.drop_without(pagecache::FileNo(no.0), Marks::DIRTY) {
            Leftover::Stuck => Err(STALLED),
            _ => Ok(()),
        }
    }

    /// Drops the frames of these pages that have no mark. Returns whether no marked frame is left.
    ///
    /// # Errors
    /// [`STALLED`]: some frames may still be there.
    pub(crate) fn drop_unmarked(&self, no: FileNo, pages: std::ops::Range<u64>) -> Result<bool, Errno> {
        let marks = Marks::DIRTY | Marks::SSD_STALE;
        match self.pages.drop_range_without(pagecache::FileNo(no.0), pages, marks) {
            Leftover::Stuck => Err(STALLED),
            left => Ok(left == Leftover::None),
        }
    }

    /// Drops all cached pages of a file, dirty or not; the backing file counts. `below` is None if its location is unknown. The file's
    /// lock is held.
    pub(super) fn give_up(&self, no: FileNo, below: Option<&dyn BackingFile>) -> Result<(), Errno> {
        let record = self.records.get(no);
        let own = record.own();
        // A dead writer left it open, and the caller did not close it.
        let was_open = own.is_open_by(Writer::LockHolder);
        own.open(Writer::LockHolder);
        let is_conflict = record.has(flag::CONFLICT);
        let stamp = || below.map_or(Ok(own.get()), |below| below.stamp().map_err(|error| errno_of(&error)));
        let now = stamp();
        let dropped = now.and_then(|now| {
            self.drop_cached(no, 0..u64::MAX)?;
            if below.is_some() {
                record.size().store(now.size, Ordering::Release);
            }
            // The backing file counts: a truncation that a crash undid is not repeated.
            record.flags().fetch_and(!(flag::STRANDED | flag::UNCOMPARED), Ordering::AcqRel);
            record.succeeded();
            Ok(())
        });
        if dropped == Err(STALLED) {
            self.leave_undecided(no);
        }
        if dropped.is_err() {
            // The window stays open: the next owner of the lock drops what may be older than the file. But a change by another program to
            // a stranded file must still be found; the leader writes nothing to it, so its last stamp remains the right one.
            if !was_open && record.has(flag::STRANDED) {
                own.close(Writer::LockHolder, || Ok::<_, Errno>(own.get()))?;
            }
            return dropped;
        }
        // In a conflict the leader writes nothing, so the next check finds whatever changed since then.
        own.close(Writer::LockHolder, || if is_conflict { now } else { stamp() })
    }

    /// Does the same if the decision is still open.
    ///
    /// # Errors
    /// ENOENT: another process has decided, and pages that are dirty now are newer. Else the error of the leader.
    pub(super) fn give_up_stranded(&self, no: FileNo, why: u32, below: Option<&dyn BackingFile>) -> Result<(), Errno> {
        let _held = self.lock_file_to(no, true)?;
        if self.records.get(no).has(why) { self.give_up(no, below) } else { Err(Errno::NOENT) }
    }

    /// Drops these pages from the cache. If there is an SSD the leader does it: a frame goes only after the older page that it covers is
    /// permanently gone.
    pub(super) fn drop_cached(&self, no: FileNo, pages: std::ops::Range<u64>) -> Result<(), Errno> {
        if self.view.is_some() {
            return self.ask(RequestKind::Drop, no, pages.start, pages.end).map(drop);
        }
        self.drop_frames(no, pages)
    }
}

impl Open {
    /// Returns the length that all users see.
    #[inline]
    pub fn size(&self) -> u64 {
        self.record.size().load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn record(&self) -> Record<'_> {
        self.record.get()
    }

    /// Returns the key of the file.
    pub fn key(&self) -> FileKey {
        self.key
    }

    /// Returns whether the record still belongs to this file.
    #[inline(always)]
    pub(super) fn is_ours(&self) -> bool {
        self.record.is_of(self.key)
    }

    /// Checks that the file's record is sound, before any operation uses it.
    ///
    /// # Errors
    /// EIO: another process overwrote the record. No other file is affected.
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

    /// Returns the number of the file's record.
    pub fn no(&self) -> FileNo {
        self.no
    }

    /// Returns the engine that the file belongs to.
    #[inline]
    pub fn engine(&self) -> &Arc<CacheEngine> {
        &self.engine
    }

    /// Returns the effective mode of the file.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.record().mode().within(self.engine.mode())
    }

    /// Returns whether its calls bypass the cache.
    #[inline]
    pub fn bypasses_cache(&self) -> bool {
        self.record().mode().bypasses_cache(self.engine.mode())
    }

    /// Returns whether the effective mode is write-back.
    #[inline(always)]
    pub(super) fn is_write_back(&self) -> bool {
        self.record().is_write_back() && self.engine.header.is_write_back()
    }

    /// Returns whether the stamp `now` of the backing file shows a change that is not ours.
    pub fn is_changed(&self, now: Stamp) -> bool {
        self.record().own().differs(now)
    }

    /// Returns whether cached pages are newer than the backing file. A page that is only older on the SSD does not count.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn is_dirty(&self) -> Result<bool, Errno> {
        self.check()?;
        self.engine.is_dirty(self.no)
    }

    /// Makes the leader open the backing file now: later it may lack permission, and written data could not reach the file.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn prepare_to_write(&self) -> Result<(), Errno> {
        self.engine.ask(RequestKind::Open, self.no, 2, 0).map(drop)
    }

    /// Drops the cached pages that are not dirty after another program changed the file. The file's lock is held. Returns false if a
    /// process of the instance changed the file meanwhile: check again.
    ///
    /// # Errors
    /// `Conflict`: the content changed, and there are dirty pages. Nothing is dropped, and each sync fails until the owner decides.
    pub(super) fn drop_changed(&self, change: &Change) -> Result<bool, OpenFileError> {
        let record = self.record();
        let size = record.size().load(Ordering::Acquire);
        let is_content = difference(change.known, change.now) == Difference::Content;
        // The change is adopted last: an earlier check, or the next owner after our death, finds it again.
        for is_dropped in [false, true] {
            // Also for pages that were clean and were written since: they contain bytes from before the change.
            if is_content && self.is_dirty().map_err(OpenFileError::Failed)? {
                // The leader may have changed the file since: then it is unknown whose change that was.
                if record.own().is_open() || record.own().get() != change.known {
                    return Ok(false);
                }
                self.mark_conflict();
                return Err(OpenFileError::Conflict);
            }
            if !is_dropped {
                let mut ask = |kind| self.engine.ask(kind, self.no, 0, 0).map(drop);
                self.engine.drop_not_dirty(self.no, &mut ask).map_err(OpenFileError::Failed)?;
            }
        }
        if is_content {
            // A writer that came after the check keeps the length that it set.
            let _ = record.size().compare_exchange(size, change.now.size, Ordering::AcqRel, Ordering::Acquire);
        }
        let stamp = || self.below.stamp().map_err(|error| OpenFileError::Failed(errno_of(&error)));
        let is_adopted = record.own().adopt(change, Writer::LockHolder, stamp)?;
        if is_content {
            self.engine.notify_of_foreign_change(record);
        }
        Ok(is_adopted)
    }

    /// Marks a conflict for the owner to decide. The leader records it, so that it survives a restart.
    fn mark_conflict(&self) {
        let record = self.record();
        if !record.has(flag::CONFLICT) {
            let _ = self.engine.ask(RequestKind::Conflict, self.no, 0, 0);
            record.flags().fetch_or(flag::CONFLICT, Ordering::AcqRel);
        }
    }

    /// Drops all cached pages, dirty or not: the owner wants the content of the backing file.
    ///
    /// # Errors
    /// Returns the error of the leader.
    pub fn discard(&self) -> Result<(), Errno> {
        let _held = self.engine.lock_file_to(self.no, true)?;
        let outcome = self.engine.give_up(self.no, Some(&*self.below));
        self.engine.notify_of_foreign_change(self.record());
        outcome
    }

    /// Marks the file as unlinked: at its last close its data need not be kept.
    pub fn unlinked(&self) {
        self.record().flags().fetch_or(flag::UNLINKED, Ordering::AcqRel);
    }

    /// Records the present name of the file after a rename. The name is read under the lock of the table: of two renames, the last to be
    /// recorded finds the present name.
    pub fn renamed(&self) {
        // Without the lock, the file is still found by its old name, and through the processes that have it open.
        let Ok(_held) = self.engine.lock_records() else { return };
        if let Some(path) = self.below.path() {
            // A file without a name may have got one.
            self.record().flags().fetch_and(!flag::UNLINKED, Ordering::AcqRel);
            if self.below.is_removed() {
                // Another process has removed it since.
                self.unlinked();
            }
            if path.as_os_str().len() <= PATH_MAX {
                self.record().set_path(&path);
            }
        }
    }

    /// Runs a call of this process that changes the file's attributes (chmod, rename), so that it is not taken for a change from outside.
    ///
    /// # Errors
    /// Returns the error of `change`.
    pub fn ours<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        Open::ours_of(&[self], change)
    }

    /// Does the same for a call that may change size or modification time (fallocate, utimens).
    ///
    /// # Errors
    /// Returns the error of `change`, or of the leader.
    pub fn ours_timed<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.engine.has_ssd() && !self.record().has(flag::THROUGH) {
            // First the file's entry on the SSD records it durably: after a crash the change would look like another program's.
            self.engine.ask(RequestKind::Through, self.no, 0, 0)?;
        }
        self.ours(change)
    }

    /// Does the same for a call that changes several files, such as an exchange of names.
    ///
    /// # Errors
    /// Returns the error of `change`.
    pub fn ours_of<T>(opens: &[&Open], change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        // All callers that take several of these locks use one order.
        let mut opens = opens.to_vec();
        opens.sort_unstable_by_key(|open| open.no);
        opens.dedup_by_key(|open| open.no);
        let _held: Vec<OwnedLockGuard<'_>> = opens.iter().map(|open| open.engine.lock_file(open.no)).collect::<Result<_, _>>()?;
        opens.iter().try_for_each(|open| open.look_locked())?;
        opens.iter().for_each(|open| _ = open.record().own().open(Writer::LockHolder));
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

    /// Checks for changes by other programs before a change of ours hides them. Stale pages are dropped; a conflict stays marked, and each
    /// sync reports it. The file's lock is held.
    ///
    /// # Errors
    /// The stamp of the backing file could not be read, or cached pages could not be dropped.
    pub(super) fn look_locked(&self) -> Result<(), Errno> {
        for _ in 0..super::own_stamp::TRIES_MAX {
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

    /// Drops the frames of these pages that are not newer than the backing file. Returns whether no newer one is left.
    ///
    /// # Errors
    /// ETIMEDOUT: a process that makes no progress keeps a frame.
    pub fn drop_clean_range(&self, pages: std::ops::Range<u64>) -> Result<bool, Errno> {
        self.engine.drop_unmarked(self.no, pages)
    }

    /// Returns when the file was last written, ns since 1970; 0: not since its first open, or not since its times were set.
    pub fn written_ns(&self) -> u64 {
        self.record().written().load(Ordering::Relaxed)
    }

    /// Returns when the file was last written, ns since 1970; 0 if the backing file's attributes `below` show that time or a later one.
    pub fn newer_write_ns(&self, below: Stamp) -> u64 {
        self.engine.write_time(self.no, below)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let engine = &self.engine;
        if !self.below.is_open() {
            // Those who have it open decide what becomes of its data.
            return engine.close_unopened(self.no);
        }
        let is_last_here = engine.opens.lock().get(&self.no).is_some_and(|users| users.opens == 1);
        if is_last_here && !engine.stopping.load(Ordering::Acquire) && self.has_to_be_held() {
            // Do it while this process still has the file open, wherever it was moved. If it fails, the file is found by its name.
            let _ = engine.ask(RequestKind::Hold, self.no, 0, 0);
        }
        let is_removed = self.is_removed() && engine.processes.is_alive(engine.me);
        if engine.close_record(self.no) && is_removed {
            self.drop_removed();
        }
    }
}

impl Open {
    /// Returns whether the file has dirty pages, and only the processes that have it open know its location.
    fn has_to_be_held(&self) -> bool {
        let record = self.record();
        if record.has(flag::HELD | flag::UNLINKED) || record.key() != Some(self.key) || !self.engine.processes.is_alive(self.engine.me) {
            return false;
        }
        if record.written().load(Ordering::Relaxed) == 0 {
            return false;
        }
        // The leader knows which pages of it the SSD has.
        self.engine.view.is_some() || self.engine.pages.has_marked(pagecache::FileNo(self.no.0), Marks::DIRTY)
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, errno_from)
}
