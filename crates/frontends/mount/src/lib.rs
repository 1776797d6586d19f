//! The FUSE front ends.
//!
//! The pair (`filesystem.rs`) translates the kernel's requests into calls on [`hybridfs::TieredFs`] and decides which opens bypass us
//! (FUSE passthrough); it knows nothing of policies and moves. [`raw`] serves an image, [`cached`] a directory whose file data goes
//! through a cache. `wire/` is the protocol that all of them use.
#![forbid(unsafe_code)]

mod blocking_pool;
pub mod cached;
pub mod control;
mod direct_writes;
mod filesystem;
mod handles;
mod kernel_notifier;
mod late_errors;
mod modes;
pub mod options;
pub mod raw;
mod read_ahead;
mod reader_pool;
mod session;
mod simple_session;
mod socket_server;
pub mod source;
pub mod unmount;
mod wire;

pub use options::{MountFlags, Options, PassthroughMode};
pub use session::{MountError, run};
pub use simple_session::SessionOptions;
pub use wire::{UringMode, uring_offered};
