//! The path of a write: into a frame, which is marked. With write-through and write-around the backing file is written too, before the
//! call returns.

use std::sync::atomic::Ordering;
use std::time::Instant;

use pagecache::{Inserted, Marks, WriteOutcome};
use rustix::io::Errno;
use ssdcache::{Mode, PAGE_BYTES};

use super::counters::{Count, Tier};
use super::layout::Word;
use super::open::{Open, errno_of};
use super::own_stamp::Writer;
use super::record::{FILE_BYTES_MAX, flag};
use super::stall::STALLED;
use super::{RequestKind, Retries};

/// Attempts to make room for a writer before the time limit applies. Others may take the room, and each attempt may take as long as the
/// backing file is slow.
const ROOMS: u32 = 1000;

/// Returns the end of a write, as a byte of the file.
///
/// # Errors
/// EFBIG: no page has a name there. The caller must write so far past the cache.
fn end_of(at: u64, from: &[u8]) -> Result<u64, Errno> {
    at.checked_add(from.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::FBIG)
}

/// The result of an attempt to insert a page for a writer.
enum InsertStep {
    /// The page is written.
    Done,
    /// Another thread or process changed the page: try again.
    Again,
    /// Room was made: try again.
    Room,
}

impl Open {
    /// Writes all of `from` at byte `at`, as pwrite does.
    ///
    /// # Errors
    /// EROFS in read-only mode; EIO, ENOSPC and others if room must be made first and the backing file takes nothing; with write-through
    /// the error of the backing file. Part of the data may be written then.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        match self.find_page_to_write(at) {
            Some(page) if page.write(from) => Ok(from.len()),
            _ => self.write_long(at, from),
        }
    }

    /// Does the same as [`Open::write`] where the fast path ([`super::FoundPage::write`]) does not apply.
    ///
    /// # Errors
    /// As [`Open::write`].
    #[inline(never)]
    pub fn write_long(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        let outcome = self.write_unnotified(at, from);
        // Also after an error: part of it may be written.
        self.notify_of_change();
        outcome
    }

    fn write_unnotified(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        if from.is_empty() {
            return Ok(0);
        }
        self.check()?;
        let end = end_of(at, from)?;
        match self.mode() {
            Mode::ReadOnly => return Err(Errno::ROFS),
            Mode::WriteBack => {
                let begun = self.engine.pages.thread_counters().is_write_timed().then(Instant::now);
                self.write_back(at, from, end)?;
                if let Some(begun) = begun {
                    self.engine.counters.write_took(Tier::Ram, begun.elapsed().as_nanos() as u64);
                }
            }
            Mode::WriteThrough | Mode::WriteAround | Mode::PassThrough => {
                let _held = self.engine.lock_file(self.no)?;
                self.write_through(at, from, end)?;
            }
        }
        Ok(from.len())
    }

    /// Appends all of `from`, as write with O_APPEND does: no other append can come in between. Returns the byte where it starts.
    ///
    /// # Errors
    /// As [`Open::write`].
    pub fn append(&self, from: &[u8]) -> Result<u64, Errno> {
        let outcome = self.append_unnotified(from);
        self.notify_of_change();
        outcome
    }

    /// Writes what of `from` lies within the file, which keeps its length: what the kernel writes back from a mapping. Another process may
    /// have shortened the file since.
    ///
    /// # Errors
    /// As [`Open::write`].
    pub fn write_within(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        let outcome = self.write_within_unnotified(at, from);
        self.notify_of_change();
        outcome
    }

    fn write_within_unnotified(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        self.check()?;
        let _held = self.engine.lock_file(self.no)?;
        let within = usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX).min(from.len());
        let from = &from[..within];
        let end = end_of(at, from)?;
        match self.mode() {
            Mode::ReadOnly => return Err(Errno::ROFS),
            _ if from.is_empty() => {}
            Mode::WriteBack => self.write_frames(at, from, end, Marks::DIRTY)?,
            Mode::WriteThrough | Mode::WriteAround | Mode::PassThrough => self.write_through(at, from, end)?,
        }
        Ok(within)
    }

    fn append_unnotified(&self, from: &[u8]) -> Result<u64, Errno> {
        self.check()?;
        let _held = self.engine.lock_file(self.no)?;
        let at = self.size();
        let end = end_of(at, from)?;
        match self.mode() {
            Mode::ReadOnly => return Err(Errno::ROFS),
            Mode::WriteBack => self.write_frames(at, from, end, Marks::DIRTY)?,
            Mode::WriteThrough | Mode::WriteAround | Mode::PassThrough => self.write_through(at, from, end)?,
        }
        Ok(at)
    }

    /// Writes to the backing file first, then to the frames; the file's lock is held. A writer that dies in between leaves frames older
    /// than the file, which the next owner of the lock drops ([`super::CacheEngine::lock_file`]).
    fn write_through(&self, at: u64, from: &[u8], end: u64) -> Result<(), Errno> {
        let mut marks = if self.engine.view.is_some() { Marks::SSD_STALE } else { Marks::NONE };
        let record = self.record();
        if self.engine.has_ssd() && !record.has(flag::THROUGH) {
            self.engine.ask(RequestKind::Through, self.no, 0, 0)?;
        }
        self.look_locked()?;
        if self.is_dirty_on_ssd(at / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64))? {
            // Dirty from another mode: written back later, it would overwrite the new data. That does not matter for pages written whole.
            let cleaned = self.clean();
            for page in self.in_part(at, end).filter(|_| cleaned.is_err()) {
                if self.is_dirty_on_ssd(page..page + 1)? {
                    return cleaned;
                }
            }
            if cleaned.is_err() {
                if record.has(flag::CONFLICT) {
                    return cleaned;
                }
                // The frames are newer than the SSD's dirty pages: they must not be dropped before those are.
                marks = marks | Marks::DIRTY;
            }
        }
        record.own().open(Writer::LockHolder);
        let begun = Instant::now();
        let written = self.below.write_at(at, from).map_err(|error| errno_of(&error));
        self.engine.counters.write_took(Tier::Below, begun.elapsed().as_nanos() as u64);
        // Set it afterwards: a sync that started before does not count.
        record.flags().fetch_or(flag::UNSYNCED, Ordering::AcqRel);
        let framed = written.and_then(|()| self.write_frames(at, from, end, marks));
        if framed.is_err() {
            // The backing file's content is unknown: readers must not get from frames what it may not have. Data that was dirty before
            // stays: its writes were acknowledged, and it must still be written.
            let dropped = self.engine.drop_not_dirty(self.no, &mut |kind| self.engine.ask(kind, self.no, 0, 0).map(drop));
            if dropped == Err(STALLED) {
                self.engine.leave_undecided(self.no);
            }
            dropped?;
        }
        if record.own().close(Writer::LockHolder, || self.below.stamp()).is_ok() && framed.is_err() {
            // Dirty pages may lie past that.
            match record.own().get().size {
                size if self.is_dirty()? => _ = record.size().fetch_max(size, Ordering::AcqRel),
                size => record.size().store(size, Ordering::Release),
            }
        }
        self.engine.counters.add(Count::BelowWrites, 1);
        self.engine.counters.add(Count::BelowWritten, from.len() as u64);
        framed
    }

    /// Returns the pages that a write covers in part: the first, the last, both or none.
    fn in_part(&self, at: u64, end: u64) -> impl Iterator<Item = u64> {
        let page = PAGE_BYTES as u64;
        let first = (!at.is_multiple_of(page)).then_some(at / page);
        let last = (!end.is_multiple_of(page) && end < self.size()).then_some(end / page);
        first.into_iter().chain(last)
    }

    /// Writes to frames, which become newer than the backing file. A writer that extends the file holds its lock meanwhile. So frames past
    /// the end belong to the owner of the lock, or to one that died.
    fn write_back(&self, at: u64, from: &[u8], end: u64) -> Result<(), Errno> {
        let mut tries = Retries::new();
        while tries.again() {
            // A truncation may have dropped this data meanwhile: then write it again after the truncation.
            let before = self.truncations()?;
            if end > self.size() {
                let _held = self.engine.lock_file(self.no)?;
                // Whoever held the lock may have waited for the file to go past the cache.
                return match self.mode() {
                    Mode::ReadOnly => Err(Errno::ROFS),
                    Mode::WriteBack => self.write_frames(at, from, end, Marks::DIRTY),
                    Mode::WriteThrough | Mode::WriteAround | Mode::PassThrough => self.write_through(at, from, end),
                };
            }
            self.write_pages(at, from, Marks::DIRTY)?;
            self.note_time(self.record(), self.engine.world.realtime_ns());
            if !self.was_truncated(before) {
                return Ok(());
            }
        }
        Err(Errno::IO)
    }

    /// Writes to frames with the file's lock held, and extends the file.
    fn write_frames(&self, at: u64, from: &[u8], end: u64, marks: Marks) -> Result<(), Errno> {
        let record = self.record();
        let size_before = self.size();
        self.write_pages(at, from, marks)?;
        let size = record.size().fetch_max(end, Ordering::AcqRel);
        if size_before < end {
            self.touch_again(at, from, [size_before, at.max(size_before), size], marks)?;
        }
        self.note_time(record, self.engine.world.realtime_ns());
        Ok(())
    }

    fn write_pages(&self, at: u64, from: &[u8], marks: Marks) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            let now = at + done as u64;
            let offset = (now % PAGE_BYTES as u64) as usize;
            let len = (PAGE_BYTES - offset).min(from.len() - done);
            self.write_page(now / PAGE_BYTES as u64, offset, &from[done..done + len], marks)?;
            done += len;
        }
        Ok(())
    }

    /// Writes again the parts of this write that lie in pages where the file ended meanwhile. Such a page may have been copied before the
    /// file grew, without the data past the old end.
    fn touch_again(&self, at: u64, from: &[u8], ends: [u64; 3], marks: Marks) -> Result<(), Errno> {
        let page_bytes = PAGE_BYTES as u64;
        let end = at + from.len() as u64;
        let mut last = None;
        for size in ends.into_iter().filter(|size| *size < end && !size.is_multiple_of(page_bytes)) {
            let page = size / page_bytes;
            if page < at / page_bytes || last.replace(page) == Some(page) {
                continue;
            }
            let (from_at, to) = (at.max(page * page_bytes), end.min((page + 1) * page_bytes));
            let again = &from[(from_at - at) as usize..(to - at) as usize];
            self.write_page(page, (from_at % page_bytes) as usize, again, marks)?;
        }
        Ok(())
    }

    fn write_page(&self, page: u64, offset: usize, from: &[u8], marks: Marks) -> Result<(), Errno> {
        let name = self.engine.name(self.no, page);
        match self.engine.pages.write_marked(name, offset, from, marks) {
            WriteOutcome::Done => Ok(()),
            WriteOutcome::Unmarked | WriteOutcome::Missing => self.write_unmarked(page, offset, from, marks),
        }
    }

    /// Writes to a page that is not in a frame, or that gets a new mark: there may be too many marked pages.
    fn write_unmarked(&self, page: u64, offset: usize, from: &[u8], marks: Marks) -> Result<(), Errno> {
        if !marks.is_none() {
            if marks.has(Marks::DIRTY) && self.record().has(flag::CONFLICT) {
                // The page could never be written back.
                return Err(Errno::STALE);
            }
            self.throttle()?;
        }
        self.write_missing(page, offset, from, marks)
    }

    fn write_missing(&self, page: u64, offset: usize, from: &[u8], marks: Marks) -> Result<(), Errno> {
        let name = self.engine.name(self.no, page);
        let (mut tries, mut rooms) = (Retries::new(), Retries::at_least(ROOMS));
        loop {
            if self.engine.pages.write(name, offset, from, marks, self.engine.world.now_ms()) {
                return Ok(());
            }
            let may_try = match self.bring(page, offset, from, marks)? {
                InsertStep::Done => return Ok(()),
                InsertStep::Again => tries.again(),
                InsertStep::Room => rooms.again(),
            };
            self.check_frame(page)?;
            if !may_try {
                return Err(Errno::IO);
            }
        }
    }

    /// Inserts the page, with the part that is written, into a frame, or returns why to try again. (Only this function clears memory for a
    /// page: that costs as much as a lookup.)
    #[inline(never)]
    fn bring(&self, page: u64, offset: usize, from: &[u8], marks: Marks) -> Result<InsertStep, Errno> {
        let name = self.engine.name(self.no, page);
        let mut bytes = [0; PAGE_BYTES];
        let is_whole = from.len() == PAGE_BYTES || (offset == 0 && page * PAGE_BYTES as u64 + from.len() as u64 >= self.size());
        let ticket = if is_whole {
            self.engine.pages.ticket(name)
        } else {
            match self.whole(page, &mut bytes)? {
                Some(ticket) => ticket,
                None => return Ok(InsertStep::Again),
            }
        };
        bytes[offset..offset + from.len()].copy_from_slice(from);
        match self.engine.pages.insert(name, &bytes, marks, ticket, self.engine.world.now_ms()) {
            Inserted::Done => {
                self.engine.counters.add(Count::Writes, 1);
                Ok(InsertStep::Done)
            }
            Inserted::Present | Inserted::Stale => Ok(InsertStep::Again),
            Inserted::Locked => Err(STALLED),
            Inserted::NoRoom => {
                // The frames that this write filled may be the only ones to evict: the file must cover them, so that they can be written
                // back.
                let before = page * PAGE_BYTES as u64 + offset as u64;
                self.record().size().fetch_max(before, Ordering::AcqRel);
                self.make_room()?;
                Ok(InsertStep::Room)
            }
        }
    }

    /// Waits for the leader if too many frames are marked.
    #[inline]
    fn throttle(&self) -> Result<(), Errno> {
        if self.engine.pages.marked_count() <= self.engine.header.get(Word::DirtyLimit) {
            return Ok(());
        }
        self.wait_for_fewer()
    }

    /// While there is no leader, writers may also use half of the frames above the limit: the death of a leader should not block them.
    #[inline(never)]
    fn wait_for_fewer(&self) -> Result<(), Errno> {
        let engine = &self.engine;
        let limit = engine.header.get(Word::DirtyLimit);
        let most = limit.saturating_add(engine.layout.sizes.frames.frames.saturating_sub(limit) / 2);
        let waits = || engine.pages.marked_count() > most || engine.is_led();
        if !waits() {
            engine.ring();
            return Ok(());
        }
        engine.counters.add(Count::Throttled, 1);
        engine.ask_while(RequestKind::Room, self.no, 0, 0, &waits).unwrap_or(Ok(0)).map(drop)
    }

    #[inline(never)]
    fn make_room(&self) -> Result<(), Errno> {
        self.engine.counters.add(Count::Throttled, 1);
        self.engine.ask(RequestKind::Room, self.no, 0, 0).map(drop)
    }

    /// Waits for the lock, which the truncating process holds. If it died, the next owner completes the truncation.
    fn wait_for_truncation(&self) -> Result<(), Errno> {
        self.engine.lock_file(self.no).map(drop)
    }

    /// Returns twice the number of truncations so far; waits while one is in progress.
    ///
    /// # Errors
    /// See [`super::CacheEngine::lock_file`].
    pub(super) fn truncations(&self) -> Result<u32, Errno> {
        // A process that overwrites the count all the time must not block us: the caller checks again what it reads meanwhile.
        let mut tries = Retries::new();
        while tries.again() {
            let now = self.record().truncations().load(Ordering::Acquire);
            if now.is_multiple_of(2) {
                return Ok(now);
            }
            self.wait_for_truncation()?;
        }
        Ok(self.record().truncations().load(Ordering::Acquire))
    }

    /// Returns whether a truncation started since then: data read from the backing file may be older than what the truncation dropped from
    /// the SSD.
    #[inline]
    pub(super) fn was_truncated(&self, before: u32) -> bool {
        self.record().truncations().load(Ordering::Acquire) != before
    }

    /// Sets the length of the file, as ftruncate does.
    ///
    /// # Errors
    /// EROFS in read-only mode, EFBIG, or the error of the backing file.
    pub fn set_len(&self, len: u64) -> Result<(), Errno> {
        let outcome = self.set_len_unnotified(len);
        self.notify_of_change();
        outcome
    }

    fn set_len_unnotified(&self, len: u64) -> Result<(), Errno> {
        if self.mode() == Mode::ReadOnly {
            return Err(Errno::ROFS);
        }
        if len > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        self.check()?;
        let _held = self.engine.lock_file(self.no)?;
        let record = self.record();
        let before = self.size();
        let [time_before, time] = self.note_change(record);
        record.truncations().fetch_add(1, Ordering::AcqRel);
        record.size().store(len, Ordering::Release);
        let outcome = self.engine.truncate(self.no, len, &mut |kind, a, b| self.engine.ask(kind, self.no, a, b).map(drop));
        if outcome == Err(STALLED) {
            // The truncation may still happen: the next owner of the lock that is able to completes it.
            return outcome;
        }
        if outcome.is_err() {
            record.size().store(before, Ordering::Release);
            // Unless another writer has noted a later time.
            let _ = record.written().compare_exchange(time, time_before, Ordering::Relaxed, Ordering::Relaxed);
        }
        record.truncations().fetch_add(1, Ordering::AcqRel);
        outcome
    }

    /// Punches a hole: the range reads as zeroes and needs no space (fallocate with PUNCH_HOLE and KEEP_SIZE).
    ///
    /// # Errors
    /// As [`Open::set_len`].
    pub fn punch(&self, at: u64, len: u64) -> Result<(), Errno> {
        let outcome = self.punch_unnotified(at, len);
        self.notify_of_change();
        outcome
    }

    fn punch_unnotified(&self, at: u64, len: u64) -> Result<(), Errno> {
        if self.mode() == Mode::ReadOnly {
            return Err(Errno::ROFS);
        }
        self.check()?;
        let page = PAGE_BYTES as u64;
        // Before the length is read: a writer that died may have extended the file, and the lock's owner finds that out.
        let _held = self.engine.lock_file(self.no)?;
        // Another program may have extended it, too.
        self.look_locked()?;
        let end = at.saturating_add(len).min(self.size().next_multiple_of(page));
        if at >= end {
            return Ok(());
        }
        if self.record().has(flag::CONFLICT) {
            // The partial pages at its ends could not be written back either.
            return Err(Errno::STALE);
        }
        let (first, last) = (at.div_ceil(page), end / page);
        let size = self.size();
        // Zeroes are written to partial pages; whole pages are dropped.
        let edge = |from: u64, to: u64| -> Result<(), Errno> {
            let to = to.min(size);
            let zeroes = [0; PAGE_BYTES];
            if from >= to {
                return Ok(());
            }
            match self.mode() {
                Mode::WriteBack => self.write_frames(from, &zeroes[..(to - from) as usize], to, Marks::DIRTY),
                _ => self.write_through(from, &zeroes[..(to - from) as usize], to),
            }
        };
        if first >= last {
            return if first > last { edge(at, end) } else { edge(at, first * page).and_then(|()| edge(last * page, end)) };
        }
        edge(at, first * page)?;
        edge(last * page, end)?;
        // As in a truncation: nobody may insert pages of the backing file before the newer ones on the SSD are gone too.
        let record = self.record();
        self.note_change(record);
        record.truncations().fetch_add(1, Ordering::AcqRel);
        let outcome = self.engine.ask(RequestKind::Punch, self.no, first, last).map(drop);
        if outcome == Err(STALLED) {
            return outcome;
        }
        record.truncations().fetch_add(1, Ordering::AcqRel);
        outcome
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::engine::BackingFile;

    #[test]
    fn a_refused_truncation_leaves_the_time_of_the_last_write() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 100]).expect("written");
        let written = open.written_ns();
        file.lengths_fail.store(true, Ordering::Relaxed);
        open.set_len(50).expect_err("refused");
        assert_eq!((open.size(), open.written_ns()), (100, written));
        let below = file.stamp().expect("a stamp");
        assert_eq!(engine.write_time(open.no(), below), written);
        file.lengths_fail.store(false, Ordering::Relaxed);
        open.set_len(50).expect("truncated");
        assert!(open.written_ns() > written);
    }

    /// A writer died after it had extended the backing file, before it could publish the length. The next call is a hole there.
    #[test]
    fn a_hole_removes_what_a_dead_writer_appended() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteThrough);
        open.write(0, &[1; 1000]).expect("written");
        engine.records.get(open.no()).own().open(Writer::LockHolder);
        file.write_at(1000, &[2; 20_000]).expect("written");
        open.punch(900, 15_000).expect("punched");
        let mut bytes = vec![9; 30_000];
        assert_eq!(open.read(0, &mut bytes), Ok(21_000));
        assert!(bytes[..900] == [1; 900] && bytes[900..15_900] == [0; 15_000] && bytes[15_900..21_000] == [2; 5100]);
    }

    /// The same, while the backing file cannot be looked at: that work is not skipped, and the next call does it.
    #[test]
    fn work_of_a_dead_writer_that_fails_is_done_by_the_next_call() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteThrough);
        open.write(0, &[1; 1000]).expect("written");
        engine.records.get(open.no()).own().open(Writer::LockHolder);
        file.write_at(500, &[2; 20_000]).expect("written");
        file.stamps_fail.lock().push(true);
        assert_eq!(open.write(0, &[3; 10]), Err(Errno::IO));
        assert_eq!(open.write(0, &[3; 10]), Ok(10));
        let mut bytes = vec![9; 30_000];
        assert_eq!(open.read(0, &mut bytes), Ok(20_500));
        assert!(bytes[..10] == [3; 10] && bytes[10..500] == [1; 490] && bytes[500..20_500] == [2; 20_000]);
    }

    /// A page that is written while the work of a dead process drops clean pages stays in memory: the write was acknowledged.
    #[test]
    fn a_write_beside_the_drop_of_stale_pages_is_not_lost() {
        let (_file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[0; 16 * PAGE_BYTES]).expect("written");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    engine.records.get(open.no()).own().open(Writer::LockHolder);
                    drop(engine.lock_file(open.no()).expect("mended"));
                }
            });
            let rounds = if cfg!(debug_assertions) { 5_000_u32 } else { 20_000 };
            for round in 1..=rounds {
                open.clean().expect("below");
                let (at, version) = (u64::from(round % 16) * PAGE_BYTES as u64, round.to_le_bytes());
                open.write(at, &version).expect("written");
                let mut bytes = [0; 4];
                open.read(at, &mut bytes).expect("read");
                if bytes != version {
                    is_over.store(true, Ordering::Release);
                }
                assert_eq!(bytes, version, "round {round}");
            }
            is_over.store(true, Ordering::Release);
        });
    }

    /// A hole fails, and so does the drop of the pages that it was to remove: the leader tries again.
    #[test]
    fn a_failed_hole_is_finished_later() {
        let (file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        open.write(0, &[1; 20_000]).expect("written");
        open.clean().expect("below");
        // The window is closed; the drop fails.
        *file.punch_fails.lock() = Some(vec![true, false]);
        open.punch(4096, 8192).expect_err("both fail");
        let record = engine.records.get(open.no());
        assert!(record.has(flag::PUNCHING), "it is not finished");
        engine.step_inline();
        assert!(!record.has(flag::PUNCHING), "it is finished");
        assert_eq!(open.look_below(), Ok(()));
    }

    /// A write comes between the write-back for a change of the times and the note that the times were set.
    #[test]
    fn the_time_of_a_write_beside_a_change_of_times_stays() {
        let (_file, engine, open) = crate::test_engine::lead(Mode::WriteBack);
        for is_same_tick in [false, true] {
            open.write(0, &[1; 100]).expect("written");
            let before = open.written_ns();
            open.clean().expect("below");
            open.write(0, &[2; 100]).expect("written");
            if is_same_tick {
                engine.records.get(open.no()).written().store(before, Ordering::Relaxed);
            }
            let now = open.written_ns();
            open.times_were_set(before);
            assert_eq!(open.written_ns(), now, "same tick: {is_same_tick}");
            open.clean().expect("below");
            open.times_were_set(now);
            assert_eq!(open.written_ns(), 0);
        }
    }
}
