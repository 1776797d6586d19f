//! The path of a read, a write and a flush: the only place where caches meet queues.
//!
//! Read [`read`] from top to bottom, and you have understood the system: *plan* what is here and what is not, *submit* all that
//! is not in one batch with one doorbell, *reap* what has ended, *copy*. [`write`] and [`flush`] likewise. The page cache
//! (`pagecache`) keeps the books and never does I/O; the queues (`block`) move bytes and know no pages.
//!
//! - [`BlockCache`]: one device, one thread. [`SharedCache`]: one device, any threads; who waits for the device holds no lock.
//! - [`Handle`]: one user's place in it: his stream for read-ahead, and which failures he was told of.
//! - `core.rs`: the books and the lanes, and what becomes of a request that has ended. `lane.rs`: a queue and what is in flight
//!   on it. `ahead.rs`: when to read ahead. `range.rs`: discards, and what keeps direct I/O beside the cache coherent.
//!
//! - [`shelf`]: the cache stack for files: page cache, SSD cache and files below, for several processes; its own `read.rs`, `write.rs`
//!   and `flush.rs` are the same three paths. [`migrate`]: the worker that moves data between the tiers.
//!
//! Every operation is a step that never waits: it does what can be done and says `Pending` when the device has to move first.
//! [`BlockCache`] and [`SharedCache`] differ only in how they wait between steps.
#![forbid(unsafe_code)]

mod ahead;
mod core;
pub mod flush;
mod lane;
pub mod migrate;
mod owned;
pub mod range;
pub mod read;
mod settings;
mod shared;
pub mod shelf;
pub mod write;

pub use crate::core::Handle;
pub use owned::BlockCache;
pub use read::Pinned;
pub use settings::{Settings, Stats, WriteMode};
pub use shared::SharedCache;
