//! The table of a queue's requests, as callers made them, and chains through it.

use std::time::Duration;

use super::io::{Data, Failures, Ticket};
use crate::buffer::Span;
use crate::clock::Time;
use crate::request::{Request, Status};
use crate::units::Tag;

/// No job.
pub(super) const NONE: u32 = u32::MAX;
/// Jobs are named by 16 bits in tags and tickets.
pub(super) const JOBS_MAX: usize = 1 << 16;
/// Parts of a job are named by 20 bits in tags.
pub(super) const PARTS_MAX: u32 = 1 << 20;

/// The life of a job:
///
/// ```text
///        submit             pump: its last part is below            the last part ends
///  Free --------> Waiting ------------------------------> InFlight --------------------> Ended
///    ^                \___ cancelled, or cannot be made ___________________________________^ |
///    |                                                                                       | given to the caller
///    |<--------------------------------------------------------------------------------------|
///    |                                                                                       v the device has its memory
///    '------------------------------------------------------ the device releases it ------- Held
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JobState {
    Free,
    Waiting,
    InFlight,
    Ended,
    Held,
}

/// A request as the caller made it.
pub(super) struct Job {
    pub(super) next: u32,
    /// Grows with each use of the place; 40 bits of it are in tickets.
    pub(super) generation: u64,
    pub(super) owner: u16,
    pub(super) state: JobState,
    /// Of the whole: `blocks` is right for one part only, the tag is set for each.
    pub(super) request: Request,
    /// More than one part.
    pub(super) cut: bool,
    /// Somebody waits for just this one.
    pub(super) claimed: bool,
    pub(super) status: Status,
    pub(super) blocks: u64,
    pub(super) user: u64,
    pub(super) timeout: Option<Duration>,
    pub(super) due: Time,
    pub(super) data: Data,
    /// Of a job of one part: its only piece.
    pub(super) piece: Option<Span>,
    pub(super) failures: Failures,
    /// Parts given to the queue.
    pub(super) parts_made: u32,
    /// Of these, not ended yet.
    pub(super) parts_out: u32,
    /// Of the ended ones: whose memory the device still has.
    pub(super) parts_held: u32,
    /// Where the next part begins.
    pub(super) cursor: Cursor,
}

/// How far a job has been cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cursor {
    /// Blocks before it.
    pub(super) blocks: u64,
    /// The piece of memory it is in.
    pub(super) piece: usize,
    /// Bytes of that piece before it.
    pub(super) bytes: u32,
}

impl Job {
    pub(super) fn empty() -> Job {
        Job {
            next: NONE,
            generation: 0,
            owner: 0,
            state: JobState::Free,
            request: Request::flush(Tag(0)),
            cut: false,
            claimed: false,
            status: Ok(()),
            blocks: 0,
            user: 0,
            timeout: None,
            due: Time::NEVER,
            data: Data::None,
            piece: None,
            failures: None,
            parts_made: 0,
            parts_out: 0,
            parts_held: 0,
            cursor: Cursor::default(),
        }
    }
}

/// What a part is called below: place, part and generation of its job.
#[inline]
pub(super) fn tag(index: u32, part: u32, generation: u64) -> Tag {
    Tag(generation << 36 | u64::from(part) << 16 | u64::from(index))
}

/// The place and the part that a tag names.
#[inline]
pub(super) fn parts(tag: Tag) -> (u32, u32) {
    ((tag.0 & 0xffff) as u32, (tag.0 >> 16) as u32 & (PARTS_MAX - 1))
}

/// What a job is called above, by a handle that has several queues.
#[inline]
pub(super) fn ticket(queue: u8, index: u32, generation: u64) -> Ticket {
    Ticket(generation << 24 | u64::from(queue) << 16 | u64::from(index))
}

/// The queue and the place that a ticket names.
#[inline]
pub(super) fn place(ticket: Ticket) -> (usize, u32) {
    ((ticket.0 >> 16) as usize & 0xff, (ticket.0 & 0xffff) as u32)
}

/// A list through the jobs, first in, first out. A job is in one at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) first: u32,
    last: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { first: NONE, last: NONE };

    #[inline]
    pub(super) fn push(&mut self, jobs: &mut [Job], index: u32) {
        jobs[index as usize].next = NONE;
        match self.last {
            NONE => self.first = index,
            last => jobs[last as usize].next = index,
        }
        self.last = index;
    }

    #[inline]
    pub(super) fn pop(&mut self, jobs: &[Job]) -> Option<u32> {
        let first = self.first;
        if first == NONE {
            return None;
        }
        self.first = jobs[first as usize].next;
        if self.first == NONE {
            self.last = NONE;
        }
        Some(first)
    }

    /// Looks for it from the begin.
    pub(super) fn remove(&mut self, jobs: &mut [Job], index: u32) {
        if self.first == index {
            self.pop(jobs);
            return;
        }
        let mut before = self.first;
        while jobs[before as usize].next != index {
            before = jobs[before as usize].next;
        }
        jobs[before as usize].next = jobs[index as usize].next;
        if self.last == index {
            self.last = before;
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_chain_is_a_list() {
        let mut jobs: Vec<Job> = (0..8).map(|_| Job::empty()).collect();
        let (mut chain, mut oracle, mut random) = (Chain::EMPTY, VecDeque::new(), fastrand::Rng::with_seed(3));
        for _ in 0..1_000 {
            let index = random.u32(..8);
            match (oracle.iter().position(|known| *known == index), random.bool()) {
                (None, _) => {
                    chain.push(&mut jobs, index);
                    oracle.push_back(index);
                }
                (Some(at), true) => {
                    chain.remove(&mut jobs, index);
                    oracle.remove(at);
                }
                (Some(_), false) => assert_eq!(chain.pop(&jobs), oracle.pop_front()),
            }
            assert_eq!(chain.first, oracle.front().copied().unwrap_or(NONE));
        }
    }

    #[test]
    fn tags_keep_what_they_name() {
        let tag = tag(0xffff, PARTS_MAX - 1, 0x0fff_ffff);
        assert_eq!((parts(tag), tag.0 >> 36), ((0xffff, PARTS_MAX - 1), 0x0fff_ffff));
    }
}
