//! All writes and flushes of the disks, in order, with durability marks in between.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::durability_mark::DurabilityMark;

/// Index of a disk in the list of the log.
pub type DiskIndex = usize;

/// One event of the log.
#[derive(Clone, Debug)]
pub enum DiskEvent {
    /// Data was written; it is volatile until a flush.
    Write {
        /// The disk that was written.
        disk: DiskIndex,
        /// Byte offset on the disk.
        offset: u64,
        /// The bytes that were written.
        data: Arc<[u8]>,
    },
    /// All earlier writes of this disk are durable.
    Flush {
        /// The disk that was flushed.
        disk: DiskIndex,
    },
    /// A program started an operation, or its durability was acknowledged.
    DurabilityMark(DurabilityMark),
}

/// An event log that several threads append to.
#[derive(Debug, Default)]
pub struct DiskLog {
    events: Mutex<Vec<DiskEvent>>,
}

impl DiskLog {
    /// Appends an event to the log.
    pub fn push(&self, event: DiskEvent) {
        self.events.lock().push(event);
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Returns whether the log is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all events out of the log.
    pub fn take(&self) -> Vec<DiskEvent> {
        std::mem::take(&mut *self.events.lock())
    }
}
