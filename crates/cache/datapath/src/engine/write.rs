//! The path of a write: into a frame, marked; with write-through and write-around below too, before the call returns.

use std::sync::atomic::Ordering;
use std::time::Instant;

use pagecache::{Inserted, Marks, WriteOutcome};
use rustix::io::Errno;
use ssdcache::{Mode, PAGE_BYTES};

use super::counters::{Count, Tier};
use super::layout::Word;
use super::open::{Open, errno_of};
use super::own_stamp::Writer;
use super::record::{FILE_BYTES_MAX, Record, flag};
use super::stall::STALLED;
use super::{RequestKind, Retries};

/// Times that room is made for a writer, before the time counts: what was made others may take, and each may take as long as the file
/// below is slow.
const ROOMS: u32 = 1000;

/// Where a write ends.
///
/// # Errors
/// EFBIG: no page has a name there. Who writes so far uses the file past the cache.
fn end_of(at: u64, from: &[u8]) -> Result<u64, Errno> {
    at.checked_add(from.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::FBIG)
}

/// What became of a page that a writer brought.
enum InsertStep {
    /// It is written.
    Done,
    /// Somebody else was at it.
    Again,
    /// Room was made for it.
    Room,
}

impl Open {
    /// As pwrite: all of it.
    ///
    /// # Errors
    /// EROFS in read-only mode; EIO, ENOSPC and others when room has to be made first and the file below takes nothing; what
    /// the file below says when it is written through. Part of it may have been written then.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        match self.predict_page(at) {
            Some(page) if page.write(from) => Ok(from.len()),
            _ => self.write_long(at, from),
        }
    }

    /// When it was written. No atomic change: it would wait until the copy has left the store buffer. Both clocks tick together, so
    /// one of them is asked at each write.
    #[inline(always)]
    pub(super) fn note_time(&self, record: Record<'_>, now_ns: u64) {
        if record.written().load(Ordering::Relaxed) != now_ns {
            record.written().store(now_ns, Ordering::Relaxed);
            record.used().store(self.engine.world.now_ms(), Ordering::Relaxed);
        }
    }

    /// Likewise what is not written at once ([`super::PageHint::write`]).
    ///
    /// # Errors
    /// As [`Open::write`].
    #[inline(never)]
    pub fn write_long(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        if from.is_empty() {
            return Ok(0);
        }
        self.check()?;
        let end = end_of(at, from)?;
        match self.mode() {
            Mode::ReadOnly => return Err(Errno::ROFS),
            Mode::WriteBack => {
                let begun = self.engine.pages.lane().is_write_timed().then(Instant::now);
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

    /// As write with O_APPEND: all of it at the end, which nobody else's append can come between. The place it went to.
    ///
    /// # Errors
    /// As [`Open::write`].
    pub fn append(&self, from: &[u8]) -> Result<u64, Errno> {
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

    /// Below first, then the frames; the file's lock is held. Who dies in between leaves frames that are older than the file,
    /// which whoever gets the lock next drops ([`super::CacheEngine::lock_file`]).
    fn write_through(&self, at: u64, from: &[u8], end: u64) -> Result<(), Errno> {
        let mut marks = if self.engine.view.is_some() { Marks::SSD_STALE } else { Marks::NONE };
        let record = self.record();
        if self.engine.has_ssd() && !record.has(flag::THROUGH) {
            self.engine.ask(RequestKind::Through, self.no, 0, 0)?;
        }
        self.look_locked()?;
        if self.is_dirty_on_ssd(at / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64))? {
            // Left from another mode: written back later it would go over what is written now. Unless all of it is written anew.
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
                // Newer than what the SSD has, which is dirty there: it must not be dropped before that is.
                marks = marks | Marks::DIRTY;
            }
        }
        record.own().open(Writer::LockHolder);
        let begun = Instant::now();
        let written = self.below.write_at(at, from).map_err(|error| errno_of(&error));
        self.engine.counters.write_took(Tier::Below, begun.elapsed().as_nanos() as u64);
        // Afterwards: a sync that began before does not count.
        record.flags().fetch_or(flag::UNSYNCED, Ordering::AcqRel);
        let framed = written.and_then(|()| self.write_frames(at, from, end, marks));
        if framed.is_err() {
            // What is below is not known: nobody shall read from frames what it may not have. What was dirty before stays: it was
            // acknowledged, and is still to be written.
            let dropped = self.engine.drop_not_dirty(self.no, &mut |ask| self.engine.ask(ask, self.no, 0, 0).map(drop));
            if dropped == Err(STALLED) {
                self.engine.leave_undecided(self.no);
            }
            dropped?;
        }
        if record.own().close(Writer::LockHolder, || self.below.stamp()).is_ok() && framed.is_err() {
            // What is dirty may be behind that.
            match record.own().get().size {
                size if self.is_dirty()? => _ = record.size().fetch_max(size, Ordering::AcqRel),
                size => record.size().store(size, Ordering::Release),
            }
        }
        self.engine.counters.add(Count::BelowWrites, 1);
        self.engine.counters.add(Count::BelowWritten, from.len() as u64);
        framed
    }

    /// The pages that a write covers in part: the first and the last, perhaps.
    fn in_part(&self, at: u64, end: u64) -> impl Iterator<Item = u64> {
        let page = PAGE_BYTES as u64;
        let first = (!at.is_multiple_of(page)).then_some(at / page);
        let last = (!end.is_multiple_of(page) && end < self.size()).then_some(end / page);
        first.into_iter().chain(last)
    }

    /// Frames that are newer than below. Who makes the file longer has its lock meanwhile: so what is in frames behind the end belongs to
    /// whoever has that, or had it and died.
    fn write_back(&self, at: u64, from: &[u8], end: u64) -> Result<(), Errno> {
        let mut tries = Retries::new();
        while tries.again() {
            // A truncation meanwhile may have taken what we wrote: then it is written after it.
            let before = self.truncations()?;
            if end > self.size() {
                let _held = self.engine.lock_file(self.no)?;
                return self.write_frames(at, from, end, Marks::DIRTY);
            }
            self.write_pages(at, from, Marks::DIRTY)?;
            self.note_time(self.record(), self.engine.world.realtime_ns());
            if !self.was_truncated(before) {
                return Ok(());
            }
        }
        Err(Errno::IO)
    }

    /// With the file's lock held.
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

    /// A file that has become longer: pages it ended in meanwhile may have been taken, without what was behind the end. What of this
    /// write is in them is written once more.
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

    /// The page is not here, or it will have a mark that it had not: there may be too many.
    fn write_unmarked(&self, page: u64, offset: usize, from: &[u8], marks: Marks) -> Result<(), Errno> {
        if !marks.is_none() {
            if marks.has(Marks::DIRTY) && self.record().has(flag::CONFLICT) {
                // It could never be written.
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

    /// Puts the page, with what is written of it, into a frame, or says why it has to be looked again. (The memory for it is cleared
    /// only here: that costs as much as to find a page.)
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
                // What of this write is in frames already may be all there is to make room with: it has to be in the file.
                let before = page * PAGE_BYTES as u64 + offset as u64;
                self.record().size().fetch_max(before, Ordering::AcqRel);
                self.make_room()?;
                Ok(InsertStep::Room)
            }
        }
    }

    /// Too much is marked: the leader gets on with it first.
    #[inline]
    fn throttle(&self) -> Result<(), Errno> {
        if self.engine.pages.marked_count() <= self.engine.header.get(Word::DirtyLimit) {
            return Ok(());
        }
        self.wait_for_fewer()
    }

    /// While nobody leads, writers may use half of what is above the limit too: a leader that dies shall not hold them up.
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

    /// The lock is held by who truncates; if he died, whoever gets it ends what he had begun.
    fn wait_for_truncation(&self) -> Result<(), Errno> {
        self.engine.lock_file(self.no).map(drop)
    }

    /// How many truncations there were, twice; waits while there is one.
    ///
    /// # Errors
    /// See [`super::CacheEngine::lock_file`].
    pub(super) fn truncations(&self) -> Result<u32, Errno> {
        // Somebody who writes over the count all the time does not keep us here: what is read meanwhile is looked at again.
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

    /// Whether one began since then: what was read below may be older than what it took from the SSD.
    #[inline]
    pub(super) fn was_truncated(&self, before: u32) -> bool {
        self.record().truncations().load(Ordering::Acquire) != before
    }

    /// As ftruncate.
    ///
    /// # Errors
    /// EROFS in read-only mode, or what the file below says.
    pub fn set_len(&self, len: u64) -> Result<(), Errno> {
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
        record.truncations().fetch_add(1, Ordering::AcqRel);
        record.size().store(len, Ordering::Release);
        let told = self.engine.truncate(self.no, len, &mut |ask, a, b| self.engine.ask(ask, self.no, a, b).map(drop));
        if told == Err(STALLED) {
            // It may be cut yet: whoever has the lock next, and can, cuts it.
            return told;
        }
        if told.is_err() {
            record.size().store(before, Ordering::Release);
        }
        record.truncations().fetch_add(1, Ordering::AcqRel);
        told
    }

    /// The range reads as zeroes and needs no space (fallocate with PUNCH_HOLE and KEEP_SIZE).
    ///
    /// # Errors
    /// As [`Open::set_len`].
    pub fn punch(&self, at: u64, len: u64) -> Result<(), Errno> {
        if self.mode() == Mode::ReadOnly {
            return Err(Errno::ROFS);
        }
        self.check()?;
        let page = PAGE_BYTES as u64;
        let end = at.saturating_add(len).min(self.size().next_multiple_of(page));
        if at >= end {
            return Ok(());
        }
        let _held = self.engine.lock_file(self.no)?;
        self.look_locked()?;
        if self.record().has(flag::CONFLICT) {
            // Nor are the parts of pages at its ends.
            return Err(Errno::STALE);
        }
        let (first, last) = (at.div_ceil(page), end / page);
        let size = self.size();
        // Parts of pages are zeroes written; whole pages go.
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
        // As in a truncation: nobody takes in what is below before the newer pages on the SSD are gone with it.
        let record = self.record();
        record.truncations().fetch_add(1, Ordering::AcqRel);
        let told = self.engine.ask(RequestKind::Punch, self.no, first, last).map(drop);
        if told == Err(STALLED) {
            return told;
        }
        record.truncations().fetch_add(1, Ordering::AcqRel);
        told
    }
}
