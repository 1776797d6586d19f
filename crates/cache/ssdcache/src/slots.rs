//! What is kept of each slot: eleven bytes.
//!
//! ```text
//!  63     56 55  54  53 52            20 19          0
//! +----------+------+---+----------------+-------------+     + 24 lower bits of the checksum
//! |   checksum | hits | D |      page      | file, plus 1|
//! +----------+------+---+----------------+-------------+     D: newer than below
//! ```
//!
//! Zero is empty. A slot that is in use is emptied before it is used for something else; a reader takes the word, the checksum, and
//! the word again.

use std::sync::atomic::Ordering;

use crate::shared::{SharedMap, pause};
use crate::units::{PageIndex, SsdSlot};

const FILE_BITS: u32 = 20;
const PAGE_BITS: u32 = 33;
/// Most files with pages here.
pub(crate) const FILES_MAX: u32 = (1 << FILE_BITS) - 1;
const DIRTY: u64 = 1 << 53;
const HITS: u32 = 54;
const ONE_HIT: u64 = 1 << HITS;
/// What names a page.
const NAME: u64 = DIRTY - 1;
/// What does not change while a page is in a slot.
const FIXED: u64 = NAME | 0xff << 56;

const _: () = assert!(crate::units::PAGE_INDEX_END == 1 << PAGE_BITS && FILE_BITS + PAGE_BITS == 53);

/// File and page in 53 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageName(u64);

impl PageName {
    /// `file` below [`FILES_MAX`], `page` below its end.
    pub(crate) fn new(file: u32, page: PageIndex) -> PageName {
        PageName((u64::from(file) + 1) | (page.0 << FILE_BITS))
    }

    /// Whether a slot with this word bears it.
    #[inline]
    pub(crate) fn is_in(self, word: u64) -> bool {
        word & NAME == self.0
    }

    /// Of a word that came from a slot. Its file's number may be no file's: `u32::MAX` if there is none.
    fn of(word: u64) -> Option<PageName> {
        Some(PageName(word & NAME)).filter(|name| name.0 != 0)
    }

    pub(crate) fn file(self) -> u32 {
        ((self.0 & u64::from(FILES_MAX)) as u32).wrapping_sub(1)
    }

    pub(crate) fn page(self) -> PageIndex {
        PageIndex(self.0 >> FILE_BITS)
    }

    /// Two folded multiplications (as in wyhash), constants from the digits of pi.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64) ^ (product >> 64) as u64
        };
        fold(fold(self.0 ^ 0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344) ^ self.0, 0xa409_3822_299f_31d1)
    }
}

/// A slot's word and checksum, both of one moment, without the hits. A page that is there may be dirty once and clean later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotSnapshot {
    word: u64,
    is_dirty: bool,
    pub(crate) checksum: u32,
}

impl SlotSnapshot {
    pub(crate) fn is_dirty(self) -> bool {
        self.is_dirty
    }
}

impl SharedMap {
    #[inline]
    pub(crate) fn load(&self, slot: SsdSlot) -> u64 {
        self.word(slot).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn name(&self, slot: SsdSlot) -> Option<PageName> {
        PageName::of(self.load(slot))
    }

    pub(crate) fn is_dirty(&self, slot: SsdSlot) -> bool {
        self.load(slot) & DIRTY != 0
    }

    pub(crate) fn hits(&self, slot: SsdSlot) -> u32 {
        (self.load(slot) >> HITS & 3) as u32
    }

    pub(crate) fn checksum(&self, slot: SsdSlot) -> u32 {
        let [a, b, c] = self.low_checksum(slot);
        u32::from_le_bytes([a, b, c, (self.load(slot) >> 56) as u8])
    }

    /// Word and checksum. None: the slot is empty, or was changed meanwhile.
    pub(crate) fn held(&self, slot: SsdSlot) -> Option<SlotSnapshot> {
        self.held_with(slot, self.load(slot))
    }

    /// Likewise of a slot whose word was just read.
    #[inline]
    pub(crate) fn held_with(&self, slot: SsdSlot, whole: u64) -> Option<SlotSnapshot> {
        let word = whole & FIXED;
        pause();
        let [a, b, c] = self.low_checksum(slot);
        pause();
        std::sync::atomic::fence(Ordering::Acquire);
        let same = word & NAME != 0 && self.word(slot).load(Ordering::Relaxed) & FIXED == word;
        same.then_some(SlotSnapshot { word, is_dirty: whole & DIRTY != 0, checksum: u32::from_le_bytes([a, b, c, (word >> 56) as u8]) })
    }

    /// Fills an empty slot.
    pub(crate) fn set(&self, slot: SsdSlot, name: PageName, dirty: bool, hits: u32, checksum: u32) {
        let [a, b, c, top] = checksum.to_le_bytes();
        self.set_low_checksum(slot, [a, b, c]);
        let dirty = if dirty { DIRTY } else { 0 };
        let word = name.0 | dirty | u64::from(hits.min(3)) << HITS | u64::from(top) << 56;
        self.store_word(slot, word);
    }

    pub(crate) fn clear(&self, slot: SsdSlot) {
        self.store_word(slot, 0);
        // What the slot's checksum becomes is not seen before.
        std::sync::atomic::fence(Ordering::Release);
    }

    pub(crate) fn cleaned(&self, slot: SsdSlot) {
        self.word(slot).fetch_and(!DIRTY, Ordering::Release);
    }

    /// Stops at 3. By any process: nothing happens if the slot holds something else by now, or somebody else was faster.
    #[inline]
    pub(crate) fn touch(&self, slot: SsdSlot, held: SlotSnapshot) {
        let word = self.word(slot).load(Ordering::Relaxed);
        if word & FIXED == held.word && word >> HITS & 3 < 3 {
            // Lost against another touch: as good as done.
            _ = self.word(slot).compare_exchange(word, word + ONE_HIT, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
