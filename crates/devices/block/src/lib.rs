//! The lowest layer: block devices as queues (papers 001 section III.B, 002 sections 2 and 4).
//!
//! Callers submit requests by reference and get completions by value: [`Queue::submit`] many, [`Queue::ring`] once, [`Queue::poll`].
//! A queue has one owner and a fixed depth, and neither allocates nor locks on that path. Layers that delay, break, record or order
//! requests are queues around another queue. Sharing between threads, waiting and caching are separate layers on top.
//!
//! - [`units`], [`request`], [`error`], [`geometry`]: the types of requests and their results.
//! - [`buffer`]: memory that devices can access, allocated and translated once.
//! - [`queue`], [`device`]: the interfaces that a driver implements. [`wrapper`]: a queue around another queue.
//! - [`driver`]: the drivers.
//! - [`scheduler`]: the order of requests.
//! - [`handle`]: the interface through which a thread does I/O.
//! - [`future`]: one thread waits for many requests of others.
//! - [`broker`]: queues for other processes.
//! - [`completion`]: polling, sleeping and waking.
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
pub mod wrapper;

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
pub use wrapper::QueueWrapper;
