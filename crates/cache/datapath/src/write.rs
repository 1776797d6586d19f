//! The path of a write.
//!
//! Whole pages need not be read: a frame is planned, the bytes are copied into it, and it is dirty. Of a page that is written in part
//! and not here the rest is read first: at most the first and the last page of a write, together, before anything is
//! changed. Then the write is done, unless it is written through.
//!
//! A writer who meets the dirty limit helps: he writes the oldest pages back and waits until there are fewer. If none of them can
//! be written he is told so; the pages stay, and a flush tries them again.

use std::task::{Poll, ready};

use block::{Error, Queue};
use pagecache::{FrameId, Lookup, PAGE_BYTES, PageIndex, Purpose, Room, State};

use crate::core::Core;
use crate::lane::Ticket;
use crate::read::pages;
use crate::settings::WriteMode;

/// A write under way.
#[derive(Debug)]
pub(crate) struct Writing {
    offset: u64,
    /// Bytes copied.
    done: usize,
    /// Pages at the ends were looked after.
    prepared: bool,
    /// Our own reads, then our own writes.
    ticket: Option<Ticket>,
    /// Written through: pages before this one are on their way, or down.
    sent: u64,
    /// Written through: one of them cannot be sent.
    refused: Option<Error>,
}

impl Writing {
    /// A write at `offset`.
    #[inline]
    pub(crate) fn begin(offset: u64) -> Writing {
        Writing { offset, done: 0, prepared: false, ticket: None, sent: PageIndex::of(offset).0, refused: None }
    }
}

impl<Q: Queue> Core<Q> {
    /// One step of a write.
    #[inline]
    pub(crate) fn write(&mut self, writing: &mut Writing, from: &[u8]) -> Poll<Result<(), Error>> {
        if self.shape.read_only {
            return Poll::Ready(Err(Error::ReadOnly));
        }
        while writing.done < from.len() {
            ready!(self.arrived(&mut writing.ticket))?;
            self.copy_in(writing, from);
            if writing.done < from.len() {
                self.settle(&mut writing.ticket);
                ready!(self.go_on(writing, from.len()))?;
            }
        }
        if self.settings.mode != WriteMode::Back {
            let down = ready!(self.write_through(writing, from.len()));
            self.settle(&mut writing.ticket);
            down?;
        }
        self.settle(&mut writing.ticket);
        self.look_at_clock(false);
        if self.pages.unwritten() > self.settings.dirty_background {
            self.write_back();
        }
        self.keep_ahead();
        Poll::Ready(Ok(()))
    }

    /// Copies into the pages that are here, or need not be read, up to the first that cannot be written to now.
    #[inline]
    fn copy_in(&mut self, writing: &mut Writing, from: &[u8]) {
        // Both ends are here before anything is changed.
        if !writing.prepared && !self.ends_are_here(writing, from.len()) {
            return;
        }
        while writing.done < from.len() {
            let offset = writing.offset + writing.done as u64;
            let (page, to) = (PageIndex::of(offset), (offset % PAGE_BYTES as u64) as usize);
            let bytes = (PAGE_BYTES - to).min(from.len() - writing.done);
            let Some(frame) = self.frame_to_write(page, to == 0 && bytes == self.page_bytes(page)) else { return };
            self.pages.write(frame, to, &from[writing.done..writing.done + bytes]);
            self.pages.dirtied(frame);
            writing.done += bytes;
            writing.prepared = true;
        }
    }

    /// The frame of a page that can be written to now. `whole`: nothing that was in it matters.
    #[inline]
    fn frame_to_write(&mut self, page: PageIndex, whole: bool) -> Option<FrameId> {
        match self.pages.lookup(self.file, page) {
            Lookup::Hit(frame) if self.pages.state(frame).is_unwritten() || !self.is_too_dirty() => {
                self.pages.touch(frame);
                Some(frame)
            }
            Lookup::Miss if whole && !self.is_too_dirty() => match self.pages.allocate(self.file, page, Purpose::Demand) {
                Room::Frame(frame) => {
                    let bytes = self.page_bytes(page);
                    if bytes < PAGE_BYTES {
                        self.pages.clear(frame, bytes..PAGE_BYTES);
                    }
                    Some(frame)
                }
                Room::Dirty(frame) => {
                    self.write_out(frame, None);
                    None
                }
                Room::None => None,
            },
            _ => None,
        }
    }

    fn is_too_dirty(&self) -> bool {
        self.pages.unwritten() >= self.settings.dirty_max
    }

    /// The pages that are written in part: none, one, or the first and the last.
    fn ends(&self, writing: &Writing, bytes: usize) -> [Option<PageIndex>; 2] {
        let all = pages(writing.offset, bytes);
        let (first, last) = (PageIndex(all.start), PageIndex(all.end - 1));
        let stop = writing.offset + bytes as u64;
        let stops_short = stop < last.offset() + self.page_bytes(last) as u64;
        let is_part = !writing.offset.is_multiple_of(PAGE_BYTES as u64) || (first == last && stops_short);
        [is_part.then_some(first), (first != last && stops_short).then_some(last)]
    }

    fn ends_are_here(&self, writing: &Writing, bytes: usize) -> bool {
        let is_here = |page: PageIndex| matches!(self.pages.lookup(self.file, page), Lookup::Hit(_));
        self.ends(writing, bytes).into_iter().flatten().all(is_here)
    }

    /// Does what the next page waits for: fewer dirty pages, a frame, the rest of its bytes, or the end of its transfer.
    fn go_on(&mut self, writing: &mut Writing, bytes: usize) -> Poll<Result<(), Error>> {
        if self.reap() > 0 {
            return Poll::Ready(Ok(()));
        }
        if self.is_too_dirty() {
            return self.help();
        }
        let missing = |core: &Core<Q>, page: PageIndex| core.pages.lookup(core.file, page) == Lookup::Miss;
        let next = PageIndex::of(writing.offset + writing.done as u64);
        for page in self.ends(writing, bytes).into_iter().flatten() {
            if page >= next && missing(self, page) {
                ready!(self.fetch_more(page, &mut writing.ticket))?;
            }
        }
        self.ring();
        if writing.ticket.is_some() {
            return Poll::Ready(Ok(()));
        }
        self.pending(0)
    }

    /// Asks for one more page with the same ticket.
    fn fetch_more(&mut self, page: PageIndex, ticket: &mut Option<Ticket>) -> Poll<Result<(), Error>> {
        let Some(number) = (*ticket).or_else(|| self.tickets.take()) else { return Poll::Pending };
        *ticket = Some(number);
        self.fills.clear();
        match self.pages.allocate(self.file, page, Purpose::Demand) {
            Room::Frame(frame) => self.fills.push(frame),
            Room::Dirty(frame) => _ = self.write_out(frame, None),
            Room::None => {}
        }
        let frames = self.fills.len();
        if self.read_in(0..frames, *ticket) == 0 && self.tickets.is_idle(number) {
            self.settle(ticket);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the oldest pages back, and waits for the device. An error if that does not help any more.
    fn help(&mut self) -> Poll<Result<(), Error>> {
        if !self.flush_runs {
            self.write_oldest(false);
            self.ring();
        }
        self.pending(0)
    }

    /// Sends the pages just written, and waits until they are down.
    fn write_through(&mut self, writing: &mut Writing, bytes: usize) -> Poll<Result<(), Error>> {
        let all = pages(writing.offset, bytes);
        while writing.sent < all.end {
            let Lookup::Hit(frame) = self.pages.lookup(self.file, PageIndex(writing.sent)) else {
                // It has left, so it is down; or it was dropped by somebody else.
                writing.sent += 1;
                continue;
            };
            match self.pages.state(frame) {
                State::Dirty => {
                    let Some(number) = writing.ticket.or_else(|| self.tickets.take()) else { return Poll::Pending };
                    writing.ticket = Some(number);
                    if !self.write_out(frame, writing.ticket) && self.reap() == 0 {
                        self.ring();
                        return self.pending(1);
                    }
                }
                // Ours, or one that began before our bytes came; the outcome shows in its state.
                State::Writing if writing.ticket.is_some() => writing.sent += 1,
                State::Writing | State::Rewritten if self.reap() == 0 => return self.pending(usize::from(writing.ticket.is_some())),
                State::Writing | State::Rewritten => {}
                // The others arrive before the writer is told.
                State::Stuck => (writing.refused, writing.sent) = (Some(Error::Timeout), all.end),
                _ => writing.sent += 1,
            }
        }
        self.ring();
        ready!(self.arrived(&mut writing.ticket))?;
        if let Some(error) = writing.refused {
            return Poll::Ready(Err(error));
        }
        self.is_down(all, writing.ticket.is_some())
    }

    /// Whether pages that were sent have arrived, also those that somebody else sent.
    fn is_down(&mut self, pages: std::ops::Range<u64>, ticket: bool) -> Poll<Result<(), Error>> {
        for page in pages {
            let Lookup::Hit(frame) = self.pages.lookup(self.file, PageIndex(page)) else { continue };
            match self.pages.state(frame) {
                State::Writing => return self.pending(usize::from(ticket)),
                State::Dirty | State::Stuck if self.pages.has_failed(frame) => {
                    return Poll::Ready(Err(self.pages.failures(self.file).last.unwrap_or(Error::Media)));
                }
                _ => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}
