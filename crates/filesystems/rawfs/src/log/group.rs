//! A group of the log: records that were written together, with one sum. docs/formats.md, "The raw file system".

use crate::layout::seal::{SEAL_BYTES, Seal};
use crate::layout::{put_u32, put_u64, u32_at, u64_at};
use crate::units::{BLOCK_BYTES, Lsn};

const MAGIC: [u8; 4] = *b"hsfL";
/// Bytes of a group before its records.
pub const HEADER_BYTES: usize = SEAL_BYTES + 32;
/// Before each record: its length.
pub const RECORD_HEAD: usize = 4;

/// What a group says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupHeader {
    /// Where it is, in blocks written to the log since the image was made.
    pub position: u64,
    /// Of the store that wrote it.
    pub life: u64,
    /// The first half of the image's UUID.
    pub image: u64,
    /// Its first record; the number of the next one if it has none.
    pub first: Lsn,
    /// What was known to be durable when it was written.
    pub durable: Lsn,
    /// The number of records in the group.
    pub records: u32,
    /// Bytes of all records, with their lengths.
    pub bytes: u32,
}

impl GroupHeader {
    /// Returns the number of blocks the group takes.
    pub fn blocks(&self) -> u64 {
        blocks(self.bytes as usize)
    }

    /// The last record; the one before its first if it has none.
    pub fn last(&self) -> Lsn {
        Lsn((self.first.0 + u64::from(self.records)).saturating_sub(1))
    }
}

/// Blocks of a group with so many bytes of records.
pub fn blocks(bytes: usize) -> u64 {
    (HEADER_BYTES + bytes).div_ceil(BLOCK_BYTES) as u64
}

/// Adds a group to `to`, in whole blocks.
pub fn encode(header: GroupHeader, records: &[u8], to: &mut Vec<u8>) {
    let from = to.len();
    to.resize(from + HEADER_BYTES, 0);
    to.extend_from_slice(records);
    to.resize(from + header.blocks() as usize * BLOCK_BYTES, 0);
    let group = &mut to[from..];
    put_u64(group, SEAL_BYTES, header.first.0);
    put_u64(group, SEAL_BYTES + 8, header.durable.0);
    put_u32(group, SEAL_BYTES + 16, header.records);
    put_u32(group, SEAL_BYTES + 20, header.bytes);
    Seal { magic: MAGIC, at: header.position, generation: header.life, image: header.image }.put(group);
}

/// What the first block of a group says, if it looks like one; [`is_whole`] checks the checksum.
pub fn peek(block: &[u8]) -> Option<GroupHeader> {
    let seal = Seal::peek(block).filter(|seal| seal.magic == MAGIC && block.len() >= HEADER_BYTES)?;
    Some(GroupHeader {
        position: seal.at,
        life: seal.generation,
        image: seal.image,
        first: Lsn(u64_at(block, SEAL_BYTES)),
        durable: Lsn(u64_at(block, SEAL_BYTES + 8)),
        records: u32_at(block, SEAL_BYTES + 16),
        bytes: u32_at(block, SEAL_BYTES + 20),
    })
}

/// Whether all its blocks are as they were written.
pub fn is_whole(group: &[u8]) -> bool {
    Seal::get(group).is_some()
}

/// The records of a whole group; None where they end too early.
pub fn records<'a>(header: &GroupHeader, group: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut rest = group.get(HEADER_BYTES..HEADER_BYTES + header.bytes as usize)?;
    let mut records = Vec::new();
    for _ in 0..header.records {
        let (head, behind) = rest.split_at_checked(RECORD_HEAD)?;
        let (record, behind) = behind.split_at_checked(u32_at(head, 0) as usize)?;
        records.push(record);
        rest = behind;
    }
    rest.is_empty().then_some(records)
}
