//! From a hash to a number: open addressing, linear probing, sized once.
//!
//! An entry is eight bytes: the hash's upper half and the number plus one; zero is empty, so zeroed memory is an empty table.
//! The key itself stays where the number leads. Removal shifts back what would be lost, so there are no tombstones, no
//! rehash, and no pause however long it is used. (A general table may pause to rehash, or grow: `hashbrown` does when
//! removed entries pile up.) A reader without a lock may miss an entry that is just being shifted, never find a wrong one
//! that the comparison of keys would not catch.

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    entries: Box<[u64]>,
    len: u32,
}

impl Index {
    /// For up to `most` entries; three quarters full then.
    pub(crate) fn new(most: u32) -> Index {
        let places = most as usize + most as usize / 3 + 2;
        Index { entries: vec![0; places].into(), len: 0 }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The number of this hash for which `is` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return None;
            }
            if hash_of(entry) == hash && is(number_of(entry)) {
                return Some(number_of(entry));
            }
            at = self.next(at);
        }
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        assert!((self.len as usize) < self.entries.len() - 1, "more entries than the index was made for");
        let mut at = self.home(hash);
        while self.entries[at] != 0 {
            at = self.next(at);
        }
        self.entries[at] = u64::from(hash) << 32 | (u64::from(number) + 1);
        self.len += 1;
    }

    /// Takes a number out; whether it was there.
    pub(crate) fn remove(&mut self, hash: u32, number: u32) -> bool {
        let wanted = u64::from(hash) << 32 | (u64::from(number) + 1);
        let mut hole = self.home(hash);
        while self.entries[hole] != wanted {
            if self.entries[hole] == 0 {
                return false;
            }
            hole = self.next(hole);
        }
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.entries[at];
            if entry == 0 {
                break;
            }
            // It may move into the hole unless its home lies behind the hole.
            if self.distance(self.home(hash_of(entry)), at) >= self.distance(hole, at) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = 0;
        self.len -= 1;
        true
    }

    /// Where an entry of this hash would best be.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// Steps from one place to another, around the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries.len() - from }
    }
}

#[inline]
fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

#[inline]
fn number_of(entry: u64) -> u32 {
    ((entry & 0xffff_ffff) - 1) as u32
}

/// Mixes two numbers to 32 bits: two folded multiplications (as in wyhash), constants from the digits of pi.
#[inline]
pub(crate) fn hash(seed: u64, a: u64, b: u64) -> u32 {
    let first = fold(a ^ 0x243f_6a88_85a3_08d3 ^ seed, b ^ 0x1319_8a2e_0370_7344);
    (fold(first ^ b, 0xa409_3822_299f_31d1) >> 32) as u32
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few hashes, so that they collide and wrap around the end.
        #[test]
        fn finds_what_a_set_finds(steps in proptest::collection::vec((any::<bool>(), 0..6u32, 0..4u32), 0..400)) {
            let mut index = Index::new(24);
            let mut model = BTreeSet::new();
            for (add, hash, number) in steps {
                let spread = hash * 0x2aaa_aaaa;
                if add && model.insert((spread, number)) {
                    index.insert(spread, number);
                } else if !add {
                    prop_assert_eq!(index.remove(spread, number), model.remove(&(spread, number)));
                }
                prop_assert_eq!(index.len() as usize, model.len());
                for hash in 0..6 {
                    let spread = hash * 0x2aaa_aaaa;
                    for number in 0..4 {
                        prop_assert_eq!(index.find(spread, |found| found == number).is_some(), model.contains(&(spread, number)));
                    }
                }
            }
        }
    }

    #[test]
    fn neighbours_are_spread() {
        let mut halves = [0_u32; 64];
        for page in 0..64_000 {
            halves[(hash(0, 1, page) >> 26) as usize] += 1;
        }
        assert!(halves.iter().all(|count| (800..1200).contains(count)), "{halves:?}");
    }
}
