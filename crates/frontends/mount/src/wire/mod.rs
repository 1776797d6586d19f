//! The FUSE protocol between the kernel and a file system.
//!
//! ```text
//!   device.rs: read(2) and write(2) on /dev/fuse, threads in turn -----.
//!                                                                      +--> decode.rs --> perform.rs --> a FileSystem
//!   queues.rs: FUSE over io_uring, a queue for each CPU ---------------'                     ^                |
//!        ^                                                                                   |                v
//!        '----------------------------------------- pending_reply.rs <---------------------------- reply.rs: what it answers
//! ```
//!
//! A file system may have a watchdog (`watchdog.rs`), which bounds how long requests take: `watched.rs` then reads the device instead of
//! `device.rs`, and `in_flight.rs` decides who replies to each request.
//!
//! All that comes is checked before it is believed. Mounting and the handshake are the fuser crate's. `pause.rs` stops the readers of the
//! device between two requests, for a restart of the daemon.

mod begin;
mod cpu_placement;
mod decode;
mod device;
mod encode;
mod filesystem;
mod in_flight;
pub mod opcodes;
mod pause;
mod pending_reply;
mod perform;
mod queues;
mod reply;
mod serve;
mod stopper;
mod transport;
mod wanted;
mod watchdog;
mod watched;

pub use begin::{PreparedMount, begin, resume, uring_offered};
pub use decode::AttrChanges;
pub use encode::{Attr, notice_header};
pub use filesystem::{FileSystem, NewMode, Request};
pub use fusedev::Backing;
pub use reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr,
};
pub use serve::ServeEnd;
pub use stopper::MountStopper;
pub use transport::{Transport, UringMode};
pub use wanted::check_wanted;
pub use watchdog::{SideChange, SideReport, Watchdog};

/// The maximum data of one request or reply, in bytes.
pub const DATA_MAX: usize = 1 << 20;
/// Bytes that one request can have: besides the data of a write its header and arguments.
const MESSAGE_MAX: usize = DATA_MAX + 4096;
