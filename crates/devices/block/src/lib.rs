//! The floor: block devices as queues (papers 001 section III.B, 002 sections 2 and 4).
//!
//! Requests go down by call, completions come up by value: [`Queue::submit`] many, [`Queue::ring`] once, [`Queue::poll`].
//! A queue has one owner, a fixed depth, and neither allocates nor locks on that path. Everything that slows, breaks, records
//! or orders requests is a queue around another queue. Sharing between threads, waiting and caching are built above it.
//!
//! - [`units`], [`request`], [`error`], [`geometry`]: the words.
//! - [`buffer`]: memory that devices reach, allocated and translated once.
//! - [`queue`], [`device`]: what a driver has to offer.
//! - [`driver`]: the drivers.
//! - [`scheduler`]: who goes next.
//! - [`handle`]: what a thread does its I/O through.
//! - [`future`]: one thread waits for many requests of others.
//! - [`broker`]: queues handed out to other processes.
//! - [`completion`]: polling, sleeping and being woken.
//! - [`tracked`]: exactly one completion for each request, also when the device hangs, is reset or goes away.

pub mod broker;
pub mod buffer;
pub mod clock;
pub mod completion;
pub mod device;
pub mod driver;
pub mod error;
pub mod future;
pub mod geometry;
pub mod handle;
pub mod queue;
pub mod request;
pub mod scheduler;
mod sync;
pub mod tracked;
pub mod units;

pub use buffer::{Arena, Buf, Span};
pub use clock::{Clock, Time};
pub use device::{Device, DeviceCapabilities, OpenError, QueueOptions};
pub use error::Error;
pub use geometry::Geometry;
pub use handle::{Handle, Params, SharedHandle, SharedQueue};
pub use queue::{Armed, Doorbell, Queue, Submit};
pub use request::{Class, Completion, Op, Request, Status, Urgency};
pub use scheduler::Scheduler;
pub use tracked::Tracked;
pub use units::{Lba, Tag};
