//! NVMe controllers from user space: queues of a drive without the kernel in the path (papers 001 section III.B, 000 section III).
//!
//! [`Controller::open`] takes a [`Function`] (registers, memory, interrupts, by three traits of `pci`) and makes it ready;
//! [`Controller::namespace`] gives a [`Namespace`], which is a [`block::Device`]; its queues are [`block::Queue`]s, and nothing above
//! notices what they are.
//!
//! - [`registers`], [`entry`], [`status`], [`identify`]: what the specification says.
//! - `pair`: two rings and their doorbells; [`doorbell`]: those in memory. `admin`: the queue for everything but reads and writes.
//! - `shared`: the state that the queues of a controller share. `progress`, `notice`: parts of it.
//! - `bringup`: from any state to ready, in steps. `reset`: disable and bring up again. `events`: asynchronous events.
//! - [`queue`]: requests to commands and back, above these.
//! - [`controller`]: opening and use of a controller, and the ladder from a timeout to a reset. `namespace`: a block device of it.
//! - `manage`: management of a controller. [`named`]: controllers by name, once in a process.
//! - [`recorder`]: what happened last, for people and for tests.
//!
//! The controller is not trusted: whatever it writes is copied, then checked. `sim::nvme` is one that lies on purpose.
#![forbid(unsafe_code)]

mod admin;
mod bringup;
mod cid;
pub mod controller;
pub mod doorbell;
pub mod entry;
mod events;
pub mod identify;
mod manage;
mod mapping;
pub mod named;
mod namespace;
mod notice;
mod pair;
mod progress;
pub mod queue;
pub mod recorder;
pub mod registers;
mod reset;
mod shared;
pub mod status;

pub use admin::AdminError;
pub use controller::{Controller, Opening, WeakController};
pub use named::FunctionName;
pub use namespace::Namespace;
pub use notice::Notice;
pub use pci::{DeviceAddress, DmaError, DmaSpace, Function, IrqSource, Mmio};
pub use queue::NvmeQueue;
pub use recorder::Record;
pub use shared::Options;
pub use status::Status;
