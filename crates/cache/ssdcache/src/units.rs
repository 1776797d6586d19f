//! A type for each number.

/// Bytes of a page, a slot and a summary.
pub const PAGE_BYTES: usize = 4096;

/// The bytes of one page.
pub type Page = [u8; PAGE_BYTES];

/// The number by which the caller names a file: the same for the same file after a restart (it is on the device),
/// and never used for another file before the drop of the first is durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileKey(pub u64);

impl FileKey {
    /// The cache's own pages, of its user's choice: dirty for ever, never written back, and put again when their segment goes
    /// ([`crate::SsdCache::collect_own`]). At most an eighth of all slots.
    pub const OWN: FileKey = FileKey(0);
}

/// A page of a file, counted from its first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub u64);

/// The first page that cannot be cached: 32 TiB into a file. 33 bits of a page's 11 bytes of metadata.
pub const PAGE_INDEX_END: u64 = 1 << 33;

/// A place for a page in the segments, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SsdSlot(pub(crate) u32);

/// A page of the device, counted from its first: the address of I/O.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DevicePage(pub u64);

/// A moment of the log: a segment's sequence number and a count of its batches. What has a stamp is durable when
/// [`crate::SsdCache::durable`] is not less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(u64);

impl Stamp {
    pub(crate) fn new(seq: u64, batches: u32) -> Stamp {
        Stamp(seq << 16 | u64::from(batches))
    }

    pub(crate) fn seq(self) -> u64 {
        self.0 >> 16
    }

    pub(crate) fn batches(self) -> u32 {
        (self.0 & 0xffff) as u32
    }
}

/// A cached page and where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Item {
    /// The file that the page belongs to.
    pub key: FileKey,
    /// The index of the page in the file.
    pub page: PageIndex,
    /// Its slot, which the metadata uses.
    pub slot: SsdSlot,
    /// Its address, which I/O uses.
    pub at: DevicePage,
}
