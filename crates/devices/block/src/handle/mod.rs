//! Handles, as in NVMeDirect (paper 001, section III.B): the interface through which a thread does I/O.
//!
//! A thread opens handles and binds each to queues. A [`Handle`] has its own queues and needs no lock; a [`SharedHandle`] is one of
//! many on a [`SharedQueue`]. Either can have several queues and a [`Selector`]. Every queue is wrapped in [`crate::Tracked`], so
//! each request completes exactly once.
//!
//! - A request ([`Io`]) has any length; the handle splits it as the device requires and joins the results. The handle owns its
//!   memory until [`Done`] returns it, together with the caller's own value.
//! - `submit`, `ring`, `poll`, `wait`, `wait_for`, `cancel`, `drain`, `reset`; or `read`, `write`, ... which return when it is done.
//! - The device may still access the memory of a request that timed out, or whose device is gone ([`Done::held`]). The handle keeps
//!   this memory until the device releases it.
//! - Parameters have typed keys: [`Params`], [`Key`].
//!
//! Files: `io` the interface types, `params` the keys, `select` the choice of a queue, `cut` the splitting of long requests, `job`
//! the
//! table of requests, `engine` the engine of one queue, `dedicated` and `shared` the two kinds of handles.

mod cut;
mod dedicated;
mod engine;
mod io;
mod job;
#[cfg(all(test, loom))]
mod loom_test;
mod params;
mod select;
#[cfg(not(loom))]
mod served;
mod shared;
mod sleep;

pub use dedicated::{Handle, Issued};
pub use io::{At, Data, Done, Failure, Full, Io, Released, Ticket, Timeout};
pub use params::{Completion as CompletionMode, Key, ParamError, Params};
pub use select::{Features, Select, Selector};
#[cfg(not(loom))]
pub use served::Served;
pub use shared::{SharedHandle, SharedQueue};
#[cfg(not(loom))]
pub(crate) use sleep::until_readable;
