//! The error of opening a cache.

/// Why a device does not hold a usable cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheOpenError {
    /// Neither superblock is whole.
    #[error("no cache here, or both its superblocks are damaged: make one with `hotshelf cache create`")]
    None,
    /// Written by a later version.
    #[error("the cache has format version {0}; this program knows 1: use the later program")]
    Later(u32),
    /// The device is smaller than the cache on it.
    #[error("the device has {0} pages of 4 KiB, fewer than its cache")]
    Size(u64),
    /// Sizes out of bounds.
    #[error("a cache has 3 or more segments of 8 to 32768 pages, together at most 1 TiB")]
    Shape,
    /// The map in the segment is not for this cache.
    #[error("the shared segment has no map of this size: end the programs that use the cache, and attach it again")]
    Segment,
    /// No memory for the metadata.
    #[error("there is not enough memory for the cache's metadata: 16 bytes for each 4 KiB of the SSD")]
    Memory,
    /// Another cache than the one asked for.
    #[error("this is another cache: its UUID is not the one asked for")]
    Uuid,
}
