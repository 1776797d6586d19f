//! Counters: one block of words for each process slot. Only the slot's process writes it; readers add the blocks up.
//!
//! Latencies go into 96 buckets a tier: bucket `4 * log2(ns / 64) + quarter`, so 64 ns to 1 s in steps of a quarter octave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shm::{ProcessSlot, ProcessSlots, Region};

/// The tier where a read was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Tier {
    /// A frame in memory.
    Ram,
    /// The SSD.
    Ssd,
    /// The backing file.
    Below,
}

/// The events and amounts that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Pages read from the SSD for readers.
    SsdHits,
    /// Pages read from the backing file for readers.
    Misses,
    /// Pages read ahead.
    ReadAhead,
    /// Pages that writers inserted. (The page cache counts writes into pages that were in frames.)
    Writes,
    /// Calls of sync.
    Syncs,
    /// Bytes read from the SSD.
    SsdRead,
    /// Bytes written to the SSD: pages, summaries, superblocks.
    SsdWritten,
    /// Bytes of pages written for the first time (not inserted again).
    SsdData,
    /// Bytes read from backing files.
    BelowRead,
    /// Bytes written to backing files.
    BelowWritten,
    /// Write calls on backing files.
    BelowWrites,
    /// Dirty pages written to backing files.
    WrittenBack,
    /// Pages promoted to the SSD because they were read twice.
    Promoted,
    /// Pages that a reader found damaged on the SSD.
    Damaged,
    /// Calls that waited for room.
    Throttled,
    /// Flushes of the SSD.
    SsdFlushes,
    /// Pages not admitted to the SSD because they were read for the first time.
    RefusedFirst,
    /// Pages not admitted because they belong to a stream.
    RefusedStream,
    /// Pages, read or written, that exceeded the day's write budget of the SSD.
    RefusedBudget,
    /// Pages of files that the rules exclude from the SSD.
    RefusedRule,
    /// Pages for which the SSD's metadata had no room.
    RefusedFull,
    /// Pages read from the backing file because they lay around a requested one.
    ReadAround,
}

const COUNTS: usize = 22;
const TIERS: usize = 3;
const _: () = assert!(Count::ReadAround as usize + 1 == COUNTS && Tier::Below as usize + 1 == TIERS);
/// Latency buckets: quarter octaves from 64 ns to a second.
const BUCKETS: usize = 96;
/// Bytes of a process's block: counts, then the buckets of reads in each tier, then those of writes.
const PROCESS_BYTES: usize = (COUNTS + 2 * TIERS * BUCKETS) * 8;

/// The blocks of counters in the segment.
#[derive(Clone, Debug)]
pub struct Counters {
    pub(super) region: Arc<Region>,
    pub(super) at: usize,
    pub(super) me: ProcessSlot,
}

impl Counters {
    /// The size of all blocks in the segment.
    pub const BYTES: usize = ProcessSlots::COUNT * PROCESS_BYTES;

    fn word(&self, process: usize, n: usize) -> &AtomicU64 {
        self.region.u64(self.at + process * PROCESS_BYTES + n * 8)
    }

    #[inline]
    pub(crate) fn add(&self, what: Count, by: u64) {
        self.word(usize::from(self.me.0), what as usize).fetch_add(by, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn took(&self, tier: Tier, ns: u64) {
        self.word(usize::from(self.me.0), COUNTS + tier as usize * BUCKETS + bucket(ns)).fetch_add(1, Ordering::Relaxed);
    }

    /// Records the latency of a write.
    #[inline]
    pub(crate) fn write_took(&self, tier: Tier, ns: u64) {
        let at = COUNTS + (TIERS + tier as usize) * BUCKETS + bucket(ns);
        self.word(usize::from(self.me.0), at).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of all processes since the instance was made.
    pub fn sum(&self, what: Count) -> u64 {
        added((0..ProcessSlots::COUNT).map(|process| self.word(process, what as usize).load(Ordering::Relaxed)))
    }

    /// Returns the count of this process, with that of earlier owners of its process slot.
    pub fn own(&self, what: Count) -> u64 {
        self.of(self.me, what)
    }

    /// Returns the count of the owners of a process slot.
    pub fn of(&self, process: ProcessSlot, what: Count) -> u64 {
        self.word(usize::from(process.0), what as usize).load(Ordering::Relaxed)
    }

    /// Returns the read latencies of the owners of a process slot.
    pub fn latencies_of(&self, process: ProcessSlot, tier: Tier) -> [u64; BUCKETS] {
        std::array::from_fn(|n| {
            let word = COUNTS + tier as usize * BUCKETS + n;
            self.word(usize::from(process.0), word).load(Ordering::Relaxed)
        })
    }

    /// Returns the read latencies of all processes: the number of reads in each bucket.
    pub fn latencies(&self, tier: Tier) -> [u64; BUCKETS] {
        self.buckets(tier as usize)
    }

    /// Returns the write latencies: of writes into frames, of batches to the SSD, of merged pieces to backing files.
    pub fn write_latencies(&self, tier: Tier) -> [u64; BUCKETS] {
        self.buckets(TIERS + tier as usize)
    }

    fn buckets(&self, which: usize) -> [u64; BUCKETS] {
        std::array::from_fn(|n| {
            let word = COUNTS + which * BUCKETS + n;
            added((0..ProcessSlots::COUNT).map(|process| self.word(process, word).load(Ordering::Relaxed)))
        })
    }
}

/// Adds words, some of which may be damaged: the addition saturates.
fn added(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, u64::saturating_add)
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(64);
    let octave = ns.ilog2();
    let quarter = (ns >> (octave - 2)) & 3;
    ((octave - 6) as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// Returns the longest time that falls into a bucket, ns.
pub fn bucket_ns(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket as u32 / 4 + 6, bucket as u64 % 4);
    (1 << octave) + ((quarter + 1) << (octave - 2)) - 1
}

/// Returns the latency that `per_mille` of a thousand reads do not exceed, ns; None: there were no reads.
pub fn percentile(buckets: &[u64], per_mille: u64) -> Option<u64> {
    let total = added(buckets.iter().copied());
    let wanted = (u128::from(total) * u128::from(per_mille)).div_ceil(1000).max(1) as u64;
    let mut seen = 0;
    let at = buckets.iter().position(|count| {
        seen = u64::saturating_add(seen, *count);
        seen >= wanted
    })?;
    Some(bucket_ns(at))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_bucket_holds_what_it_says() {
        for ns in [0, 64, 79, 80, 100, 127, 128, 1000, 123_456, 1 << 21, 999_999_999] {
            let at = bucket(ns);
            assert!(ns <= bucket_ns(at), "{ns} in {at}");
            assert!(at == 0 || ns > bucket_ns(at - 1), "{ns} in {at}");
        }
        let mut buckets = [0; BUCKETS];
        buckets[bucket(100)] = 999;
        buckets[bucket(10_000)] = 1;
        assert_eq!(percentile(&buckets, 500), Some(bucket_ns(bucket(100))));
        assert_eq!(percentile(&buckets, 1000), Some(bucket_ns(bucket(10_000))));
        assert_eq!(percentile(&[0; BUCKETS], 500), None);
    }
}
