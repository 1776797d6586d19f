//! NVMe controllers from user space: queues of a drive without the kernel in the path (papers 001 section III.B, 000 section III).
//!
//! [`Controller::open`] takes a [`Function`] (registers, memory, interrupts, by three traits of `pci`) and makes it ready;
//! [`Controller::namespace`] gives a [`Namespace`], which is a [`block::Device`]; its queues are [`block::Queue`]s, and nothing above
//! notices what they are.
//!
//! - [`registers`], [`entry`], [`status`], [`identify`]: what the specification says.
//! - `pair`: two rings and their doorbells; [`doorbell`]: those in memory. `admin`: the queue for everything but reads and writes.
//! - `bringup`: from any state to ready, in steps. [`controller`]: what queues share, the ladder from a timeout to a reset.
//! - `manage`: management of a controller. [`named`]: controllers by name, once in a process.
//! - [`queue`]: requests to commands and back. `events`: asynchronous events of the controller.
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
mod pair;
pub mod queue;
pub mod recorder;
pub mod registers;
pub mod status;

pub use admin::AdminError;
pub use controller::{Controller, Opening, Options, WeakController};
pub use events::Notice;
pub use named::FunctionName;
pub use namespace::Namespace;
pub use pci::{DeviceAddress, DmaError, DmaSpace, Function, IrqSource, Mmio};
pub use queue::NvmeQueue;
pub use recorder::Record;
pub use status::Status;
