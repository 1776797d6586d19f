//! Asynchronous reads. Data in frames is copied at once. Pages on the SSD are read through one queue, many in one submission, and copied
//! when the caller takes a completion. All other reads ([`Outcome::Slow`]) are left to the caller, which uses [`Open::read`] where it may
//! block.
//!
//! The life of a read:
//!
//! ```text
//!   begin --- all in frames --------------------------------> completed, Read
//!     |  page by page: from a frame, or as a part for the queue
//!     |---- a page in neither tier, or uncertain -----------> slow ----.
//!     |---- queue full: waits until a slot is free                     | when its last part has completed
//!     v                                                                v
//!   in flight --- each part verified ---> completed, Read    completed, Slow: discard what was written
//! ```
//!
//! The device writes into private memory of this process. If a page moved on the SSD meanwhile, its checksum is wrong and the read becomes
//! slow: [`Open::read`] looks it up again.
//!
//! Memory that was registered for it ([`AsyncReader::know`]) is written by the device directly. Such a read completes only when the device
//! has released the memory; if it never does, the memory is lost with the device.

mod pending_read;
mod read_files;
mod ssd_queue;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::tracked::Timeouts;
use block::{Arena, Armed, Completion, Error, Queue};
use pending_read::{PageMiss, PendingRead};
use read_files::ReadFiles;
use ssd_queue::SsdQueue;
use ssdcache::PAGE_BYTES;

use super::CacheEngine;
use super::counters::Tier;
use super::open::Open;
use super::prepared::PreparedRead;
use super::read::Piece;

/// One read of this many is timed: reading the clock costs a good part of a hit.
const TIMED: u32 = 64;

/// Options of an [`AsyncReader`], with the terms of [`block::QueueOptions`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AsyncReaderOptions {
    /// One thread alone submits reads and takes completions. Use by another thread is a bug, and panics.
    pub single_issuer: bool,
    /// The caller waits rather than polls: a poll that finds nothing costs a system call.
    pub waits: bool,
    /// How long a wait spins before it sleeps, with both options above. Zero: it sleeps at once.
    pub spin_duration: Duration,
    /// The timeouts for requests to the SSD.
    pub timeouts: Timeouts,
}

/// The outcome of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The number of bytes read; fewer than the buffer holds at the end of the file.
    Read(usize),
    /// The read needs the backing file, or has to wait: use [`Open::read`].
    Slow,
    /// The SSD was given up during the read, and may still write into the buffer. That memory ([`AsyncReader::know`]) must not be used any
    /// more.
    Lost,
}

/// The result of submitting a read.
#[derive(Debug)]
#[must_use]
pub enum SubmitResult<J> {
    /// The read completed at once.
    Ended(J, Outcome),
    /// The read is in flight: [`AsyncReader::take`] returns it.
    UnderWay,
    /// The limit of reads in flight, or completed and not taken, is reached.
    Full(J),
}

/// The asynchronous reads of one process, used by one thread at a time. `F` is a share of an open file. `J` is the memory for a read's
/// bytes, with any data of its owner; the reader owns it until the read is taken.
pub struct AsyncReader<F, J> {
    engine: Arc<CacheEngine>,
    options: AsyncReaderOptions,
    /// Reads in flight, or completed and not taken. They have the numbers that `free` lacks, and jobs.
    reads: Box<[PendingRead]>,
    jobs: Box<[Option<J>]>,
    files: ReadFiles<F>,
    free: Vec<u32>,
    /// Reads with pages for which the queue had no slot.
    waiting: VecDeque<u32>,
    ended: VecDeque<u32>,
    /// Memory that the device may write into.
    memory: Vec<Arena>,
    /// None until the first page of the SSD is read.
    ssd_queue: Option<SsdQueue>,
    /// The SSD gives us no queue: all reads of it are slow.
    is_without: bool,
    begun: u32,
    /// How many of the reads in flight are timed.
    timed: u32,
    /// Hits on the SSD that are not counted yet.
    hits: u64,
}

impl<F: AsRef<Open>, J: AsMut<[u8]>> AsyncReader<F, J> {
    /// Creates a reader for `depth` reads in flight, or completed and not taken.
    pub fn new(engine: &Arc<CacheEngine>, depth: u32, options: AsyncReaderOptions) -> AsyncReader<F, J> {
        AsyncReader {
            engine: Arc::clone(engine),
            options,
            reads: vec![PendingRead::default(); depth as usize].into(),
            jobs: (0..depth).map(|_| None).collect(),
            files: ReadFiles(Vec::new()),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth as usize),
            ended: VecDeque::with_capacity(depth as usize),
            memory: Vec::new(),
            ssd_queue: None,
            is_without: engine.ssd_queues.is_none() || engine.view.is_none(),
            begun: 0,
            timed: 0,
            hits: 0,
        }
    }

    /// Returns the engine whose pages the reader reads.
    pub fn engine(&self) -> &Arc<CacheEngine> {
        &self.engine
    }

    /// Registers memory, so that whole pages of the SSD read into it, at multiples of their size, need no copy. It is kept as long as
    /// reads may be in flight. If registration fails it is used like any other memory.
    pub fn know(&mut self, memory: &Arena) {
        if let Some(ssd_queue) = &mut self.ssd_queue {
            ssd_queue.know(memory);
        }
        self.memory.push(memory.clone());
    }

    /// Returns the number of reads that have not completed.
    pub fn under_way(&self) -> usize {
        self.reads.len() - self.free.len() - self.ended.len()
    }

    /// Returns whether no read is in flight, or completed and not taken.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.reads.len()
    }

    /// Submits a read of a file; `share` provides a share of the file if one is needed. The device is notified at the next `ring`, `take`
    /// or `wait`.
    #[inline]
    pub fn begin(&mut self, open: &Open, share: impl FnOnce() -> F, at: u64, job: J) -> SubmitResult<J> {
        match open.expect(at) {
            Some(expected) => self.submit_prepared(&expected, share, job),
            None => SubmitResult::Ended(job, Outcome::Read(0)),
        }
    }

    /// Submits a read that was prepared with [`Open::expect`].
    #[inline]
    pub fn submit_prepared(&mut self, expected: &PreparedRead<'_>, share: impl FnOnce() -> F, mut job: J) -> SubmitResult<J> {
        let (open, at) = (expected.open, expected.at);
        let to = job.as_mut();
        let len = to.len().min(usize::try_from(open.size().saturating_sub(at)).unwrap_or(usize::MAX));
        if len == 0 {
            return SubmitResult::Ended(job, Outcome::Read(0));
        }
        if !open.is_of(&self.engine) || !open.is_ours() {
            return SubmitResult::Ended(job, Outcome::Slow);
        }
        let (page, offset) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
        // Mostly it is a piece of one page.
        let mut first = None;
        if offset + len <= PAGE_BYTES {
            if self.engine.pages.read_by_key(&expected.in_frames, offset, &mut to[..len]) {
                return SubmitResult::Ended(job, Outcome::Read(len));
            }
            let piece = Piece { page, offset, at: 0, len };
            first = Some(PageMiss { piece, in_frames: &expected.in_frames, on_ssd: expected.on_ssd.as_ref() });
        }
        if self.is_without || (self.ssd_queue.is_none() && !self.has_queue()) {
            return SubmitResult::Ended(job, Outcome::Slow);
        }
        let Some(index) = self.free.pop() else { return SubmitResult::Full(job) };
        self.begun = self.begun.wrapping_add(1);
        let begun = self.begun.is_multiple_of(TIMED).then(Instant::now);
        let file = self.files.take(open, share);
        let read = &mut self.reads[index as usize];
        *read = PendingRead { file, at, len, begun, ..PendingRead::default() };
        if let Some(ssd_queue) = &mut self.ssd_queue {
            let to = job.as_mut();
            read.is_waiting = !match first {
                Some(missed) => read.look_for(&missed, index, open, ssd_queue, &to[..len]),
                None => read.look(index, open, ssd_queue, to),
            };
            if read.is_waiting {
                self.waiting.push_back(index);
            }
        }
        if read.has_ended() {
            let outcome = self.give_place(index);
            return SubmitResult::Ended(job, outcome);
        }
        self.timed += u32::from(read.begun.is_some());
        self.jobs[index as usize] = Some(job);
        SubmitResult::UnderWay
    }

    fn has_queue(&mut self) -> bool {
        if self.ssd_queue.is_none() {
            let opened = SsdQueue::open(&self.engine, self.reads.len() as u32, self.options);
            let comes_back = self.engine.ssd_queues.as_ref().is_some_and(|ssd_queues| ssd_queues.comes_back());
            self.is_without = opened.is_err() && !comes_back;
            self.ssd_queue = opened
                .map_err(|error| {
                    if !comes_back {
                        self.engine.world.report(&error.to_string())
                    }
                })
                .ok();
            if let Some(ssd_queue) = &mut self.ssd_queue {
                self.memory.iter().for_each(|memory| ssd_queue.know(memory));
            }
        }
        self.ssd_queue.is_some()
    }

    /// Queues a read for `take` if it has completed.
    #[inline]
    fn see(&mut self, index: u32) {
        let read = &mut self.reads[index as usize];
        if !read.has_ended() {
            return;
        }
        read.is_waiting = false;
        if let Some(begun) = read.begun.take() {
            self.timed -= 1;
            let at = self.ssd_queue.as_ref().and_then(|ssd_queue| ssd_queue.batch.at).filter(|_| !read.is_slow);
            if let Some(at) = at {
                self.engine.counters.took(Tier::Ssd, at.saturating_duration_since(begun).as_nanos() as u64);
            }
        }
        self.ended.push_back(index);
    }

    #[inline]
    fn give_place(&mut self, index: u32) -> Outcome {
        self.free.push(index);
        let read = &self.reads[index as usize];
        drop(self.files.release(read.file));
        read.outcome()
    }

    /// Notifies the device of all submitted requests.
    pub fn ring(&mut self) {
        if let Some(ssd_queue) = &mut self.ssd_queue {
            ssd_queue.ring();
        }
    }

    /// Takes a completed read, if there is one. Rings and polls if none is known yet.
    pub fn take(&mut self) -> Option<(J, Outcome)> {
        self.take_seen().or_else(|| {
            self.poll();
            self.take_seen()
        })
    }

    /// Takes a read that is known to have completed, without polling.
    #[inline]
    pub fn take_seen(&mut self) -> Option<(J, Outcome)> {
        while self.ended.is_empty() && self.end_next() {}
        let index = self.ended.pop_front()?;
        let job = self.jobs[index as usize].take()?;
        Some((job, self.give_place(index)))
    }

    /// Returns whether some completions are known and not taken.
    fn has_seen(&self) -> bool {
        !self.ended.is_empty() || self.ssd_queue.as_ref().is_some_and(|ssd_queue| !ssd_queue.batch.is_empty())
    }

    /// Rings and polls for completions, unless some known ones are not taken.
    pub fn poll(&mut self) {
        self.ring();
        if !self.has_seen() {
            self.look(None);
        }
    }

    /// Rings, waits for a completion or for `at_most`, and polls. May return early; returns at once if some known completions are not
    /// taken.
    pub fn wait(&mut self, at_most: Duration) {
        if self.has_seen() {
            return self.ring();
        }
        if let Some(ssd_queue) = &mut self.ssd_queue {
            ssd_queue.due = None; // the wait rings
            self.look(Some(at_most));
        }
    }

    /// Returns a descriptor for callers that also wait for other events. It is readable when a read may have completed after
    /// [`AsyncReader::arm`] returned that it is waiting. None: nothing to wait for, or not supported.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.ssd_queue.as_ref()?.queue.event()
    }

    /// Arms the event of [`AsyncReader::event`]; `Ready`: completions may be there already.
    pub fn arm(&mut self) -> Armed {
        match &mut self.ssd_queue {
            Some(ssd_queue) if self.ended.is_empty() && ssd_queue.batch.is_empty() => {
                ssd_queue.due = None;
                ssd_queue.queue.arm()
            }
            _ => Armed::Ready,
        }
    }

    /// Polls the queue for completions, after a wait of at most `wait` if it is given.
    fn look(&mut self, wait: Option<Duration>) {
        let Some(SsdQueue { queue, batch, .. }) = &mut self.ssd_queue else { return };
        batch.next = 0;
        batch.count = match wait {
            Some(at_most) => queue.wait_and_poll(at_most, &mut batch.completions[..]),
            None => queue.poll(&mut batch.completions[..]),
        };
        batch.at = (self.timed > 0 && batch.count > 0).then(Instant::now);
        if batch.count == 0 {
            self.settle();
        }
    }

    /// Processes the next known completion. Returns false if there is none.
    #[inline]
    fn end_next(&mut self) -> bool {
        let Some(SsdQueue { batch, .. }) = &mut self.ssd_queue else { return false };
        if batch.is_empty() {
            return false;
        }
        let completion = batch.completions[batch.next];
        batch.next += 1;
        let (is_last, was_full) = (batch.is_empty(), batch.was_full());
        self.hits += u64::from(self.end_part(completion));
        if is_last {
            self.settle();
            if was_full && self.ssd_queue.as_ref().is_some_and(|ssd_queue| ssd_queue.queue.in_flight() > 0) {
                self.look(None);
            }
        } else if !self.waiting.is_empty() {
            self.go_on();
        }
        true
    }

    /// Finishes a batch of completions.
    fn settle(&mut self) {
        self.count_hits();
        if let Some(ssd_queue) = self.ssd_queue.as_mut().filter(|ssd_queue| ssd_queue.is_over || ssd_queue.queue.is_gone()) {
            ssd_queue.is_over = true;
            self.lose_kept();
        }
        if self.ssd_queue.as_ref().is_some_and(SsdQueue::is_spent) {
            self.ssd_queue = None;
            self.give_up_waiting();
        }
        self.take_back();
        self.go_on();
    }

    /// Returns whether the read still waits: another one may have its number by now.
    fn is_waiting(&self, index: u32) -> bool {
        self.reads[index as usize].is_waiting
    }

    /// Makes reads that wait for a slot slow, because there is no queue any more.
    fn give_up_waiting(&mut self) {
        while let Some(index) = self.waiting.pop_front() {
            if self.is_waiting(index) {
                self.reads[index as usize].is_slow = true;
                self.see(index);
            }
        }
    }

    /// Completes the parts whose memory the device never releases, as lost.
    #[cold]
    fn lose_kept(&mut self) {
        for slot in 0..self.ssd_queue.as_ref().map_or(0, |ssd_queue| ssd_queue.slots.len()) {
            self.end_kept(slot as u32, true);
        }
    }

    /// Completes a part that timed out.
    #[cold]
    fn end_kept(&mut self, slot: u32, is_lost: bool) {
        let Some(ssd_queue) = &mut self.ssd_queue else { return };
        let Some(part) = ssd_queue.slots[slot as usize].part.take_if(|part| part.is_kept) else { return };
        let read = &mut self.reads[part.read as usize];
        read.parts -= 1;
        read.is_slow = true;
        read.is_lost |= is_lost;
        self.see(part.read);
    }

    /// Processes a completion. Returns whether it was a hit.
    #[inline]
    fn end_part(&mut self, completion: Completion) -> bool {
        let Some(ssd_queue) = &mut self.ssd_queue else { return false };
        let slot = completion.tag.0 as u32;
        let Some(part) = ssd_queue.slots.get_mut(slot as usize).and_then(|slot| slot.part.as_mut()) else { return false };
        let index = part.read;
        let (read, Some(job)) = (&mut self.reads[index as usize], &mut self.jobs[index as usize]) else { return false };
        let is_held = completion.status.is_err() && ssd_queue.queue.owns_buffer(completion.tag);
        ssd_queue.is_over |= completion.status == Err(Error::Gone);
        if is_held && part.is_straight {
            // The queue names it when the memory is released, or it is lost with the queue.
            part.is_kept = true;
            return false;
        }
        let Some(open) = self.files.get(read.file) else { return false };
        read.parts -= 1;
        let is_good = completion.status.is_ok() && ssd_queue.complete(slot, open, job.as_mut());
        ssd_queue.free(slot, is_held);
        read.is_slow |= !is_good;
        self.see(index);
        is_good
    }

    /// Takes back slots whose memory the device has released.
    fn take_back(&mut self) {
        while let Some(tag) = self.ssd_queue.as_mut().and_then(|ssd_queue| ssd_queue.queue.take_released()) {
            self.end_kept(tag.0 as u32, false);
            let Some(ssd_queue) = &mut self.ssd_queue else { return };
            ssd_queue.free.push(tag.0 as u32);
        }
    }

    /// Continues waiting reads, because slots are free again.
    fn go_on(&mut self) {
        for _ in 0..self.waiting.len() {
            if self.ssd_queue.as_ref().is_none_or(|ssd_queue| ssd_queue.free.is_empty()) {
                break;
            }
            let Some(index) = self.waiting.pop_front() else { break };
            if !self.is_waiting(index) {
                continue;
            }
            let read = &mut self.reads[index as usize];
            if let (Some(job), Some(open), Some(ssd_queue)) =
                (&mut self.jobs[index as usize], self.files.get(read.file), &mut self.ssd_queue)
            {
                read.is_waiting = !read.look(index, open, ssd_queue, job.as_mut());
                if read.is_waiting {
                    self.waiting.push_back(index);
                }
            }
            self.see(index);
        }
        self.ring();
    }
}

impl<F, J> AsyncReader<F, J> {
    fn count_hits(&mut self) {
        let hits = std::mem::take(&mut self.hits);
        if hits > 0 {
            self.engine.count_ssd_hits(hits);
        }
    }
}

impl<F, J> Drop for AsyncReader<F, J> {
    fn drop(&mut self) {
        self.count_hits();
    }
}
