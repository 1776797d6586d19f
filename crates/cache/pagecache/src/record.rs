//! The record of a frame: its words in shared memory, and taking the frame alone.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use super::probe::step;
use super::word::Word;

/// The metadata of a frame: one cache line of eight words, at these positions.
pub(super) type Record = [AtomicU64; 8];

/// The position of the frame's [`Word`].
pub(super) const WORD: usize = 0;
/// File and page, as [`stored`]; valid while the word has the bit `NAMED`.
pub(super) const NAME: usize = 1;
/// One bit for each process slot that has pinned the frame.
pub(super) const PINS: usize = 2;
/// The number of hits, up to three.
pub(super) const HITS: usize = 3;
/// Since when the page has a mark, milliseconds (lower half); and [`super::SharedPages::check_of`] of the name (upper half).
pub(super) const SINCE: usize = 4;
/// The frame's queue, and since when it is there: see [`super::list`].
pub(super) const QUEUE: usize = 5;
/// The neighbours in that queue.
pub(super) const LINKS: usize = 6;
/// The write counter of the last thread that wrote the whole page, at that time. A hint.
pub(super) const WRITTEN: usize = 7;

/// Converts a name to its form in the record of a frame, and back. Each frame has its own form. A word that was overwritten or copied
/// from another record is therefore not the name of any wanted page. So a hit needs no other check.
#[inline(always)]
pub(super) fn stored(name: u64, at: usize) -> u64 {
    name ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) trait Frame {
    fn word(&self) -> Word;
    /// Takes the frame if its word is still `seen`. No other thread reads or changes it until it is given back.
    fn take(&self, seen: Word, taken: Word) -> bool;
    /// Gives back a frame that we have taken, with a new word.
    fn give_back(&self, word: Word);
}

impl Frame for Record {
    #[inline]
    fn word(&self) -> Word {
        Word(self[WORD].load(Acquire))
    }

    #[inline(always)]
    fn take(&self, seen: Word, taken: Word) -> bool {
        step();
        let done = self[WORD].compare_exchange(seen.0, taken.0, AcqRel, Relaxed).is_ok();
        // A reader that saw the earlier word must not see changes made from now on.
        fence(Release);
        done
    }

    #[inline(always)]
    fn give_back(&self, word: Word) {
        step();
        self[WORD].store(word.0, Release);
    }
}
