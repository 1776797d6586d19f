//! Which page is evicted next: LRU as in HyCache (section III.C), FIFO, or S3-FIFO (Yang et al., SOSP 2023, algorithm 1).
//!
//! S3-FIFO: new pages enter a small queue, a tenth of the frames. (Until the first eviction, those beyond the tenth go to the main
//! queue, as in the authors' simulator.) At its head, pages with more than one hit move to the main queue; the others are evicted and
//! remembered as ghosts. A page that returns while it is a ghost enters the main queue at once. While the small queue is below its
//! tenth, the head of the main queue is evicted, or gets another round for each of at most three hits. So a scan over many pages
//! only displaces new pages.
//!
//! A hit of S3-FIFO changes two bits of one word, which readers without a lock can do. A hit of LRU moves the frame in a list of all
//! frames: it is here as HyCache's baseline.
//!
//! The `policy` crate has the same algorithms for files: 40 bytes an entry, in a slab that grows, behind a trait for plug-ins. That is
//! wrong for millions of pages. Both are tested against the published algorithm.

/// How the next page to evict is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replacement {
    /// The least recently used page is evicted first.
    Lru,
    /// Pages with one hit are evicted before pages with several; see the header of this file.
    #[default]
    S3Fifo,
    /// The oldest page is evicted first: the baseline of comparisons.
    Fifo,
}
