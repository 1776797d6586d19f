//! Which page leaves next: LRU as in paper 000 (section III.C), FIFO, or S3-FIFO (Yang et al., SOSP 2023, algorithm 1).
//!
//! S3-FIFO: newcomers wait in a small queue, a tenth of the frames (but until the first page has left, those beyond the tenth go
//! to the main queue, as in the authors' simulator). At its head those with more than one hit go to the main queue, the others
//! leave and are remembered as ghosts; who comes back from the ghosts goes to the main queue at once. When
//! the small queue is below its tenth the main queue's head leaves, or gets another round for each hit, at most three. A
//! pass over many pages only ever displaces newcomers.
//!
//! A hit of S3-FIFO changes two bits of one word, so readers without a lock can make it. A hit of LRU moves the frame in a
//! list of all: it is here as the paper's baseline.
//!
//! Where a victim cannot leave: one that is in transfer, or will be as soon as somebody writes it back, is passed over and
//! stays where it is. One that is pinned, or whose write failed, takes another round, so that a few of them at a head hide
//! nothing.
//!
//! No code of `policy` is used, though the names are the same. There an entry is a file: 40 bytes, in a slab that grows, with
//! times and counts that people ask for, behind a trait for plug-ins. Here it is a frame: no memory of its own, links and
//! hits inside the 32 bytes that the frame has anyway (in shared memory, later), and a hit costs a nanosecond. They also
//! differ in the rules: one open is much, one hit is nothing. What is shared is the published algorithm, and both are
//! tested against it.

use crate::frame::{Frame, List, ORDER, State};
use crate::ghost::Ghost;
use crate::units::FrameId;

/// How the next page to leave is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replacement {
    /// Least recently used first.
    Lru,
    /// See the module's header.
    #[default]
    S3Fifo,
    /// First come, first to leave: the baseline of comparisons.
    Fifo,
}

/// What was found at the heads of the queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    /// May leave.
    Leaves(FrameId),
    /// Would be next, but has to be written back first.
    Dirty(FrameId),
    /// None of those looked at.
    None,
}

const SMALL: usize = 0;
const MAIN: usize = 1;

enum Verdict {
    Leaves,
    Dirty,
    Stays,
    /// To the tail of the main queue, with so many hits left.
    Promoted(u32),
    /// To the tail of its own queue.
    Rotated,
}

/// The queues of all frames with a page.
#[derive(Debug)]
pub(crate) struct Order {
    replacement: Replacement,
    queues: [List<ORDER>; 2],
    /// The small queue's share.
    small_share: u32,
    ghost: Ghost,
    /// Whether any page has left yet.
    filled_up: bool,
}

impl Order {
    pub(crate) fn new(replacement: Replacement, frames: u32) -> Order {
        let ghosts = if replacement == Replacement::S3Fifo { frames - small_share(frames) } else { 0 };
        Order { replacement, queues: Default::default(), small_share: small_share(frames), ghost: Ghost::new(ghosts), filled_up: false }
    }

    /// The cache may use so many frames from now on.
    pub(crate) fn set_limit(&mut self, frames: u32) {
        self.small_share = small_share(frames);
    }

    /// A page came; `hash` is its name among the ghosts.
    pub(crate) fn insert(&mut self, frames: &mut [Frame], frame: FrameId, hash: u32) {
        let spare = !self.filled_up && self.queues[SMALL].len() >= self.small_share;
        let known = self.replacement != Replacement::S3Fifo || self.ghost.take(hash) || spare;
        let queue = if known { MAIN } else { SMALL };
        frames[frame.at()].word.set_queue(queue);
        self.queues[queue].push_tail(frames, frame);
    }

    /// A page was asked for. The first time this is for one that was read ahead, it only comes into its own.
    #[inline]
    pub(crate) fn touch(&mut self, frames: &mut [Frame], frame: FrameId) {
        let word = &mut frames[frame.at()].word;
        if word.is_ahead() {
            word.set_ahead(false);
        } else if word.hits() < 3 {
            word.set_hits(word.hits() + 1);
        }
        if self.replacement == Replacement::Lru {
            self.queues[MAIN].unlink(frames, frame);
            self.queues[MAIN].push_tail(frames, frame);
        }
    }

    /// A page goes; `evicted` names it for the ghosts, if it left to make room.
    pub(crate) fn remove(&mut self, frames: &mut [Frame], frame: FrameId, evicted: Option<u32>) {
        let queue = frames[frame.at()].word.queue();
        self.queues[queue].unlink(frames, frame);
        self.filled_up |= evicted.is_some();
        if let (SMALL, Some(hash)) = (queue, evicted) {
            self.ghost.remember(hash);
        }
    }

    /// The next to leave, of at most `scan` looked at in each queue. `cold`: none that was asked for more than once, and none
    /// that was read ahead and is still to be asked for: a stream does not displace its own pages.
    pub(crate) fn victim(&mut self, frames: &mut [Frame], scan: u32, cold: bool) -> Victim {
        if cold && self.replacement == Replacement::S3Fifo {
            return self.scan(frames, SMALL, scan, true);
        }
        let first = if self.queues[SMALL].len() >= self.small_share { SMALL } else { MAIN };
        match self.scan(frames, first, scan, cold) {
            Victim::None => self.scan(frames, MAIN + SMALL - first, scan, cold),
            found => found,
        }
    }

    fn scan(&mut self, frames: &mut [Frame], queue: usize, scan: u32, cold: bool) -> Victim {
        let mut next = self.queues[queue].head();
        let mut dirty = Victim::None;
        for _ in 0..scan {
            let Some(frame) = next else { break };
            next = List::<ORDER>::after(frames, frame);
            match self.verdict(&frames[frame.at()], queue, cold) {
                Verdict::Leaves => return Victim::Leaves(frame),
                Verdict::Stays => {}
                Verdict::Dirty if dirty == Victim::None => dirty = Victim::Dirty(frame),
                Verdict::Dirty => {}
                Verdict::Rotated => self.send_to_tail(frames, frame, queue, queue),
                Verdict::Promoted(hits) => {
                    frames[frame.at()].word.set_hits(hits);
                    self.send_to_tail(frames, frame, queue, MAIN);
                }
            }
            next = next.or(self.queues[queue].head());
        }
        dirty
    }

    fn verdict(&self, frame: &Frame, queue: usize, cold: bool) -> Verdict {
        let word = frame.word;
        match (self.replacement, queue) {
            _ if cold && (word.hits() > 0 || word.is_ahead()) => return Verdict::Stays,
            (Replacement::S3Fifo, SMALL) if word.hits() > 1 => return Verdict::Promoted(0),
            (Replacement::S3Fifo, MAIN) if word.hits() > 0 => return Verdict::Promoted(word.hits() - 1),
            _ => {}
        }
        match word.state() {
            state if state.is_moving() => Verdict::Stays,
            _ if word.pins() > 0 => Verdict::Rotated,
            state if state.is_safe() => Verdict::Leaves,
            State::Dirty if !word.has_failed() => Verdict::Dirty,
            State::Dirty | State::Stuck => Verdict::Rotated,
            _ => Verdict::Stays,
        }
    }

    fn send_to_tail(&mut self, frames: &mut [Frame], frame: FrameId, from: usize, to: usize) {
        self.queues[from].unlink(frames, frame);
        frames[frame.at()].word.set_queue(to);
        self.queues[to].push_tail(frames, frame);
    }

    /// Every frame in a queue, with the queue.
    pub(crate) fn iter<'a>(&self, frames: &'a [Frame]) -> impl Iterator<Item = (usize, FrameId)> + use<'a> {
        let [small, main] = &self.queues;
        small.iter(frames).map(|frame| (SMALL, frame)).chain(main.iter(frames).map(|frame| (MAIN, frame)))
    }

    /// Frames in the queues.
    pub(crate) fn len(&self) -> u32 {
        self.queues.iter().map(List::len).sum()
    }
}

fn small_share(frames: u32) -> u32 {
    (frames / 10).max(1).min(frames)
}
