//! The queue of the SSD that a reader owns, with the pages in it.

use std::time::{Duration, Instant};

use block::{Arena, Buf, Clock, Completion, Lba, OpenError, Queue, QueueOptions, Request, Span, Submit, Tag, Time, Tracked};
use pagecache::Ticket;
use ssdcache::{PAGE_BYTES, Page, ViewHit};

use super::AsyncReaderOptions;
use crate::engine::CacheEngine;
use crate::engine::open::Open;
use crate::engine::read::Piece;
use crate::engine::ssd::bytes_at;

/// The maximum number of pages in flight of one [`super::AsyncReader`]. Further pages wait.
const PARTS_MAX: u32 = 256;
/// The number of completions taken from the queue at once.
const BATCH: usize = 32;

/// A page in the queue.
#[derive(Clone, Copy)]
pub(super) struct PagePart {
    pub(super) read: u32,
    pub(super) piece: Piece,
    pub(super) found: ViewHit,
    /// The ticket for the page's insertion into a frame. None: it is not inserted.
    pub(super) ticket: Option<Ticket>,
    /// The device writes into the caller's memory, not into the slot's.
    pub(super) is_straight: bool,
    /// The part timed out, and the device still owns its memory.
    pub(super) is_kept: bool,
}

/// A slot of the queue, with its memory.
pub(super) struct QueueSlot {
    pub(super) buf: Buf,
    pub(super) part: Option<PagePart>,
}

/// A batch of completions of the queue, some not yet processed. A page is verified only when it is taken, so the first completion returns
/// sooner, and an idle device gets the next requests earlier.
pub(super) struct CompletionBatch {
    pub(super) completions: Box<[Completion; BATCH]>,
    pub(super) next: usize,
    pub(super) count: usize,
    /// When the batch was polled, if that is needed.
    pub(super) at: Option<Instant>,
}

impl CompletionBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Returns whether the batch was full, so that the queue may have more.
    pub(super) fn was_full(&self) -> bool {
        self.count == BATCH
    }
}

/// The queue of the SSD that a reader owns.
pub(super) struct SsdQueue {
    pub(super) queue: Tracked<Box<dyn Queue>>,
    pub(super) slots: Box<[QueueSlot]>,
    pub(super) free: Vec<u32>,
    /// Blocks per page.
    pub(super) blocks: u32,
    pub(super) timeout: Duration,
    /// Deadline of all requests submitted since the last ring; None: there are none.
    pub(super) due: Option<Time>,
    /// Buffer to verify a page that is only read in part.
    pub(super) scratch: Box<Page>,
    pub(super) batch: CompletionBatch,
    /// Memory of callers that is registered with the queue.
    pub(super) memory: Vec<Arena>,
    /// The queue has ended: it delivers no more completions.
    pub(super) is_over: bool,
}

impl SsdQueue {
    pub(super) fn open(engine: &CacheEngine, depth: u32, options: AsyncReaderOptions) -> Result<SsdQueue, OpenError> {
        let device = engine.ssd_queues.as_ref().ok_or_else(|| OpenError::Unusable("there is no SSD".to_owned()))?.device();
        let depth = depth.next_power_of_two().min(PARTS_MAX);
        let AsyncReaderOptions { single_issuer, waits, spin_duration, timeouts } = options;
        let options = QueueOptions { depth, single_issuer, waits, spin_duration, ..QueueOptions::default() };
        let mut queue = Tracked::new(device.queue(&options)?, timeouts);
        let block_bytes = queue.geometry().block_bytes;
        if !PAGE_BYTES.is_multiple_of(block_bytes as usize) {
            return Err(OpenError::Unusable(format!("blocks of {block_bytes} bytes")));
        }
        let failed = |error| OpenError::system("memory for pages of the SSD", error);
        let arena = device.arena(depth as usize * PAGE_BYTES).map_err(failed)?;
        queue.register(&arena).map_err(|error| OpenError::Unusable(format!("a queue of the SSD: {error}")))?;
        let slots: Box<[QueueSlot]> =
            (0..depth).filter_map(|_| arena.allocate(PAGE_BYTES)).map(|buf| QueueSlot { buf, part: None }).collect();
        let free = (0..slots.len() as u32).rev().collect();
        Ok(SsdQueue {
            queue,
            slots,
            free,
            blocks: PAGE_BYTES as u32 / block_bytes,
            timeout: timeouts.timeout.unwrap_or(Duration::MAX),
            due: None,
            scratch: Box::new([0; PAGE_BYTES]),
            batch: CompletionBatch { completions: Box::new([Completion::EMPTY; BATCH]), next: 0, count: 0, at: None },
            memory: Vec::new(),
            is_over: false,
        })
    }

    /// Registers memory that the device may write into, if that is possible.
    pub(super) fn know(&mut self, arena: &Arena) {
        if self.queue.register(arena).is_ok() {
            self.memory.push(arena.clone());
        }
    }

    /// Returns the span for a whole page that the device can write directly.
    #[inline]
    fn straight(&self, to: &[u8]) -> Option<Span> {
        let at = to.as_ptr() as usize;
        if self.memory.is_empty() || to.len() != PAGE_BYTES || !at.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let within = |arena: &Arena| {
            let from = at.checked_sub(arena.region().address(0) as usize)?;
            (from + PAGE_BYTES <= arena.region().len()).then(|| arena.span(from, PAGE_BYTES as u32))
        };
        self.memory.iter().find_map(within)
    }

    /// Submits a page of a read, for these bytes of its memory. Returns false if there is no free slot.
    #[inline]
    pub(super) fn submit(&mut self, read: u32, piece: Piece, found: &ViewHit, ticket: Option<Ticket>, to: &[u8]) -> bool {
        let Some(&slot) = self.free.last() else { return false };
        let due = self.due.unwrap_or_else(|| self.queue.clock().due(self.timeout));
        let lba = Lba(bytes_at(found.item.at) / PAGE_BYTES as u64 * u64::from(self.blocks));
        let request = Request::read(Tag(slot.into()), lba, self.blocks);
        let straight = self.straight(to);
        let place = &mut self.slots[slot as usize];
        let to = straight.unwrap_or(place.buf.span());
        if self.queue.submit_by(&request, &[to], due) == Submit::Full {
            return false;
        }
        self.due = Some(due);
        place.part = Some(PagePart { read, piece, found: *found, ticket, is_straight: straight.is_some(), is_kept: false });
        self.free.pop();
        true
    }

    pub(super) fn ring(&mut self) {
        if self.due.take().is_some() {
            self.queue.ring();
        }
    }

    /// Returns whether the queue has ended, and no parts are left in it.
    pub(super) fn is_spent(&self) -> bool {
        self.is_over && self.slots.iter().all(|slot| slot.part.is_none())
    }

    /// Completes a part: verifies its bytes and copies them to the caller. Returns false if they are wrong.
    #[inline]
    pub(super) fn complete(&mut self, slot: u32, open: &Open, to: &mut [u8]) -> bool {
        let QueueSlot { buf, part: Some(part) } = &self.slots[slot as usize] else { return false };
        let (piece, scratch) = (part.piece, &mut *self.scratch);
        let is_good = match to.get_mut(piece.at..piece.at + piece.len).and_then(|to| <&mut Page>::try_from(to).ok()) {
            Some(to) => {
                // Verify the page in place, which saves a copy: if it is wrong, the read's data does not count. But the caller can change
                // its memory: what goes into a frame is verified in ours.
                if !part.is_straight {
                    buf.read(0, to);
                }
                let is_good = if part.ticket.is_some() {
                    scratch.copy_from_slice(to);
                    open.is_good(&part.found, scratch)
                } else {
                    open.is_good(&part.found, to)
                };
                open.zero_past_eof(piece.page, to);
                is_good
            }
            None => {
                buf.read(0, &mut scratch[..]);
                let is_good = open.is_good(&part.found, scratch);
                open.copy_out(piece, scratch, to);
                is_good
            }
        };
        if is_good && let Some(ticket) = part.ticket {
            open.zero_past_eof(piece.page, scratch);
            open.insert_cut(piece, ticket, scratch);
        }
        is_good
    }

    /// Removes the part of a slot. The slot becomes free, unless the device still owns its memory.
    #[inline]
    pub(super) fn free(&mut self, slot: u32, is_held: bool) {
        self.slots[slot as usize].part = None;
        if !is_held {
            self.free.push(slot);
        }
    }
}
