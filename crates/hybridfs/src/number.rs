//! Inode numbers that survive a move.
//!
//! The kernel's number of a file changes when the file is copied to the other directory, so users of
//! the mount are given a number of ours: the hash of (side, backing number, birth time) of the place
//! where the file was first seen. After a move the copy carries that number in a *mark*, an extended
//! attribute. A mark names the backing inode it was written for; copied along to another file by
//! `cp -a` or `rsync -X` it does not match and is ignored.

use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::report::TierName;
use crate::tier::Stat;

/// The extended attribute that holds a mark; never shown to users of the mount.
pub const MARK_NAME: &str = "user.hotshelf.ino";

/// The number of the root directory, as FUSE has it.
pub const ROOT: u64 = 1;

const MARK_LEN: usize = 28;
const MAGIC: [u8; 4] = *b"hsi1";

const _: () = assert!(MARK_LEN == MAGIC.len() + 2 * size_of::<u64>() + 2 * size_of::<u32>());

/// The number of a file that was never moved.
pub fn natural(tier: TierName, stat: &Stat) -> u64 {
    let mut key = [0u8; 33];
    key[0] = tier as u8;
    key[1..9].copy_from_slice(&stat.ino.to_le_bytes());
    key[9..17].copy_from_slice(&stat.dev.to_le_bytes());
    key[17..25].copy_from_slice(&stat.birth.0.to_le_bytes());
    key[25..29].copy_from_slice(&stat.birth.1.to_le_bytes());
    // The device number of a disk may change from boot to boot: only files of a nested mount need it.
    if !stat.foreign {
        key[9..17].fill(0);
    }
    let number = xxh3_64(&key);
    // 0 and 1 mean something to FUSE.
    if number <= ROOT { number + 2 } else { number }
}

/// The bytes of a mark: magic, backing number, presented number, CRC-32C, reserved; see docs/formats.md.
pub fn mark(backing_ino: u64, presented: u64) -> [u8; MARK_LEN] {
    let mut out = [0u8; MARK_LEN];
    out[..4].copy_from_slice(&MAGIC);
    out[4..12].copy_from_slice(&backing_ino.to_le_bytes());
    out[12..20].copy_from_slice(&presented.to_le_bytes());
    let crc = crc32c::crc32c(&out[..20]);
    out[20..24].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The number in a mark, if it is whole and was written for `backing_ino`.
pub fn read_mark(bytes: &[u8], backing_ino: u64) -> Option<u64> {
    let bytes: &[u8; MARK_LEN] = bytes.try_into().ok()?;
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let crc = u32::from_le_bytes(bytes[20..24].try_into().expect("four bytes"));
    let whole = bytes[..4] == MAGIC && crc32c::crc32c(&bytes[..20]) == crc;
    (whole && u64_at(4) == backing_ino && u64_at(12) > ROOT).then(|| u64_at(12))
}

/// Whether users of the mount may see or change this attribute.
pub fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b"user.hotshelf.")
}

/// What a file system without extended attributes answers.
pub fn unsupported(error: Errno) -> bool {
    error == Errno::OPNOTSUPP || error == Errno::NOTSUP || error == Errno::NOSYS
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_mark_is_only_good_for_its_own_file() {
        let bytes = mark(77, 0xdead_beef);
        assert_eq!(read_mark(&bytes, 77), Some(0xdead_beef));
        assert_eq!(read_mark(&bytes, 78), None);
        assert_eq!(read_mark(&bytes[1..], 77), None);
        for at in 0..24 {
            let mut broken = bytes;
            broken[at] ^= 1;
            assert_eq!(read_mark(&broken, 77), None, "byte {at}");
        }
    }

    #[test]
    fn a_reused_backing_number_is_another_file() {
        let old = Stat { ino: 12, birth: (100, 1), ..Stat::default() };
        let new = Stat { ino: 12, birth: (100, 2), ..Stat::default() };
        assert_ne!(natural(TierName::Ssd, &old), natural(TierName::Ssd, &new));
        assert_ne!(natural(TierName::Ssd, &old), natural(TierName::Hdd, &old));
    }

    #[test]
    fn any_bytes_are_read_as_a_mark_only_if_they_are_one() {
        use proptest::prelude::*;

        use crate::persist::harm::{extreme, harm};

        proptest!(|(backing in extreme(), presented in extreme(), harm in harm(), bytes in proptest::collection::vec(any::<u8>(), 0..64))| {
            let good = mark(backing, presented);
            let number = (presented > ROOT).then_some(presented);
            prop_assert_eq!(read_mark(&good, backing), number);
            prop_assert_eq!(read_mark(&good, backing.wrapping_add(1)), None);
            let bad = harm.done_to(&good);
            // The last four bytes are not read.
            let unread = bad.len() == MARK_LEN && bad[..24] == good[..24];
            prop_assert_eq!(read_mark(&bad, backing), number.filter(|_| unread));
            prop_assert_eq!(read_mark(&bytes, backing), None);
            let mut summed = [&MAGIC[..], &bytes].concat();
            summed.resize(20, 0);
            let sum = crc32c::crc32c(&summed);
            summed.extend_from_slice(&sum.to_le_bytes());
            summed.resize(MARK_LEN, 0);
            let own = u64::from_le_bytes(summed[4..12].try_into().expect("eight bytes"));
            prop_assert!(read_mark(&summed, own).is_none_or(|number| number > ROOT));
        });
    }
}
