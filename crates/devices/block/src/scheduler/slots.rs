//! The requests of a stage with their memory: a table, and a pool of pieces. Both have a fixed size.

use crate::buffer::Span;
use crate::request::{Class, Op, Request};
use crate::units::{Lba, Tag};

/// No slot, or no piece.
pub(super) const NONE: u32 = u32::MAX;

/// The state of a request in a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestState {
    Free,
    /// Waits for an earlier request that has blocks in common with it.
    Blocked,
    /// Is known to the order.
    Ready,
    /// Goes next: the wrapped queue was full.
    Again,
    /// Was sent to the wrapped queue.
    Sent,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSlot {
    /// The request as it was submitted.
    pub request: Request,
    /// The sequence number of the submission.
    pub number: u64,
    /// The first and last of its pieces, and their number.
    first: u32,
    last: u32,
    /// The number of its pieces of memory.
    pub segments: u32,
    /// Incremented with each reuse of the slot.
    pub generation: u32,
    /// The number of earlier requests that it has to follow.
    pub blockers: u32,
    /// The state of the request in the stage.
    pub state: RequestState,
    /// Whether a request of another class waits for it.
    pub hurried: bool,
}

const FREE: RequestSlot = RequestSlot {
    request: Request {
        tag: Tag(0),
        lba: Lba(0),
        blocks: 0,
        op: Op::Flush,
        fua: false,
        urgency: crate::request::Urgency::Normal,
        class: Class(0),
    },
    number: 0,
    first: NONE,
    last: NONE,
    segments: 0,
    generation: 0,
    blockers: 0,
    state: RequestState::Free,
    hurried: false,
};

/// The table of requests and the pool of their pieces of memory.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[RequestSlot]>,
    free: Vec<u32>,
    pieces: Box<[Piece]>,
    free_piece: u32,
    free_pieces: usize,
    submitted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    span: Span,
    next: u32,
}

impl Slots {
    /// Makes a table for `depth` requests of four pieces each on average, and for at least one of `segments_max` pieces.
    pub(super) fn new(depth: u32, segments_max: u16) -> Slots {
        let pieces = depth * 4 + u32::from(segments_max);
        let nothing = Span { arena: crate::buffer::ArenaId(0), bytes: 0, at: 0 };
        Slots {
            slots: vec![FREE; depth as usize].into(),
            free: (0..depth).rev().collect(),
            pieces: (1..=pieces).map(|next| Piece { span: nothing, next: if next < pieces { next } else { NONE } }).collect(),
            free_piece: 0,
            free_pieces: pieces as usize,
            submitted: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("as made")
    }

    /// Copies a request into the table. Returns `None` if there is no free slot, or there are too few pieces.
    pub(super) fn take(&mut self, request: &Request, data: &[Span]) -> Option<u32> {
        if data.len() > self.free_pieces {
            return None;
        }
        let index = self.free.pop()?;
        let (first, last) = self.take_pieces(data);
        let generation = self.slots[index as usize].generation;
        let segments = u32::try_from(data.len()).expect("no more than the pool");
        self.submitted += 1;
        self.slots[index as usize] = RequestSlot { request: *request, number: self.submitted, first, last, segments, generation, ..FREE };
        Some(index)
    }

    fn take_pieces(&mut self, data: &[Span]) -> (u32, u32) {
        let first = if data.is_empty() { NONE } else { self.free_piece };
        let mut last = NONE;
        for span in data {
            last = self.free_piece;
            let piece = &mut self.pieces[last as usize];
            piece.span = *span;
            self.free_piece = piece.next;
        }
        self.free_pieces -= data.len();
        (first, last)
    }

    pub(super) fn give(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = RequestState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        if slot.segments > 0 {
            self.pieces[slot.last as usize].next = self.free_piece;
            self.free_piece = slot.first;
            self.free_pieces += slot.segments as usize;
            slot.segments = 0;
        }
        self.free.push(index);
    }

    /// Appends its memory, merging adjacent pieces.
    pub(super) fn append_spans(&self, index: u32, to: &mut Vec<Span>) {
        let slot = &self.slots[index as usize];
        let mut at = slot.first;
        for _ in 0..slot.segments {
            let piece = &self.pieces[at as usize];
            match to.last_mut() {
                Some(last) if follows(*last, piece.span) => last.bytes += piece.span.bytes,
                _ => to.push(piece.span),
            }
            at = piece.next;
        }
    }

    pub(super) fn find(&self, tag: Tag) -> Option<u32> {
        let found = self.slots.iter().position(|slot| slot.state != RequestState::Free && slot.request.tag == tag)?;
        u32::try_from(found).ok()
    }
}

fn follows(before: Span, after: Span) -> bool {
    before.arena == after.arena && before.at + u64::from(before.bytes) == after.at && before.bytes.checked_add(after.bytes).is_some()
}

impl std::ops::Index<u32> for Slots {
    type Output = RequestSlot;
    #[inline]
    fn index(&self, index: u32) -> &RequestSlot {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut RequestSlot {
        &mut self.slots[index as usize]
    }
}
