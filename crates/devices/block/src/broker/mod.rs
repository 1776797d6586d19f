//! The broker: one privileged process owns devices and serves queues of them to other processes (user-space NVMe, "mode B": a process
//! between the user and the device, in place of NVMeDirect's kernel module and its mapped doorbells).
//!
//! ```text
//!   client process                    |  broker process
//!   BrokerDevice -- Unix socket ------+-> server: check the peer (SO_PEERCRED) against the policy
//!   BrokerQueue                       |   device thread, one for each device:
//!     submit --- ring of commands ----+-->  Served: copy, check, shift by the window -> the device's own Queue
//!     poll <---- ring of completions -+---  Served: forward
//!   Arena (memfd) --------------------+-->  the same pages, registered with the device: no copy
//! ```
//!
//! - [`grant`], [`journal`]: the policy, and its storage on disk.
//! - [`protocol`], [`refusal`]: the messages on the socket.
//! - [`entry`]: the memory that client and broker share.
//! - `served`, `device_thread`, `session`, [`server`]: the broker.
//! - [`client`], `connection`, `client_queue`: the client, a [`crate::Device`] and a [`crate::Queue`] like any other.
//!
//! Invariants:
//!
//! - A request reaches the device only after it was copied out of shared memory and found to lie within the client's grant.
//! - A client can stall no queue but its own, by anything that it writes, signals or omits.
//! - The memory and quota of a queue are released only once the device no longer accesses the memory.
//!
//! The broker knows nothing of particular devices, and caches nothing. It checks a grant when a queue is opened and the window at each
//! request; it revokes a grant by closing the queues.

pub mod client;
mod client_queue;
mod connection;
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

pub use client::{BrokerDevice, ConnectOptions};
pub use client_queue::BrokerQueue;
pub use connection::BrokerError;
pub use entry::Ended;
pub use grant::{Grant, GrantId, GrantSpec, Peer, Policy, Who, Wish};
pub use journal::{Journal, JournalError};
pub use refusal::Refusal;
pub use server::{Server, ServerOptions};
