//! A hit in two steps: first where the page is thought to be, and from then on its record is on its way to the processor; then what is
//! to be done, when the caller has looked at all else that he has to look at.
//!
//! Of a large set the record comes from memory, and what a hit costs is how soon the processor hears of it: it sees only so far ahead
//! (docs/decisions/36-fast-paths-under-review.md). Nothing here waits for anybody. What is not done as it should be is not done at all, or
//! may be done once more: the caller then goes the long way.

use super::find::{IndexPlace, PAGE_BITS};
use super::frame::Record;
use super::prediction::{named, spread};
use super::write::check_piece;
use super::{FileNo, Marks, Name, Pin, SharedPages, ThreadCounters};
use crate::PageIndex;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct FrameHint<'a> {
    pages: &'a SharedPages,
    at: usize,
    name: u64,
    record: &'a Record,
}

/// Why something is not done at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastPathMiss {
    /// Nothing is thought of where the page is: the index tells.
    Guessed,
    /// The long way does it.
    Done,
}

/// A file, for who looks for many of its pages.
#[derive(Clone, Copy, Debug)]
pub struct FileNameHash {
    /// As in the name of its page zero.
    word: u64,
    spread: usize,
}

impl FileNameHash {
    /// # Panics
    /// The number is out of range.
    pub fn new(file: FileNo) -> FileNameHash {
        FileNameHash { word: Name { file, page: PageIndex(0) }.word(), spread: spread(file.0 as usize) }
    }
}

impl SharedPages {
    /// Where a page is thought to be; or, `BY_INDEX`, was when it was looked for. What does both looks first without: so nothing of a hit
    /// that was guessed is prepared for the other in vain.
    ///
    /// # Errors
    /// [`FastPathMiss`]: the page is not here, or that is not certain.
    #[inline(always)]
    pub fn predict_frame<const BY_INDEX: bool>(&self, of: FileNameHash, page: u64) -> Result<FrameHint<'_>, FastPathMiss> {
        if page >> PAGE_BITS != 0 {
            return Err(FastPathMiss::Done);
        }
        let place = self.place(of.word | page);
        let at = match BY_INDEX {
            true => self.by_index(place)?,
            false => self.guessed_of(of.spread, place.shard, page).ok_or(FastPathMiss::Guessed)?,
        };
        let record = self.records.prefetch(at).ok_or(FastPathMiss::Done)?;
        Ok(FrameHint { pages: self, at, name: place.name, record })
    }

    #[inline(never)]
    fn by_index(&self, place: IndexPlace) -> Result<usize, FastPathMiss> {
        let (at, _) = self.probe(&self.key_of(place)).ok_or(FastPathMiss::Done)?;
        self.learn(&place, at);
        Ok(at)
    }
}

impl FrameHint<'_> {
    /// Its bytes will be looked at, too, from this one on. Where they are, if it is the page.
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline(always)]
    pub fn prefetch(self, offset: usize) -> *const u8 {
        check_piece(offset, 0);
        self.pages.region.prefetch(self.pages.data(self.at) + offset)
    }

    /// As [`SharedPages::read`]. False: it is not the page, or somebody changes it.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read(self, offset: usize, to: &mut [u8], lane: ThreadCounters<'_>) -> bool {
        check_piece(offset, to.len());
        named(self.record, self.at, self.name).is_some_and(|word| self.pages.read_counted((self.at, self.record, word), offset, to, lane))
    }

    /// As [`SharedPages::pin`]. `note` gets the pin before it holds; what it noted means nothing if it does not. None: it is not the
    /// page, or it is about to leave.
    #[inline(always)]
    pub fn pin<R>(self, note: impl FnOnce(Pin) -> R) -> Option<R> {
        let noted = note(Pin { frame: self.at as u32 });
        let word = named(self.record, self.at, self.name).filter(|word| !word.is_leaving())?;
        self.pages.pin_seen(self.at, self.record, word, self.name).then_some(noted)
    }

    /// As [`SharedPages::write_marked`]. False: it is not the page, somebody changes it, or it would have its first mark.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn write_marked(self, offset: usize, from: &[u8], marks: Marks, lane: ThreadCounters<'_>) -> bool {
        check_piece(offset, from.len());
        named(self.record, self.at, self.name)
            .is_some_and(|word| self.pages.write_seen((self.at, self.record, word), (offset, from), marks, lane))
    }
}
