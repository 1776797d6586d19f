//! Looks up the frame of a name, without a lock.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::name_hash::{FILE_BITS, GROUP_SHIFT, HashedName, PAGE_BITS};
use super::record::{Frame, NAME, stored};
use super::shard::GATE;
use super::word::Word;
use super::{Name, SharedPages};

/// How often a lookup retries at a gate before it takes the lock.
const TRIES_MAX: usize = 8;

/// Returns the two secrets of the hash, from the seed (the steps of splitmix64).
pub(super) fn secrets(seed: u64) -> [u64; 2] {
    let mix = |n: u64| {
        let state = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^ state >> 31
    };
    [mix(1), mix(2) | 1]
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Name {
    /// Returns the name as a word.
    ///
    /// # Panics
    /// File or page is out of range.
    #[inline]
    pub(super) fn word(self) -> u64 {
        let Name { file, page } = self;
        assert!(u64::from(file.0 >> FILE_BITS) | page.0 >> PAGE_BITS == 0, "{file:?} {page:?}");
        u64::from(file.0) << PAGE_BITS | page.0
    }

    /// Returns the name in a word; other bits are ignored.
    pub(super) fn of(word: u64) -> Name {
        let file = (word >> PAGE_BITS) as u32 & ((1 << FILE_BITS) - 1);
        Name { file: super::FileNo(file), page: crate::PageIndex(word & ((1 << PAGE_BITS) - 1)) }
    }
}

impl SharedPages {
    #[inline]
    pub(super) fn key(&self, name: Name) -> HashedName {
        self.key_of_word(name.word())
    }

    #[inline]
    pub(super) fn key_of_word(&self, name: u64) -> HashedName {
        let (shard, run) = self.shard_of(name);
        HashedName { name, shard, hash: fold(run ^ name.rotate_left(32), self.secrets[1] ^ 0xa409_3822_299f_31d0) }
    }

    /// Returns the shard of a name, and the hash of its run of groups. Of each run of as many groups as there are shards, every shard gets
    /// one: a file that is read sequentially fills them evenly. The order differs for each run, so that no stride hits one shard alone.
    #[inline]
    fn shard_of(&self, name: u64) -> (usize, u64) {
        let group = name >> GROUP_SHIFT;
        let run = fold(group >> self.plan.shards_shift ^ self.secrets[0], self.secrets[1]);
        ((group ^ run) as usize & (self.plan.shards - 1), run)
    }

    /// Returns the position where a search of the shard's index starts.
    #[inline]
    pub(super) fn home(&self, key: &HashedName) -> usize {
        (key.hash >> 40) as usize & (self.plan.places - 1)
    }

    /// Returns the frame that has the name now, and its word, read before the name: both are valid while the word is unchanged. `None`
    /// proves nothing unless the shard is locked or its gate did not change.
    #[inline]
    pub(super) fn probe(&self, key: &HashedName) -> Option<(usize, Word)> {
        self.probe_each(key, |_| ())
    }

    /// Looks up as [`SharedPages::probe`] does. `candidate` gets each frame that the index names, before its record is read.
    #[inline(always)]
    pub(super) fn probe_each(&self, key: &HashedName, mut candidate: impl FnMut(usize)) -> Option<(usize, Word)> {
        let mask = self.plan.places - 1;
        let index = self.index.get(key.shard * (mask + 1)..(key.shard + 1) * (mask + 1))?;
        let home = self.home(key);
        for step in 0..=mask {
            super::probe::pause();
            let entry = index[(home + step) & mask].load(Acquire);
            if entry == 0 {
                return None;
            }
            if entry >> 16 == key.tag() && entry & 0xffff < self.plan.frames {
                let at = key.shard * self.plan.frames as usize + (entry & 0xffff) as usize;
                candidate(at);
                let record = &self.records[at];
                let word = record.word();
                if word.is_named() && record[NAME].load(Relaxed) == stored(key.name, at) {
                    return Some((at, word));
                }
            }
        }
        None
    }

    /// Returns the frame that has the name, reliably.
    #[inline]
    pub(super) fn find(&self, key: &HashedName) -> Option<(usize, Word)> {
        self.probe(key).or_else(|| self.find_again(key))
    }

    /// Returns the gate of the key's shard: odd while its index is being rearranged.
    #[inline]
    pub(super) fn gate(&self, key: &HashedName) -> u64 {
        self.heads[key.shard][GATE].load(Acquire)
    }

    /// Returns whether the index has not been rearranged since the gate had this value: a page that was not found was then not cached.
    #[inline]
    pub(super) fn is_still(&self, key: &HashedName, gate: u64) -> bool {
        fence(Acquire);
        gate & 1 == 0 && self.heads[key.shard][GATE].load(Relaxed) == gate
    }

    /// Repeats a lookup that failed: a change of the index may have hidden the page.
    #[inline(never)]
    pub(super) fn find_again(&self, key: &HashedName) -> Option<(usize, Word)> {
        for _ in 0..TRIES_MAX {
            let gate = self.gate(key);
            if gate & 1 == 0 {
                let found = self.probe(key);
                if found.is_some() || self.is_still(key, gate) {
                    return found;
                }
            }
            std::hint::spin_loop();
        }
        // If the lock times out, it is unknown whether the page is cached: see `is_stuck`.
        let shard = self.lock(key.shard);
        if let Some(shard) = shard.as_ref().filter(|shard| shard.get(GATE) & 1 != 0) {
            // We have the lock, so no process is rearranging it: the gate was overwritten. Without the repair every miss would come here.
            shard.repair();
        }
        let found = self.probe(key);
        drop(shard);
        found
    }

    /// Returns whether the page is cached.
    pub fn contains(&self, name: Name) -> bool {
        self.find(&self.key(name)).is_some()
    }
}

#[cfg(test)]
mod test {
    use super::super::oracle::cache;
    use super::super::{FileNo, Name, Replacement, Shape};
    use crate::PageIndex;

    #[test]
    fn a_file_fills_all_shards_evenly_and_no_stride_meets_one() {
        let (pages, ..) = cache(&Shape { frames: 64, shards: 8, ghosts: 0, replacement: Replacement::S3Fifo });
        let count = |stride: u64| {
            let mut shards = [0; 8];
            (0..16 * 8 * 64).for_each(|n| shards[pages.key(Name { file: FileNo(3), page: PageIndex(n * stride) }).shard] += 1);
            shards
        };
        assert_eq!(count(1), [16 * 64; 8]);
        for stride in [16, 128, 1 << 12, 1 << 20] {
            assert!(count(stride).iter().all(|&pages| pages > 700), "{stride}: {:?}", count(stride));
        }
    }

    #[test]
    fn names_and_words() {
        let name = Name { file: FileNo((1 << 20) - 1), page: PageIndex((1 << 40) - 1) };
        assert_eq!((name.word(), Name::of(name.word()), Name::of(!0)), ((1 << 60) - 1, name, name));
    }
}
