//! A type for each number.

/// Bytes of a page and of the frame it is in (paper 001, section III.B: "4KB unit size").
pub const PAGE_BYTES: usize = 4096;

/// What the user of the cache calls a file or a device: any number of his, the same for all who mean the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileKey(pub u64);

/// A file the cache knows, by its place in the table of files. Good from `open_file` to `close_file`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileNo(pub(crate) u32);

/// A page of a file, counted from its first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page a byte lies in.
    pub fn of(offset: u64) -> PageIndex {
        PageIndex(offset / PAGE_BYTES as u64)
    }

    /// Its first byte in the file.
    pub fn offset(self) -> u64 {
        self.0 * PAGE_BYTES as u64
    }
}

/// A frame of memory, by number. It means the same page as long as the frame is pinned or in transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

impl FrameId {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}
