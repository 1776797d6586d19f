//! The size of the cache, and the position of each part in its piece of a region. docs/formats.md has a drawing.

use crate::PAGE_BYTES;
use crate::Replacement;

/// The largest number of frames of a shard: their numbers have sixteen bits.
pub(super) const SHARD_FRAMES_MAX: u32 = 1 << 16;
/// Frames of a shard, if there are enough: repairing its metadata then takes under a millisecond.
const SHARD_FRAMES: u32 = 1 << 14;
const SHARDS_MAX: u32 = 1 << 12;
/// The number of threads of a process whose counters are on separate cache lines.
pub(super) const COUNTER_SETS: usize = 8;
/// Ghosts that lie in one cache line.
pub(super) const WAYS: usize = 8;

/// The shape of a cache in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The number of frames; those that do not divide evenly among the shards are left out.
    pub frames: u32,
    /// The number of parts with a lock each: a power of two, with at most 65,536 frames each.
    pub shards: u32,
    /// The number of evicted pages that are remembered (S3-FIFO).
    pub ghosts: u32,
    /// How the next page to evict is chosen.
    pub replacement: Replacement,
}

impl Shape {
    /// Returns the default for so many frames: S3-FIFO, shards of 16,384 frames, as many ghosts as the main queue has frames.
    pub fn new(frames: u32) -> Shape {
        let shards = (frames / SHARD_FRAMES).clamp(1, SHARDS_MAX);
        let shards = if shards.is_power_of_two() { shards } else { shards.next_power_of_two() / 2 };
        Shape { frames, shards, ghosts: frames - frames / 10, replacement: Replacement::default() }
    }

    /// Returns the number of frames of each shard.
    pub(super) fn per_shard(&self) -> u32 {
        self.frames / self.shards.max(1)
    }

    /// Returns whether a cache can have this shape.
    pub fn is_sane(&self) -> bool {
        let per = self.per_shard();
        let shards = self.shards.is_power_of_two() && self.shards <= SHARD_FRAMES_MAX;
        shards && (1..=SHARD_FRAMES_MAX).contains(&per) && self.ghosts / self.shards <= 4 * per
    }
}

/// The positions of all parts, computed from the shape alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The number of shards, a power of two.
    pub shards: usize,
    /// The base-2 logarithm of the number of shards.
    pub shards_shift: u32,
    /// The number of frames of each shard.
    pub frames: u32,
    /// Entries of each shard's index, a power of two.
    pub places: usize,
    /// Epoch counters of each shard, a power of two.
    pub epochs: usize,
    /// The number of ghosts of each shard.
    pub ghosts: u32,
    /// Cache lines for the ghosts of each shard.
    pub ghost_lines: usize,
    /// Words of each shard's bitmap of marked frames.
    pub bitmap: usize,
    /// The offset of the shards' heads.
    pub heads_at: usize,
    /// The offset of the counters of all process slots.
    pub counters_at: usize,
    /// The offset of the frames' records.
    pub frames_at: usize,
    /// The offset of the shards' indexes.
    pub index_at: usize,
    /// The offset of the epoch counters.
    pub epochs_at: usize,
    /// The offset of the shards' ghosts.
    pub ghosts_at: usize,
    /// The offset of the bitmaps of marked frames.
    pub bitmap_at: usize,
    /// The offset of the frames' bytes.
    pub data_at: usize,
    /// The bytes of the whole cache.
    pub bytes: usize,
}

/// Bytes of a shard's head, and of a set of counters.
pub(super) const HEAD_BYTES: usize = 256;
pub(super) const COUNTER_BYTES: usize = 128;

impl Plan {
    /// Computes the positions for a shape.
    pub fn of(shape: &Shape) -> Plan {
        let (shards, frames) = (shape.shards as usize, shape.per_shard());
        let per = frames as usize;
        let places = (2 * per).next_power_of_two().max(16);
        // With few counters, a page that takes long to read would often seem changed, because others are evicted meanwhile.
        let epochs = per.next_power_of_two().clamp(2048, 4096);
        let ghosts = if shape.replacement == Replacement::S3Fifo { shape.ghosts / shape.shards } else { 0 };
        // Two thirds full, so that a line is rarely full by chance.
        let ghost_lines = (ghosts as usize * 3 / 2).div_ceil(WAYS);
        // Whole cache lines: shards do not share any.
        let bitmap = per.div_ceil(64).next_multiple_of(8);
        let mut end = PAGE_BYTES;
        let mut take = |bytes: usize| {
            let at = end;
            end += (shards * bytes).next_multiple_of(128);
            at
        };
        let heads_at = take(HEAD_BYTES);
        let (frames_at, index_at, epochs_at) = (take(per * 64), take(places * 4), take(epochs * 4));
        let (ghosts_at, bitmap_at) = (take(ghost_lines * WAYS * 8), take(bitmap * 8));
        let counters_at = end;
        let data_at = (counters_at + shm::ProcessSlots::COUNT * COUNTER_SETS * COUNTER_BYTES).next_multiple_of(PAGE_BYTES);
        let bytes = data_at + shards * per * PAGE_BYTES;
        Plan {
            shards,
            shards_shift: shards.trailing_zeros(),
            frames,
            places,
            epochs,
            ghosts,
            ghost_lines,
            bitmap,
            heads_at,
            counters_at,
            frames_at,
            index_at,
            epochs_at,
            ghosts_at,
            bitmap_at,
            data_at,
            bytes,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_frame_costs_little_beside_its_bytes() {
        for (frames, shards) in [(1, 1), (16_384, 1), (65_535, 2), (262_144, 16), (1 << 24, 1024), (1 << 28, 4096)] {
            let shape = Shape::new(frames);
            assert_eq!((shape.shards, shape.is_sane()), (shards, true), "{frames} frames");
            let plan = Plan::of(&shape);
            let metadata = (plan.data_at - plan.frames_at) / (plan.shards * plan.frames as usize);
            assert!(frames < 10_000 || metadata <= 96, "{metadata} bytes for each of {frames} frames");
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let good = Shape::new(64);
        for (frames, shards, ghosts) in [(0, 1, 0), (64, 0, 0), (64, 3, 0), (64, 128, 0), (65_537, 1, 0), (64, 1, 257)] {
            assert!(!Shape { frames, shards, ghosts, ..good }.is_sane(), "{frames} {shards} {ghosts}");
        }
    }
}
