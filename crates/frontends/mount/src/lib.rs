//! The FUSE front end of the hybrid file system.
//!
//! Translates the kernel's requests into calls on [`hybridfs::TieredFs`] and decides which opens bypass us
//! (FUSE passthrough). Knows nothing of policies and moves.
#![forbid(unsafe_code)]

mod blocking_pool;
pub mod control;
mod direct_writes;
mod filesystem;
mod handles;
mod kernel_notifier;
mod modes;
pub mod options;
pub mod raw;
mod reader_pool;
mod session;
pub mod source;
pub mod unmount;
mod wire;

pub use options::{MountFlags, Options, PassthroughMode};
pub use session::{MountError, run};
pub use wire::{UringMode, uring_offered};
