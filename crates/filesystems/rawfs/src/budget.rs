//! One memory budget for several users, each with its own bound. Memory that only serves the next reader gives way: blocks of files
//! have what nobody else uses, and a little in any case; nodes as they are on the device make room for what has to stay.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

/// What takes memory before blocks that were read do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPart {
    /// Nodes as they are on the device.
    Nodes,
    /// Nodes that differ from the device.
    Changed,
    /// Data that the log has and its place not yet.
    Filled,
    /// Blocks of files that are not written yet.
    Unwritten,
}

const PARTS: usize = 4;

/// A memory budget for several parts. The figures of a part may be a moment old.
pub struct Budget {
    bytes: usize,
    /// Of that for blocks in any case.
    blocks: usize,
    used: [AtomicUsize; PARTS],
    releasers: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl Budget {
    /// Of so many bytes, so many of which are for blocks of files in any case.
    pub fn new(bytes: usize, blocks: usize) -> Budget {
        Budget { bytes, blocks, used: Default::default(), releasers: RwLock::default() }
    }

    /// Registers a function that releases a part's memory when another part needs it.
    pub fn on_growth(&self, release_memory: impl Fn() + Send + Sync + 'static) {
        self.releasers.write().push(Box::new(release_memory));
    }

    /// Sets what a part uses. The caller holds no lock that the registered functions take.
    pub fn set(&self, part: MemoryPart, bytes: usize) {
        if self.used[part as usize].swap(bytes, Ordering::Relaxed) < bytes {
            self.releasers.read().iter().for_each(|release_memory| release_memory());
        }
    }

    /// Returns the bytes that no part uses.
    pub fn left(&self) -> usize {
        self.used.iter().fold(self.bytes, |left, used| left.saturating_sub(used.load(Ordering::Relaxed)))
    }

    /// With so many bytes more there would be less for blocks than they have in any case.
    pub fn is_short_of(&self, bytes: usize) -> bool {
        self.left() < self.blocks + bytes
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_left_is_reported_when_it_becomes_less() {
        let (budget, notified) = (Arc::new(Budget::new(100, 20)), Arc::new(AtomicUsize::new(0)));
        let look = (Arc::downgrade(&budget), Arc::clone(&notified));
        budget.on_growth(move || look.1.store(look.0.upgrade().expect("alive").left(), Ordering::Relaxed));
        budget.set(MemoryPart::Changed, 30);
        assert_eq!(notified.load(Ordering::Relaxed), 70);
        budget.set(MemoryPart::Changed, 10);
        assert_eq!((notified.load(Ordering::Relaxed), budget.left()), (70, 90));
        budget.set(MemoryPart::Nodes, 70);
        assert!(!budget.is_short_of(0) && budget.is_short_of(1));
        budget.set(MemoryPart::Unwritten, 200);
        assert_eq!(notified.load(Ordering::Relaxed), 0);
    }
}
