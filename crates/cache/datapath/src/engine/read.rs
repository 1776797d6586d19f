// long: one read through all tiers; its steps share the checks that make it lock-free.
//! The path of a read: *plan* which pages are in frames; *submit* reads of the SSD in one batch, and read other pages from the backing
//! file; *copy* the pages into frames and to the caller.

use std::ops::Range;
use std::time::{Duration, Instant};

use pagecache::{Inserted, LookupKey, Marks, Pin, Ticket};
use rustix::io::Errno;
use ssdcache::{PAGE_BYTES, Page, PageIndex, VerifyResult, ViewHit, ViewLookup};

use super::Retries;
use super::counters::{Count, Tier};
use super::open::{Open, errno_of};
use super::prepared::PreparedRead;
use super::reads_in_flight::FetchPages;
use super::record::errno_from;
use super::request::Hint;
use super::ssd::QUEUE_PAGES;

/// The number of attempts to read missed pages together, or to pin a page, that read nothing.
const TRIES: usize = 16;
/// The number of them that wait for other threads and processes that read the same pages.
const WAITS: usize = 4;
/// The run of sequential reads from which on a stream is read ahead, bytes.
const AHEAD_FIRST: u64 = 32 << 10;

/// Returns whether this hit on the SSD is timed: one of 16.
fn is_timed() -> bool {
    use std::cell::Cell;
    thread_local! {
        static HITS: Cell<u8> = const { Cell::new(0) };
    }
    HITS.with(|hits| {
        hits.set(hits.get().wrapping_add(16));
        hits.get() == 16
    })
}

/// Returns the caller's memory as a page, if it has the size and alignment for a device.
fn whole_page(to: &mut [u8]) -> Option<&mut Page> {
    let is_aligned = to.as_ptr().addr().is_multiple_of(PAGE_BYTES);
    <&mut Page>::try_from(to).ok().filter(|_| is_aligned)
}

/// A piece of a page, and its position in the caller's memory.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) page: u64,
    pub(super) offset: usize,
    pub(super) at: usize,
    pub(super) len: usize,
}

pub(super) fn pieces(at: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let now = at + done as u64;
        let offset = (now % PAGE_BYTES as u64) as usize;
        let piece = Piece { page: now / PAGE_BYTES as u64, offset, at: done, len: (PAGE_BYTES - offset).min(len - done) };
        done += piece.len;
        (piece.len > 0).then_some(piece)
    })
}

impl Open {
    /// Reads at byte `at`, as pread does: fewer bytes are read only at the end of the file.
    ///
    /// # Errors
    /// EIO: a page that only the SSD had is lost. Else the error of the backing file. No valid data is read then.
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<usize, Errno> {
        match self.find_page(at).and_then(|page| page.read(to)) {
            Some(len) => Ok(len),
            None => self.read_long(at, to),
        }
    }

    /// Does the same as [`Open::read`] where the fast path ([`super::FoundPage::read`]) does not apply.
    ///
    /// # Errors
    /// As [`Open::read`].
    #[inline(never)]
    pub fn read_long(&self, at: u64, to: &mut [u8]) -> Result<usize, Errno> {
        self.check()?;
        let Some(expected) = self.expect(at) else { return Ok(0) };
        let len = to.len().min(usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX));
        let to = &mut to[..len];
        let offset = (at % PAGE_BYTES as u64) as usize;
        let begun = self.engine.pages.thread_counters().is_read_timed().then(Instant::now);
        if offset + len <= PAGE_BYTES && self.engine.pages.read_by_key(&expected.in_frames, offset, to) {
            if let Some(begun) = begun {
                self.engine.counters.took(Tier::Ram, begun.elapsed().as_nanos() as u64);
            }
            return Ok(len);
        }
        self.read_pieces(&expected, to)
    }

    #[inline]
    pub(super) fn name(&self, page: u64) -> pagecache::Name {
        self.engine.name(self.no, page)
    }

    #[inline(never)]
    fn read_pieces(&self, expected: &PreparedRead<'_>, to: &mut [u8]) -> Result<usize, Errno> {
        let (at, len) = (expected.at, to.len());
        let run = self.stream.read(at, len as u64);
        let mut all = pieces(at, len);
        if let (Some(piece), None) = (all.next(), all.next())
            && self.read_now(piece, expected, to)
        {
            return Ok(len);
        }
        let mut missed = Vec::new();
        for piece in pieces(at, len) {
            if !self.engine.pages.read(self.name(piece.page), piece.offset, &mut to[piece.at..piece.at + piece.len]) {
                missed.push(piece);
            }
        }
        let (mut in_vain, mut waited) = (0, Duration::ZERO);
        while in_vain < TRIES {
            if missed.is_empty() {
                return Ok(len);
            }
            // Frames may be too few to keep what another thread has read: who has waited a few times in vain reads by itself.
            let left = self.fetch(&missed, to, run, (in_vain < WAITS).then_some(&mut waited))?;
            in_vain = if left.len() < missed.len() { 0 } else { in_vain + 1 };
            missed = left;
        }
        // The read is larger than the frames, and the first pages were evicted before they were copied: read piece by piece.
        missed.into_iter().try_for_each(|piece| self.fetch_alone(piece, to)).map(|()| len)
    }

    /// Reads a piece of one page from the SSD with this thread, without a queue. Returns false if the long path must read it.
    fn read_now(&self, piece: Piece, expected: &PreparedRead<'_>, to: &mut [u8]) -> bool {
        let Some(ssd_queues) = &self.engine.ssd_queues else { return false };
        let mut seen = self.look_where(expected.on_ssd.as_ref());
        let mut ticket = None;
        if matches!(seen, ViewLookup::Hit(_)) && self.wants_sought(piece, &expected.in_frames) {
            ticket = self.engine.pages.ticket_of_missing(&expected.in_frames);
            // The lookup must be newer than the ticket. Few pages need this.
            seen = self.look_again(expected.on_ssd.as_ref());
        }
        let ViewLookup::Hit(found) = seen else { return false };
        self.touch_on_ssd(&found);
        let begun = is_timed().then(Instant::now);
        let is_read = match to.get_mut(piece.at..piece.at + piece.len).and_then(whole_page).filter(|_| ticket.is_none()) {
            // Verify the page in place, which saves a copy: if it is wrong, the read's data does not count.
            Some(to) => {
                let is_good = ssd_queues.read_into(found.item.at, to) && self.is_good(&found, to);
                if is_good {
                    self.zero_past_eof(piece.page, to);
                }
                is_good
            }
            None => ssd_queues.read_now(found.item.at, |bytes| self.give_if_good(piece, &found, bytes, to, ticket)) == Some(true),
        };
        if !is_read {
            return false;
        }
        self.engine.count_ssd_hits(1);
        if let Some(begun) = begun {
            self.engine.counters.took(Tier::Ssd, begun.elapsed().as_nanos() as u64);
        }
        true
    }

    /// Copies a page of the SSD to the caller, and with a ticket into a frame. Returns false if its checksum is wrong.
    fn give_if_good(&self, piece: Piece, found: &ViewHit, bytes: &Page, to: &mut [u8], ticket: Option<Ticket>) -> bool {
        let is_good = self.is_good(found, bytes);
        if is_good {
            self.copy_out(piece, bytes, to);
            if let Some(ticket) = ticket {
                self.insert_clean(piece, ticket, bytes);
            }
        }
        is_good
    }

    /// Copies a piece to the caller; past the end of the file it is zero, whatever the SSD had there.
    pub(super) fn copy_out(&self, piece: Piece, bytes: &Page, to: &mut [u8]) {
        let to = &mut to[piece.at..piece.at + piece.len];
        to.copy_from_slice(&bytes[piece.offset..piece.offset + piece.len]);
        let end = self.end_in(piece.page);
        if end < piece.offset + piece.len {
            to[end.saturating_sub(piece.offset)..].fill(0);
        }
    }

    /// Returns whether these are the bytes of a page that was found on the SSD.
    #[inline]
    pub(super) fn is_good(&self, found: &ViewHit, bytes: &Page) -> bool {
        self.engine.view.as_ref().is_some_and(|view| view.verify(found, bytes) == VerifyResult::Good)
    }

    /// Marks a page as used on the SSD, so that it stays longer.
    #[inline]
    pub(super) fn touch_on_ssd(&self, found: &ViewHit) {
        if let Some(view) = &self.engine.view {
            view.touch(found);
        }
    }

    /// Returns whether a page of the SSD should go into a frame. It always should after a partial read, for the rest is likely to be read
    /// next.
    pub(super) fn wants(&self, piece: Piece) -> bool {
        piece.offset + piece.len < PAGE_BYTES || self.engine.pages.is_wanted(self.name(piece.page))
    }

    /// Returns the same for a page whose key in the frames is known.
    #[inline]
    pub(super) fn wants_sought(&self, piece: Piece, sought: &LookupKey) -> bool {
        piece.offset + piece.len < PAGE_BYTES || self.engine.pages.is_key_wanted(sought)
    }

    /// Inserts a clean page. If that is refused, another writer has newer data, or no frame is free.
    fn insert_clean(&self, piece: Piece, ticket: Ticket, bytes: &Page) {
        self.insert_cut(piece, ticket, &self.cut(piece.page, bytes));
    }

    /// Does the same with bytes that are zero past the end of the file.
    pub(super) fn insert_cut(&self, piece: Piece, ticket: Ticket, bytes: &Page) {
        let (name, now_ms) = (self.name(piece.page), self.engine.world.now_ms());
        let _ = self.engine.pages.insert(name, bytes, Marks::NONE, ticket, now_ms);
    }

    /// Returns whether the file belongs to this engine.
    pub(super) fn is_of(&self, engine: &std::sync::Arc<super::CacheEngine>) -> bool {
        std::sync::Arc::ptr_eq(&self.engine, engine)
    }

    #[inline]
    pub(super) fn zero_past_eof(&self, page: u64, bytes: &mut Page) {
        let end = self.end_in(page);
        if end < PAGE_BYTES {
            bytes[end..].fill(0);
        }
    }

    /// Returns how many bytes of a page are before the end of the file.
    #[inline]
    fn end_in(&self, page: u64) -> usize {
        usize::try_from(self.size().saturating_sub(page * PAGE_BYTES as u64)).unwrap_or(usize::MAX).min(PAGE_BYTES)
    }

    fn fetch_alone(&self, piece: Piece, to: &mut [u8]) -> Result<(), Errno> {
        let mut tries = Retries::new();
        while tries.again() {
            let at = piece.at..piece.at + piece.len;
            if self.engine.pages.read(self.name(piece.page), piece.offset, &mut to[at]) || self.fetch(&[piece], to, 0, None)?.is_empty() {
                return Ok(());
            }
        }
        // The frames, the SSD's map and the record disagree about the page, or another process changes one of them all the time.
        Err(Errno::IO)
    }

    /// Reads pages that were missed. With `waited`, which is how long the caller has waited for other processes so far, it waits for other
    /// threads and processes that read some of them. Returns the pieces that must be tried again.
    fn fetch(&self, missed: &[Piece], to: &mut [u8], run: u64, mut waited: Option<&mut Duration>) -> Result<Vec<Piece>, Errno> {
        let may_wait = waited.is_some();
        let mut again = Vec::new();
        let before = self.truncations()?;
        // Tickets first: a write from now on is noticed when the page is inserted into a frame.
        let mut below = Vec::new();
        for some in missed.chunks(QUEUE_PAGES) {
            let mut found = Vec::with_capacity(some.len());
            for piece in some {
                let ticket = self.engine.pages.ticket(self.name(piece.page));
                if self.engine.pages.read(self.name(piece.page), piece.offset, &mut to[piece.at..piece.at + piece.len]) {
                    continue;
                }
                self.check_frame(piece.page)?;
                match self.on_ssd(piece.page)? {
                    Some(entry) => found.push((*piece, ticket, entry)),
                    None => below.push((*piece, ticket)),
                }
            }
            if !found.is_empty() {
                self.fetch_from_ssd(&found, to, &mut below, &mut again)?;
            }
        }
        let mut rest = &below[..];
        while let Some((first, _)) = rest.first() {
            let count = rest.iter().zip(first.page..).take_while(|((piece, _), page)| piece.page == *page).count();
            let count = count.min(MAX_RUN);
            let asked = first.page..first.page + count as u64;
            let mut plan = self.plan(asked, if rest.len() == count { run } else { 0 });
            let read = self.engine.reads_in_flight.begin(self.no, &mut plan.pages, waited.as_deref_mut());
            // What others read now is left: it is tried next.
            let asked = plan.pages.asked.end - plan.pages.asked.start;
            let (run_of, behind) = rest.split_at(if read.is_some() { asked as usize } else { count });
            match read {
                // Another read may have ended since this one looked.
                Some(_read) if !may_wait || !run_of.iter().any(|(piece, _)| self.engine.pages.contains(self.name(piece.page))) => {
                    self.leave_out_cached(&mut plan);
                    self.fetch_below(run_of, to, &plan, before, &mut again)?;
                }
                _ => again.extend(run_of.iter().map(|(piece, _)| *piece)),
            }
            rest = behind;
        }
        Ok(again)
    }

    /// Checks a page that was not read from its frame although it is there.
    ///
    /// # Errors
    /// EIO: see [`pagecache::SharedPages::is_stuck`].
    #[inline]
    pub(super) fn check_frame(&self, page: u64) -> Result<(), Errno> {
        if self.engine.pages.is_stuck(self.name(page)) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Looks up a page on the SSD. If the SSD has failed, only dirty pages are found.
    fn on_ssd(&self, page: u64) -> Result<Option<ViewHit>, Errno> {
        let mut tries = Retries::new();
        while tries.again() {
            match self.look_on_ssd(page) {
                ViewLookup::Hit(found) => return Ok(Some(found)),
                ViewLookup::Miss => return Ok(None),
                // The leader is changing the map, or a new one starts: it answers when it is done.
                ViewLookup::Unsure => self.engine.ready()?,
            }
        }
        // The map was being replaced when everything was lost, and stays so; or another process overwrites it all the time.
        Err(Errno::IO)
    }

    /// Does the same as `on_ssd`, without waiting.
    pub(super) fn look_on_ssd(&self, page: u64) -> ViewLookup {
        self.look_where(self.key_on_ssd(page).as_ref())
    }

    /// Looks up a page by its key on the SSD.
    #[inline(always)]
    pub(super) fn look_where(&self, sought: Option<&ssdcache::LookupKey>) -> ViewLookup {
        let (Some(view), Some(sought)) = (&self.engine.view, sought) else { return ViewLookup::Miss };
        match view.lookup_sought(sought, self.key) {
            ViewLookup::Hit(found) if !found.is_dirty() && !self.engine.has_ssd() => ViewLookup::Miss,
            seen => seen,
        }
    }

    /// Repeats a lookup.
    #[cold]
    pub(super) fn look_again(&self, sought: Option<&ssdcache::LookupKey>) -> ViewLookup {
        self.look_where(sought)
    }

    /// Returns the key for a lookup on the SSD. None: the page cannot be there.
    #[inline]
    pub(super) fn key_on_ssd(&self, page: u64) -> Option<ssdcache::LookupKey> {
        self.engine.view.as_ref()?.sought(self.record().on_ssd()?, PageIndex(page))
    }

    /// Returns whether one of these pages is newer on the SSD than in the backing file.
    pub(super) fn is_dirty_on_ssd(&self, pages: Range<u64>) -> Result<bool, Errno> {
        for page in pages {
            if self.on_ssd(page)?.is_some_and(|found| found.is_dirty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn fetch_from_ssd(
        &self,
        found: &[(Piece, Ticket, ViewHit)],
        to: &mut [u8],
        below: &mut Vec<(Piece, Ticket)>,
        again: &mut Vec<Piece>,
    ) -> Result<(), Errno> {
        let (Some(view), Some(ssd_queues)) = (&self.engine.view, &self.engine.ssd_queues) else {
            return self.fetch_without(found, below, again);
        };
        let begun = Instant::now();
        let places: Vec<_> = found.iter().map(|(_, _, entry)| entry.item.at).collect();
        let mut page = [0; PAGE_BYTES];
        let (mut lost, mut away) = (None, Vec::new());
        let read = ssd_queues.with(|ssd_queue| {
            ssd_queue.read(&places, &mut page, |n, bytes| {
                let (piece, ticket, entry) = &found[n];
                let verdict = bytes.map_or(VerifyResult::Bad, |bytes| view.verify(entry, bytes));
                match (verdict, bytes) {
                    (VerifyResult::Good, Ok(bytes)) => {
                        view.touch(entry);
                        self.engine.count_ssd_hits(1);
                        self.copy_out(*piece, bytes, to);
                        if self.wants(*piece) {
                            self.insert_clean(*piece, *ticket, bytes);
                        }
                    }
                    (VerifyResult::Changed, _) => again.push(*piece),
                    (_, Err(error)) if ssd_queues.is_away(error) => away.push(found[n]),
                    // The SSD lost the page. The backing file has the same version, unless the page was dirty.
                    _ => {
                        self.engine.counters.add(Count::Damaged, 1);
                        if entry.is_dirty() { lost = Some(piece.page) } else { below.push((*piece, *ticket)) }
                    }
                }
            });
        });
        self.engine.counters.took(Tier::Ssd, begun.elapsed().as_nanos() as u64);
        below.sort_by_key(|(piece, _)| piece.page);
        match (read, lost) {
            (Err(_), _) if ssd_queues.comes_back() => self.fetch_without(found, below, again),
            (Ok(()), None) if away.is_empty() => Ok(()),
            (Ok(()), None) => self.fetch_without(&away, below, again),
            (Ok(()), Some(page)) => {
                if self.engine.has_ssd() {
                    // The leader finds out which other pages are lost, and saves the rest.
                    let _ = self.clean();
                }
                self.engine.world.report(&format!("page {page} of {} is lost: the SSD cannot read it", self.path().display()));
                Err(Errno::IO)
            }
            (Err(error), _) => Err(errno_from(error.errno())),
        }
    }

    /// Handles pages that this process cannot read from the SSD, or not now. Clean pages are read from the backing file. For dirty ones
    /// the leader writes the file back first.
    fn fetch_without(
        &self,
        found: &[(Piece, Ticket, ViewHit)],
        below: &mut Vec<(Piece, Ticket)>,
        again: &mut Vec<Piece>,
    ) -> Result<(), Errno> {
        let (dirty, clean): (Vec<_>, Vec<_>) = found.iter().partition(|(_, _, entry)| entry.is_dirty());
        below.extend(clean.iter().map(|(piece, ticket, _)| (*piece, *ticket)));
        below.sort_by_key(|(piece, _)| piece.page);
        if dirty.is_empty() {
            return Ok(());
        }
        again.extend(dirty.iter().map(|(piece, ..)| *piece));
        self.clean()
    }

    /// Returns the page with zeroes past the end of the file, whatever the SSD had there.
    fn cut(&self, page: u64, bytes: &Page) -> Page {
        let mut bytes = *bytes;
        self.zero_past_eof(page, &mut bytes);
        bytes
    }

    fn path(&self) -> std::path::PathBuf {
        self.record().path()
    }

    /// Inserts a page into a frame, and copies it to the caller.
    fn take_in(&self, piece: Piece, ticket: Ticket, bytes: &Page, to: &mut [u8], again: &mut Vec<Piece>) {
        match self.engine.pages.insert(self.name(piece.page), bytes, Marks::NONE, ticket, self.engine.world.now_ms()) {
            Inserted::Stale | Inserted::Present => again.push(piece),
            Inserted::Done | Inserted::NoRoom | Inserted::Locked => {
                to[piece.at..piece.at + piece.len].copy_from_slice(&bytes[piece.offset..piece.offset + piece.len]);
            }
        }
    }

    /// Returns which pages one read of the backing file may bring with those that were requested.
    fn plan(&self, asked: Range<u64>, in_stream: u64) -> ReadPlan {
        let ahead = self.ahead(in_stream, &asked);
        let all = if ahead == 0 { self.around(&asked) } else { asked.start..asked.end + ahead };
        ReadPlan { pages: FetchPages { asked, all }, in_stream, is_ahead: ahead > 0 }
    }

    /// Removes pages from the plan that the cache has, and what is behind them. Nobody else reads the pages of the plan now.
    fn leave_out_cached(&self, plan: &mut ReadPlan) {
        let FetchPages { asked, all } = &mut plan.pages;
        all.start = (all.start..asked.start).rev().find(|page| self.is_here(*page)).map_or(all.start, |page| page + 1);
        all.end = (asked.end..all.end).find(|page| self.is_here(*page)).unwrap_or(all.end);
    }

    /// Reads a run of pages that only the backing file has, with pages to read ahead for a stream, or the pages around them.
    // long: one read in order: every piece would need the ten values that the read begins with.
    fn fetch_below(
        &self,
        run: &[(Piece, Ticket)],
        to: &mut [u8],
        plan: &ReadPlan,
        before: u32,
        again: &mut Vec<Piece>,
    ) -> Result<(), Errno> {
        let (begun, begun_ms) = (Instant::now(), self.engine.world.now_ms());
        let asked = plan.pages.asked.clone();
        let (all, in_stream) = (plan.pages.all.clone(), plan.in_stream);
        let is_around = !plan.is_ahead && all != asked;
        let others = (all.start..asked.start).chain(asked.end..all.end);
        let mut others: Vec<_> = others.map(|page| (page, self.engine.pages.ticket(self.name(page)))).collect();
        let mut bytes = vec![0; (all.end - all.start) as usize * PAGE_BYTES];
        let size = self.size();
        let got = match self.below.read_at(all.start * PAGE_BYTES as u64, &mut bytes) {
            // The failure may be in a page that nobody requested.
            Err(_) if !others.is_empty() => {
                others.clear();
                bytes.resize(run.len() * PAGE_BYTES, 0);
                self.below.read_at(asked.start * PAGE_BYTES as u64, &mut bytes)
            }
            got => got,
        };
        let first = if others.is_empty() { asked.start } else { all.start };
        let got = got.map_err(|error| errno_of(&error))?;
        if !plan.is_ahead {
            self.engine.around.took(is_around, begun.elapsed());
        }
        if self.was_truncated(before) {
            again.extend(run.iter().map(|(piece, _)| *piece));
            return Ok(());
        }
        // A slow disk sometimes answers quickly; the next read of the page may be slow again.
        let was_slow = self.engine.world.now_ms() != begun_ms || self.engine.around.is_slow();
        // Zero everything past the known end, whatever the backing file has there.
        let end = usize::try_from(size.saturating_sub(first * PAGE_BYTES as u64)).unwrap_or(usize::MAX);
        bytes[got.min(end)..].fill(0);
        let counters = &self.engine.counters;
        counters.add(Count::Misses, run.len() as u64);
        counters.add(Count::BelowRead, got as u64);
        let pages = bytes.as_chunks::<PAGE_BYTES>().0;
        let page_of = |number: u64| &pages[(number - first) as usize];
        for (piece, ticket) in run {
            self.take_in(*piece, *ticket, page_of(piece.page), to, again);
        }
        for (number, ticket) in others {
            if number * PAGE_BYTES as u64 >= size || !matches!(self.on_ssd(number), Ok(None)) {
                continue;
            }
            let now_ms = self.engine.world.now_ms();
            let (pages, name, bytes) = (&self.engine.pages, self.name(number), page_of(number));
            let inserted = match is_around {
                true => pages.insert_unasked(name, bytes, ticket, now_ms),
                false => pages.insert(name, bytes, Marks::NONE, ticket, now_ms),
            };
            match inserted {
                Inserted::NoRoom | Inserted::Locked => break,
                Inserted::Present if is_around => continue,
                _ => {}
            }
            counters.add(if is_around { Count::ReadAround } else { Count::ReadAhead }, 1);
            self.hint(number, in_stream, was_slow, is_around);
        }
        for (piece, _) in run {
            self.hint(piece.page, in_stream, was_slow, false);
        }
        counters.took(Tier::Below, begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    /// Returns how many pages to read ahead after a miss: as many as the stream has read already, up to the limit. A read that is as large
    /// as the limit needs none: who sends such reads has read ahead.
    fn ahead(&self, in_stream: u64, asked: &Range<u64>) -> u64 {
        let limit = u64::from(self.engine.header.get(super::layout::Word::ReadAhead));
        let in_stream = self.advised(in_stream, limit);
        if in_stream < AHEAD_FIRST {
            return 0;
        }
        let left = self.size().saturating_sub(asked.end * PAGE_BYTES as u64).div_ceil(PAGE_BYTES as u64);
        (in_stream.min(limit) / PAGE_BYTES as u64).min((limit / PAGE_BYTES as u64).saturating_sub(asked.end - asked.start)).min(left)
    }

    fn hint(&self, page: u64, in_stream: u64, was_slow: bool, is_around: bool) {
        if self.engine.has_ssd() && !self.bypasses_cache() {
            let in_stream = in_stream >= self.engine.limits.admission.stream_bytes;
            self.engine.hint(Hint { file: self.no, page, in_stream, was_slow, is_around });
        }
    }

    /// Reads a whole page, for a writer that changes a part of it. Returns the ticket taken before the read; None: the page is in a frame.
    pub(super) fn whole(&self, page: u64, bytes: &mut Page) -> Result<Option<Ticket>, Errno> {
        let name = self.name(page);
        let mut tries = Retries::new();
        while tries.again() {
            let before = self.truncations()?;
            let ticket = self.engine.pages.ticket(name);
            self.check_frame(page)?;
            if self.engine.pages.contains(name) {
                return Ok(None);
            }
            let Some(found) = self.on_ssd(page)? else {
                self.whole_below(page, bytes)?;
                if self.was_truncated(before) {
                    continue;
                }
                return Ok(Some(ticket));
            };
            match self.whole_on_ssd(&found, page, bytes)? {
                Some(VerifyResult::Good) => return Ok(Some(ticket)),
                Some(VerifyResult::Changed) => {}
                None if found.is_dirty() => self.clean()?,
                Some(VerifyResult::Bad) if found.is_dirty() => return Err(Errno::IO),
                verdict => {
                    self.engine.counters.add(Count::Damaged, u64::from(verdict.is_some()));
                    self.whole_below(page, bytes)?;
                    if !self.was_truncated(before) {
                        return Ok(Some(ticket));
                    }
                }
            }
        }
        Err(Errno::IO)
    }

    /// Reads a whole page from the SSD. None: this process cannot read there, or not now.
    fn whole_on_ssd(&self, found: &ViewHit, page: u64, bytes: &mut Page) -> Result<Option<VerifyResult>, Errno> {
        let (Some(view), Some(ssd_queues)) = (&self.engine.view, &self.engine.ssd_queues) else { return Ok(None) };
        let mut verdict = Some(VerifyResult::Bad);
        let mut scratch = [0; PAGE_BYTES];
        let read = ssd_queues.with(|ssd_queue| {
            ssd_queue.read(&[found.item.at], &mut scratch, |_, read| match read {
                Ok(read) => {
                    verdict = Some(view.verify(found, read));
                    *bytes = self.cut(page, read);
                }
                Err(error) if ssd_queues.is_away(error) => verdict = None,
                Err(_) => {}
            });
        });
        match read {
            Err(_) if ssd_queues.comes_back() => Ok(None),
            read => read.map(|()| verdict).map_err(|error| errno_from(error.errno())),
        }
    }

    fn whole_below(&self, page: u64, bytes: &mut Page) -> Result<(), Errno> {
        let got = self.below.read_at(page * PAGE_BYTES as u64, &mut bytes[..]).map_err(|error| errno_of(&error))?;
        let end = usize::try_from(self.size().saturating_sub(page * PAGE_BYTES as u64)).unwrap_or(usize::MAX);
        bytes[got.min(end)..].fill(0);
        self.engine.counters.add(Count::BelowRead, got as u64);
        Ok(())
    }

    /// Pins bytes in a frame for reading without a copy: a contiguous range, at most to the end of the page. A page that is in no frame is
    /// read first.
    ///
    /// # Errors
    /// As [`Open::read`]; ENOMEM: no frame is free for it.
    #[inline]
    pub fn pin(&self, at: u64, len: usize) -> Result<(Pin, *const u8, usize), Errno> {
        if let Some(page) = self.find_page(at)
            && let Some((pin, len)) = page.pin(len, |pin, len| (pin, len))
        {
            return Ok((pin, page.address(), len));
        }
        self.check()?;
        let size = self.size();
        if at >= size {
            return Err(Errno::NXIO);
        }
        let offset = (at % PAGE_BYTES as u64) as usize;
        let len = len.min(PAGE_BYTES - offset).min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let (pin, bytes) = self.pin_read(at, offset)?;
        Ok((pin, bytes, len))
    }

    /// Reads the page into a frame, and pins it.
    #[cold]
    #[inline(never)]
    fn pin_read(&self, at: u64, offset: usize) -> Result<(Pin, *const u8), Errno> {
        for _ in 1..TRIES {
            self.read_pieces(&self.expect(at).ok_or(Errno::NXIO)?, &mut [0])?;
            self.check_frame(at / PAGE_BYTES as u64)?;
            if let Some(pinned) = self.engine.pages.pin_at(self.name(at / PAGE_BYTES as u64), offset) {
                return Ok(pinned);
            }
        }
        Err(Errno::NOMEM)
    }

    /// Releases a page that was pinned with [`Open::pin`].
    #[inline]
    pub fn unpin(&self, pin: Pin) {
        self.engine.pages.unpin(pin);
    }
}

/// Which pages one read of the backing file brings.
struct ReadPlan {
    pages: FetchPages,
    /// The bytes that were read in sequence before; 0: the read is not sequential.
    in_stream: u64,
    /// Whether pages are read ahead of a stream, and not around those that were requested.
    is_ahead: bool,
}

/// The maximum number of pages read from the backing file in one call.
const MAX_RUN: usize = 256;
