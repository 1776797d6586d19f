//! Handles, as in NVMeDirect (paper 001, section III.B): what a thread does its I/O through.
//!
//! A thread opens handles and binds each to queues: a [`Handle`] has its own and needs no lock; a [`SharedHandle`] is one of
//! many on a [`SharedQueue`]. Either may have several queues and a [`Selector`]. Below is always [`crate::Tracked`], so each
//! request completes exactly once.
//!
//! - A request ([`Io`]) has any length; it is cut as the device needs it and joined again. Its memory goes with it and comes
//!   back in [`Done`], with the caller's own word.
//! - `submit`, `ring`, `poll`, `wait`, `wait_for`, `cancel`, `drain`, `reset`; or `read`, `write`, ... which return when it is done.
//! - Memory of a request that timed out, or whose device is gone, may still be the device's ([`Done::held`]). It is kept here
//!   until it is not.
//! - Parameters have typed keys: [`Params`], [`Key`].
//!
//! Files: `io` the words, `params` the keys, `select` which queue, `cut` long requests, `job` the table of requests, `engine` the
//! engine of one queue, `dedicated` and `shared` the two kinds of handles.

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
