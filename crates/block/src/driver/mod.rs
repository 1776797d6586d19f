//! The drivers.

pub mod memory;
pub mod null;
mod ring;

pub use memory::MemoryDevice;
pub use null::NullDevice;
pub(crate) use ring::CompletionRing;
