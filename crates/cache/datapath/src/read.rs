//! The path of a read.
//!
//! A read goes one way. Pages that are here are copied at once, and that is all that most reads do. At the first page that is not:
//! *plan* a frame for each page that is missing, of those asked for and of those likely to be asked for next; *submit* them in
//! one batch with one doorbell; evict ahead of need while the device works; *reap* what has ended; *copy*, and go on.
//!
//! A page that another reader has under way is not asked for twice. If it was only read ahead and failed, nobody was told: it is
//! missing again, and whoever needs it asks for it himself and gets the error.

use std::ops::Range;
use std::task::{Poll, ready};

use block::{Error, Queue};
use pagecache::{FrameId, Lookup, PAGE_BYTES, PageIndex, Purpose, Room};

use crate::core::{Core, Handle};
use crate::lane::Ticket;

/// A read under way.
#[derive(Debug)]
pub(crate) struct Reading {
    offset: u64,
    /// Bytes copied.
    done: usize,
    /// Our own requests.
    ticket: Option<Ticket>,
    /// The page that was asked for already, by this handle's last access.
    again: Option<u64>,
}

impl Reading {
    /// A read of `bytes` at `offset`, by a handle.
    #[inline]
    pub(crate) fn begin(handle: &mut Handle, offset: u64, bytes: usize) -> Reading {
        let pages = pages(offset, bytes);
        let first = handle.stream.access(&pages);
        Reading { offset, done: 0, ticket: None, again: (!first).then_some(pages.start) }
    }
}

/// The pages that bytes lie in.
#[inline]
pub(crate) fn pages(offset: u64, bytes: usize) -> Range<u64> {
    PageIndex::of(offset).0..(offset + bytes as u64).div_ceil(PAGE_BYTES as u64)
}

impl<Q: Queue> Core<Q> {
    /// One step of a read.
    #[inline]
    pub(crate) fn read(&mut self, handle: &mut Handle, reading: &mut Reading, to: &mut [u8]) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.arrived(&mut reading.ticket))?;
            self.copy_out(reading, to);
            self.settle(&mut reading.ticket);
            if reading.done == to.len() {
                if handle.stream.is_due() {
                    self.read_ahead(handle);
                }
                return Poll::Ready(Ok(()));
            }
            let rest = pages(reading.offset + reading.done as u64, to.len() - reading.done);
            ready!(self.fetch(handle, rest, &mut reading.ticket))?;
        }
    }

    /// Copies what is here, up to the first page that is not.
    #[inline]
    fn copy_out(&mut self, reading: &mut Reading, to: &mut [u8]) {
        while reading.done < to.len() {
            let offset = reading.offset + reading.done as u64;
            let page = PageIndex::of(offset);
            let Lookup::Hit(frame) = self.pages.lookup(self.file, page) else { return };
            let from = (offset % PAGE_BYTES as u64) as usize;
            let bytes = (PAGE_BYTES - from).min(to.len() - reading.done);
            self.pages.read(frame, from, &mut to[reading.done..reading.done + bytes]);
            reading.done += bytes;
            self.touch(frame, page, reading);
        }
    }

    /// The page is worth keeping; but the pieces of one page that a stream asks for are one access, and so is the read that
    /// brought it here.
    #[inline]
    fn touch(&mut self, frame: FrameId, page: PageIndex, reading: &Reading) {
        let brought = reading.ticket.is_some_and(|ticket| self.tickets.keeps(ticket, frame));
        if !brought && reading.again != Some(page.0) {
            self.stats.hits += 1;
            self.pages.touch(frame);
        }
    }

    /// Whether our own requests have ended. The first error among them ends the operation.
    #[inline]
    pub(crate) fn arrived(&mut self, ticket: &mut Option<Ticket>) -> Poll<Result<(), Error>> {
        let Some(number) = *ticket else { return Poll::Ready(Ok(())) };
        self.reap();
        match self.tickets.outcome(number) {
            None => Poll::Pending,
            Some(Ok(())) => Poll::Ready(Ok(())),
            Some(Err(error)) => {
                self.settle(ticket);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Asks the device for the pages that are missing, of those in a range up to a window of them; returns when it makes sense to
    /// look again. The pages stay until the ticket is settled.
    pub(crate) fn fetch(&mut self, handle: &mut Handle, pages: Range<u64>, ticket: &mut Option<Ticket>) -> Poll<Result<(), Error>> {
        if self.reap() > 0 {
            return Poll::Ready(Ok(()));
        }
        let Some(number) = self.tickets.take() else { return Poll::Pending };
        let frames = self.plan(pages.start..pages.end.min(pages.start + self.window as u64), Purpose::Demand);
        if self.read_in(0..frames, Some(number)) == 0 {
            self.ring();
            self.tickets.give_back(number);
            return self.pending(0);
        }
        *ticket = Some(number);
        if handle.stream.is_due() {
            self.read_ahead(handle);
        }
        self.ring();
        self.keep_ahead();
        Poll::Ready(Ok(()))
    }

    /// Frames for the pages of a range that are missing, into `fills`, as far as there is room. What is in the way and dirty
    /// is written back.
    fn plan(&mut self, pages: Range<u64>, purpose: Purpose) -> usize {
        self.fills.clear();
        for page in pages.map(PageIndex) {
            if self.pages.lookup(self.file, page) != Lookup::Miss {
                continue;
            }
            match self.pages.allocate(self.file, page, purpose) {
                Room::Frame(frame) => self.fills.push(frame),
                Room::Dirty(frame) if purpose == Purpose::Demand => {
                    self.write_out(frame, None);
                    break;
                }
                Room::Dirty(_) | Room::None => break,
            }
        }
        self.fills.len()
    }

    /// Asks for the pages a stream will want next. Nobody waits for them, and nothing that is in use leaves for them.
    fn read_ahead(&mut self, handle: &mut Handle) {
        let pages = handle.stream.window(self.settings.ahead_max, self.end());
        if pages.is_empty() {
            return;
        }
        let frames = self.plan(pages.clone(), Purpose::Ahead);
        let last = self.fills.last().map(|frame| self.pages.page(*frame).1.0 + 1);
        let sent = self.read_in(0..frames, None);
        let complete = sent == frames && last.is_some_and(|last| self.is_here(last..pages.end));
        if !complete && last != Some(pages.end) {
            handle.stream.stopped(last.unwrap_or(pages.start));
        }
        self.ring();
    }

    fn is_here(&self, mut pages: Range<u64>) -> bool {
        pages.all(|page| self.pages.lookup(self.file, PageIndex(page)) != Lookup::Miss)
    }

    /// One step of pinning a page: it is read if it is not here, and stays where it is until it is unpinned.
    pub(crate) fn pin(&mut self, handle: &mut Handle, page: PageIndex, ticket: &mut Option<Ticket>) -> Poll<Result<Pinned, Error>> {
        loop {
            ready!(self.arrived(ticket))?;
            if let Lookup::Hit(frame) = self.pages.lookup(self.file, page) {
                let pinned = self.pages.pin(frame);
                if ticket.is_none() {
                    self.stats.hits += 1;
                    self.pages.touch(frame);
                }
                self.settle(ticket);
                let (address, bytes) = (self.pages.address(frame), self.page_bytes(page));
                return Poll::Ready(if pinned { Ok(Pinned { frame, address, bytes }) } else { Err(Error::NoResources) });
            }
            self.settle(ticket);
            ready!(self.fetch(handle, page.0..page.0 + 1, ticket))?;
        }
    }
}

/// A page that stays where it is. To be given back to the cache it comes from.
#[derive(Debug)]
#[must_use]
pub struct Pinned {
    pub(crate) frame: FrameId,
    address: *const u8,
    bytes: usize,
}

impl Pinned {
    /// Where the page is. The bytes are those of the cache: writers change them while they are looked at. They are not to be
    /// written to, and not to be looked at after `unpin`.
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// Bytes of the device there: fewer than 4096 in a device's last page.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
