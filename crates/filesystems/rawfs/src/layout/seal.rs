//! The first 32 bytes of what we write: what it is, of which image, where it belongs and when it was written, with a checksum over all
//! of it. A block that was misdirected, left over from another image or torn is found by it.

use super::{put_u32, put_u64, u32_at, u64_at};

/// Bytes that a seal takes in its block.
pub const SEAL_BYTES: usize = 32;

/// The identity and checksum at the front of a written block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// The kind of block that follows.
    pub magic: [u8; 4],
    /// Where it belongs: a block, or a position in the log.
    pub at: u64,
    /// When it was written: a checkpoint's generation, or a life.
    pub generation: u64,
    /// The first half of the image's UUID.
    pub image: u64,
}

fn sum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..])
}

impl Seal {
    /// Writes it to the begin of `bytes`, with the sum of all of them.
    pub fn put(self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.magic);
        put_u64(bytes, 8, self.at);
        put_u64(bytes, 16, self.generation);
        put_u64(bytes, 24, self.image);
        let sum = sum(bytes);
        put_u32(bytes, 4, sum);
    }

    /// Reads it without checking the checksum.
    pub fn peek(bytes: &[u8]) -> Option<Seal> {
        let head = bytes.get(..SEAL_BYTES)?;
        let magic = head[..4].try_into().expect("four bytes");
        Some(Seal { magic, at: u64_at(head, 8), generation: u64_at(head, 16), image: u64_at(head, 24) })
    }

    /// Reads it, if the checksum is right.
    pub fn get(bytes: &[u8]) -> Option<Seal> {
        let seal = Seal::peek(bytes)?;
        (u32_at(bytes, 4) == sum(bytes)).then_some(seal)
    }
}
