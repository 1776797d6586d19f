//! What lies where on the device, and in which bytes: docs/formats.md, "The raw file system". All of it is hostile when read.

pub mod bitmap;
pub mod seal;
pub mod shape;
pub mod superblock;
#[cfg(test)]
mod test;
pub mod version;

pub use shape::Shape;
pub use superblock::Superblock;

/// Bytes of a node in the metadata region.
pub const NODE_BYTES: usize = 16 << 10;
/// The number of blocks in a node.
pub const NODE_BLOCKS: u64 = (NODE_BYTES / crate::units::BLOCK_BYTES) as u64;

/// A number at a place of a block; the place is ours, and inside.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// As [`u32_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}
