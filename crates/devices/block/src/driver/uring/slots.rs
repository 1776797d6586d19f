//! The state of each request in flight.

use super::buffers::Piece;
use crate::request::Request;
use crate::units::{Lba, Tag};

/// Set in the user data of completions that belong to no request (cancellations, a timer).
pub(super) const OWN: u64 = 1 << 63;
/// The user data of the timer.
pub(super) const ALARM: u64 = OWN | 1;

/// The memory of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestMemory {
    /// The request has no memory.
    None,
    /// The memory is one piece.
    One(Piece),
    /// The memory is in several pieces: `count` of the slot's vectors, starting with `first`.
    Many { first: u16, count: u16 },
}

/// The state of one request, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct RequestSlot {
    /// The request as it was submitted.
    pub request: Request,
    /// The memory of the remaining data.
    pub place: RequestMemory,
    /// The blocks or bytes already done, in the unit of the commands: a transfer may be short.
    pub done: u64,
    /// Odd while the slot is taken.
    generation: u32,
    /// The result that means that the request is complete, or [`UNKNOWN`] if the result must be examined.
    pub whole: i32,
}

/// A value that the kernel never returns as a result.
pub(super) const UNKNOWN: i32 = i32::MIN;

impl RequestSlot {
    fn is_taken(&self) -> bool {
        self.generation & 1 == 1
    }
}

/// Returns the next generation. The highest bit stays 0: it is the bit of [`OWN`].
#[inline]
fn next(generation: u32) -> u32 {
    generation.wrapping_add(1) & (u32::MAX >> 1)
}

const _: () = assert!(size_of::<RequestSlot>() == 64);

/// A fixed number of request slots.
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

    /// Takes a slot for a request. One is free, because the queue accepts no more requests than its depth.
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

    /// Frees the slot if the result means that its request is complete, and returns the tag; otherwise returns `None` and changes nothing.
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

    /// Returns the user data of a request: slot and generation, so that a late cancellation cannot hit a newer request.
    #[inline]
    pub(super) fn name(&self, index: u32) -> u64 {
        u64::from(self.slots[index as usize].generation) << 32 | u64::from(index)
    }

    /// Returns the slot of a completion, or `None` if it belongs to no request.
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
