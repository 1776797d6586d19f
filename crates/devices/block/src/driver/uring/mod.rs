//! io_uring: the one part of this crate with unsafe code. Everything the kernel is told about memory is told here.
//!
//! - [`ring`]: set-up of one instance, submission, completion, its event.
//! - [`doorbell`]: submission by who does not have the ring.
//! - [`buffers`]: arenas, registered with the kernel; spans become addresses here and nowhere else.
//! - [`slots`]: what is known of each request in flight.
//! - [`owner`]: the requests the kernel has, with their memory; [`queue`]: [`crate::Queue`] over all these.
//! - [`commands`]: what a request becomes; [`files`], [`nvme`]: calls on files and block devices, commands of an NVMe drive.
//! - [`blocking`]: the same transfers as system calls that block, for where io_uring is forbidden.
//! - [`ioctl`]: the two questions that an NVMe node answers.
//! - [`probe`]: what this machine has of all this, in words.
//!
//! Why it is sound. The kernel reads and writes memory of ours until a request has ended. That memory is in arenas; the queue
//! holds each arena it was told of, and lets go only when nothing is in the kernel. If the kernel keeps a request for ever, the
//! queue leaks its arenas with the vectors that name them, on purpose. Spans are checked against their arena's length before
//! they become addresses.

mod blocking;
mod buffers;
mod commands;
mod doorbell;
mod files;
mod ioctl;
mod nvme;
mod owner;
pub mod probe;
mod queue;
mod ring;
mod slots;

pub(super) use blocking::{Transfer, transfer};
pub(super) use buffers::Buffers;
pub(super) use files::FileCommands;
pub(super) use ioctl::{identify, log_page, namespace_id};
pub(super) use nvme::{NvmeCommands, NvmeTarget};
pub(super) use owner::SEGMENTS_MAX;
pub(super) use queue::UringQueue;
pub(super) use ring::RingError;
