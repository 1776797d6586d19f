//! Distinct types for the numbers of the interface.

/// The number of a block of a device, in units of the device's block size ([`crate::Geometry::block_bytes`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lba(pub u64);

/// The submitter's name for a request. The completion repeats it; lower layers do not interpret it. Requests in flight on one queue
/// have distinct tags.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tag(pub u64);
