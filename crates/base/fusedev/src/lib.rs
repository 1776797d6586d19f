//! Wraps the kernel calls that a FUSE daemon needs beyond read(2) and write(2) on `/dev/fuse`.
//!
//! One of the walls around unsafe code (docs: ARCHITECTURE.md). A [`Port`] is one slot of one CPU's queue where the kernel
//! puts requests (FUSE over io_uring, Linux 6.14). An [`Entry`] is the memory that it puts them into: the holder of the entry has
//! exclusive access to its bytes, and while the kernel has it nobody does. A [`Backing`] is a file that opens may go straight to.
//! An [`Identity`] is the user for whom a thread creates and writes files. A [`Caller`] is the process that made a request.
//! `handover.rs` brings descriptors through execve(2).

mod attributes;
mod caller;
mod calls;
mod entry;
mod handover;
mod identity;
mod port;

pub use attributes::{SetAttr, SetTime};
pub use caller::{Caller, Permissions, SET_GID, SET_UID, without_set_id};
pub use calls::{Backing, clone_of};
pub use entry::{Entry, Request};
pub use handover::{delay_ending_signals, interrupt_thread, set_passed_on, take_passed_on};
pub use identity::{Identity, give_up_reserved_resources};
pub use port::Port;
