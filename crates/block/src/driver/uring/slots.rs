//! What is known of each request in flight.

use super::buffers::Piece;
use crate::request::Request;
use crate::units::{Lba, Tag};

/// Completions with this bit are of our own doing (cancellations), not of a request.
pub(super) const OWN: u64 = 1 << 63;

/// A request's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// It has none.
    None,
    /// In one piece.
    One(Piece),
    /// In several: so many of the slot's vectors, from this one on.
    Many { first: u16, count: u16 },
}

/// One request, in a line of the processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub request: Request,
    pub place: Place,
    /// Blocks or bytes, as the commands count, which are done already: an answer may be short.
    pub done: u64,
    generation: u32,
    live: bool,
}

/// A fixed number of them.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn new(depth: u32) -> Slots {
        let slot = Slot { request: Request::flush(Tag(0)), place: Place::None, done: 0, generation: 0, live: false };
        debug_assert_eq!(slot.request.lba, Lba(0));
        Slots { slots: vec![slot; depth as usize].into(), free: (0..depth).rev().collect() }
    }

    /// A slot for a request, which has no memory yet. There is one: the queue takes no more than its depth.
    #[inline]
    pub(super) fn take(&mut self, request: &Request) -> u32 {
        let index = self.free.pop().expect("as many slots as the queue is deep");
        let slot = &mut self.slots[index as usize];
        let generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        *slot = Slot { request: *request, place: Place::None, done: 0, generation, live: true };
        index
    }

    #[inline]
    pub(super) fn give(&mut self, index: u32) {
        self.slots[index as usize].live = false;
        self.free.push(index);
    }

    #[inline]
    pub(super) fn get(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// What the kernel calls a request: slot and generation, so that a cancellation that comes late hits no newer one.
    #[inline]
    pub(super) fn name(&self, index: u32) -> u64 {
        u64::from(self.slots[index as usize].generation) << 32 | u64::from(index)
    }

    /// Whose completion that is; none: one of our own.
    #[inline]
    pub(super) fn named(&self, name: u64) -> Option<u32> {
        if name & OWN != 0 {
            return None;
        }
        let index = (name & u64::from(u32::MAX)) as u32;
        let slot = &self.slots[index as usize];
        assert!(slot.live && u64::from(slot.generation) == name >> 32, "the kernel completed a request twice");
        Some(index)
    }

    pub(super) fn find(&self, tag: Tag) -> Option<u32> {
        let found = self.slots.iter().position(|slot| slot.live && slot.request.tag == tag)?;
        u32::try_from(found).ok()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_slot_has_another_name_each_time() {
        let mut slots = Slots::new(1);
        let first = slots.take(&Request::flush(Tag(7)));
        let name = slots.name(first);
        assert_eq!((slots.find(Tag(7)), slots.named(name), slots.named(name | OWN)), (Some(first), Some(first), None));
        slots.give(first);
        assert_eq!(slots.find(Tag(7)), None);
        let again = slots.take(&Request::flush(Tag(8)));
        assert_ne!(slots.name(again), name);
    }
}
