//! Reads that nobody stands and waits for: what is in frames is copied at once, what the SSD has comes through one queue, many pages
//! in one submission, and is copied by whoever asks for what has ended. Anything else ([`Outcome::Slow`]) is the caller's to do by
//! [`Open::read`], where it may wait.
//!
//! The life of a read:
//!
//! ```text
//!   begin --- all in frames --------------------------------> ended, Read
//!     |  page by page: a frame, or a part for the queue
//!     |---- a page that neither has, or that is uncertain --> slow ----.
//!     |---- no place in the queue: waits, goes on in reap              | when its last part has ended
//!     v                                                                v
//!   under way --- each part verified ----> ended, Read      ended, Slow: nothing it wrote counts
//! ```
//!
//! The device writes into memory of this process alone. A page that left its place on the SSD meanwhile fails its checksum, and the
//! read is slow: it looks again.
//!
//! What goes to memory that was made for that ([`Reads::know`]) the device writes there itself. Such a read ends only when the device
//! has let go of it, or is lost with a device that never does.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::tracked::Patience;
use block::{Arena, Armed, Buf, Clock, Completion, Error, Lba, OpenError, Queue, QueueOptions, Request, Span, Submit, Tag, Time, Tracked};
use pagecache::shared::Ticket;
use ssdcache::{Found, PAGE_BYTES, Page, Seen};

use super::Shelf;
use super::counters::Tier;
use super::open::Open;
use super::read::{Piece, pieces};
use super::ssd::bytes_at;

/// Pages under way of one [`Reads`], at most. More wait.
const PARTS_MAX: u32 = 256;
/// Completions taken from the queue at once.
const BATCH: usize = 32;
/// One read of so many is timed: the clock costs a good part of a hit.
const TIMED: u32 = 16;

/// How [`Reads`] are used; see [`QueueOptions`], whose words these are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadsOptions {
    /// One thread alone begins reads and takes what has ended. Another one that does is a mistake, and panics.
    pub one_thread: bool,
    /// It waits rather than looks: a look that finds nothing costs a system call.
    pub waits: bool,
    /// How long the SSD is waited for.
    pub patience: Patience,
}

/// A read as its caller makes it: owned until it has ended.
pub trait Job {
    /// Of which file, and where to.
    fn split(&mut self) -> (&Open, &mut [u8]);
}

/// How a read ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// So many bytes; fewer than the buffer has: the end of the file.
    Read(usize),
    /// It has to go below, or to wait: [`Open::read`] does it.
    Slow,
    /// The SSD was given up in the middle of it, and may still write where it was to: memory of [`Reads::know`], which is not to be
    /// used any more.
    Lost,
}

/// What became of a read.
#[derive(Debug)]
#[must_use]
pub enum Begun<J> {
    /// It ended at once.
    Ended(J, Outcome),
    /// It will end: [`Reads::take`].
    UnderWay,
    /// No place: as many as there may be are under way, or ended and not taken.
    Full(J),
}

struct Read<J> {
    job: J,
    /// Where in the file, and how much of it.
    at: u64,
    len: usize,
    /// Bytes that were looked for.
    looked: usize,
    /// Parts in the queue.
    parts: u32,
    is_slow: bool,
    is_lost: bool,
    begun: Option<Instant>,
}

/// A page in the queue.
#[derive(Clone, Copy)]
struct Part {
    read: u32,
    piece: Piece,
    ticket: Ticket,
    found: Found,
    /// Memory of the caller that the device writes into; none: into that of the place.
    straight: Option<Span>,
    /// It is over its time, and the device still has that memory.
    is_kept: bool,
}

/// A place in the queue, with its memory.
struct Slot {
    buf: Buf,
    part: Option<Part>,
}

/// The queue of the SSD.
struct Lane {
    queue: Tracked<Box<dyn Queue>>,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Blocks of a page.
    blocks: u32,
    timeout: Duration,
    /// Something was submitted since the last ring; all of it has this deadline.
    due: Option<Time>,
    /// Where a page that is only read in part is verified.
    scratch: Box<Page>,
    /// Memory of callers that the queue was told of.
    memory: Vec<Arena>,
    /// The queue ended: nothing more comes of it.
    is_over: bool,
}

impl Lane {
    fn open(shelf: &Shelf, depth: u32, options: ReadsOptions) -> Result<Lane, OpenError> {
        let device = shelf.lanes.as_ref().ok_or_else(|| OpenError::Unusable("there is no SSD".to_owned()))?.device();
        let depth = depth.next_power_of_two().min(PARTS_MAX);
        let ReadsOptions { one_thread, waits, patience } = options;
        let options = QueueOptions { depth, one_thread, waits, ..QueueOptions::default() };
        let mut queue = Tracked::new(device.queue(&options)?, patience);
        let block_bytes = queue.geometry().block_bytes;
        if !PAGE_BYTES.is_multiple_of(block_bytes as usize) {
            return Err(OpenError::Unusable(format!("blocks of {block_bytes} bytes")));
        }
        let failed = |error| OpenError::system("memory for pages of the SSD", error);
        let arena = device.arena(depth as usize * PAGE_BYTES).map_err(failed)?;
        queue.register(&arena).map_err(|error| OpenError::Unusable(format!("a queue of the SSD: {error}")))?;
        let slots: Box<[Slot]> = (0..depth).filter_map(|_| arena.allocate(PAGE_BYTES)).map(|buf| Slot { buf, part: None }).collect();
        let free = (0..slots.len() as u32).rev().collect();
        Ok(Lane {
            queue,
            slots,
            free,
            blocks: PAGE_BYTES as u32 / block_bytes,
            timeout: patience.timeout.unwrap_or(Duration::MAX),
            due: None,
            scratch: Box::new([0; PAGE_BYTES]),
            memory: Vec::new(),
            is_over: false,
        })
    }

    /// The device may write into this memory, if that is possible.
    fn know(&mut self, arena: &Arena) {
        if self.queue.register(arena).is_ok() {
            self.memory.push(arena.clone());
        }
    }

    /// Where the device can write a whole page by itself.
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

    /// False: there is no place.
    fn submit(&mut self, part: Part) -> bool {
        let Some(&slot) = self.free.last() else { return false };
        let due = self.due.unwrap_or_else(|| self.queue.clock().due(self.timeout));
        let lba = Lba(bytes_at(part.found.item.at) / PAGE_BYTES as u64 * u64::from(self.blocks));
        let request = Request::read(Tag(slot.into()), lba, self.blocks);
        let place = &mut self.slots[slot as usize];
        let to = part.straight.unwrap_or(place.buf.span());
        if self.queue.submit_by(&request, &[to], due) == Submit::Full {
            return false;
        }
        self.due = Some(due);
        place.part = Some(part);
        self.free.pop();
        true
    }

    fn ring(&mut self) {
        if self.due.take().is_some() {
            self.queue.ring();
        }
    }

    /// The queue ended, and all that was in it.
    fn is_spent(&self) -> bool {
        self.is_over && self.slots.iter().all(|slot| slot.part.is_none())
    }

    /// A part has ended: its bytes go to the caller. False: they are not what they should be.
    fn give(&mut self, slot: u32, open: &Open, to: &mut [u8]) -> bool {
        let Slot { buf, part: Some(part) } = &self.slots[slot as usize] else { return false };
        let whole = part.piece.at..part.piece.at + part.piece.len;
        // Verified where it shall be, which saves a copy: if it is not good, nothing of it counts.
        let is_good = match to.get_mut(whole.clone()).and_then(|to| <&mut Page>::try_from(to).ok()) {
            Some(to) => {
                if part.straight.is_none() {
                    buf.read(0, to);
                }
                let is_good = open.is_good(&part.found, to);
                open.cut_in_place(part.piece.page, to);
                is_good
            }
            None => {
                buf.read(0, &mut self.scratch[..]);
                let is_good = open.is_good(&part.found, &self.scratch);
                open.give(part.piece, &self.scratch, to);
                is_good
            }
        };
        if is_good && open.wants(part.piece) {
            // The caller's memory is not ours to believe a second time.
            let is_still_good = match part.straight {
                None => {
                    buf.read(0, &mut self.scratch[..]);
                    true
                }
                Some(_) => {
                    self.scratch.copy_from_slice(&to[whole]);
                    open.is_good(&part.found, &self.scratch)
                }
            };
            if is_still_good {
                open.insert_clean(part.piece, part.ticket, &self.scratch);
            }
        }
        is_good
    }

    /// A place has no part any more. Its memory is free again, unless the device still has it.
    fn free(&mut self, slot: u32, is_held: bool) {
        self.slots[slot as usize].part = None;
        if !is_held {
            self.free.push(slot);
        }
    }
}

/// Reads under way of one process, used by one thread at a time; see the module.
pub struct Reads<J> {
    shelf: Arc<Shelf>,
    options: ReadsOptions,
    reads: Box<[Option<Read<J>>]>,
    free: Vec<u32>,
    /// Reads with pages for which the queue had no place.
    waiting: VecDeque<u32>,
    ended: VecDeque<(J, Outcome)>,
    /// That the device may write into.
    memory: Vec<Arena>,
    /// None until the first page of the SSD is read.
    lane: Option<Lane>,
    /// The SSD has no queue for us: all of it is slow.
    is_without: bool,
    begun: u32,
}

impl<J: Job> Reads<J> {
    /// For so many reads, under way or ended and not taken.
    pub fn new(shelf: &Arc<Shelf>, depth: u32, options: ReadsOptions) -> Reads<J> {
        Reads {
            shelf: Arc::clone(shelf),
            options,
            reads: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth as usize),
            ended: VecDeque::with_capacity(depth as usize),
            memory: Vec::new(),
            lane: None,
            is_without: shelf.lanes.is_none() || shelf.view.is_none(),
            begun: 0,
        }
    }

    /// Whose pages they are.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Pages of the SSD that are read whole into this memory, at multiples of their size, come there without a copy. It is kept as long
    /// as reads may be under way. Else it is memory like any other.
    pub fn know(&mut self, memory: &Arena) {
        if let Some(lane) = &mut self.lane {
            lane.know(memory);
        }
        self.memory.push(memory.clone());
    }

    /// Reads that have not ended.
    pub fn under_way(&self) -> usize {
        self.reads.len() - self.free.len()
    }

    /// Whether none is under way, or ended and not taken.
    pub fn is_idle(&self) -> bool {
        self.under_way() == 0 && self.ended.is_empty()
    }

    /// Begins a read. The device hears of it at the next `ring`, `take` or `wait`.
    pub fn begin(&mut self, mut job: J, at: u64) -> Begun<J> {
        let (open, to) = job.split();
        let size = open.size();
        let len = to.len().min(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
        let offset = (at % PAGE_BYTES as u64) as usize;
        let name = open.name(at / PAGE_BYTES as u64);
        // Who reads so has more on the SSD than in memory: what memory lacks is on its way while it is looked for there.
        open.prefetch_on_ssd(at / PAGE_BYTES as u64);
        if len == 0 || (offset + len <= PAGE_BYTES && self.shelf.pages.read(name, offset, &mut to[..len])) {
            return Begun::Ended(job, Outcome::Read(len));
        }
        if self.is_without || !open.is_of(&self.shelf) || !self.has_lane() {
            return Begun::Ended(job, Outcome::Slow);
        }
        if self.under_way() + self.ended.len() >= self.reads.len() {
            return Begun::Full(job);
        }
        let Some(index) = self.free.pop() else { return Begun::Full(job) };
        self.begun = self.begun.wrapping_add(1);
        let begun = self.begun.is_multiple_of(TIMED).then(Instant::now);
        self.reads[index as usize] = Some(Read { job, at, len, looked: 0, parts: 0, is_slow: false, is_lost: false, begun });
        self.look(index);
        match self.take_if_ended(index) {
            Some((job, outcome)) => Begun::Ended(job, outcome),
            None => Begun::UnderWay,
        }
    }

    fn has_lane(&mut self) -> bool {
        if self.lane.is_none() {
            let opened = Lane::open(&self.shelf, self.reads.len() as u32, self.options);
            let comes_back = self.shelf.lanes.as_ref().is_some_and(|lanes| lanes.comes_back());
            self.is_without = opened.is_err() && !comes_back;
            self.lane = opened
                .map_err(|error| {
                    if !comes_back {
                        self.shelf.world.report(&error.to_string())
                    }
                })
                .ok();
            if let Some(lane) = &mut self.lane {
                self.memory.iter().for_each(|memory| lane.know(memory));
            }
        }
        self.lane.is_some()
    }

    /// Looks for the pages of a read, as far as there are places.
    fn look(&mut self, index: u32) {
        let (Some(read), Some(lane)) = (&mut self.reads[index as usize], &mut self.lane) else { return };
        let (open, to) = read.job.split();
        let from = read.looked;
        for piece in pieces(read.at + from as u64, read.len - from) {
            let piece = Piece { at: piece.at + from, ..piece };
            // First: what is written from now on is noticed when the page is to go into a frame.
            let ticket = self.shelf.pages.ticket(open.name(piece.page));
            // A read of one page has looked there already.
            let is_in_frame =
                piece.len < read.len && self.shelf.pages.read(open.name(piece.page), piece.offset, &mut to[piece.at..piece.at + piece.len]);
            if !is_in_frame {
                let Seen::Hit(found) = open.look_on_ssd(piece.page) else {
                    read.is_slow = true;
                    break;
                };
                let straight = lane.straight(&to[piece.at..piece.at + piece.len]);
                if !lane.submit(Part { read: index, piece, ticket, found, straight, is_kept: false }) {
                    self.waiting.push_back(index);
                    return;
                }
                // Now, while its word is near.
                open.touch_on_ssd(&found);
                read.parts += 1;
            }
            read.looked = piece.at + piece.len;
        }
        read.looked = read.len;
    }

    fn take_if_ended(&mut self, index: u32) -> Option<(J, Outcome)> {
        let place = &mut self.reads[index as usize];
        let read = place.take_if(|read| read.parts == 0 && (read.is_slow || read.looked == read.len))?;
        self.free.push(index);
        if let Some(begun) = read.begun.filter(|_| !read.is_slow) {
            self.shelf.counters.took(Tier::Ssd, begun.elapsed().as_nanos() as u64);
        }
        let outcome = match read {
            Read { is_lost: true, .. } => Outcome::Lost,
            Read { is_slow: true, .. } => Outcome::Slow,
            Read { len, .. } => Outcome::Read(len),
        };
        Some((read.job, outcome))
    }

    /// Tells the device of all that was begun.
    pub fn ring(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.ring();
        }
    }

    /// One that has ended, if there is one. Rings.
    pub fn take(&mut self) -> Option<(J, Outcome)> {
        if self.ended.is_empty() {
            self.poll();
        }
        self.ended.pop_front()
    }

    /// One of those that were seen to have ended.
    pub fn take_seen(&mut self) -> Option<(J, Outcome)> {
        self.ended.pop_front()
    }

    /// Rings, and sees what has ended.
    pub fn poll(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.ring();
            self.reap(None);
        }
    }

    /// Rings, waits until one may have ended, or for `at_most`, and sees which have. Returns early at will; at once if some that were
    /// seen were not taken.
    pub fn wait(&mut self, at_most: Duration) {
        if let Some(lane) = self.lane.as_mut().filter(|_| self.ended.is_empty()) {
            lane.due = None;
            self.reap(Some(at_most));
        }
    }

    /// For who waits for other things, too: readable when a read may have ended after [`Reads::arm`] said that it is waiting. None:
    /// nothing to wait for, or not in this way.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.lane.as_ref()?.queue.event()
    }

    /// Asks for the event.
    pub fn arm(&mut self) -> Armed {
        match &mut self.lane {
            Some(lane) if self.ended.is_empty() => {
                lane.due = None;
                lane.queue.arm()
            }
            _ => Armed::Ready,
        }
    }

    /// Sees what has ended, after waiting for it if that is asked for.
    fn reap(&mut self, mut wait: Option<Duration>) {
        let mut batch = [Completion::EMPTY; BATCH];
        let mut hits = 0;
        loop {
            let Some(lane) = &mut self.lane else { return };
            let count = match wait.take() {
                Some(at_most) => lane.queue.wait_and_poll(at_most, &mut batch),
                None => lane.queue.poll(&mut batch),
            };
            for completion in &batch[..count] {
                hits += u64::from(self.end_part(*completion));
            }
            if count < BATCH || self.lane.as_ref().is_none_or(|lane| lane.queue.in_flight() == 0) {
                break;
            }
        }
        if hits > 0 {
            self.shelf.count_ssd_hits(hits);
        }
        if let Some(lane) = self.lane.as_mut().filter(|lane| lane.is_over || lane.queue.is_gone()) {
            lane.is_over = true;
            self.lose_kept();
        }
        if self.lane.as_ref().is_some_and(Lane::is_spent) {
            self.lane = None;
            self.give_up_waiting();
        }
        self.go_on();
    }

    /// There is no queue any more for those that have no place in it.
    fn give_up_waiting(&mut self) {
        while let Some(index) = self.waiting.pop_front() {
            if let Some(read) = &mut self.reads[index as usize] {
                read.is_slow = true;
            }
            let ended = self.take_if_ended(index);
            self.ended.extend(ended);
        }
    }

    /// The device does not let go of it any more.
    #[cold]
    fn lose_kept(&mut self) {
        for slot in 0..self.lane.as_ref().map_or(0, |lane| lane.slots.len()) {
            self.end_kept(slot as u32, true);
        }
    }

    /// A part over its time is at its end, too.
    #[cold]
    fn end_kept(&mut self, slot: u32, is_lost: bool) {
        let Some(lane) = &mut self.lane else { return };
        let Some(part) = lane.slots[slot as usize].part.take_if(|part| part.is_kept) else { return };
        let Some(read) = &mut self.reads[part.read as usize] else { return };
        read.parts -= 1;
        read.is_slow = true;
        read.is_lost |= is_lost;
        let ended = self.take_if_ended(part.read);
        self.ended.extend(ended);
    }

    /// Whether it was a hit.
    fn end_part(&mut self, completion: Completion) -> bool {
        let Some(lane) = &mut self.lane else { return false };
        let slot = completion.tag.0 as u32;
        let Some(part) = lane.slots.get_mut(slot as usize).and_then(|slot| slot.part.as_mut()) else { return false };
        let index = part.read;
        let Some(read) = &mut self.reads[index as usize] else { return false };
        let is_held = completion.status.is_err() && lane.queue.holds(completion.tag);
        lane.is_over |= completion.status == Err(Error::Gone);
        if is_held && part.straight.is_some() {
            // Named when it is released, or lost with the queue.
            part.is_kept = true;
            return false;
        }
        read.parts -= 1;
        let (open, to) = read.job.split();
        let is_good = completion.status.is_ok() && lane.give(slot, open, to);
        lane.free(slot, is_held);
        read.is_slow |= !is_good;
        if let Some(ended) = self.take_if_ended(index) {
            self.ended.push_back(ended);
        }
        is_good
    }

    /// Places are free again, or memory that the device had kept.
    fn go_on(&mut self) {
        while let Some(tag) = self.lane.as_mut().and_then(|lane| lane.queue.take_released()) {
            self.end_kept(tag.0 as u32, false);
            let Some(lane) = &mut self.lane else { return };
            lane.free.push(tag.0 as u32);
        }
        for _ in 0..self.waiting.len() {
            if self.lane.as_ref().is_none_or(|lane| lane.free.is_empty()) {
                break;
            }
            let Some(index) = self.waiting.pop_front() else { break };
            self.look(index);
            if let Some(ended) = self.take_if_ended(index) {
                self.ended.push_back(ended);
            }
        }
        self.ring();
    }
}
