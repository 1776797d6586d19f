//! Published miss counts of libCacheSim (Python package libcachesim 0.3.5): pages of one size, caches of 1 % and 10 % of the distinct
//! pages. FIFO and LRU leave no choice of details; the other policies do.
//!
//! Traces: `cloudPhysicsIO` as shipped by libCacheSim, in pages of 4 KiB; the others are the LIRS authors', as shipped by the Caffeine
//! simulator. A trace is recognised by its counts, not its file name.

/// The published counts of one trace and cache size.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Name of the replayed trace.
    pub trace: &'static str,
    /// Number of requests in the trace.
    pub requests: u64,
    /// Number of distinct pages requested.
    pub distinct: u64,
    /// Size of the cache, in pages.
    pub pages: u32,
    /// Number of misses of FIFO.
    pub fifo: u64,
    /// Number of misses of LRU.
    pub lru: u64,
    /// Misses of LFU without ageing; among equals, the page that reached its frequency first is evicted.
    pub lfu: u64,
    /// Misses of S3-FIFO: small queue of a tenth, ghosts of nine tenths, promotion after two hits.
    pub s3_fifo: u64,
}

impl Reference {
    /// Returns the misses of the policy with this name.
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

/// Returns the published counts for this trace and size.
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

/// All published counts of misses.
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
