//! Misses that others counted, with libCacheSim (Python package libcachesim 0.3.5): pages of one size, a cache of 1 % and of 10 %
//! of the distinct pages. FIFO and LRU have no details to differ in; the others have.
//!
//! The traces: `cloudPhysicsIO` as libCacheSim ships it, cut into pages of 4 KiB; the others are the LIRS authors', as the Caffeine
//! simulator ships them. A trace is known by its counts, whatever its file is called.

/// For one trace and one size.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// The trace.
    pub trace: &'static str,
    /// Pages asked for.
    pub requests: u64,
    /// Different ones.
    pub distinct: u64,
    /// Size of the cache.
    pub pages: u32,
    /// Misses.
    pub fifo: u64,
    /// Misses.
    pub lru: u64,
    /// Misses; of equals the one that came to its frequency first leaves, and nothing ages.
    pub lfu: u64,
    /// Misses; a small queue of a tenth, ghosts of nine tenths, two hits lead to the main queue.
    pub s3_fifo: u64,
}

impl Reference {
    /// Of the order of that name.
    pub fn misses(&self, order: &str) -> Option<u64> {
        match order {
            "fifo" => Some(self.fifo),
            "lru" => Some(self.lru),
            "lfu" => Some(self.lfu),
            "s3-fifo" => Some(self.s3_fifo),
            _ => None,
        }
    }
}

/// What was published for this trace and size.
pub fn of(requests: u64, distinct: u64, pages: u32) -> Option<&'static Reference> {
    ALL.iter().find(|one| (one.requests, one.distinct, one.pages) == (requests, distinct, pages))
}

const fn row(trace: (&'static str, u64, u64), pages: u32, [fifo, lru, lfu, s3_fifo]: [u64; 4]) -> Reference {
    Reference { trace: trace.0, requests: trace.1, distinct: trace.2, pages, fifo, lru, lfu, s3_fifo }
}

const CLOUD: (&str, u64, u64) = ("cloudPhysicsIO", 1_141_869, 269_210);
const SPRITE: (&str, u64, u64) = ("sprite", 133_996, 7_075);
const POOLS: (&str, u64, u64) = ("2_pools", 100_000, 9_939);
const LOOP: (&str, u64, u64) = ("loop", 505_500, 1_011);
const MULTI: (&str, u64, u64) = ("multi2", 26_311, 5_684);

/// All.
pub const ALL: &[Reference] = &[
    row(CLOUD, 2_692, [1_025_066, 1_024_107, 1_069_430, 1_020_660]),
    row(CLOUD, 26_921, [996_687, 998_105, 931_060, 935_406]),
    row(SPRITE, 70, [111_271, 112_114, 126_515, 105_493]),
    row(SPRITE, 707, [24_169, 18_121, 73_769, 18_809]),
    row(POOLS, 99, [80_790, 78_231, 53_645, 55_418]),
    row(POOLS, 993, [50_106, 45_622, 45_680, 45_668]),
    row(LOOP, 10, [505_500, 505_500, 505_500, 505_500]),
    row(LOOP, 101, [505_500, 505_500, 505_500, 460_091]),
    row(MULTI, 56, [25_493, 25_387, 25_599, 23_749]),
    row(MULTI, 568, [18_473, 16_596, 16_796, 12_902]),
];
