//! The hit path: a lookup that finds the frame of a page, and the calls on what was found.
//!
//! No call here waits. A call that does not succeed has no effect, or one that may be repeated: the caller then takes the long path.

use super::name_hash::PAGE_BITS;
use super::record::Record;
use super::word::Word;
use super::write::check_piece;
use super::{Marks, Name, Pin, SharedPages, ThreadCounters};

/// A frame that a lookup found. Each call checks that the frame still holds the page.
#[derive(Clone, Copy, Debug)]
pub struct FoundFrame<'a> {
    pages: &'a SharedPages,
    at: usize,
    name: u64,
    record: &'a Record,
    /// The frame's word, read before its name.
    word: Word,
}

impl SharedPages {
    /// Finds the frame of a page. Prefetches the byte at `offset` of the page, if there is one, as soon as the index names the frame.
    /// `None` is no proof that the page is not cached.
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline(always)]
    pub fn find_frame(&self, name: Name, offset: Option<usize>) -> Option<FoundFrame<'_>> {
        if name.page.0 >> PAGE_BITS != 0 {
            return None;
        }
        let key = self.key(name);
        let found = match offset {
            Some(offset) => self.probe_for_read(&key, offset),
            None => self.probe(&key),
        };
        found.map(|(at, word)| FoundFrame { pages: self, at, name: key.name, record: &self.records[at], word })
    }
}

impl FoundFrame<'_> {
    /// Returns the address of the page's byte at `offset`. The byte belongs to the page only while the frame is pinned.
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline(always)]
    pub fn address(self, offset: usize) -> *const u8 {
        check_piece(offset, 0);
        self.pages.region.address(self.pages.data(self.at) + offset)
    }

    /// Reads as [`SharedPages::read`] does. Returns false if another thread is changing the page, or it has left the frame.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read(self, offset: usize, to: &mut [u8], counters: ThreadCounters<'_>) -> bool {
        check_piece(offset, to.len());
        self.pages.read_counted((self.at, self.record, self.word), offset, to, counters)
    }

    /// Pins as [`SharedPages::pin`] does. `note` gets the pin before it takes effect; its result is discarded if the pin fails. Returns
    /// `None` if the page is about to be evicted, or has left the frame.
    #[inline(always)]
    pub fn pin<R>(self, note: impl FnOnce(Pin) -> R) -> Option<R> {
        let noted = note(Pin { frame: self.at as u32 });
        let is_pinned = !self.word.is_leaving() && self.pages.pin_seen(self.at, self.record, self.word, self.name);
        is_pinned.then_some(noted)
    }

    /// Writes as [`SharedPages::write_marked`] does. Returns false if another thread is changing the page, it has left the frame, or this
    /// would be its first mark.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn write_marked(self, offset: usize, from: &[u8], marks: Marks, counters: ThreadCounters<'_>) -> bool {
        check_piece(offset, from.len());
        self.pages.write_seen((self.at, self.record, self.word), (offset, from), marks, counters)
    }
}
