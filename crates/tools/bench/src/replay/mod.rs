//! Traces of real systems, replayed through the product's own cache code.
//!
//! A [`Trace`] is a sequence of page numbers. A [`Cache`] returns for each page whether it is a hit, and admits it otherwise: the page
//! cache ([`Shared`]), the file policies ([`Files`], one page a file), and both tiers together ([`TieredCache`]). None does I/O, so a
//! replay takes seconds and is deterministic. [`reference`] has published counts for some traces.

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

/// A cache of a bounded number of pages.
pub trait Cache {
    /// Accesses a page and returns whether it was a hit. Afterwards it is cached.
    fn access(&mut self, page: u64) -> bool;
}

/// Returns the number of misses of a trace.
pub fn misses(cache: &mut dyn Cache, trace: &Trace) -> u64 {
    trace.pages.iter().filter(|page| !cache.access(**page)).count() as u64
}
