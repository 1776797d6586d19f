//! A bitmap in pages. Knows which pages differ from the device, and which of its two slots a page has there.

use std::ops::Range;

use crate::layout::bitmap::{PAGE_BITS, PAGE_WORDS};

/// A bitmap in pages, with the pages that differ from the device.
pub struct Bitmap {
    words: Vec<u64>,
    bits: u64,
    used: u64,
    dirty: Vec<bool>,
}

/// The mask of bits `from..to` of a word.
pub(super) fn mask(from: u64, to: u64) -> u64 {
    debug_assert!(from < to && to <= 64);
    (u64::MAX >> (64 - (to - from))) << from
}

/// A range of bits, word by word: index and mask.
pub(super) fn words(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (word, from) = (at / 64, at % 64);
        let to = (range.end - word * 64).min(64);
        at = word * 64 + to;
        Some((word as usize, mask(from, to)))
    })
}

impl Bitmap {
    /// So many, none in use.
    pub fn new(bits: u64) -> Bitmap {
        let pages = bits.div_ceil(PAGE_BITS) as usize;
        Bitmap { words: vec![0; pages * PAGE_WORDS], bits, used: 0, dirty: vec![false; pages] }
    }

    /// Returns the number of bits.
    pub fn len(&self) -> u64 {
        self.bits
    }

    /// How many are in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the memory it takes in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8 + self.dirty.len() as u64
    }

    /// Takes a page from the device; false: it has bits behind the end.
    pub fn load(&mut self, page: usize, words: impl Iterator<Item = u64>) -> bool {
        let from = page * PAGE_WORDS;
        for (index, word) in words.take(PAGE_WORDS).enumerate() {
            self.words[from + index] = word;
            self.used += u64::from(word.count_ones());
        }
        let to = (from + PAGE_WORDS) as u64 * 64;
        self.bits >= to || words_clear(&self.words, self.bits..to)
    }

    /// None of a page is in use.
    pub fn clear_page(&mut self, page: usize) {
        let range = (page as u64 * PAGE_BITS)..((page as u64 + 1) * PAGE_BITS).min(self.bits);
        for word in &mut self.words[page * PAGE_WORDS..][..PAGE_WORDS] {
            self.used -= u64::from(word.count_ones());
            *word = 0;
        }
        self.put(range, false);
    }

    /// Whether all of them are (not) in use.
    pub fn all(&self, range: Range<u64>, used: bool) -> bool {
        words(range).all(|(word, mask)| self.words[word] & mask == if used { mask } else { 0 })
    }

    /// Marks them; all were the other way before.
    pub fn set(&mut self, range: Range<u64>, used: bool) {
        let count = range.end - range.start;
        self.used = if used { self.used + count } else { self.used - count };
        for page in range.start / PAGE_BITS..range.end.div_ceil(PAGE_BITS) {
            self.dirty[page as usize] = true;
        }
        for (word, mask) in words(range) {
            if used {
                self.words[word] |= mask;
            } else {
                self.words[word] &= !mask;
            }
        }
    }

    /// Marks them, whatever they were.
    pub fn put(&mut self, range: Range<u64>, used: bool) {
        for page in range.start / PAGE_BITS..range.end.div_ceil(PAGE_BITS) {
            self.dirty[page as usize] = true;
        }
        for (word, mask) in words(range) {
            let old = self.words[word];
            let new = if used { old | mask } else { old & !mask };
            self.used = self.used + u64::from(new.count_ones()) - u64::from(old.count_ones());
            self.words[word] = new;
        }
    }

    /// Rows of bits that are in use here, and not there. Both are as long.
    pub fn minus(&self, other: &Bitmap) -> Vec<Range<u64>> {
        let mut left = Bitmap::new(self.bits);
        for (index, (ours, theirs)) in self.words.iter().zip(&other.words).enumerate() {
            left.words[index] = ours & !theirs;
        }
        left.rows().collect()
    }

    /// A page differs from the device in any case.
    pub fn touch(&mut self, page: usize) {
        self.dirty[page] = true;
    }

    /// Copies of the pages that differ from the device, which from now on do not.
    pub fn take_dirty(&mut self) -> Vec<(usize, Box<[u64]>)> {
        let dirty: Vec<usize> = (0..self.dirty.len()).filter(|page| std::mem::take(&mut self.dirty[*page])).collect();
        dirty.into_iter().map(|page| (page, self.words[page * PAGE_WORDS..][..PAGE_WORDS].into())).collect()
    }

    /// The words of a page, if there is such a one.
    pub fn page(&self, page: usize) -> Option<&[u64]> {
        self.words.get(page * PAGE_WORDS..(page + 1) * PAGE_WORDS)
    }

    /// Its words, the last one with bits behind the end that are clear.
    pub fn as_words(&self) -> &[u64] {
        &self.words[..self.bits.div_ceil(64) as usize]
    }

    /// Each row of bits in use.
    pub fn rows(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = self.next(at, true)?;
            let to = self.next(from, false).unwrap_or(self.bits);
            at = to;
            Some(from..to)
        })
    }

    /// The first from `at` on that is (not) in use.
    fn next(&self, at: u64, used: bool) -> Option<u64> {
        let mut at = at;
        while at < self.bits {
            let word = self.words[(at / 64) as usize];
            let word = if used { word } else { !word } & (u64::MAX << (at % 64));
            if word != 0 {
                let found = at / 64 * 64 + u64::from(word.trailing_zeros());
                return (found < self.bits).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

fn words_clear(all: &[u64], range: Range<u64>) -> bool {
    words(range).all(|(word, mask)| all[word] & mask == 0)
}
