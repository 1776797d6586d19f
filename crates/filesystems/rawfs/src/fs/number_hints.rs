//! Where files were found that were looked up by number. A hint may be out of date: compare it before use.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

/// Hints in all, at most.
const HINTS_MAX: usize = 1 << 16;

/// Keys of Names by the numbers of their files.
#[derive(Default)]
pub struct NumberHints(Mutex<HashMap<u64, Box<[u8]>, foldhash::fast::RandomState>>);

impl NumberHints {
    /// Returns the key at which a file was found last.
    pub fn get(&self, ino: u64) -> Option<Box<[u8]>> {
        self.0.lock().get(&ino).cloned()
    }

    /// Removes the hint for a file.
    pub fn remove(&self, ino: u64) {
        self.0.lock().remove(&ino);
    }

    /// Adds hints, and drops all earlier ones if there would be too many.
    pub fn extend(&self, new: VecDeque<(u64, Box<[u8]>)>) {
        let mut hints = self.0.lock();
        if hints.len() + new.len() > HINTS_MAX {
            hints.clear();
        }
        hints.extend(new);
    }
}
