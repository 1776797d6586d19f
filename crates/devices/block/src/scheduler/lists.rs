//! First-in, first-out lists of slots. They have a fixed size and never allocate.

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
