//! The drivers.

pub mod faulty;
pub mod memory;
pub mod null;
mod ring;

pub use faulty::FaultyDevice;
pub use memory::MemoryDevice;
pub use null::NullDevice;
pub(crate) use ring::CompletionRing;
