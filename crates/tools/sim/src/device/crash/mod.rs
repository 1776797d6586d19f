//! A device whose write cache a loss of power empties.
//!
//! [`VolatileQueue`] is the queue. It writes through to the queue below, which holds what reads see, and keeps books in a [`Medium`]:
//! what is durable, and what was written since. [`Medium::power_cut`] gives the medium as a loss of power at this moment may
//! leave it, [`Medium::all_power_cuts`] each such medium.
//!
//! SlotOp is durable (NVMe base specification, Flush and Force Unit Access; SCSI and ATA say the same):
//!
//! - a flush makes durable what was *completed* before it was *submitted*, once it completes;
//! - a write with FUA makes durable its own blocks, once it completes, and nothing else;
//! - without a volatile cache every write is as one with FUA;
//! - of all else, in flight or completed, any sector may be there or not: a write is torn at the borders of sectors. But no
//!   sector goes back behind a version that is durable.
//!
//! A discard may show as zeroes after the cut, or not at all.

mod medium;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use medium::FlushStart;
pub use medium::{Medium, PowerCutStates};
pub use queue::VolatileQueue;
