//! Predicts the frame of a page before the index is searched.
//!
//! A shard hands out its frames in order while they are all free. The pages of a file that is read sequentially also reach it in order.
//! Page and frame then have a constant distance. So the predicted frame's record is read first, while its bytes are prefetched. If it has
//! the page's name, it is the page, and the index, whose lines may all come from memory, is not needed. The distance is learnt from a
//! sample of the hits. A wrong prediction costs two needless cache lines. After the next hit that is learnt from, none is made until two
//! pages in a row agree. Each process has its own predictions.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::SharedPages;
use super::name_hash::{FILE_BITS, GROUP_SHIFT, IndexPlace, PAGE_BITS};
use super::record::{Frame, NAME, Record, stored};
use super::word::Word;

/// The number of distances kept, by shard and file.
const PLACES: usize = 256;
/// One hit page of this many is learnt from, one of each group: other threads may be reading these lines. Tests have few pages, and learn
/// from all.
const LEARNT: u64 = if cfg!(test) { 1 } else { 1 << GROUP_SHIFT };
/// The bit that says that the last two pages had this distance.
const SURE: u64 = 1;
/// The distance is above that bit, in 31 bits; above this shift is the page it came from: the same page twice proves nothing.
const PAGE_SHIFT: u32 = 32;

/// The distances between pages and frames that this process has learnt.
#[derive(Debug)]
pub(super) struct Guesses(Box<[AtomicU64; PLACES]>);

impl Default for Guesses {
    fn default() -> Self {
        Guesses(Box::new([const { AtomicU64::new(0) }; PLACES]))
    }
}

impl Guesses {
    #[inline]
    fn of(&self, place: &IndexPlace) -> &AtomicU64 {
        self.of_file(spread((place.name >> PAGE_BITS) as usize & ((1 << FILE_BITS) - 1)), place.shard)
    }

    /// Returns the entry of a file whose number was spread.
    #[inline(always)]
    fn of_file(&self, spread: usize, shard: usize) -> &AtomicU64 {
        &self.0[(shard ^ spread) % PLACES]
    }
}

/// Spreads file numbers, so that the shards of several files do not collide.
#[inline(always)]
pub(super) fn spread(file: usize) -> usize {
    file.wrapping_mul(0x4f)
}

/// A frame that had the wanted name.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The index of the frame.
    pub at: usize,
    /// The record of the frame.
    pub record: &'a Record,
    /// The word, read before the name.
    pub word: Word,
    /// The address of the first wanted byte.
    pub bytes: *const u8,
}

#[inline]
pub(super) fn named(record: &Record, at: usize, name: u64) -> Option<Word> {
    let word = record.word();
    (word.is_named() && record[NAME].load(Relaxed) == stored(name, at)).then_some(word)
}

impl SharedPages {
    /// Returns the position of the page among the pages of its file in its shard, if all of them are cached.
    #[inline]
    fn turn(&self, place: &IndexPlace) -> u32 {
        self.turn_of(place.name & ((1 << PAGE_BITS) - 1))
    }

    #[inline(always)]
    fn turn_of(&self, page: u64) -> u32 {
        let run = page >> GROUP_SHIFT >> self.plan.shards_shift;
        (run << GROUP_SHIFT | page & ((1 << GROUP_SHIFT) - 1)) as u32
    }

    /// Returns the predicted frame of a page.
    #[inline]
    fn guessed(&self, place: &IndexPlace) -> Option<usize> {
        self.prediction(self.guesses.of(place), place.shard, place.name & ((1 << PAGE_BITS) - 1))
    }

    /// Returns the same for a file whose number was spread.
    #[inline(always)]
    pub(super) fn guessed_of(&self, spread: usize, shard: usize, page: u64) -> Option<usize> {
        self.prediction(self.guesses.of_file(spread, shard), shard, page)
    }

    #[inline(always)]
    fn prediction(&self, prediction: &AtomicU64, shard: usize, page: u64) -> Option<usize> {
        let prediction = prediction.load(Relaxed);
        if prediction & SURE != SURE {
            std::hint::cold_path();
            return None;
        }
        let local = self.turn_of(page).wrapping_add(prediction as u32 >> 1) & (u32::MAX >> 1);
        (local < self.plan.frames).then(|| shard * self.plan.frames as usize + local as usize)
    }

    /// Looks a page up as [`SharedPages::probe`] does, but only in its predicted frame. The bytes from `offset` on are prefetched
    /// meanwhile. `None` proves nothing.
    #[inline]
    pub(super) fn look(&self, place: &IndexPlace, offset: usize) -> Option<Seen<'_>> {
        let at = self.guessed(place)?;
        let bytes = self.region.prefetch(self.data(at) + offset);
        let record = &self.records[at];
        Some(Seen { at, record, word: named(record, at, place.name)?, bytes })
    }

    /// Looks a page up as [`SharedPages::probe`] does, in its predicted frame first. This is for writes, which do not prefetch: a page
    /// that is written whole may bypass the CPU caches.
    #[inline]
    pub(super) fn look_to_write(&self, place: &IndexPlace) -> Option<(usize, Word)> {
        if let Some(at) = self.guessed(place)
            && let Some(word) = named(&self.records[at], at, place.name)
        {
            return Some((at, word));
        }
        self.probe(&self.key_of(*place))
    }

    /// Learns from a page that was found in a frame.
    #[inline]
    pub(super) fn learn(&self, place: &IndexPlace, at: usize) {
        if place.sample().is_multiple_of(LEARNT) {
            self.learn_from(*place, at);
        }
    }

    #[inline(never)]
    fn learn_from(&self, place: IndexPlace, at: usize) {
        let prediction = self.guesses.of(&place);
        let known = prediction.load(Relaxed);
        let local = (at - place.shard * self.plan.frames as usize) as u32;
        let turn = self.turn(&place);
        let distance = local.wrapping_sub(turn) & (u32::MAX >> 1);
        let agrees = known as u32 >> 1 == distance;
        // If nothing is new, nothing is stored: others read this line.
        if agrees && (known & SURE == SURE || (known >> PAGE_SHIFT) as u32 == turn) {
            return;
        }
        let now = u64::from(turn) << PAGE_SHIFT | u64::from(distance << 1) | u64::from(agrees);
        if now != known {
            prediction.store(now, Relaxed);
        }
    }
}

#[cfg(test)]
mod test {
    use super::super::oracle::{cache, name, put, small};
    use super::super::{Inserted, Marks, Replacement};

    /// Counts correct and wrong predictions for pages that were put in this order.
    fn guesses(order: impl Iterator<Item = u64>) -> (usize, usize) {
        let (pages, ..) = cache(&small(4 * 160, 4, Replacement::S3Fifo));
        // Another file was first.
        (0..37).for_each(|page| assert_eq!(put(&pages, name(1, page), 1, Marks::NONE), Inserted::Done));
        order.for_each(|page| assert_eq!(put(&pages, name(2, page), 2, Marks::NONE), Inserted::Done));
        let mut byte = [0];
        for _ in 0..8 {
            (0..400).for_each(|page| assert!(pages.read(name(2, page), 9, &mut byte)));
        }
        let found = |place| pages.find(&pages.key_of(place)).map(|(at, _)| at);
        let places = (0..400).map(|page| pages.place(name(2, page).word()));
        let made: Vec<bool> = places.filter_map(|place| Some(found(place) == Some(pages.guessed(&place)?))).collect();
        let right = made.iter().filter(|right| **right).count();
        (right, made.len() - right)
    }

    #[test]
    fn a_file_that_was_read_through_is_where_it_is_thought_to_be() {
        let (right, wrong) = guesses(0..400);
        assert!(right > 380 && wrong == 0, "{right} right, {wrong} wrong");
    }

    #[test]
    fn of_one_that_came_in_any_order_hardly_anything_is_guessed() {
        let mut order: Vec<u64> = (0..400).collect();
        fastrand::Rng::with_seed(3).shuffle(&mut order);
        let (right, wrong) = guesses(order.into_iter());
        assert!(right + wrong < 40 + 160, "{right} right, {wrong} wrong");
    }

    #[test]
    fn the_same_page_again_is_no_agreement() {
        let (pages, ..) = cache(&small(4 * 160, 4, Replacement::S3Fifo));
        // Backwards: all distances differ.
        (0..400).rev().for_each(|page| assert_eq!(put(&pages, name(2, page), 2, Marks::NONE), Inserted::Done));
        let mut byte = [0];
        for page in 0..400 {
            (0..3).for_each(|_| assert!(pages.read(name(2, page), 9, &mut byte)));
            assert_eq!(pages.guessed(&pages.place(name(2, page).word())), None, "page {page}");
        }
    }
}
