//! A page's name with its shard and its hash, as lookups pass it on.

/// The number (base-2 logarithm) of consecutive pages of a file that are in one shard.
pub(super) const GROUP_SHIFT: u32 = 4;
pub(super) const FILE_BITS: u32 = 20;
pub(super) const PAGE_BITS: u32 = 40;

/// A name and its place in the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashedName {
    /// File and page, as they are in the record.
    pub name: u64,
    /// The shard that the page belongs to.
    pub shard: usize,
    /// The hash of the name.
    pub hash: u64,
}

impl HashedName {
    /// Returns the upper half of the index entry; it is never zero, so no entry is.
    #[inline]
    pub fn tag(&self) -> u32 {
        (self.hash as u32 | 1) & 0xffff
    }
}
