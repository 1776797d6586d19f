//! Recording what goes through a queue, and doing it again.
//!
//! [`RecordingQueue`] is the queue; the file it writes is described in docs/formats.md ("recordings"). [`Recording`] reads it: a
//! damaged file is an error. [`replay`] does it again on any queue, and compares how each request ended. What was written is
//! not recorded, only that it was.

mod format;
mod queue;
mod replay;
#[cfg(test)]
mod tests;

pub use format::{QueueEvent, Recording, RecordingError, RecordingHeader};
pub use queue::RecordingQueue;
pub use replay::{ReplayDifference, ReplayPace, ReplayResult, changes, replay};
