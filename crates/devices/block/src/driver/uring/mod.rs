//! The io_uring driver: the one part of this crate with unsafe code. Only this module passes memory to the kernel.
//!
//! - [`ring`]: one io_uring instance: set-up, submission, completion, and its event.
//! - [`doorbell`]: submission by threads that do not hold the ring.
//! - [`buffers`]: arenas, registered with the kernel. Only this module translates spans into addresses.
//! - [`slots`]: the state of each request in flight.
//! - [`owner`]: the requests in the kernel, with their memory; [`queue`]: [`crate::Queue`] over all these.
//! - [`commands`]: translates requests; [`files`], [`nvme`]: operations on files and block devices, commands of an NVMe drive.
//! - [`blocking`]: the same transfers as blocking system calls, where io_uring is forbidden.
//! - [`ioctl`]: the admin commands that an NVMe node accepts.
//! - [`probe`]: reports which of these features this machine has.
//!
//! Soundness: the kernel reads and writes our memory until a request has completed. That memory is in arenas. The queue holds each
//! registered arena, and frees it only when nothing is in the kernel. If the kernel keeps a request for ever, the queue deliberately leaks
//! its arenas and the vectors that name them. A span is checked against the length of its arena before it becomes an address.

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
