//! Lists of slots that orders are made of: first in, first out; and by block. Made once, of fixed size.

use crate::request::{Op, Request};

use super::slots::NONE;

/// Places in FIFOs: a slot is in one of them at most, of all that share these.
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

/// First in, first out, and out of the middle.
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

/// Requests by their first block.
#[derive(Debug)]
pub(super) struct Sorted(Vec<Place>);

#[derive(Clone, Copy, Debug)]
struct Place {
    lba: u64,
    slot: u32,
    blocks: u32,
    kind: (Op, bool),
}

impl Sorted {
    pub(super) fn new(depth: u32) -> Sorted {
        Sorted(Vec::with_capacity(depth as usize))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn insert(&mut self, slot: u32, request: &Request) {
        let (lba, blocks, kind) = (request.lba.0, request.blocks, (request.op, request.fua));
        let at = self.0.partition_point(|place| (place.lba, place.slot) < (lba, slot));
        self.0.insert(at, Place { lba, slot, blocks, kind });
    }

    #[inline]
    pub(super) fn remove(&mut self, slot: u32, lba: u64) {
        let at = self.0.binary_search_by_key(&(lba, slot), |place| (place.lba, place.slot)).expect("it was inserted");
        self.0.remove(at);
    }

    /// The first at this block or behind it, with its block.
    #[inline]
    pub(super) fn from(&self, lba: u64) -> Option<(u32, u64)> {
        let place = self.0.get(self.0.partition_point(|place| place.lba < lba))?;
        Some((place.slot, place.lba))
    }

    /// Where a slot's request begins.
    pub(super) fn lowest(&self) -> Option<(u32, u64)> {
        self.0.first().map(|place| (place.slot, place.lba))
    }

    /// One of the same kind that begins where this ends.
    #[inline]
    pub(super) fn after(&self, request: &Request) -> Option<u32> {
        let end = request.lba.0 + u64::from(request.blocks);
        let from = self.0.partition_point(|place| place.lba < end);
        let at_end = self.0[from..].iter().take_while(|place| place.lba == end);
        at_end.clone().find(|place| place.kind == (request.op, request.fua)).map(|place| place.slot)
    }

    /// One of the same kind that ends where this begins. Only its neighbour is asked: reads may overlap, and a shorter one
    /// may hide it, which costs a merge and nothing else.
    #[inline]
    pub(super) fn before(&self, request: &Request) -> Option<u32> {
        let first = request.lba.0;
        let at = self.0.partition_point(|place| place.lba < first).checked_sub(1)?;
        let place = &self.0[at];
        (place.lba + u64::from(place.blocks) == first && place.kind == (request.op, request.fua)).then_some(place.slot)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Flushes go out at once, every second one of what goes out at most: nothing has to wait for them, and somebody waits.
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

    /// The next, if it is a flush's turn.
    #[inline]
    pub(super) fn pop(&mut self, others_wait: bool) -> Option<u32> {
        self.was_last = !(self.waiting.is_empty() || self.was_last && others_wait);
        if self.was_last { self.waiting.pop_front() } else { None }
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}
