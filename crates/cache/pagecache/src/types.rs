//! What callers of the shared page cache see.

use std::fmt;
use std::ops::BitOr;

use crate::{PAGE_BYTES, PageIndex};

/// The bytes of a page.
pub type Page = [u8; PAGE_BYTES];

/// The number of a file, below 2^20: whoever uses the cache says what it means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileNo(pub u32);

/// Which page of which file. Pages are below 2^40.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// The file.
    pub file: FileNo,
    /// The page of it.
    pub page: PageIndex,
}

/// Why a page may not leave: bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks(pub u8);

impl Marks {
    /// No mark: it may leave.
    pub const NONE: Marks = Marks(0);
    /// Newer than below, and than on the SSD.
    pub const DIRTY: Marks = Marks(1);
    /// An old copy may be on the SSD.
    pub const SSD_STALE: Marks = Marks(2);

    /// Whether all of these are set.
    #[inline]
    pub fn has(self, marks: Marks) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// Whether none is set.
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

/// How things stood before somebody looked for a page: what he finds elsewhere is taken in only if they stand so still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(pub(super) u32);

/// A name, and where it is looked for: worked out once, by who says ahead what he will look for.
#[derive(Clone, Copy, Debug)]
pub struct LookupKey {
    pub(super) place: super::find::IndexPlace,
    pub(super) hash: u64,
}

impl LookupKey {
    #[inline]
    pub(super) fn key(&self) -> super::find::HashedName {
        self.place.key(self.hash)
    }
}

/// What became of a page that was brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Inserted {
    /// It is here.
    Done,
    /// Somebody brought it first: read it, or write into it.
    Present,
    /// The page was changed or dropped since the ticket was taken: look again.
    Stale,
    /// No frame: all are marked or pinned.
    NoRoom,
    /// A process that does not go on keeps the lock of the pages that this one is among.
    Locked,
}

/// What became of a write into a page that has a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum WriteOutcome {
    /// It is written.
    Done,
    /// Nothing is: the page is here without a mark, or somebody is changing it.
    Unmarked,
    /// Nothing is: the page was not seen here.
    Missing,
}

/// Which marked pages are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkFilter {
    /// All.
    All,
    /// Those of a file.
    File(FileNo),
    /// Those marked since before this time, in milliseconds (modulo 2^32).
    OlderThan(u32),
}

/// Which version of a page was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub(super) frame: u32,
    pub(super) version: u64,
    /// What it was marked with.
    pub marks: Marks,
}

impl Snapshot {
    /// Two copies of one page with one version are equal.
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// A page that stays in its frame until it is given back with `unpin`.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a pinned page stays until it is unpinned"]
pub struct Pin {
    pub(super) frame: u32,
}

/// What is in shared memory is no page cache of ours, or its books do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamagedError(pub(super) &'static str);

impl fmt::Display for DamagedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the page cache in shared memory is damaged: {}", self.0)
    }
}

impl std::error::Error for DamagedError {}

/// Counts since the cache was made, and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Frames in all.
    pub frames: u32,
    /// Frames without a page.
    pub free: u32,
    /// Pages with a mark.
    pub marked: u32,
    /// Frames without a page that somebody still looks at.
    pub orphans: u32,
    /// Reads of pages that were here. (Of more than eight threads of a process some may not be counted.)
    pub hits: u64,
    /// Reads of pages that were not.
    pub misses: u64,
    /// Writes into pages that were here.
    pub writes: u64,
    /// Pages brought.
    pub inserts: u64,
    /// Pages that left to make room.
    pub evictions: u64,
    /// Times a shard's books were made anew, after somebody died changing them.
    pub repairs: u64,
}
