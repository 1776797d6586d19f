//! The page cache of several processes: frames in a region that they all have mapped. Pages are found and read without a lock.
//!
//! Only the frame's record is authoritative for a page: name, version, marks, pins. Everything else (index, queues, free list, counts) is
//! derived, and guarded by the lock of its *shard*. If a process dies with that lock, it is rebuilt from the records ([`repair`]). So a
//! process may be killed between any two instructions.
//!
//! **A hit** ([`read`]) takes no lock and writes to no cache line that others use: probe the index, read the frame's word, compare the
//! name, copy, read the word again. It also updates a counter of the reader's thread, and the page's count of hits where that changes: at
//! most three times before the page is considered for eviction.
//!
//! **A miss** is valid only if the index was not being rearranged meanwhile (the shard's *gate*). The reader takes a [`Ticket`] before it
//! looks the page up, and later inserts the page from another tier. The insertion is refused if the page was evicted or invalidated
//! meanwhile: its bytes may be old.
//!
//! **A write** into a cached page takes that frame alone, by its word, which is marked before the first byte changes. A process that
//! finds a frame taken waits. After two milliseconds it checks whether the owner lives; if not, it takes the frame over, and the page
//! counts as partly written. A page with a mark is never evicted; only the calls of `invalidate.rs` drop it.
//!
//! Locks are taken in this order: a shard's, then a frame's. A thread that waits for a frame holds no shard.
//!
//! Values read from the region are checked or masked at each use. A process with write access to the region can put any bytes into it. It
//! cannot make others reach beyond the region, panic, or wait for a frame or a shard for longer than half a second, beside the time in
//! which the named owner, a process of the same user, gets no CPU.
#![forbid(unsafe_code)]

mod check;
mod evict;
mod find;
mod found;
mod frame;
mod ghost;
mod insert;
mod invalidate;
mod list;
mod marked;
mod name_hash;
mod pin;
mod probe;
mod read;
mod record;
mod repair;
mod replacement;
mod shape;
mod shard;
mod stats;
mod table;
mod types;
mod units;
mod word;
mod write;

#[cfg(test)]
mod death;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod newest;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod traces;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use shm::{ProcessSlot, ProcessSlots, Region, SharedRef, SharedSlice};

pub use found::FoundFrame;
pub use invalidate::Leftover;
use record::Record;
pub use replacement::Replacement;
pub use shape::Shape;
use shape::{COUNTER_SETS, Plan};
pub use stats::ThreadCounters;
pub use types::{DamagedError, FileNo, Inserted, LookupKey, MarkFilter, Marks, Name, Page, Pin, Snapshot, Stats, Ticket, WriteOutcome};
pub use units::{PAGE_BYTES, PageIndex};

/// A page cache in shared memory, as one process sees it. See the documentation of this crate.
#[derive(Debug)]
pub struct SharedPages {
    region: Arc<Region>,
    at: usize,
    processes: Arc<ProcessSlots>,
    me: ProcessSlot,
    plan: Plan,
    /// The cache is larger than the CPU caches.
    is_large: bool,
    replacement: Replacement,
    /// Hits beyond this number are not recorded.
    hits_most: u64,
    secrets: [u64; 2],
    heads: SharedSlice<shard::Head>,
    records: SharedSlice<Record>,
    index: SharedSlice<AtomicU32>,
    epochs: SharedSlice<AtomicU32>,
    ghosts: SharedSlice<[AtomicU64; shape::WAYS]>,
    bitmap: SharedSlice<AtomicU64>,
    counters: SharedSlice<Counters>,
    /// The counters of this process.
    my_counters: SharedRef<[Counters; COUNTER_SETS]>,
    /// The bit in a record that says that this process has pinned the frame.
    my_bit: u64,
    /// How often this process has pinned each frame.
    my_pins: Box<[AtomicU32]>,
    /// Where the next search for marked pages begins.
    sweep: AtomicU32,
    /// Frames that a wait timed out for, and their words.
    stuck: Mutex<Vec<(usize, u64)>>,
    any_stuck: AtomicBool,
    /// Bits of the shards whose lock timed out.
    locked: Box<[AtomicU64]>,
    /// Until when waits are short, ms since this process attached.
    impatient_until: AtomicU64,
    attached: Instant,
}

type Counters = [AtomicU64; shape::COUNTER_BYTES / 8];

/// From this number of frames on, a page that is written whole bypasses the CPU caches: 64 MiB.
const LARGE: usize = 1 << 14;

const MAGIC: u64 = u64::from_le_bytes(*b"hs-pages");
/// The version of the page cache in shared memory. Processes that share one have the same.
pub const VERSION: u32 = 4;
/// Bytes of the header that the checksum covers.
const HEADER_BYTES: usize = 36;

impl SharedPages {
    /// Returns the bytes of a region that a cache of this shape takes.
    ///
    /// # Panics
    /// The shape is invalid: see [`Shape`].
    pub fn bytes(shape: &Shape) -> usize {
        assert!(shape.is_sane(), "{shape:?}");
        Plan::of(shape).bytes
    }

    /// Makes an empty cache at `at`, a multiple of 4096, in memory that is all zero. No process may be attached. `seed` must be random: a
    /// user that chooses file names must not know which of them collide in the index.
    pub fn format(region: &Region, at: usize, shape: &Shape, seed: u64) {
        assert!(at.is_multiple_of(crate::PAGE_BYTES) && SharedPages::bytes(shape) <= region.len().saturating_sub(at), "no place: {at}");
        let mut header = [0; HEADER_BYTES + 4];
        let words = [VERSION, shape.frames, shape.shards, shape.ghosts, replacement_number(shape.replacement)];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        for (word, bytes) in words.iter().zip(header[8..].chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        header[28..36].copy_from_slice(&seed.to_le_bytes());
        let sum = crc32c::crc32c(&header[..HEADER_BYTES]);
        header[HEADER_BYTES..].copy_from_slice(&sum.to_le_bytes());
        region.write(at, &header);
        repair::make_empty(region, at, &Plan::of(shape));
    }

    /// Attaches to the cache of `bytes` bytes at `at`, for a process slot.
    ///
    /// # Errors
    /// There is no cache, or its header is invalid.
    pub fn attach(
        region: &Arc<Region>,
        at: usize,
        bytes: usize,
        processes: &Arc<ProcessSlots>,
        me: ProcessSlot,
    ) -> Result<SharedPages, DamagedError> {
        if !at.is_multiple_of(crate::PAGE_BYTES) || bytes > region.len().saturating_sub(at) || bytes < crate::PAGE_BYTES {
            return Err(DamagedError("no place for it"));
        }
        let (shape, seed) = read_header(region, at)?;
        let plan = Plan::of(&shape);
        if plan.bytes > bytes {
            return Err(DamagedError("more frames than fit"));
        }
        let frames = plan.shards * plan.frames as usize;
        Ok(SharedPages {
            at,
            processes: processes.clone(),
            me,
            plan,
            is_large: frames >= LARGE,
            replacement: shape.replacement,
            hits_most: read::hits_most(shape.replacement),
            secrets: find::secrets(seed),
            heads: SharedSlice::new(region, at + plan.heads_at, plan.shards),
            records: SharedSlice::new(region, at + plan.frames_at, frames),
            index: SharedSlice::new(region, at + plan.index_at, plan.shards * plan.places),
            epochs: SharedSlice::new(region, at + plan.epochs_at, plan.shards * plan.epochs),
            ghosts: SharedSlice::new(region, at + plan.ghosts_at, plan.shards * plan.ghost_lines),
            bitmap: SharedSlice::new(region, at + plan.bitmap_at, plan.shards * plan.bitmap),
            counters: SharedSlice::new(region, at + plan.counters_at, ProcessSlots::COUNT * COUNTER_SETS),
            my_counters: SharedRef::new(region, at + plan.counters_at + usize::from(me.0) * COUNTER_SETS * shape::COUNTER_BYTES),
            my_bit: 1 << me.0,
            my_pins: (0..frames).map(|_| AtomicU32::new(0)).collect(),
            sweep: AtomicU32::new(0),
            stuck: Mutex::default(),
            any_stuck: AtomicBool::new(false),
            impatient_until: AtomicU64::new(0),
            attached: Instant::now(),
            locked: (0..plan.shards.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            region: region.clone(),
        })
    }

    /// Returns the number of frames.
    pub fn frames(&self) -> u32 {
        self.records.len() as u32
    }
}

fn read_header(region: &Region, at: usize) -> Result<(Shape, u64), DamagedError> {
    let mut header = [0; HEADER_BYTES + 4];
    region.read(at, &mut header);
    let word = |n: usize| u32::from_le_bytes(header[n..n + 4].try_into().unwrap_or_default());
    if header[..8] != MAGIC.to_le_bytes() {
        return Err(DamagedError("no magic number"));
    }
    if word(8) != VERSION {
        return Err(DamagedError("another version"));
    }
    if word(HEADER_BYTES) != crc32c::crc32c(&header[..HEADER_BYTES]) {
        return Err(DamagedError("the header's sum"));
    }
    let replacement = replacement_of(word(24)).ok_or(DamagedError("an unknown order of replacement"))?;
    let shape = Shape { frames: word(12), shards: word(16), ghosts: word(20), replacement };
    let seed = u64::from(word(28)) | u64::from(word(32)) << 32;
    if shape.is_sane() { Ok((shape, seed)) } else { Err(DamagedError("a shape that cannot be")) }
}

fn replacement_number(replacement: Replacement) -> u32 {
    match replacement {
        Replacement::S3Fifo => 0,
        Replacement::Lru => 1,
        Replacement::Fifo => 2,
    }
}

fn replacement_of(number: u32) -> Option<Replacement> {
    [Replacement::S3Fifo, Replacement::Lru, Replacement::Fifo].get(number as usize).copied()
}
