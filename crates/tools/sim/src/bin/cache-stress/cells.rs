//! The content of a cell: its identity, version and a pattern over its 512 bytes.

/// Size of a cell, in bytes.
pub const CELL: usize = 512;
/// The bytes of one cell.
pub type Bytes = [u8; CELL];
/// Size of a word of a cell.
const WORD: usize = 8;

/// Identifies the version of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Number that identifies the file.
    pub file: u32,
    /// Number of the cell in the file; in a log, the writer.
    pub cell: u32,
    /// Odd: the cell is empty (truncated, punched or never written).
    pub version: u64,
}

impl Stamp {
    /// Returns the cell content of this version.
    pub fn bytes(&self) -> Bytes {
        let mut bytes = [0; CELL];
        if self.version % 2 == 1 {
            return bytes;
        }
        let name = u64::from(self.file) << 32 | u64::from(self.cell);
        let (words, _) = bytes.as_chunks_mut::<WORD>();
        words[0] = name.to_le_bytes();
        words[1] = self.version.to_le_bytes();
        let mut mixed = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.version.wrapping_mul(0xd1b5_4a32_d192_ed03);
        for word in &mut words[2..] {
            mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(0x94d0_49bb_1331_11eb);
            *word = mixed.to_le_bytes();
        }
        bytes
    }

    /// Returns the stamp of an intact cell. `None` also for zeroes.
    pub fn of(bytes: &[u8]) -> Option<Stamp> {
        let (words, _) = bytes.as_chunks::<WORD>();
        let (name, version) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        let stamp = Stamp { file: (name >> 32) as u32, cell: name as u32, version };
        (version.is_multiple_of(2) && version > 0 && stamp.bytes() == bytes).then_some(stamp)
    }

    /// Returns whether each byte is from one of these versions, as after a writer was killed during a write.
    pub fn is_mixed(&self, from: u64, to: u64, bytes: &[u8]) -> bool {
        let all: Vec<Bytes> = (from..=to).map(|version| Stamp { version, ..*self }.bytes()).collect();
        bytes.iter().enumerate().all(|(at, byte)| all.iter().any(|whole| whole[at] == *byte))
    }
}
