//! What is kept of each slot: eleven bytes.
//!
//! ```text
//!  63     56 55  54  53 52            20 19          0
//! +---------+------+---+----------------+-------------+     + 24 lower bits of the checksum
//! |   sum   | hits | D |      page      | file, plus 1|
//! +---------+------+---+----------------+-------------+     D: newer than below
//! ```
//!
//! Zero is empty. The word can become one atomic; a reader takes it, the sum, and the word again.

use crate::units::{PageIndex, Slot};

const FILE_BITS: u32 = 20;
const PAGE_BITS: u32 = 33;
/// Most files with pages here.
pub(crate) const FILES_MAX: u32 = (1 << FILE_BITS) - 1;
const DIRTY: u64 = 1 << 53;
const HITS: u32 = 54;
/// What names a page.
const NAME: u64 = DIRTY - 1;

const _: () = assert!(crate::units::PAGE_INDEX_END == 1 << PAGE_BITS && FILE_BITS + PAGE_BITS == 53);
/// Bytes of each slot, here.
pub(crate) const SLOT_BYTES: usize = size_of::<u64>() + size_of::<[u8; 3]>();

/// File and page in 53 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name(u64);

impl Name {
    pub(crate) fn new(file: u32, page: PageIndex) -> Name {
        Name((u64::from(file) + 1) | (page.0 << FILE_BITS))
    }

    pub(crate) fn file(self) -> u32 {
        (self.0 & u64::from(FILES_MAX)) as u32 - 1
    }

    pub(crate) fn page(self) -> PageIndex {
        PageIndex(self.0 >> FILE_BITS)
    }

    /// Two folded multiplications (as in wyhash), constants from the digits of pi.
    pub(crate) fn hash(self) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64) ^ (product >> 64) as u64
        };
        fold(fold(self.0 ^ 0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344) ^ self.0, 0xa409_3822_299f_31d1)
    }
}

#[derive(Debug)]
pub(crate) struct Slots {
    words: Box<[u64]>,
    sums: Box<[[u8; 3]]>,
}

impl Slots {
    pub(crate) fn new(slots: u32) -> Slots {
        Slots { words: vec![0; slots as usize].into(), sums: vec![[0; 3]; slots as usize].into() }
    }

    fn word(&self, slot: Slot) -> u64 {
        self.words[slot.0 as usize]
    }

    pub(crate) fn name(&self, slot: Slot) -> Option<Name> {
        Some(self.word(slot) & NAME).filter(|name| *name != 0).map(Name)
    }

    pub(crate) fn is_dirty(&self, slot: Slot) -> bool {
        self.word(slot) & DIRTY != 0
    }

    pub(crate) fn hits(&self, slot: Slot) -> u32 {
        (self.word(slot) >> HITS & 3) as u32
    }

    pub(crate) fn sum(&self, slot: Slot) -> u32 {
        let [a, b, c] = self.sums[slot.0 as usize];
        u32::from_le_bytes([a, b, c, (self.word(slot) >> 56) as u8])
    }

    pub(crate) fn set(&mut self, slot: Slot, name: Name, dirty: bool, hits: u32, sum: u32) {
        let [a, b, c, top] = sum.to_le_bytes();
        self.sums[slot.0 as usize] = [a, b, c];
        let dirty = if dirty { DIRTY } else { 0 };
        self.words[slot.0 as usize] = name.0 | dirty | u64::from(hits.min(3)) << HITS | u64::from(top) << 56;
    }

    pub(crate) fn clear(&mut self, slot: Slot) {
        self.words[slot.0 as usize] = 0;
    }

    pub(crate) fn cleaned(&mut self, slot: Slot) {
        self.words[slot.0 as usize] &= !DIRTY;
    }

    /// Stops at 3.
    pub(crate) fn touch(&mut self, slot: Slot) {
        if self.hits(slot) < 3 {
            self.words[slot.0 as usize] += 1 << HITS;
        }
    }
}
