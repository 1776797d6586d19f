//! An order for disks: ascending blocks, then back to the lowest in one seek (C-LOOK). Reads go before writes; adjacent requests
//! merge.

use crate::clock::Time;
use crate::request::{Op, Request};

use super::lists::{Fifo, Flushes, Links, Sorted};
use super::order::{Order, Pick};

/// The limits up to which the elevator delays requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElevatorOptions {
    /// The number of reads that are dispatched while writes wait, before writes are due.
    pub reads_in_row: u32,
    /// The number of writes that are dispatched while reads wait, once writes are due.
    pub writes_in_row: u32,
    /// A request goes next after this many others, wherever its blocks are. If older requests are overdue too, they still go first:
    /// the longest wait is this number plus the number of older requests. Flushes before each of them can double it.
    pub passed_max: u32,
}

impl Default for ElevatorOptions {
    /// The defaults let a request be passed over for a second or two of a disk's time.
    fn default() -> Self {
        ElevatorOptions { reads_in_row: 48, writes_in_row: 16, passed_max: 128 }
    }
}

/// The order of an elevator, for disks.
#[derive(Debug)]
pub struct Elevator {
    options: ElevatorOptions,
    flushes: Flushes,
    reads: Sorted,
    writes: Sorted,
    /// Reads and writes by age.
    ages: Fifo,
    links: Links,
    /// By slot: the first block, whether it writes, and how many requests had been picked when it arrived.
    waiting: Box<[Waiting]>,
    picked: u64,
    /// The block after the last dispatched request.
    head: u64,
    writing: bool,
    in_row: u32,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    lba: u64,
    writes: bool,
    since: u64,
}

impl Elevator {
    /// Makes an order for `depth` requests.
    pub fn new(depth: u32, options: ElevatorOptions) -> Elevator {
        Elevator {
            options,
            flushes: Flushes::new(depth),
            reads: Sorted::new(depth),
            writes: Sorted::new(depth),
            ages: Fifo::EMPTY,
            links: Links::new(depth),
            waiting: vec![Waiting { lba: 0, writes: false, since: 0 }; depth as usize].into(),
            picked: 0,
            head: 0,
            writing: false,
            in_row: 0,
        }
    }

    fn list(&mut self, writes: bool) -> &mut Sorted {
        if writes { &mut self.writes } else { &mut self.reads }
    }

    fn take(&mut self, slot: u32) {
        let Waiting { lba, writes, .. } = self.waiting[slot as usize];
        self.list(writes).remove(slot, lba);
        self.ages.remove(&mut self.links, slot);
    }

    /// Returns whether a write goes next.
    fn turn(&mut self) -> bool {
        if self.reads.is_empty() || self.writes.is_empty() {
            self.in_row = 0;
            self.writing = false;
            return self.reads.is_empty();
        }
        let most = if self.writing { self.options.writes_in_row } else { self.options.reads_in_row };
        if self.in_row >= most.max(1) {
            self.in_row = 0;
            self.writing = !self.writing;
        }
        self.in_row += 1;
        self.writing
    }

    fn next(&mut self) -> Option<u32> {
        let oldest = self.ages.first();
        if let Some(slot) = self.flushes.pop(oldest.is_some()) {
            return Some(slot);
        }
        let oldest = oldest?;
        if self.picked - self.waiting[oldest as usize].since >= u64::from(self.options.passed_max) {
            self.take(oldest);
            return Some(oldest);
        }
        let (writes, head) = (self.turn(), self.head);
        let list = self.list(writes);
        let slot = list.take(list.from(head).unwrap_or(0));
        self.ages.remove(&mut self.links, slot);
        Some(slot)
    }
}

impl Order for Elevator {
    const TIMED: bool = false;
    const HURRIES: bool = false;

    #[inline]
    fn insert(&mut self, slot: u32, request: &Request, _: Time) {
        if request.op == Op::Flush {
            return self.flushes.push(slot);
        }
        let writes = request.op.writes();
        self.waiting[slot as usize] = Waiting { lba: request.lba.0, writes, since: self.picked };
        self.list(writes).insert(slot, request);
        self.ages.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: u32, request: &Request) {
        match request.op {
            Op::Flush => self.flushes.remove(slot),
            _ => self.take(slot),
        }
    }

    #[inline]
    fn pick(&mut self, _: Time) -> Pick {
        let Some(slot) = self.next() else { return Pick::Nothing };
        self.picked += 1;
        Pick::Slot(slot)
    }

    #[inline]
    fn after(&self, request: &Request) -> Option<u32> {
        if request.op.writes() { self.writes.after(request) } else { self.reads.after(request) }
    }

    #[inline]
    fn before(&self, request: &Request) -> Option<u32> {
        if request.op.writes() { self.writes.before(request) } else { self.reads.before(request) }
    }

    fn sent(&mut self, request: &Request) {
        if request.op != Op::Flush {
            self.head = request.lba.0 + u64::from(request.blocks);
        }
    }

    fn clear(&mut self) {
        self.flushes.clear();
        self.reads.clear();
        self.writes.clear();
        self.ages = Fifo::EMPTY;
    }
}
