//! The checksum of a page: CRC-32C, the only one on the path of a hit, and the largest part of what a hit costs the processor.
//!
//! The crate's fast way takes pieces of 384 bytes; what is left over it takes eight bytes at a time, each after the one before. A page
//! leaves 256 bytes over, and 32 come behind it: a quarter of the time for a twentieth of the bytes. So the checksum of what is left over
//! is that of a piece which it ends, behind zeros, and the two are put together:
//!
//! ```text
//!   page: | 10 pieces, 3840 bytes | 256 bytes |  whose, where, when: 32 bytes
//!                    |            '-------------------+---------------------'
//!                    |                   96 zeros and these: one piece
//!                    v                                v
//!         moved on by 288 bytes      xor             checksum     xor  what the zeros add
//! ```

use crate::units::{DevicePage, FileKey, PAGE_BYTES, Page, PageIndex};

/// What the crate takes at once.
const PIECE: usize = 384;
const PIECES: usize = PAGE_BYTES / PIECE * PIECE;
const NAMES: usize = 32;
/// Bytes behind the pieces.
const REST: usize = PAGE_BYTES - PIECES + NAMES;
/// The polynomial, its lowest coefficient at the top (RFC 3720, B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Of a page: its bytes, whose they are, where they are, and the segment's sequence number as generation. So a torn page, one
/// that was written elsewhere, and an old one under a write that was lost are all noticed.
pub(crate) fn page_checksum(bytes: &Page, key: FileKey, page: PageIndex, at: DevicePage, seq: u64) -> u32 {
    let pieces = crc_fast::crc32_iscsi(&bytes[..PIECES]);
    let mut last = Piece([0; PIECE]);
    let (rest, names) = last.0[PIECE - REST..].split_at_mut(REST - NAMES);
    rest.copy_from_slice(&bytes[PIECES..]);
    for (to, value) in names.chunks_exact_mut(8).zip([key.0, page.0, at.0, seq]) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    moved_on(pieces) ^ crc_fast::crc32_iscsi(&last.0) ^ ZEROS
}

/// Where the crate has not to look for the first whole line.
#[repr(align(64))]
struct Piece([u8; PIECE]);

/// A checksum is linear but for the ones it begins with: these of a piece with zeros in front, instead of those of what is behind them.
const ZEROS: u32 = of_zeros(PIECE) ^ of_zeros(REST);

const fn of_zeros(bytes: usize) -> u32 {
    !times_x(!0, 8 * bytes as u32)
}

/// A polynomial multiplied by `x` so many times.
const fn times_x(mut polynomial: u32, times: u32) -> u32 {
    let mut done = 0;
    while done < times {
        let carry = if polynomial & 1 != 0 { POLYNOMIAL } else { 0 };
        polynomial = polynomial >> 1 ^ carry;
        done += 1;
    }
    polynomial
}

/// What a checksum becomes by [`REST`] bytes of zeros behind it, for each value of each four of its bits.
static MOVED: [[u32; 16]; 8] = {
    let mut moved = [[0; 16]; 8];
    let mut bit = 0;
    while bit < 32 {
        let (four, this) = (bit / 4, 1 << (bit % 4));
        let one = times_x(1 << bit, 8 * REST as u32);
        let mut value = 0;
        while value < this {
            moved[four][value | this] = moved[four][value] ^ one;
            value += 1;
        }
        bit += 1;
    }
    moved
};

fn moved_on(checksum: u32) -> u32 {
    MOVED.iter().enumerate().fold(0, |moved, (four, of)| moved ^ of[(checksum >> (4 * four)) as usize & 15])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_is_the_sum_of_all_of_it_in_a_row() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut page = [0; PAGE_BYTES];
            rng.fill(&mut page);
            let names = [rng.u64(..), rng.u64(..), rng.u64(..), rng.u64(..)];
            let in_a_row = names.iter().fold(crc32c::crc32c(&page), |checksum, name| crc32c::crc32c_append(checksum, &name.to_le_bytes()));
            let [key, number, at, seq] = names;
            assert_eq!(page_checksum(&page, FileKey(key), PageIndex(number), DevicePage(at), seq), in_a_row);
        }
    }
}
