//! A type for each number.

/// A block of a device, counted from its first, in blocks of the device's own size ([`crate::Geometry::block_bytes`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lba(pub u64);

/// What the submitter calls a request. It comes back in the completion, and means nothing to who is below. Of the requests
/// in flight on one queue no two have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tag(pub u64);
