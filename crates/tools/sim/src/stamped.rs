//! Sector contents that identify the file, the position and the write they come from.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::power_cut::SECTOR;

/// Identifies the write that a sector comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number that identifies the file.
    pub file: u64,
    /// Position in the file, in sectors.
    pub sector: u64,
    /// Version number of the write.
    pub version: u32,
}

const MAGIC: u32 = 0x7354_414d;

/// Returns the bytes of `sectors` stamped sectors, starting at `first`.
pub fn sectors(file: u64, first: u64, sectors: u64, version: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sectors as usize * SECTOR);
    for sector in first..first + sectors {
        stamp(&Stamp { file, sector, version }, &mut bytes);
    }
    bytes
}

fn stamp(of: &Stamp, bytes: &mut Vec<u8>) {
    let begin = bytes.len();
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&of.version.to_le_bytes());
    bytes.extend_from_slice(&of.file.to_le_bytes());
    bytes.extend_from_slice(&of.sector.to_le_bytes());
    let mut word = xxh3_64_with_seed(&bytes[begin..], 0);
    while bytes.len() < begin + SECTOR {
        word = xxh3_64_with_seed(&word.to_le_bytes(), 1);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

/// Returns the stamp of an intact sector. `None`: the sector is damaged or torn.
pub fn read_stamp(bytes: &[u8]) -> Option<Stamp> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let head = word(0)?;
    let found = Stamp { file: word(8)?, sector: word(16)?, version: (head >> 32) as u32 };
    let mut expected = Vec::with_capacity(SECTOR);
    stamp(&found, &mut expected);
    (expected == bytes).then_some(found)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_changed_byte_is_seen() {
        let bytes = sectors(7, 3, 2, 9);
        assert_eq!(read_stamp(&bytes[..SECTOR]), Some(Stamp { file: 7, sector: 3, version: 9 }));
        assert_eq!(read_stamp(&bytes[SECTOR..]), Some(Stamp { file: 7, sector: 4, version: 9 }));
        for at in 0..SECTOR {
            let mut broken = bytes[..SECTOR].to_vec();
            broken[at] ^= 1;
            assert_eq!(read_stamp(&broken), None, "byte {at}");
        }
    }
}
