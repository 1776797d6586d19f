//! A device whose volatile write cache is lost in a power cut.
//!
//! [`VolatileQueue`] is the queue. It writes through to the inner queue, which serves reads, and tracks in a [`Medium`] what is durable
//! and what is volatile. [`Medium::power_cut`] returns the medium as a power cut at this moment may leave it, [`Medium::all_power_cuts`]
//! every such medium.
//!
//! Durability follows the NVMe base specification (Flush, Force Unit Access); SCSI and ATA agree:
//!
//! - a completed flush makes durable all writes that *completed* before it was *submitted*;
//! - a completed write with FUA makes its own blocks durable, and nothing else;
//! - without a volatile cache every write behaves as if it had FUA;
//! - of all other writes, in flight or completed, any sector may be present: a write tears at sector boundaries. No sector falls back
//!   behind a durable version.
//!
//! A discard may or may not show as zeroes after the cut.

mod medium;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use medium::FlushStart;
pub use medium::{Medium, PowerCutStates};
pub use queue::VolatileQueue;
