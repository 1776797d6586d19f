//! Blocks of files as the store has them, kept for the next reader; a bounded number.
//!
//! By the file's number and the block's place in it, so that who finds one need not ask where it is on the device. What is kept is right
//! until the file gets other bytes there, and who writes them back puts those here (or takes the block out); who cuts a range out of a file
//! takes it out here. Numbers of files are never used again. In shards, each a clock: a block that was asked for again survives one turn
//! of the hand.
//!
//! Not `pagecache`: that one's books are about who wrote what and when it is clean, which the store answers here; what is left is a map.

use std::ops::Range;
use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;

use super::table::Page;
use crate::BLOCK_BYTES;

const SHARDS: usize = 32;

/// A file's number, and a block's place in the file.
type Key = (u64, u64);

/// See the module.
pub struct Cache {
    shards: Vec<Mutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    places: HashMap<Key, usize>,
    slots: Vec<Slot>,
    hand: usize,
    limit: usize,
}

struct Slot {
    key: Key,
    page: Arc<Page>,
    again: bool,
}

impl Cache {
    /// Of so many bytes, at least one block a shard.
    pub fn new(bytes: usize) -> Cache {
        let limit = (bytes / BLOCK_BYTES / SHARDS).max(1);
        Cache { shards: (0..SHARDS).map(|_| Mutex::new(Shard { limit, ..Shard::default() })).collect() }
    }

    fn shard(&self, (ino, block): Key) -> &Mutex<Shard> {
        // Rows of blocks are spread, and stay together a little.
        &self.shards[ino.wrapping_mul(11).wrapping_add(block / 8) as usize % SHARDS]
    }

    /// A block that is here.
    pub fn get(&self, ino: u64, block: u64) -> Option<Arc<Page>> {
        let mut shard = self.shard((ino, block)).lock();
        let at = *shard.places.get(&(ino, block))?;
        let slot = &mut shard.slots[at];
        slot.again = true;
        Some(Arc::clone(&slot.page))
    }

    /// Keeps a block.
    pub fn put(&self, ino: u64, block: u64, page: Arc<Page>) {
        let old = self.shard((ino, block)).lock().put((ino, block), page);
        // Freed behind the lock.
        drop(old);
    }

    /// Blocks that are here.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().slots.len()).sum()
    }

    /// These blocks have other bytes, or none.
    pub fn forget(&self, ino: u64, blocks: Range<u64>) {
        for block in blocks {
            self.shard((ino, block)).lock().remove((ino, block));
        }
    }
}

impl Shard {
    /// Returns what it takes the place of.
    fn put(&mut self, key: Key, page: Arc<Page>) -> Option<Arc<Page>> {
        if let Some(at) = self.places.get(&key) {
            return Some(std::mem::replace(&mut self.slots[*at].page, page));
        }
        let slot = Slot { key, page, again: false };
        if self.slots.len() < self.limit {
            self.places.insert(key, self.slots.len());
            self.slots.push(slot);
            return None;
        }
        let at = self.victim();
        self.places.remove(&self.slots[at].key);
        self.places.insert(key, at);
        Some(std::mem::replace(&mut self.slots[at], slot).page)
    }

    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            if !std::mem::take(&mut self.slots[at].again) {
                return at;
            }
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.places.remove(&key) {
            self.slots.swap_remove(at);
            if let Some(moved) = self.slots.get(at) {
                self.places.insert(moved.key, at);
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_is_bounded_and_what_it_says_is_right() {
        let mut rng = crate::testing::rng();
        let cache = Cache::new(SHARDS * 4 * BLOCK_BYTES);
        let mut model = std::collections::HashMap::new();
        for n in 0..20_000u32 {
            let (ino, block) = (rng.u64(1..20), rng.u64(0..50));
            match rng.u8(0..4) {
                0 => {
                    cache.put(ino, block, Arc::new([n as u8; BLOCK_BYTES]));
                    model.insert((ino, block), n as u8);
                }
                1 => {
                    cache.forget(ino, block..block + 1);
                    model.remove(&(ino, block));
                }
                _ => assert!(cache.get(ino, block).is_none_or(|page| Some(&page[17]) == model.get(&(ino, block)))),
            }
        }
        assert!(cache.shards.iter().all(|shard| shard.lock().slots.len() <= 4));
    }
}
