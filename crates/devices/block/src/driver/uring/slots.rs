//! What is known of each request in flight.

use super::buffers::Piece;
use crate::request::Request;
use crate::units::{Lba, Tag};

/// Completions with this bit are of our own doing (cancellations, a timer), not of a request.
pub(super) const OWN: u64 = 1 << 63;
/// That of a timer.
pub(super) const ALARM: u64 = OWN | 1;

/// A request's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestMemory {
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
pub(super) struct RequestSlot {
    pub request: Request,
    pub place: RequestMemory,
    /// Blocks or bytes, as the commands count, which are done already: an answer may be short.
    pub done: u64,
    /// Odd while the slot is taken.
    generation: u32,
    /// The answer that says that all of it is done; [`UNKNOWN`] if that is to be thought about.
    pub whole: i32,
}

/// No answer of the kernel.
pub(super) const UNKNOWN: i32 = i32::MIN;

impl RequestSlot {
    fn is_taken(&self) -> bool {
        self.generation & 1 == 1
    }
}

/// The highest bit stays 0: it is that of [`OWN`].
#[inline]
fn next(generation: u32) -> u32 {
    generation.wrapping_add(1) & (u32::MAX >> 1)
}

const _: () = assert!(size_of::<RequestSlot>() == 64);

/// A fixed number of them.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[RequestSlot]>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn new(depth: u32) -> Slots {
        let slot = RequestSlot { request: Request::flush(Tag(0)), place: RequestMemory::None, done: 0, generation: 0, whole: UNKNOWN };
        debug_assert_eq!(slot.request.lba, Lba(0));
        Slots { slots: vec![slot; depth as usize].into(), free: (0..depth).rev().collect() }
    }

    /// A slot for a request. There is one: the queue takes no more than its depth.
    #[inline]
    pub(super) fn take(&mut self, request: &Request, place: RequestMemory, whole: i32) -> u32 {
        let index = self.free.pop().expect("as many slots as the queue is deep");
        let slot = &mut self.slots[index as usize];
        let generation = next(slot.generation);
        *slot = RequestSlot { request: *request, place, done: 0, generation, whole };
        index
    }

    #[inline]
    pub(super) fn give(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.generation = next(slot.generation);
        self.free.push(index);
    }

    /// Gives the slot of a request back of which all is done. None, and nothing changes: that is not what the answer says.
    #[inline(always)]
    pub(super) fn give_done(&mut self, name: u64, answer: i32) -> Option<Tag> {
        let index = (name & u64::from(u32::MAX)) as u32;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.whole != answer || u64::from(slot.generation) != name >> 32 {
            return None;
        }
        slot.generation = next(slot.generation);
        self.free.push(index);
        Some(slot.request.tag)
    }

    #[inline]
    pub(super) fn get(&mut self, index: u32) -> &mut RequestSlot {
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
        assert!(slot.is_taken() && u64::from(slot.generation) == name >> 32, "the kernel completed a request twice");
        Some(index)
    }

    pub(super) fn find(&self, tag: Tag) -> Option<u32> {
        let found = self.slots.iter().position(|slot| slot.is_taken() && slot.request.tag == tag)?;
        u32::try_from(found).ok()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_slot_has_another_name_each_time() {
        let mut slots = Slots::new(1);
        let first = slots.take(&Request::flush(Tag(7)), RequestMemory::None, 0);
        let name = slots.name(first);
        assert_eq!((slots.find(Tag(7)), slots.named(name), slots.named(name | OWN)), (Some(first), Some(first), None));
        slots.give(first);
        assert_eq!(slots.find(Tag(7)), None);
        let again = slots.take(&Request::flush(Tag(8)), RequestMemory::None, 0);
        let new = slots.name(again);
        assert_ne!(new, name);
        for (name, answer) in [(name, 0), (new, -5), (new | OWN, 0), (new + 1, 0)] {
            assert_eq!(slots.give_done(name, answer), None);
        }
        assert_eq!((slots.give_done(new, 0), slots.give_done(new, 0)), (Some(Tag(8)), None), "once");
        assert_eq!(slots.find(Tag(8)), None);
    }
}
