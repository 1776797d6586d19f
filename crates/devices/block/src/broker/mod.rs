//! The broker: one privileged process owns devices and hands queues of them out to others (user-space NVMe, "mode B": a
//! process between the user and the device, in place of NVMeDirect's kernel module and its mapped doorbells).
//!
//! ```text
//!   client process                    |  broker process
//!   BrokerDevice -- Unix socket ------+-> server: who asks (SO_PEERCRED)? what does the policy say?
//!   BrokerQueue                       |   lane, one thread a device:
//!     submit --- ring of commands ----+-->  Served: copy, check, shift by the window -> the device's own Queue
//!     poll <---- ring of completions -+---  Served: forward
//!   Arena (memfd) --------------------+-->  the same pages, registered with the device: no copy
//! ```
//!
//! - [`grant`], [`journal`]: who may have what, and how that survives.
//! - [`protocol`], [`refusal`]: the words on the socket.
//! - [`entry`]: the memory both sides share.
//! - `served`, `lane`, [`server`]: the broker.
//! - [`client`], `client_queue`: the other side, a [`crate::Device`] and a [`crate::Queue`] like any other.
//!
//! What must stay true: a request reaches the device only after it was copied out of shared memory and found to lie within
//! the grant of whoever opened the queue; whatever a client writes, signals or leaves undone stops no queue but its own; a
//! queue's memory and its place in the quota are given back only when the device touches that memory no more.
//!
//! It knows nothing of particular devices, and keeps no caches: what was granted is checked when a queue is opened and at
//! each request, and taken back by closing the queue.

pub mod client;
mod client_queue;
mod device_thread;
pub mod entry;
pub mod grant;
pub mod journal;
mod log_limit;
mod pace;
mod places;
pub mod protocol;
pub mod refusal;
mod served;
pub mod server;
mod session;

pub use client::{BrokerDevice, BrokerError, ConnectOptions};
pub use client_queue::BrokerQueue;
pub use entry::Ended;
pub use grant::{Grant, GrantId, GrantSpec, Peer, Policy, Who, Wish};
pub use journal::{Journal, JournalError};
pub use refusal::Refusal;
pub use server::{Server, ServerOptions};
