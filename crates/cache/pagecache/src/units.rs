//! A type for each number.

/// Bytes of a page and of its frame (NVMeDirect, section III.B: "4KB unit size").
pub const PAGE_BYTES: usize = 4096;

/// A page of a file, counted from its first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// Returns the page that contains this byte.
    pub fn of(offset: u64) -> PageIndex {
        PageIndex(offset / PAGE_BYTES as u64)
    }

    /// Returns the offset of its first byte in the file.
    pub fn offset(self) -> u64 {
        self.0 * PAGE_BYTES as u64
    }
}
