//! The SSD cache: which page of which file is in which slot of the SSD, what is written where, and what is found again after a
//! crash.
//!
//! It never does I/O, never waits and reads no clock: it answers queries, keeps metadata, and says what to write where.
//! Whoever moves the bytes (`datapath`) follows this protocol:
//!
//! - **open**: [`recover`] reads the device; then write the superblock ([`SsdCache::superblock`]), flush,
//!   [`SsdCache::superblock_written`].
//! - **read**: [`SsdCache::lookup`]; on a hit read [`Item::at`], then [`SsdCache::verify`] the bytes: changed means look up again,
//!   bad means that the SSD lost them: invalidate, and read below unless it was dirty.
//! - **write to the SSD**: [`SsdCache::put`] any number of pages, [`SsdCache::seal`] the batch, write its summary and its pages as
//!   one piece, [`SsdCache::ended`]. For durability flush the device: [`SsdCache::flush_begins`], [`SsdCache::flush_ended`]; what has a
//!   stamp up to [`SsdCache::durable`] survives anything.
//! - **write below what is newer than here** (around, through, truncate): [`SsdCache::prepare`] first, then write below, then
//!   [`SsdCache::invalidate`] with no write-back in between. The other way round loses bytes: a drop that is refused for lack
//!   of room makes the caller write back, and that may be the very page, so that its old bytes go over the new ones below.
//!   Bytes below that replace a dirty page have to be durable there before the drop is.
//! - **make room**: [`SsdCache::collect_dirty`] of the oldest segments, write below, flush below, [`SsdCache::written_back`];
//!   [`SsdCache::collect_own`] and [`SsdCache::collect_hot`], read, [`SsdCache::reinsert`]; [`SsdCache::reclaim`].
//! - **refused** calls name what has to be done first ([`CacheError`]).
//! - **a write failed**: wait for all batches in flight, then [`SsdCache::cut`].
//!
//! # The log
//!
//! Segments are written one after the other, around the device. A segment is a sequence of batches: a summary (one page, up to
//! 126 entries) and the pages it names. A summary bears the segment's sequence number, its own place, and counts; a
//! page's checksum covers its bytes, name, address and sequence number. Nothing is ever changed in place. Why it holds:
//!
//! 1. *Order.* Of two versions the later in (sequence number, position) is newer. Drops and marks have a position too.
//! 2. *Segments before the head are durable.* A segment is started only when all batches before it are: one flush a segment. So
//!    holes and torn batches are in the head only, and recovery reads the pages of the head's last batches, no others. There
//!    the first batch that is not whole ends the log; nothing behind it was ever reported durable.
//! 3. *What is superseded stays superseded.* Segments are reused in their order, oldest first, so a drop is never
//!    overwritten before what it drops. That is what makes drops need no upkeep.
//! 4. *Drops are written* when the page is cached, or when the device may hold a version of it that the metadata has given up:
//!    between a reclaim and the moment it is durable (`tail`), and after a cut. They have to be durable no later than
//!    the `flush` of the file that covers the write, truncation or removal below: before that POSIX allows both states.
//! 5. *A segment is overwritten* only after it has been reclaimed durably (`tail` in a later summary, for which the last page of
//!    each segment is kept, or in the superblock): half overwritten, it is not looked at. Its dirty pages were written back,
//!    or replaced by what was durable before `tail` was written anywhere: a summary that says `tail` can survive when the
//!    batches before it do not.
//! 6. *Marks that a page was written back* are hints: lost, they cost a second write of the same bytes. Only durable
//!    versions are named for writing back, so a mark can never outlive the version it speaks of.
//! 7. *What an earlier life left* behind a torn batch does not continue a later life's batches: summaries bear the number of
//!    the life, and recovery itself writes nothing, so it can be repeated and interrupted. What it found in the head is made
//!    durable by the flush of the life's superblock, before which nothing is put: so a cut never reaches into an earlier life,
//!    of whose drops there is no list any more.
//!
//! # Memory
//!
//! 16 bytes a slot: 11 of metadata, 4.4 of index, 0.3 of ghosts, the rest for files and segments.
//! [`SsdCache::memory_bytes`] counts them. All are arrays of fixed width, linked by number, zero is empty.
//!
//! # Several processes
//!
//! One process leads: it alone has an [`SsdCache`]. Slots, index and sequence numbers lie in memory that all map, where the others have a
//! [`View`]; the rest of the metadata is private to the leader.
//!
//! - *A hit* is proved by the checksum of what was read: it covers file key, page, address and sequence number, so a slot that got
//!   another page meanwhile is noticed. *A miss* is proved by the gate (module `shared`). A page that is put is seen by others
//!   when its batch was written; until then it is in a marked frame, or the same below.
//! - *The leader dies* between any two stores: what it leaves hides nothing and gives no wrong page. Its open batch, and what was
//!   written of a batch in part, is nothing to its successor; whole batches that were not flushed yet count, and the flush of
//!   the successor's superblock makes them durable before anything builds on them. A batch found torn stays so: written over in
//!   part with pages that are the same it could become whole; so the next life begins a new segment (or, if none is free,
//!   notes all drops). *Drops that were not written* when it died are undone: a caller gets its answer after the write.
//! - *The exchange.* The successor recovers into private memory while others read the old map, then copies it over the old
//!   one: 16 MB for a million slots, 3 to 4 ms. Files that are held keep their numbers.
//! - *One segment is kept free* for the cache's own pages ([`FileKey::OWN`]), which have no other place to go.
#![forbid(unsafe_code)]

mod admission;
mod batch;
mod cache;
mod check;
mod checksum;
#[cfg(test)]
mod figures;
mod files;
#[cfg(test)]
mod hostile;
mod index;
mod inspect;
mod mode;
mod open_error;
#[cfg(test)]
mod oracle;
mod published;
mod reader;
mod reclaim;
mod recover;
mod resize;
mod shared;
mod slots;
mod summary;
mod superblock;
mod units;
mod version;
mod view;

pub use admission::{Admission, AdmissionLimits, AdmissionRule, AdmissionVerdict};
pub use batch::SealedBatch;
pub use cache::{CacheError, CacheStats, LookupResult, PageVersion, PutResult, SsdCache, VerifyResult};
pub use check::{BadPage, CheckReport, FileReport, SegmentReport, SegmentState, check};
pub use index::LookupKey;
pub use mode::{CacheAction, CacheEvent, Mode};
pub use open_error::CacheOpenError;
pub use reclaim::{CollectScope, runs};
pub use recover::{RecoveryResult, recover};
pub use resize::{ResizeError, resize};
pub use shared::{format_shared, shared_bytes};
pub use superblock::{Shape, Superblock};
pub use units::{DevicePage, FileKey, Item, PAGE_BYTES, PAGE_INDEX_END, Page, PageIndex, SsdSlot, Stamp};
pub use version::VERSION;
pub use view::{View, ViewHit, ViewLookup};
