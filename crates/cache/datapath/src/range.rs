//! Ranges of the device: discards, and what keeps direct I/O beside the cache coherent.
//!
//! Whoever reads or writes the device beside the cache (a handle in direct mode on the same device) calls
//!
//! - before a direct read: `write_back` of the range;
//! - before a direct write, write-zeroes or discard: `invalidate` of the range, and once more after it has completed, for the
//!   pages that somebody read meanwhile;
//! - for a discard through the cache: `discard`, which does all of it.
//!
//! A discard that got no answer may still be done: until the device lets go of it, nothing is written.
//!
//! Cached writes to the same bytes at the same time as direct ones have no order, as on the device itself.

use std::ops::Range;
use std::task::{Poll, ready};

use block::{Error, Lba, Queue, Request, Tag};
use pagecache::{FrameId, PAGE_BYTES, PageIndex, State};

use crate::core::Core;
use crate::lane::Ticket;

/// Most bytes of one discard: the number of blocks of a request has 32 bits.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

/// What becomes of the pages of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// They are written, if dirty, and stay.
    Written,
    /// They are written, if dirty, and go.
    Gone,
    /// They go; those that lie in the range as a whole are not written.
    Dropped,
}

/// Pages of a range on their way.
#[derive(Debug)]
pub(crate) struct Sweep {
    fate: Fate,
    bytes: Range<u64>,
    /// How far it came.
    position: u64,
    /// Writes were sent for all that was dirty.
    sent: bool,
    ticket: Option<Ticket>,
    /// Discards were sent for the bytes before this one.
    discarded: u64,
}

impl Sweep {
    pub(crate) fn new(fate: Fate, bytes: Range<u64>) -> Sweep {
        let discarded = bytes.start;
        Sweep { fate, bytes, position: 0, sent: false, ticket: None, discarded }
    }
}

impl<Q: Queue> Core<Q> {
    /// The range of bytes of a sweep, if the device has it.
    pub(crate) fn check_range(&self, bytes: &Range<u64>) -> Result<(), Error> {
        if bytes.start <= bytes.end && bytes.end <= self.shape.bytes() { Ok(()) } else { Err(Error::OutOfRange) }
    }

    /// One step over the pages of a range.
    pub(crate) fn sweep(&mut self, sweep: &mut Sweep) -> Poll<Result<(), Error>> {
        self.reap();
        let bytes = &sweep.bytes;
        let pages = PageIndex::of(bytes.start).0..bytes.end.div_ceil(PAGE_BYTES as u64);
        if !sweep.sent && sweep.fate != Fate::Dropped {
            sweep.sent = self.send_dirty(&pages);
        }
        loop {
            ready!(self.arrived(&mut sweep.ticket))?;
            self.settle(&mut sweep.ticket);
            let Some((position, frame)) = self.pages.next_in(self.file, &pages, sweep.position) else { break };
            let done = ready!(self.meet_fate(sweep, frame))?;
            sweep.position = position + u64::from(done);
        }
        self.ring();
        Poll::Ready(Ok(()))
    }

    /// Sends all dirty pages of a range at once, as far as the queue has room; whether those were all.
    fn send_dirty(&mut self, pages: &Range<u64>) -> bool {
        self.victims.clear();
        let mut all = self.pages.collect_dirty(self.file, pages, false, &mut self.victims);
        for at in 0..self.victims.len() {
            let frame = self.victims[at];
            if self.pages.state(frame) == State::Dirty && !self.write_out(frame, None) {
                all = false;
                break;
            }
        }
        self.ring();
        all
    }

    /// One page: whether it is done with.
    fn meet_fate(&mut self, sweep: &mut Sweep, frame: FrameId) -> Poll<Result<bool, Error>> {
        let (_, page) = self.pages.page(frame);
        let end = page.offset() + self.page_bytes(page) as u64;
        let is_whole = sweep.bytes.start <= page.offset() && end <= sweep.bytes.end;
        match self.pages.state(frame) {
            State::Dirty if sweep.fate == Fate::Dropped && is_whole => self.pages.remove(frame),
            State::Dirty => return self.send_one(sweep, frame).map_ok(|()| false),
            state if state.is_moving() => {
                if self.reap() == 0 {
                    self.ring();
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(false));
            }
            State::Stuck => return Poll::Ready(Err(Error::Timeout)),
            _ if sweep.fate == Fate::Written => {}
            _ => self.pages.remove(frame),
        }
        Poll::Ready(Ok(true))
    }

    /// Sends one dirty page and those around it; the sweep waits for them before it goes on.
    fn send_one(&mut self, sweep: &mut Sweep, frame: FrameId) -> Poll<Result<(), Error>> {
        let Some(ticket) = self.tickets.take() else { return Poll::Pending };
        sweep.ticket = Some(ticket);
        let sent = self.write_out(frame, sweep.ticket);
        self.ring();
        if sent {
            return Poll::Ready(Ok(()));
        }
        self.settle(&mut sweep.ticket);
        self.pending(0)
    }

    /// One step of a discard: the pages go, then the device is told.
    pub(crate) fn discard(&mut self, sweep: &mut Sweep) -> Poll<Result<(), Error>> {
        let block = u64::from(self.shape.block_bytes);
        if !self.shape.discard || self.shape.read_only {
            return Poll::Ready(Err(if self.shape.discard { Error::ReadOnly } else { Error::Unsupported }));
        }
        if !sweep.bytes.start.is_multiple_of(block) || !sweep.bytes.end.is_multiple_of(block) {
            return Poll::Ready(Err(Error::Misaligned));
        }
        ready!(self.sweep(sweep))?;
        while sweep.discarded < sweep.bytes.end {
            let Some(ticket) = sweep.ticket.or_else(|| self.tickets.take()) else { return Poll::Pending };
            sweep.ticket = Some(ticket);
            let bytes = (sweep.bytes.end - sweep.discarded).min(DISCARD_BYTES_MAX);
            let request = Request::discard(Tag(0), Lba(sweep.discarded / block), (bytes / block) as u32);
            if !self.send_plain(&request, ticket) {
                if self.reap() > 0 {
                    continue;
                }
                if self.in_flight() > 0 {
                    return Poll::Pending;
                }
                self.settle(&mut sweep.ticket);
                return Poll::Ready(Err(Error::Timeout));
            }
            sweep.discarded += bytes;
        }
        ready!(self.arrived(&mut sweep.ticket))?;
        self.settle(&mut sweep.ticket);
        Poll::Ready(Ok(()))
    }
}
