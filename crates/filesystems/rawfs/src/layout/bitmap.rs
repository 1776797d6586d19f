//! A page of a bitmap: which nodes or data blocks are in use. Each has two slots on the device; of those that are whole and not
//! of a later checkpoint than the superblock's, the later one counts.

use super::seal::{SEAL_BYTES, Seal};
use super::{put_u64, u64_at};
use crate::units::{BLOCK_BYTES, Block};

const MAGIC: [u8; 4] = *b"hsfB";
/// Words of 64 bits in a bitmap page.
pub const PAGE_WORDS: usize = (BLOCK_BYTES - SEAL_BYTES) / 8;
/// Bits in one bitmap page.
pub const PAGE_BITS: u64 = PAGE_WORDS as u64 * 64;

/// What a slot holds, to be written at `at`.
pub fn encode(words: &[u64], at: Block, generation: u64, image: u64) -> Vec<u8> {
    let mut page = vec![0; BLOCK_BYTES];
    for (index, word) in words.iter().enumerate() {
        put_u64(&mut page, SEAL_BYTES + 8 * index, *word);
    }
    Seal { magic: MAGIC, at: at.0, generation, image }.put(&mut page);
    page
}

/// The generation of a slot, if it is whole.
pub fn generation(page: &[u8], at: Block, image: u64) -> Option<u64> {
    let seal = Seal::get(page)?;
    (seal == Seal { magic: MAGIC, at: at.0, generation: seal.generation, image }).then_some(seal.generation)
}

/// The words of a slot.
pub fn words(page: &[u8]) -> impl Iterator<Item = u64> {
    (0..PAGE_WORDS).map(|index| u64_at(page, SEAL_BYTES + 8 * index))
}
