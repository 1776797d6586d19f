//! Block devices that are slow, fail or lose power on purpose. Each is a [`block::Queue`] around another one.
//!
//! - [`clock`]: virtual and real time behind one trait.
//! - [`curve`]: asynchronous and synchronous requests compared, as in testFS with SPDK, section 5.2.
//! - [`crash`]: devices whose volatile write cache is lost in a power cut.
//! - [`fault`]: devices that fail by rule.
//! - [`model`]: completion times of hard disks, SATA SSDs and NVMe SSDs, from data sheets.
//! - [`record`]: recording the requests of a queue in a file, and replaying them.
//!
//! Nothing here allocates after a queue is created, except where stated.

pub mod clock;
pub mod crash;
pub mod curve;
pub mod fault;
pub mod model;
pub mod record;
