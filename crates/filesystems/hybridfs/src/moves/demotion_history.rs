//! Why files left the SSD. On the HDD only the kernel's interest keeps a file known, and it forgets when memory is short; who
//! asks later is still told.

use std::collections::HashMap;

/// When, and the reason's code with the side.
type MoveStamp = (u32, u8);

/// A bounded memory in two generations: a full one takes the place of the one before it.
#[derive(Debug)]
pub(crate) struct DemotionHistory {
    young: HashMap<u64, MoveStamp>,
    old: HashMap<u64, MoveStamp>,
    entries: usize,
}

impl DemotionHistory {
    /// Remembers the last `entries` files, and at most twice as many.
    pub(super) fn new(entries: usize) -> DemotionHistory {
        DemotionHistory { young: HashMap::new(), old: HashMap::new(), entries }
    }

    pub(super) fn note(&mut self, ino: u64, moved: MoveStamp) {
        if self.young.len() == self.entries {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, moved);
    }

    /// It came back, or is gone.
    pub(crate) fn forget(&mut self, ino: u64) {
        self.young.remove(&ino);
        self.old.remove(&ino);
    }

    pub(super) fn last_move(&self, ino: u64) -> Option<MoveStamp> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_files_that_left_are_remembered_and_not_more_than_twice_as_many() {
        let mut left = DemotionHistory::new(4);
        for ino in 10..30 {
            left.note(ino, (ino as u32, 1));
            let known = (10..=ino).filter(|ino| left.last_move(*ino).is_some()).count() as u64;
            assert!((known.min(4)..=8).contains(&known) && known >= (ino - 9).min(4), "{known} after {ino}");
            assert_eq!(left.last_move(ino), Some((ino as u32, 1)));
        }
        left.note(29, (40, 1));
        assert_eq!(left.last_move(29), Some((40, 1)));
        left.forget(29);
        assert_eq!(left.last_move(29), None);
    }
}
