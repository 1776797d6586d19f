//! Pages that left not long ago, by hash: who comes back is no newcomer (S3-FIFO's ghost queue).
//!
//! First in, first out, of a fixed number. 4 bytes of ring (half as much again for places whose page came back) and 11 of
//! index for each. Of two pages with one hash of 32 bits the wrong one may be remembered: one in some thousands at a million
//! pages, and it only costs a place in the other queue.

use crate::index::Index;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ghost {
    /// The hashes, from `first` on, `used` of them; those that came back are no longer in the index.
    ring: Box<[u32]>,
    index: Index,
    first: usize,
    used: usize,
    live: usize,
    most: usize,
}

impl Ghost {
    /// Remembers up to `most`.
    pub(crate) fn new(most: u32) -> Ghost {
        let places = most as usize + most as usize / 2 + 1;
        Ghost { ring: vec![0; places].into(), index: Index::new(most + 1), first: 0, used: 0, live: 0, most: most as usize }
    }

    /// A page leaves.
    pub(crate) fn remember(&mut self, hash: u32) {
        if self.most == 0 {
            return;
        }
        while self.live >= self.most || self.used == self.ring.len() {
            self.forget_first();
        }
        let at = (self.first + self.used) % self.ring.len();
        self.ring[at] = hash;
        self.index.insert(hash, at as u32);
        self.used += 1;
        self.live += 1;
    }

    /// A page comes: whether it was here. It is forgotten then.
    pub(crate) fn take(&mut self, hash: u32) -> bool {
        let Some(at) = self.index.find(hash, |_| true) else { return false };
        self.index.remove(hash, at);
        self.live -= 1;
        true
    }

    fn forget_first(&mut self) {
        if self.index.remove(self.ring[self.first], self.first as u32) {
            self.live -= 1;
        }
        self.first = (self.first + 1) % self.ring.len();
        self.used -= 1;
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn remembers_as_a_plain_list_would(most in 0..6u32, steps in proptest::collection::vec((any::<bool>(), 0..9u32), 0..300)) {
            let mut ghost = Ghost::new(most);
            let mut model: Vec<u32> = Vec::new();
            for (leaves, page) in steps {
                let hash = page * 0x1c71_c71c;
                let known = model.iter().position(|other| *other == hash);
                if !leaves {
                    prop_assert_eq!(ghost.take(hash), known.is_some());
                    known.map(|at| model.remove(at));
                } else if known.is_none() {
                    ghost.remember(hash);
                    model.push(hash);
                    if model.len() > most as usize {
                        model.remove(0);
                    }
                }
                // The ring may run full of places that came back; then the oldest goes early.
                prop_assert!(ghost.live <= most as usize && ghost.live <= ghost.used);
                if ghost.live < model.len() {
                    model.drain(..model.len() - ghost.live);
                }
                prop_assert!(model.iter().all(|hash| ghost.index.find(*hash, |_| true).is_some()));
            }
        }
    }
}
