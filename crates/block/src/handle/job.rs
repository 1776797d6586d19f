//! The table of a queue's requests, as callers made them, and chains through it.

use std::time::Duration;

use super::io::{Data, Failures};
use crate::clock::Time;
use crate::request::{Class, Op, Status, Urgency};
use crate::units::{Lba, Tag};

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
pub(super) enum State {
    Free,
    Waiting,
    InFlight,
    Ended,
    Held,
}

/// A request as the caller made it.
pub(super) struct Job {
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Grows with each use of the place; 40 bits of it are in tickets.
    pub(super) generation: u64,
    pub(super) owner: u16,
    pub(super) state: State,
    pub(super) op: Op,
    pub(super) fua: bool,
    pub(super) urgency: Urgency,
    pub(super) class: Class,
    /// More than one part.
    pub(super) cut: bool,
    /// Somebody waits for just this one.
    pub(super) claimed: bool,
    pub(super) status: Status,
    pub(super) lba: Lba,
    pub(super) blocks: u64,
    pub(super) user: u64,
    pub(super) timeout: Option<Duration>,
    pub(super) due: Time,
    pub(super) data: Data,
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
            prev: NONE,
            next: NONE,
            generation: 0,
            owner: 0,
            state: State::Free,
            op: Op::Flush,
            fua: false,
            urgency: Urgency::Normal,
            class: Class(0),
            cut: false,
            claimed: false,
            status: Ok(()),
            lba: Lba(0),
            blocks: 0,
            user: 0,
            timeout: None,
            due: Time::NEVER,
            data: Data::None,
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

/// What a job is called above. The 8 bits between are for the queue's number.
#[inline]
pub(super) fn ticket(index: u32, generation: u64) -> u64 {
    generation << 24 | u64::from(index)
}

/// A list through the jobs. A job is in one at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) first: u32,
    last: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { first: NONE, last: NONE };

    #[inline]
    pub(super) fn push(&mut self, jobs: &mut [Job], index: u32) {
        jobs[index as usize].prev = self.last;
        jobs[index as usize].next = NONE;
        match self.last {
            NONE => self.first = index,
            last => jobs[last as usize].next = index,
        }
        self.last = index;
    }

    #[inline]
    pub(super) fn remove(&mut self, jobs: &mut [Job], index: u32) {
        let (prev, next) = (jobs[index as usize].prev, jobs[index as usize].next);
        match prev {
            NONE => self.first = next,
            prev => jobs[prev as usize].next = next,
        }
        match next {
            NONE => self.last = prev,
            next => jobs[next as usize].prev = prev,
        }
    }

    #[inline]
    pub(super) fn pop(&mut self, jobs: &mut [Job]) -> Option<u32> {
        let first = self.first;
        if first == NONE {
            return None;
        }
        self.remove(jobs, first);
        Some(first)
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
                (Some(_), false) => assert_eq!(chain.pop(&mut jobs), oracle.pop_front()),
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
