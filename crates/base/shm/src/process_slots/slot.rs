//! The number of a process slot, which locks name their owners by.

/// The number of a process slot, below 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessSlot(pub u8);
