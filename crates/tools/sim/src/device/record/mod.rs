//! Recording the requests of a queue, and replaying them.
//!
//! [`RecordingQueue`] is the queue; docs/formats.md describes its file ("recordings"). [`Recording`] reads it; a damaged file is an error.
//! [`replay`] replays it on any queue and compares completions. Written data is not recorded.

mod format;
mod queue;
mod replay;
#[cfg(test)]
mod tests;

pub use format::{QueueEvent, Recording, RecordingError, RecordingHeader};
pub use queue::RecordingQueue;
pub use replay::{ReplayDifference, ReplayPace, ReplayResult, changes, replay};
