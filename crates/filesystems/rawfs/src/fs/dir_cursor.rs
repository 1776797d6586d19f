//! The position of a handle in a directory.

use std::sync::Arc;

use super::dir_window::DirWindow;

/// The entries that a directory's handle lists, and the next of them.
#[derive(Default)]
pub struct DirCursor {
    /// The entries it has read.
    pub window: Option<Arc<DirWindow>>,
    /// The entry that comes next, if the listing goes on at this position.
    pub next: (u64, usize),
}

impl DirCursor {
    /// Returns the index of the entry that comes next at a position.
    pub fn next_at(&self, window: &DirWindow, at: u64) -> usize {
        if self.next.0 == at { self.next.1 } else { window.first(at) }
    }
}
