//! The drivers: files and block devices, NVMe passthrough, memory, and devices for tests.

pub mod admin_node;
mod claim;
pub mod faulty;
pub mod file;
pub mod memory;
pub mod null;
pub mod passthrough;
mod plain;
mod ring;
mod sysfs;
mod target;
pub mod uring;

pub use admin_node::AdminNode;
pub use faulty::FaultyDevice;
pub use file::{Engine, FileDevice, FileOptions};
pub use memory::MemoryDevice;
pub use null::NullDevice;
pub use passthrough::Passthrough;
pub(crate) use ring::CompletionRing;
