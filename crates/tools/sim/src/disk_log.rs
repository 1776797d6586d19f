//! Everything that reached the disks, in order, with notes of what was promised in between.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::durability::DurabilityMark;

/// Which disk: an index into the list it was made with.
pub type DiskIndex = usize;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum DiskEvent {
    /// Bytes were written; they may stay in the disk's cache until a flush.
    Write {
        /// Where to.
        disk: DiskIndex,
        /// Bytes from the disk's beginning.
        offset: u64,
        /// What.
        data: Arc<[u8]>,
    },
    /// What was written to this disk so far is safe.
    Flush {
        /// Which disk.
        disk: DiskIndex,
    },
    /// A program began something, or was promised something.
    DurabilityMark(DurabilityMark),
}

/// A log that several threads write.
#[derive(Debug, Default)]
pub struct DiskLog {
    events: Mutex<Vec<DiskEvent>>,
}

impl DiskLog {
    /// Adds an event.
    pub fn push(&self, event: DiskEvent) {
        self.events.lock().push(event);
    }

    /// Events so far.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Nothing yet?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the events out.
    pub fn take(&self) -> Vec<DiskEvent> {
        std::mem::take(&mut *self.events.lock())
    }
}
