//! The FUSE front door of the hybrid file system.
//!
//! Translates the kernel's requests into calls on [`hybridfs::Hybrid`] and decides which opens bypass us
//! (FUSE passthrough). Knows nothing of policies and moves.
#![forbid(unsafe_code)]

mod ahead;
mod changed;
pub mod control;
mod direct_writes;
mod filesystem;
mod handles;
mod lanes;
mod modes;
pub mod options;
pub mod raw;
mod session;
pub mod source;
mod turns;
pub mod unmount;
mod wire;

pub use ahead::help as tell_ahead;
pub use options::{MountFlags, Options, PassthroughMode};
pub use session::{MountError, run};
pub use wire::{Uring, uring_offered};
