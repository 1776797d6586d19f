//! Block devices that are slow, fail and lose power on purpose: each is a [`block::Queue`] around another one.
//!
//! - [`clock`]: time that whoever runs the simulation moves, and the machine's own, behind one trait.
//! - [`curve`]: asynchronous beside synchronous requests, as paper 002 section 5.2 measures them.
//! - [`crash`]: devices whose write cache a loss of power empties.
//! - [`fault`]: devices that fail by rule.
//! - [`model`]: when a request ends on a hard disk, a SATA SSD, an NVMe SSD, by the figures of data sheets.
//! - [`record`]: what went through a queue as a file, and doing it again.
//!
//! Nothing here allocates once a queue is made, except where it says so.

pub mod clock;
pub mod crash;
pub mod curve;
pub mod fault;
pub mod model;
pub mod record;
