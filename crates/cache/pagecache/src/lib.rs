//! The page cache of several processes: frames in a region they all have mapped, found and read without a lock.
//!
//! What is true of a page stands in its frame's record alone: name, version, marks, pins. All else (index, queues, free
//! list, counts) is derived, guarded by its *shard*'s lock, and made anew from the records when somebody died with the lock
//! ([`repair`]). So a process may be killed between any two instructions.
//!
//! **A hit** ([`read`]) takes no lock and writes to no cache line that others use: probe the index, look at the frame's word,
//! compare the name, copy, look at the word again. It writes the page's count of hits where that changes, which is three times
//! until the page's turn to leave comes, and a counter of its own thread.
//!
//! **A miss** is believed if the index was not being rearranged meanwhile (the shard's *gate*). Whoever then brings the page from
//! elsewhere took a [`Ticket`] before he looked; if the page was here and left since, or was invalidated, his bytes may be old
//! and are refused.
//!
//! **A write** into a page that is here takes that frame alone, by its word, which is marked before the first byte changes. The one
//! who finds a frame taken waits, asks after two milliseconds whether the owner lives, and if not takes the frame over: the
//! page then counts as written in part. A page with a mark never leaves but by `invalidate`.
//!
//! Locks are taken in this order: a shard's, then a frame's. Who waits for a frame holds no shard.
//!
//! Whatever is read from the region is checked or masked at each use. Somebody who may write to the region can put any bytes
//! into it, but not make others reach beyond it, panic, or wait for a frame or a shard for longer than half a second.
#![forbid(unsafe_code)]

mod check;
mod evict;
mod find;
mod frame;
mod ghost;
mod hint;
mod insert;
mod invalidate;
mod list;
mod marked;
mod pin;
mod prediction;
mod probe;
mod read;
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

use frame::Record;
pub use hint::{FastPathMiss, FileNameHash, FrameHint};
pub use invalidate::Leftover;
pub use replacement::Replacement;
pub use shape::Shape;
use shape::{COUNTER_SETS, Plan};
pub use stats::ThreadCounters;
pub use types::{DamagedError, FileNo, Inserted, LookupKey, MarkFilter, Marks, Name, Page, Pin, Snapshot, Stats, Ticket, WriteOutcome};
pub use units::{PAGE_BYTES, PageIndex};

/// A cache in shared memory, as one process that takes part sees it. See the module.
#[derive(Debug)]
pub struct SharedPages {
    region: Arc<Region>,
    at: usize,
    processes: Arc<ProcessSlots>,
    me: ProcessSlot,
    plan: Plan,
    /// Processors' caches do not hold its pages.
    is_large: bool,
    replacement: Replacement,
    /// Of a page with so many hits nothing is noted.
    hits_most: u64,
    secrets: [u64; 2],
    heads: SharedSlice<shard::Head>,
    records: SharedSlice<Record>,
    index: SharedSlice<AtomicU32>,
    epochs: SharedSlice<AtomicU32>,
    ghosts: SharedSlice<[AtomicU64; shape::WAYS]>,
    bitmap: SharedSlice<AtomicU64>,
    counters: SharedSlice<Counters>,
    /// This process's own of them.
    my_counters: SharedRef<[Counters; COUNTER_SETS]>,
    /// Says in a record that this process has pinned the frame.
    my_bit: u64,
    /// How often this process has pinned each frame.
    my_pins: Box<[AtomicU32]>,
    /// Where the next search for marked pages begins.
    sweep: AtomicU32,
    guesses: prediction::Guesses,
    /// Frames that were waited for in vain, and their words.
    stuck: Mutex<Vec<(usize, u64)>>,
    any_stuck: AtomicBool,
    /// Bits of shards whose lock was waited for in vain.
    locked: Box<[AtomicU64]>,
    /// Until when nothing is waited for long, ms since this was attached.
    impatient_until: AtomicU64,
    attached: Instant,
}

type Counters = [AtomicU64; shape::COUNTER_BYTES / 8];

/// Frames from which on a page that is written whole goes past the processor's caches: 64 MiB.
const LARGE: usize = 1 << 14;

const MAGIC: u64 = u64::from_le_bytes(*b"hs-pages");
const VERSION: u32 = 4;
/// Bytes of the header that the sum is over.
const HEADER_BYTES: usize = 36;

impl SharedPages {
    /// What a cache of this shape takes of a region.
    ///
    /// # Panics
    /// There can be no such cache: see [`Shape`].
    pub fn bytes(shape: &Shape) -> usize {
        assert!(shape.is_sane(), "{shape:?}");
        Plan::of(shape).bytes
    }

    /// Makes an empty one at `at`, a multiple of 4096, of memory that is all zero. Nobody may be attached. `seed` is to be random:
    /// who chooses names of files must not know which of them meet in the index.
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

    /// Takes part in the one of so many bytes at `at`, in the name of a process slot.
    ///
    /// # Errors
    /// There is none, or its header is not to be believed.
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
            guesses: prediction::Guesses::default(),
            stuck: Mutex::default(),
            any_stuck: AtomicBool::new(false),
            impatient_until: AtomicU64::new(0),
            attached: Instant::now(),
            locked: (0..plan.shards.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            region: region.clone(),
        })
    }

    /// Frames in all.
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
