//! The SSD cache: which page of which file is in which slot of the SSD, what is written where, and what is found again after a
//! crash.
//!
//! It never does I/O, waits for nobody and reads no clock: it answers questions, keeps books, and says what to write where.
//! Whoever moves the bytes (`datapath`) follows this protocol:
//!
//! - **open**: [`recover`] reads the device; then write the superblock ([`SsdCache::superblock`]), flush,
//!   [`SsdCache::superblock_written`].
//! - **read**: [`SsdCache::lookup`]; on a hit read [`Item::at`], then [`SsdCache::verify`] the bytes: changed means look up again,
//!   bad means that the SSD lost them: invalidate, and read below unless it was dirty.
//! - **write to the SSD**: [`SsdCache::put`] any number of pages, [`SsdCache::seal`] the batch, write its summary and its pages as
//!   one piece, [`SsdCache::ended`]. For durability flush the device: [`SsdCache::flush_begins`], [`SsdCache::flush_ended`]; what has a
//!   stamp up to [`SsdCache::durable`] survives anything.
//! - **make room**: [`SsdCache::collect_dirty`] of the oldest segments, write below, flush below, [`SsdCache::written_back`];
//!   [`SsdCache::collect_hot`], read, [`SsdCache::reinsert`]; [`SsdCache::reclaim`].
//! - **refused** calls name what has to be done first ([`Refused`]).
//! - **a write failed**: wait for all batches in flight, then [`SsdCache::cut`].
//!
//! # The log
//!
//! Segments are written one after the other, around the device. A segment is a sequence of batches: a summary (one page, up to
//! 126 entries) and the pages it names. A summary bears the segment's sequence number, its own place, and counts; a
//! page's checksum covers its bytes, name, address and sequence number. Nothing is ever changed in place. Why it holds:
//!
//! 1. *Order.* Of two versions the later in (sequence number, position) is newer. Drops and marks have a position too.
//! 2. *Segments before the head are durable.* A segment is begun only when all batches before it are: one flush a segment. So
//!    holes and torn batches are in the head only, and recovery reads the pages of the head's last batches, no others. There
//!    the first batch that is not whole ends the log; nothing behind it was ever reported durable.
//! 3. *What is superseded stays superseded.* Segments are reused in their order, oldest first, so a drop is never
//!    overwritten before what it drops. That is what makes drops need no upkeep.
//! 4. *Drops are written* when the page is cached, or when the device may hold a version of it that the books have given up:
//!    between a reclaim and the moment it is durable (`tail`), and after a cut. They have to be durable no later than
//!    the `flush` of the file that covers the write, truncation or removal below: before that POSIX allows both states.
//! 5. *A segment is overwritten* only after it has been reclaimed durably (`tail` in a later summary, for which the last page of
//!    each segment is kept, or in the superblock): half overwritten, it is not looked at. Its dirty pages were written back.
//! 6. *Marks that a page was written back* are hints: lost, they cost a second write of the same bytes. Only durable
//!    versions are named for writing back, so a mark can never outlive the version it speaks of.
//! 7. *What an earlier life left* behind a torn batch does not continue a later life's batches: summaries bear the number of
//!    the life, and recovery itself writes nothing, so it can be repeated and interrupted.
//!
//! # Memory
//!
//! 16 bytes a slot: 11 of books, 4.4 of index, 0.25 of ghosts, the rest for files and segments.
//! [`SsdCache::memory_bytes`] counts them. All are arrays of fixed width, linked by number, zero is empty.
//!
//! **Towards shared memory.** Private to the process as yet: the arrays are boxed slices (they become ranges of a `Region`); changes
//! need `&mut` (they need a lock that a dead process cannot keep; the open batch and the batches in flight have to be
//! in the region too, so that a successor can cut them); the hash has no secret seed.
#![forbid(unsafe_code)]

mod admission;
mod batch;
mod cache;
mod files;
#[cfg(test)]
mod hostile;
mod index;
mod mode;
#[cfg(test)]
mod oracle;
mod reclaim;
mod recover;
mod slots;
mod summary;
mod superblock;
mod units;

pub use admission::{Admission, Limits, Rule, Verdict};
pub use batch::Sealed;
pub use cache::{Lookup, Put, Refused, SsdCache, Stats, Verified, Version};
pub use mode::{Action, Event, Mode};
pub use reclaim::Scope;
pub use recover::{Found, recover};
pub use superblock::{Shape, Superblock, Unusable};
pub use units::{DevicePage, FileKey, Item, PAGE_BYTES, PAGE_INDEX_END, Page, PageIndex, Slot, Stamp};
