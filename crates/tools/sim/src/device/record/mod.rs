//! Recording what goes through a queue, and doing it again.
//!
//! [`Recorder`] is the queue; the file it writes is described in docs/formats.md ("recordings"). [`Recording`] reads it: a
//! damaged file is an error. [`replay`] does it again on any queue, and compares how each request ended. What was written is
//! not recorded, only that it was.

mod format;
mod queue;
mod replay;
#[cfg(test)]
mod tests;

pub use format::{Bad, Event, Header, Recording};
pub use queue::Recorder;
pub use replay::{Difference, Pace, Replayed, changes, replay};
