//! The types that callers of the shared page cache use.

use std::fmt;
use std::ops::BitOr;

use crate::{PAGE_BYTES, PageIndex};

/// The bytes of a page.
pub type Page = [u8; PAGE_BYTES];

/// The number of a file, below 2^20: the user of the cache defines its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileNo(pub u32);

/// The name of a page: its file and its number there. Pages are below 2^40.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// The file that the page belongs to.
    pub file: FileNo,
    /// The number of the page in its file.
    pub page: PageIndex,
}

/// Reasons why a page must not be evicted: bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks(pub u8);

impl Marks {
    /// No mark: the page may be evicted.
    pub const NONE: Marks = Marks(0);
    /// The page is newer than the backing file and the SSD.
    pub const DIRTY: Marks = Marks(1);
    /// An old copy may be on the SSD.
    pub const SSD_STALE: Marks = Marks(2);

    /// Returns whether all of these marks are set.
    #[inline]
    pub fn has(self, marks: Marks) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// Returns whether no mark is set.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Marks {
    type Output = Marks;
    fn bitor(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }
}

/// The epoch of a page before its lookup: a page from another tier is inserted only if the epoch has not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(pub(super) u32);

/// A name and its place in the index, computed once: for callers that announce their lookups.
#[derive(Clone, Copy, Debug)]
pub struct LookupKey(pub(super) super::name_hash::HashedName);

/// The result of inserting a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Inserted {
    /// The page was inserted.
    Done,
    /// Another thread inserted it first: read it, or write into it.
    Present,
    /// The page was changed or dropped since the ticket was taken: look it up again.
    Stale,
    /// There is no frame: all are marked or pinned.
    NoRoom,
    /// A process that makes no progress holds the lock of the page's shard.
    Locked,
}

/// The result of a write into a page that has a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum WriteOutcome {
    /// The bytes are written.
    Done,
    /// Nothing is written: the page has no mark, or another thread is changing it.
    Unmarked,
    /// Nothing is written: the page was not found.
    Missing,
}

/// The marked pages that a search returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkFilter {
    /// All marked pages.
    All,
    /// The marked pages of a file.
    File(FileNo),
    /// Those marked since before this time, in milliseconds (modulo 2^32).
    OlderThan(u32),
}

/// The version of a page that was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub(super) frame: u32,
    pub(super) version: u64,
    /// The marks of that version.
    pub marks: Marks,
}

impl Snapshot {
    /// Returns the version: two copies of one page with one version are equal.
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// A pinned page: it stays in its frame until it is passed to `unpin`.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a pinned page stays until it is unpinned"]
pub struct Pin {
    pub(super) frame: u32,
}

/// The shared memory has no valid page cache, or its metadata is inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamagedError(pub(super) &'static str);

impl fmt::Display for DamagedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the page cache in shared memory is damaged: {}", self.0)
    }
}

impl std::error::Error for DamagedError {}

/// The state of the cache, and counts since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// The number of all frames.
    pub frames: u32,
    /// The number of frames without a page.
    pub free: u32,
    /// The number of pages with a mark.
    pub marked: u32,
    /// The number of frames without a page that are still pinned.
    pub orphans: u32,
    /// Reads of cached pages. (With more than eight threads of a process, some may not be counted.)
    pub hits: u64,
    /// Reads of pages that were not cached.
    pub misses: u64,
    /// Writes into pages that were cached.
    pub writes: u64,
    /// The number of pages inserted.
    pub inserts: u64,
    /// The number of pages evicted.
    pub evictions: u64,
    /// How often the metadata of a shard was rebuilt, after a process died changing it.
    pub repairs: u64,
}
