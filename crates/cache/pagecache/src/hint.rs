//! A hit in two steps. The first predicts the page's frame and prefetches its record; the second uses the record, after the caller has
//! done its other checks.
//!
//! In a large set the record is not in the CPU caches. The cost of a hit then depends on how early the CPU learns the record's address
//! (docs/decisions/36-fast-paths-under-review.md). No call here waits. A call that does not succeed has no effect, or one that may be
//! repeated: the caller then takes the slow path.

use super::name_hash::{IndexPlace, PAGE_BITS};
use super::prediction::{named, spread};
use super::record::Record;
use super::write::check_piece;
use super::{FileNo, Marks, Name, Pin, SharedPages, ThreadCounters};
use crate::PageIndex;

/// A predicted frame of a page, whose record is being prefetched. Whether it is the page's frame is checked when it is used.
#[derive(Clone, Copy, Debug)]
pub struct FrameHint<'a> {
    pages: &'a SharedPages,
    at: usize,
    name: u64,
    record: &'a Record,
}

/// The reason why the fast path fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastPathMiss {
    /// There is no prediction for the page: the index has to be searched.
    Guessed,
    /// The slow path has to do it.
    Done,
}

/// The part of a page's name that its file determines: for callers that look up many pages of one file.
#[derive(Clone, Copy, Debug)]
pub struct FileNameHash {
    /// The word of the name of its page zero.
    word: u64,
    spread: usize,
}

impl FileNameHash {
    /// Returns the hash for a file.
    ///
    /// # Panics
    /// The number is out of range.
    pub fn new(file: FileNo) -> FileNameHash {
        FileNameHash { word: Name { file, page: PageIndex(0) }.word(), spread: spread(file.0 as usize) }
    }
}

impl SharedPages {
    /// Predicts the frame of a page, from the distance learnt; or, with `BY_INDEX`, from the index. A caller tries without `BY_INDEX`
    /// first, so that a correct prediction prepares nothing for the index.
    ///
    /// # Errors
    /// [`FastPathMiss`]: the page is not cached, or that is not certain.
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
    /// Prefetches the bytes of the page from `offset` on too. Returns their address, if the prediction is right.
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline(always)]
    pub fn prefetch(self, offset: usize) -> *const u8 {
        check_piece(offset, 0);
        self.pages.region.prefetch(self.pages.data(self.at) + offset)
    }

    /// Reads as [`SharedPages::read`] does. Returns false if the prediction is wrong, or another thread is changing the page.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read(self, offset: usize, to: &mut [u8], counters: ThreadCounters<'_>) -> bool {
        check_piece(offset, to.len());
        named(self.record, self.at, self.name)
            .is_some_and(|word| self.pages.read_counted((self.at, self.record, word), offset, to, counters))
    }

    /// Pins as [`SharedPages::pin`] does. `note` gets the pin before it takes effect; its result is discarded if the pin fails. `None`:
    /// the prediction is wrong, or the page is about to be evicted.
    #[inline(always)]
    pub fn pin<R>(self, note: impl FnOnce(Pin) -> R) -> Option<R> {
        let noted = note(Pin { frame: self.at as u32 });
        let word = named(self.record, self.at, self.name).filter(|word| !word.is_leaving())?;
        self.pages.pin_seen(self.at, self.record, word, self.name).then_some(noted)
    }

    /// Writes as [`SharedPages::write_marked`] does. Returns false if the prediction is wrong, another thread is changing the page, or
    /// this would be its first mark.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn write_marked(self, offset: usize, from: &[u8], marks: Marks, counters: ThreadCounters<'_>) -> bool {
        check_piece(offset, from.len());
        named(self.record, self.at, self.name)
            .is_some_and(|word| self.pages.write_seen((self.at, self.record, word), (offset, from), marks, counters))
    }
}
