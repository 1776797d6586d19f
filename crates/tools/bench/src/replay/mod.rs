//! Traces of what real systems asked for, replayed through the very code of the product.
//!
//! A [`Trace`] is a sequence of page numbers. A [`Cache`] answers for each whether it has it, and takes it in if not: the page
//! cache ([`Shared`]), the orders of `policy` ([`Files`], a page for each file), and both tiers together ([`TieredCache`]). None of
//! them does I/O, so a replay is a matter of seconds, and the same each time. What was published for some traces is in
//! [`reference`].

mod files;
pub mod reference;
mod shared;
mod size;
mod ssd_index;
mod tiers;
mod trace;

pub use files::Files;
pub use reference::Reference;
pub use shared::Shared;
pub use size::CacheSize;
pub use ssd_index::SsdIndex;
pub use tiers::{TierHits, TierReader, TieredCache};
pub use trace::{Trace, Zipf, synthetic};

/// Something that holds a bounded number of pages and chooses which.
pub trait Cache {
    /// A page is asked for: whether it was here. It is afterwards.
    fn access(&mut self, page: u64) -> bool;
}

/// How many requests of a trace missed.
pub fn misses(cache: &mut dyn Cache, trace: &Trace) -> u64 {
    trace.pages.iter().filter(|page| !cache.access(**page)).count() as u64
}
