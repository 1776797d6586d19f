//! Lists of slots for orders: first in, first out; and sorted by block. They have a fixed size and never allocate.

use crate::request::{Op, Request};

use super::slots::NONE;

/// The links of FIFOs that share one set of slots: a slot is in at most one of these FIFOs.
#[derive(Debug)]
pub(super) struct Links(Box<[Link]>);

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Links {
    pub(super) fn new(depth: u32) -> Links {
        Links(vec![Link { before: NONE, after: NONE }; depth as usize].into())
    }
}

/// A first-in, first-out list that also supports removal from the middle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fifo {
    first: u32,
    last: u32,
    len: u32,
}

impl Fifo {
    pub(super) const EMPTY: Fifo = Fifo { first: NONE, last: NONE, len: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    #[inline]
    pub(super) fn push(&mut self, links: &mut Links, slot: u32) {
        links.0[slot as usize] = Link { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = slot,
            last => links.0[last as usize].after = slot,
        }
        self.last = slot;
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, links: &mut Links, slot: u32) {
        let Link { before, after } = links.0[slot as usize];
        match before {
            NONE => self.first = after,
            before => links.0[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => links.0[after as usize].before = before,
        }
        self.len -= 1;
    }

    #[inline]
    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u32> {
        let slot = self.first()?;
        self.remove(links, slot);
        Some(slot)
    }
}

/// Requests sorted by their first block.
#[derive(Debug)]
pub(super) struct Sorted {
    places: Vec<QueuedExtent>,
    /// The place of the last removal: searches for its neighbours start here.
    gap: usize,
}

#[derive(Clone, Copy, Debug)]
struct QueuedExtent {
    lba: u64,
    slot: u32,
    blocks: u32,
    kind: (Op, bool),
}

impl Sorted {
    pub(super) fn new(depth: u32) -> Sorted {
        Sorted { places: Vec::with_capacity(depth as usize), gap: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[inline]
    pub(super) fn insert(&mut self, slot: u32, request: &Request) {
        let (lba, blocks, kind) = (request.lba.0, request.blocks, (request.op, request.fua));
        let at = self.places.partition_point(|place| (place.lba, place.slot) < (lba, slot));
        self.places.insert(at, QueuedExtent { lba, slot, blocks, kind });
    }

    #[inline]
    pub(super) fn remove(&mut self, slot: u32, lba: u64) {
        let at = self.places.binary_search_by_key(&(lba, slot), |place| (place.lba, place.slot)).expect("it was inserted");
        self.take(at);
    }

    /// Removes the request at a place that `from` returned.
    #[inline]
    pub(super) fn take(&mut self, at: usize) -> u32 {
        self.gap = at;
        self.places.remove(at).slot
    }

    /// Returns the place of the first request at or after this block.
    #[inline]
    pub(super) fn from(&self, lba: u64) -> Option<usize> {
        let at = self.places.partition_point(|place| place.lba < lba);
        (at < self.places.len()).then_some(at)
    }

    /// Returns a request of the same kind that starts where `request` ends: the request that was just removed, with everything
    /// merged
    /// into it so far.
    #[inline]
    pub(super) fn after(&self, request: &Request) -> Option<u32> {
        let end = request.lba.0 + u64::from(request.blocks);
        let mut behind = self.places[self.gap..].iter().skip_while(|place| place.lba < end).take_while(|place| place.lba == end);
        behind.find(|place| place.kind == (request.op, request.fua)).map(|place| place.slot)
    }

    /// Returns a request of the same kind that ends where `request` starts. Checks only the direct neighbour: reads may overlap, and
    /// a
    /// shorter one may hide it, which costs only a merge.
    #[inline]
    pub(super) fn before(&self, request: &Request) -> Option<u32> {
        let place = self.places[..self.gap].last()?;
        (place.lba + u64::from(place.blocks) == request.lba.0 && place.kind == (request.op, request.fua)).then_some(place.slot)
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.gap = 0;
    }
}

/// Flushes are dispatched immediately, but at most as every second request: they wait for nothing, and a caller waits for them.
#[derive(Debug)]
pub(super) struct Flushes {
    waiting: std::collections::VecDeque<u32>,
    was_last: bool,
}

impl Flushes {
    pub(super) fn new(depth: u32) -> Flushes {
        Flushes { waiting: std::collections::VecDeque::with_capacity(depth as usize), was_last: false }
    }

    pub(super) fn push(&mut self, slot: u32) {
        self.waiting.push_back(slot);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.waiting.retain(|waiting| *waiting != slot);
    }

    /// Returns the next flush, if a flush is due.
    #[inline]
    pub(super) fn pop(&mut self, others_wait: bool) -> Option<u32> {
        self.was_last = !(self.waiting.is_empty() || self.was_last && others_wait);
        if self.was_last { self.waiting.pop_front() } else { None }
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}
