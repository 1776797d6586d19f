//! Starts each request by a deadline, as far as the device can: reads and writes are ordered by age and by block, as described for
//! the
//! kernel's mq-deadline (Documentation/block/deadline-iosched.rst).
//!
//! Requests are dispatched in batches of one direction, in ascending block order. When a batch ends, reads are preferred until
//! writes
//! were passed over `writes_starved` times. The new batch starts with the oldest request of its direction if its deadline has
//! passed,
//! or if no request has a higher block. Merging works as in the elevator.

use std::time::Duration;

use crate::clock::Time;
use crate::request::{Op, Request};

use super::lists::{Fifo, Flushes, Links, Sorted};
use super::order::{Order, Pick};

/// The options of this order, with the kernel's names and defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlineOptions {
    /// The deadline of a read, counted from its submission.
    pub read_expire: Duration,
    /// The deadline of a write, counted from its submission.
    pub write_expire: Duration,
    /// The most requests of one batch.
    pub fifo_batch: u32,
    /// The number of read batches that may pass waiting writes: at least one, so that a stream of writes does not starve reads.
    pub writes_starved: u32,
}

impl Default for DeadlineOptions {
    fn default() -> Self {
        let (read_expire, write_expire) = (Duration::from_millis(500), Duration::from_secs(5));
        DeadlineOptions { read_expire, write_expire, fifo_batch: 16, writes_starved: 2 }
    }
}

/// The order by deadlines and block numbers.
#[derive(Debug)]
pub struct Deadline {
    options: DeadlineOptions,
    flushes: Flushes,
    reads: Direction,
    writes: Direction,
    links: Links,
    /// By slot: the first block and the deadline.
    waiting: Box<[(u64, Time)]>,
    writing: bool,
    batched: u32,
    starved: u32,
}

#[derive(Debug)]
struct Direction {
    sorted: Sorted,
    ages: Fifo,
    /// The block after the last dispatched request.
    head: u64,
}

impl Direction {
    fn new(depth: u32) -> Direction {
        Direction { sorted: Sorted::new(depth), ages: Fifo::EMPTY, head: 0 }
    }

    /// Returns the place of the next request at or after `head`.
    fn next_up(&self) -> Option<usize> {
        self.sorted.from(self.head)
    }
}

impl Deadline {
    /// Makes an order for `depth` requests.
    pub fn new(depth: u32, options: DeadlineOptions) -> Deadline {
        Deadline {
            options,
            flushes: Flushes::new(depth),
            reads: Direction::new(depth),
            writes: Direction::new(depth),
            links: Links::new(depth),
            waiting: vec![(0, Time::NEVER); depth as usize].into(),
            writing: false,
            batched: 0,
            starved: 0,
        }
    }

    fn direction(&self, writes: bool) -> &Direction {
        if writes { &self.writes } else { &self.reads }
    }

    fn direction_mut(&mut self, writes: bool) -> &mut Direction {
        if writes { &mut self.writes } else { &mut self.reads }
    }

    fn take(&mut self, slot: u32, writes: bool) {
        let direction = if writes { &mut self.writes } else { &mut self.reads };
        direction.sorted.remove(slot, self.waiting[slot as usize].0);
        direction.ages.remove(&mut self.links, slot);
    }

    fn next(&mut self, now: Time) -> Option<u32> {
        let others_wait = !(self.reads.ages.is_empty() && self.writes.ages.is_empty());
        if let Some(slot) = self.flushes.pop(others_wait) {
            return Some(slot);
        }
        let going_on = if self.batched < self.options.fifo_batch { self.direction(self.writing).next_up() } else { None };
        if going_on.is_none() {
            self.begin_batch();
        }
        self.batched += 1;
        match going_on.or_else(|| self.first_of_batch(now)) {
            Some(place) => Some(self.take_place(place)),
            None => self.take_oldest(),
        }
    }

    fn begin_batch(&mut self) {
        let (reads, writes) = (!self.reads.ages.is_empty(), !self.writes.ages.is_empty());
        self.writing = !reads || writes && self.starved >= self.options.writes_starved.max(1);
        self.starved = if self.writing { 0 } else { self.starved + u32::from(writes) };
        self.batched = 0;
    }

    /// Returns the place of the first request of a batch; `None`: the oldest request.
    fn first_of_batch(&self, now: Time) -> Option<usize> {
        let direction = self.direction(self.writing);
        let oldest = direction.ages.first()?;
        if self.waiting[oldest as usize].1 <= now { None } else { direction.next_up() }
    }

    #[inline]
    fn take_place(&mut self, place: usize) -> u32 {
        let direction = if self.writing { &mut self.writes } else { &mut self.reads };
        let slot = direction.sorted.take(place);
        direction.ages.remove(&mut self.links, slot);
        slot
    }

    fn take_oldest(&mut self) -> Option<u32> {
        let oldest = self.direction(self.writing).ages.first()?;
        self.take(oldest, self.writing);
        Some(oldest)
    }
}

impl Order for Deadline {
    const TIMED: bool = true;
    const HURRIES: bool = false;

    #[inline]
    fn insert(&mut self, slot: u32, request: &Request, now: Time) {
        if request.op == Op::Flush {
            return self.flushes.push(slot);
        }
        let writes = request.op.writes();
        let expire = if writes { self.options.write_expire } else { self.options.read_expire };
        self.waiting[slot as usize] = (request.lba.0, now.after(expire));
        let direction = if writes { &mut self.writes } else { &mut self.reads };
        direction.sorted.insert(slot, request);
        direction.ages.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: u32, request: &Request) {
        match request.op {
            Op::Flush => self.flushes.remove(slot),
            op => self.take(slot, op.writes()),
        }
    }

    #[inline]
    fn pick(&mut self, now: Time) -> Pick {
        self.next(now).map_or(Pick::Nothing, Pick::Slot)
    }

    #[inline]
    fn after(&self, request: &Request) -> Option<u32> {
        self.direction(request.op.writes()).sorted.after(request)
    }

    #[inline]
    fn before(&self, request: &Request) -> Option<u32> {
        self.direction(request.op.writes()).sorted.before(request)
    }

    fn sent(&mut self, request: &Request) {
        if request.op != Op::Flush {
            self.direction_mut(request.op.writes()).head = request.lba.0 + u64::from(request.blocks);
        }
    }

    fn clear(&mut self) {
        self.flushes.clear();
        for direction in [&mut self.reads, &mut self.writes] {
            direction.sorted.clear();
            direction.ages = Fifo::EMPTY;
        }
    }
}
