//! Inode numbers that survive a move.
//!
//! The kernel's number of a file changes when the file is copied to the other directory, so users of
//! the mount get a computed number: the hash of (side, backing number, birth time) of the place
//! where the file was first seen. After a move the copy carries that number in a *mark*, an extended
//! attribute. A mark names the backing inode it was written for; copied along to another file by
//! `cp -a` or `rsync -X` it does not match and is ignored.
//!
//! Backing files may belong to users, and users may be hostile: a mark is believed only with a tag that
//! the side's secret key gives it (decisions/09). Marks of version 0.1 had none, and are ignored.

use std::hash::Hasher;

use rustix::io::Errno;
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher24Wide};
use xxhash_rust::xxh3::xxh3_64;

use crate::report::TierName;
use crate::stat::Stat;

/// Holds a mark where only root can write it: the daemon is root and the file system has such attributes.
pub const TRUSTED_MARK: &str = "trusted.hotshelf.ino";
/// Extended attribute that holds a mark where `trusted.` is not available.
pub const USER_MARK: &str = "user.hotshelf.ino";

/// The number of the root directory, as FUSE has it.
pub const ROOT: u64 = 1;

/// Length of a mark in bytes.
pub const MARK_LEN: usize = 48;
const MAGIC: [u8; 4] = *b"hsi2";
/// What the tag covers.
const TAGGED: usize = 32;

const _: () = assert!(TAGGED == MAGIC.len() + 3 * size_of::<u64>() + size_of::<u32>());
const _: () = assert!(MARK_LEN == TAGGED + size_of::<u128>());

/// The secret of a side: what it has tagged, nobody else has written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NumberKey(pub [u8; 16]);

impl std::fmt::Debug for NumberKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NumberKey(secret)")
    }
}

impl NumberKey {
    /// Returns a new key from the kernel's random numbers.
    pub fn random() -> std::io::Result<NumberKey> {
        use std::io::Read;
        let mut bytes = [0u8; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(NumberKey(bytes))
    }

    fn tag(&self, bytes: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24Wide::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_u128().to_le_bytes()
    }

    fn hash(&self, parts: &[u64]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        parts.iter().for_each(|part| hasher.write_u64(*part));
        usable(hasher.finish())
    }
}

impl NumberKey {
    /// Spreads numbers in a way that nobody without the key can aim at.
    pub fn spread(&self, number: u64) -> u64 {
        self.hash(&[3, number])
    }
}

/// 0 and 1 mean something to FUSE.
fn usable(number: u64) -> u64 {
    if number <= ROOT { number + 2 } else { number }
}

/// Returns the number of a file that was never moved.
///
/// Nobody chooses the birth time of a file. Where somebody can (a file system of theirs that is mounted below
/// the directory), [`foreign`] has already hidden the inode number behind the key.
pub fn natural(tier: TierName, stat: &Stat) -> u64 {
    let mut key = [0u8; 33];
    key[0] = tier as u8;
    key[1..9].copy_from_slice(&stat.ino.to_le_bytes());
    key[17..25].copy_from_slice(&stat.birth.0.to_le_bytes());
    key[25..29].copy_from_slice(&stat.birth.1.to_le_bytes());
    usable(xxh3_64(&key))
}

/// Identifies an inode of another file system that is mounted below a side, among those of the side.
pub fn foreign(key: &NumberKey, dev: u64, ino: u64) -> u64 {
    key.hash(&[1, dev, ino])
}

/// Returns a number for a backing inode whose own number is taken by another.
pub fn substitute(key: &NumberKey, tier: TierName, backing_ino: u64, attempt: u64) -> u64 {
    key.hash(&[2, tier as u64, backing_ino, attempt])
}

/// Returns the bytes of a mark: magic, backing number, birth, presented number, tag; see docs/formats.md.
pub fn mark(key: &NumberKey, stat: &Stat, presented: u64) -> [u8; MARK_LEN] {
    let mut out = [0u8; MARK_LEN];
    out[..4].copy_from_slice(&MAGIC);
    out[4..12].copy_from_slice(&stat.ino.to_le_bytes());
    out[12..20].copy_from_slice(&stat.birth.0.to_le_bytes());
    out[20..24].copy_from_slice(&stat.birth.1.to_le_bytes());
    out[24..32].copy_from_slice(&presented.to_le_bytes());
    let tag = key.tag(&out[..TAGGED]);
    out[TAGGED..].copy_from_slice(&tag);
    out
}

/// Returns the number in a mark, if we have written it, and for this very backing inode.
pub fn read_mark(key: &NumberKey, bytes: &[u8], stat: &Stat) -> Option<u64> {
    let bytes: &[u8; MARK_LEN] = bytes.try_into().ok()?;
    let presented = u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes"));
    (presented > ROOT && *bytes == mark(key, stat, presented)).then_some(presented)
}

/// Whether users of the mount may see or change this attribute.
pub fn is_ours(name: &[u8]) -> bool {
    // To some file systems (CIFS) the names of attributes are the same in any case.
    let ours: [&[u8]; 2] = [b"user.hotshelf.", b"trusted.hotshelf."];
    ours.iter().any(|prefix| name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix)))
}

/// What a file system without extended attributes answers.
pub fn unsupported(error: Errno) -> bool {
    error == Errno::OPNOTSUPP || error == Errno::NOTSUP || error == Errno::NOSYS
}

#[cfg(test)]
mod test {
    use super::*;

    const KEY: NumberKey = NumberKey(*b"a key of a side.");

    fn file(ino: u64) -> Stat {
        Stat { ino, birth: (100, 1), ..Stat::default() }
    }

    #[test]
    fn a_mark_is_only_good_for_its_own_file_and_side() {
        let bytes = mark(&KEY, &file(77), 0xdead_beef);
        assert_eq!(read_mark(&KEY, &bytes, &file(77)), Some(0xdead_beef));
        assert_eq!(read_mark(&KEY, &bytes, &file(78)), None);
        assert_eq!(read_mark(&KEY, &bytes, &Stat { birth: (100, 2), ..file(77) }), None);
        assert_eq!(read_mark(&NumberKey([0; 16]), &bytes, &file(77)), None);
        assert_eq!(read_mark(&KEY, &bytes[1..], &file(77)), None);
        for at in 0..MARK_LEN {
            let mut broken = bytes;
            broken[at] ^= 1;
            assert_eq!(read_mark(&KEY, &broken, &file(77)), None, "byte {at}");
        }
    }

    #[test]
    fn our_attributes_are_ours_in_any_case() {
        for name in [&b"user.hotshelf.ino"[..], b"trusted.hotshelf.", b"user.HotShelf.ino", b"USER.HOTSHELF.INO"] {
            assert!(is_ours(name), "{}", name.escape_ascii());
        }
        for name in [&b"user.hotshelf"[..], b"user.note", b"security.capability", b""] {
            assert!(!is_ours(name), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn marks_of_version_0_1_are_not_believed() {
        let mut old = [0u8; 28];
        old[..4].copy_from_slice(b"hsi1");
        old[4..12].copy_from_slice(&77u64.to_le_bytes());
        old[12..20].copy_from_slice(&0xdead_beefu64.to_le_bytes());
        let crc = crc32c::crc32c(&old[..20]);
        old[20..24].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(read_mark(&KEY, &old, &file(77)), None);
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

        use crate::persist::file_damage::{extreme, file_damage};

        let any_bytes = || proptest::collection::vec(any::<u8>(), 0..64);
        proptest!(|(backing in extreme(), presented in extreme(), damage in file_damage(), bytes in any_bytes())| {
            let good = mark(&KEY, &file(backing), presented);
            prop_assert_eq!(read_mark(&KEY, &good, &file(backing)), (presented > ROOT).then_some(presented));
            prop_assert_eq!(read_mark(&KEY, &good, &file(backing.wrapping_add(1))), None);
            let bad = damage.done_to(&good);
            prop_assert!(bad == good || read_mark(&KEY, &bad, &file(backing)).is_none());
            prop_assert_eq!(read_mark(&KEY, &bytes, &file(backing)), None);
        });
    }
}
