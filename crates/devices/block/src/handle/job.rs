//! The table of a queue's requests as callers made them, and lists that link its entries.

use std::time::Duration;

use super::io::{Data, Failures, Ticket};
use crate::buffer::Span;
use crate::clock::Time;
use crate::request::{Request, Status};
use crate::units::Tag;

/// No job.
pub(super) const NONE: u32 = u32::MAX;
/// The most jobs: tags and tickets have 16 bits for the index.
pub(super) const JOBS_MAX: usize = 1 << 16;
/// The most parts of a job: tags have 20 bits for the part.
pub(super) const PARTS_MAX: u32 = 1 << 20;

/// The life of a job:
///
/// ```text
///        submit              pump: its last part is submitted        the last part ends
///  Free --------> Waiting ------------------------------> InFlight --------------------> Ended
///    ^                \___ cancelled, or cannot be split __________________________________^ |
///    |                                                                                       | collected by caller
///    |<--------------------------------------------------------------------------------------|
///    |                                                                                       v the device holds its memory
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
    /// Incremented with each reuse of the entry; tickets contain 40 bits of it.
    pub(super) generation: u64,
    pub(super) owner: u16,
    pub(super) state: JobState,
    /// The request as a whole: `blocks` is valid only for a job of one part, and each part sets the tag.
    pub(super) request: Request,
    /// Whether the job has more than one part.
    pub(super) cut: bool,
    /// Whether a caller waits for this job individually.
    pub(super) claimed: bool,
    pub(super) status: Status,
    pub(super) blocks: u64,
    pub(super) user: u64,
    pub(super) timeout: Option<Duration>,
    pub(super) due: Time,
    pub(super) data: Data,
    /// The only piece of a job of one part.
    pub(super) piece: Option<Span>,
    pub(super) failures: Failures,
    /// The number of parts that were submitted to the queue.
    pub(super) parts_made: u32,
    /// Those of `parts_made` that have not completed.
    pub(super) parts_out: u32,
    /// The number of completed parts whose memory the device still holds.
    pub(super) parts_held: u32,
    /// The start of the next part.
    pub(super) cursor: Cursor,
}

/// How much of a job was split into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cursor {
    /// The number of blocks before this position.
    pub(super) blocks: u64,
    /// The piece of memory that contains this position.
    pub(super) piece: usize,
    /// The number of bytes of that piece before this position.
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

/// Returns the tag of a part: generation, part and job index.
#[inline]
pub(super) fn tag(index: u32, part: u32, generation: u64) -> Tag {
    Tag(generation << 36 | u64::from(part) << 16 | u64::from(index))
}

/// Returns the job index and the part of a tag.
#[inline]
pub(super) fn parts(tag: Tag) -> (u32, u32) {
    ((tag.0 & 0xffff) as u32, (tag.0 >> 16) as u32 & (PARTS_MAX - 1))
}

/// Returns the ticket of a job, which also names one of the handle's queues.
#[inline]
pub(super) fn ticket(queue: u8, index: u32, generation: u64) -> Ticket {
    Ticket(generation << 24 | u64::from(queue) << 16 | u64::from(index))
}

/// Returns the queue and the job index of a ticket.
#[inline]
pub(super) fn place(ticket: Ticket) -> (usize, u32) {
    ((ticket.0 >> 16) as usize & 0xff, (ticket.0 & 0xffff) as u32)
}

/// A first-in, first-out list of jobs. A job is in at most one list.
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

    /// Searches for the job from the start of the list.
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
