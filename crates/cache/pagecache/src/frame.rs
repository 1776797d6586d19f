//! What is kept of each frame: 32 bytes of fixed width, and lists through them by number.

use crate::units::FrameId;

/// Where a page is in its life; the picture is in [`crate::cache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// No page.
    Free,
    /// A page whose bytes are still to come.
    Filling,
    /// As on the device.
    Clean,
    /// Newer than on the device.
    Dirty,
    /// Newer, and on its way to the device.
    Writing,
    /// On its way to the device, and changed since it left.
    Rewritten,
    /// Taken by the device, which may still lose it: no flush since.
    Written,
    /// The same, and a flush is under way.
    Flushing,
    /// Dirty, and a device that did not answer may still read the frame.
    Stuck,
    /// No page, and a device that did not answer may still write into the frame.
    Lent,
    /// No page, but somebody looks at the bytes.
    Orphan,
}

/// By number; those beyond the last are never written.
const STATES: [State; 16] = [
    State::Free,
    State::Filling,
    State::Clean,
    State::Dirty,
    State::Writing,
    State::Rewritten,
    State::Written,
    State::Flushing,
    State::Stuck,
    State::Lent,
    State::Orphan,
    State::Orphan,
    State::Orphan,
    State::Orphan,
    State::Orphan,
    State::Orphan,
];

impl State {
    /// Whether its bytes may be read.
    #[inline]
    pub fn is_resident(self) -> bool {
        !matches!(self, State::Free | State::Filling | State::Lent | State::Orphan)
    }

    /// Whether the page may leave without loss.
    pub(crate) fn is_safe(self) -> bool {
        matches!(self, State::Clean | State::Written | State::Flushing)
    }

    /// Whether bytes were accepted that the device has not taken.
    pub fn is_unwritten(self) -> bool {
        matches!(self, State::Dirty | State::Writing | State::Rewritten | State::Stuck)
    }

    /// Whether a transfer is under way.
    pub fn is_moving(self) -> bool {
        matches!(self, State::Filling | State::Writing | State::Rewritten)
    }
}

/// State, queue, hits, marks, age and pins of a frame in one word, so that it can become one atomic:
///
/// ```text
///  31            16 15      10  9   8  7  6 5   4 3       0
/// +----------------+----------+---+---+----+-----+---------+
/// |      pins      |   age    | F | A |hits|queue|  state  |     F: its last write failed    A: read ahead, not asked for yet
/// +----------------+----------+---+---+----+-----+---------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Word(u32);

impl Word {
    #[inline]
    fn get(self, shift: u32, bits: u32) -> u32 {
        self.0 >> shift & ((1 << bits) - 1)
    }

    #[inline]
    fn set(&mut self, shift: u32, bits: u32, value: u32) {
        let mask = ((1 << bits) - 1) << shift;
        self.0 = self.0 & !mask | value << shift & mask;
    }

    #[inline]
    pub(crate) fn state(self) -> State {
        STATES[self.get(0, 4) as usize]
    }

    #[inline]
    pub(crate) fn set_state(&mut self, state: State) {
        self.set(0, 4, state as u32);
    }

    pub(crate) fn queue(self) -> usize {
        self.get(4, 2) as usize
    }

    pub(crate) fn set_queue(&mut self, queue: usize) {
        self.set(4, 2, queue as u32);
    }

    #[inline]
    pub(crate) fn hits(self) -> u32 {
        self.get(6, 2)
    }

    /// Stops at 3.
    #[inline]
    pub(crate) fn set_hits(&mut self, hits: u32) {
        self.set(6, 2, hits.min(3));
    }

    #[inline]
    pub(crate) fn is_ahead(self) -> bool {
        self.get(8, 1) == 1
    }

    #[inline]
    pub(crate) fn set_ahead(&mut self, ahead: bool) {
        self.set(8, 1, ahead.into());
    }

    pub(crate) fn has_failed(self) -> bool {
        self.get(9, 1) == 1
    }

    pub(crate) fn set_failed(&mut self, failed: bool) {
        self.set(9, 1, failed.into());
    }

    pub(crate) fn epoch(self) -> u8 {
        self.get(10, 6) as u8
    }

    pub(crate) fn set_epoch(&mut self, epoch: u8) {
        self.set(10, 6, epoch.into());
    }

    #[inline]
    pub(crate) fn pins(self) -> u32 {
        self.get(16, 16)
    }

    /// At most 65535.
    #[inline]
    pub(crate) fn set_pins(&mut self, pins: u32) {
        self.set(16, 16, pins);
    }
}

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    prev: u32,
    next: u32,
}

/// One frame's books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) page: u64,
    pub(crate) file: u32,
    pub(crate) word: Word,
    links: [Link; 2],
}

const _: () = assert!(size_of::<Frame>() == 32);

impl Frame {
    pub(crate) const FREE: Frame = Frame { page: 0, file: 0, word: Word(0), links: [Link { prev: NONE, next: NONE }; 2] };
}

/// Chain of the replacement queues; frames in none of them are in the free list.
pub(crate) const ORDER: usize = 0;
/// Chain of a file's lists of pages that are not safe yet.
pub(crate) const BOOK: usize = 1;

/// A list of frames along one of their two chains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const CHAIN: usize> {
    head: u32,
    tail: u32,
    len: u32,
}

impl<const CHAIN: usize> Default for List<CHAIN> {
    fn default() -> Self {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl<const CHAIN: usize> List<CHAIN> {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn head(&self) -> Option<FrameId> {
        (self.head != NONE).then_some(FrameId(self.head))
    }

    pub(crate) fn after(frames: &[Frame], frame: FrameId) -> Option<FrameId> {
        let next = frames[frame.at()].links[CHAIN].next;
        (next != NONE).then_some(FrameId(next))
    }

    pub(crate) fn push_tail(&mut self, frames: &mut [Frame], frame: FrameId) {
        frames[frame.at()].links[CHAIN] = Link { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = frame.0,
            tail => frames[tail as usize].links[CHAIN].next = frame.0,
        }
        self.tail = frame.0;
        self.len += 1;
    }

    pub(crate) fn push_head(&mut self, frames: &mut [Frame], frame: FrameId) {
        frames[frame.at()].links[CHAIN] = Link { prev: NONE, next: self.head };
        match self.head {
            NONE => self.tail = frame.0,
            head => frames[head as usize].links[CHAIN].prev = frame.0,
        }
        self.head = frame.0;
        self.len += 1;
    }

    pub(crate) fn unlink(&mut self, frames: &mut [Frame], frame: FrameId) {
        let Link { prev, next } = frames[frame.at()].links[CHAIN];
        match prev {
            NONE => self.head = next,
            prev => frames[prev as usize].links[CHAIN].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => frames[next as usize].links[CHAIN].prev = prev,
        }
        self.len -= 1;
    }

    pub(crate) fn pop_head(&mut self, frames: &mut [Frame]) -> Option<FrameId> {
        let frame = self.head()?;
        self.unlink(frames, frame);
        Some(frame)
    }

    /// From the head on.
    pub(crate) fn iter<'a>(&self, frames: &'a [Frame]) -> impl Iterator<Item = FrameId> + use<'a, CHAIN> {
        std::iter::successors(self.head(), |frame| Self::after(frames, *frame))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn fields_of_the_word_do_not_touch() {
        let mut word = Word::default();
        word.set_pins(65_535);
        word.set_state(State::Orphan);
        word.set_queue(1);
        word.set_hits(9);
        word.set_failed(true);
        word.set_epoch(63);
        assert_eq!((word.state(), word.queue(), word.hits(), word.pins(), word.epoch()), (State::Orphan, 1, 3, 65_535, 63));
        assert!(word.has_failed() && !word.is_ahead());
        word.set_pins(0);
        word.set_hits(0);
        word.set_ahead(true);
        word.set_failed(false);
        assert_eq!((word.state(), word.queue(), word.hits(), word.pins(), word.epoch()), (State::Orphan, 1, 0, 0, 63));
        assert!(!word.has_failed() && word.is_ahead());
        for (number, state) in STATES.into_iter().take(11).enumerate() {
            assert_eq!(state as usize, number);
        }
    }
}
