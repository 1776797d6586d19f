//! Blocks of data as they are on the device, kept for the next reader; a bounded number.
//!
//! Data is overwritten in place only by small syncs, which put the new bytes here; so what is kept under a block's number is right until
//! the block is freed and written anew, which puts the new bytes here too. In shards, each a clock: a block that was asked for again
//! survives one turn of the hand.
//!
//! Not `pagecache`: that one's books are about who wrote what and when it is clean, which the store answers here; what is left is a map.

use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;

use super::table::Page;
use crate::{BLOCK_BYTES, Block, Extent};

const SHARDS: usize = 32;

/// See the module.
pub struct Cache {
    shards: Vec<Mutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize>,
    slots: Vec<Slot>,
    hand: usize,
    limit: usize,
}

struct Slot {
    block: u64,
    page: Arc<Page>,
    again: bool,
}

impl Cache {
    /// Of so many bytes, at least one block a shard.
    pub fn new(bytes: usize) -> Cache {
        let limit = (bytes / BLOCK_BYTES / SHARDS).max(1);
        Cache { shards: (0..SHARDS).map(|_| Mutex::new(Shard { limit, ..Shard::default() })).collect() }
    }

    fn shard(&self, block: Block) -> &Mutex<Shard> {
        // Rows of blocks are spread, and stay together a little.
        &self.shards[(block.0 / 8) as usize % SHARDS]
    }

    /// A block that is here.
    pub fn get(&self, block: Block) -> Option<Arc<Page>> {
        let mut shard = self.shard(block).lock();
        let at = *shard.places.get(&block.0)?;
        shard.slots[at].again = true;
        Some(Arc::clone(&shard.slots[at].page))
    }

    /// Keeps a block.
    pub fn put(&self, block: Block, page: Arc<Page>) {
        self.shard(block).lock().put(block.0, page);
    }

    /// These blocks are free.
    pub fn forget(&self, extent: Extent) {
        for n in 0..u64::from(extent.blocks) {
            let block = extent.start.after(n);
            self.shard(block).lock().remove(block.0);
        }
    }
}

impl Shard {
    fn put(&mut self, block: u64, page: Arc<Page>) {
        if let Some(at) = self.places.get(&block) {
            self.slots[*at].page = page;
            return;
        }
        let slot = Slot { block, page, again: false };
        if self.slots.len() < self.limit {
            self.places.insert(block, self.slots.len());
            self.slots.push(slot);
            return;
        }
        let at = self.victim();
        self.places.remove(&self.slots[at].block);
        self.places.insert(block, at);
        self.slots[at] = slot;
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

    fn remove(&mut self, block: u64) {
        if let Some(at) = self.places.remove(&block) {
            self.slots.swap_remove(at);
            if let Some(moved) = self.slots.get(at) {
                self.places.insert(moved.block, at);
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
            let block = Block(rng.u64(0..1000));
            match rng.u8(0..4) {
                0 => {
                    cache.put(block, Arc::new([n as u8; BLOCK_BYTES]));
                    model.insert(block, n as u8);
                }
                1 => {
                    cache.forget(Extent::new(block, 1));
                    model.remove(&block);
                }
                _ => assert!(cache.get(block).is_none_or(|page| Some(&page[17]) == model.get(&block))),
            }
        }
        assert!(cache.shards.iter().all(|shard| shard.lock().slots.len() <= 4));
    }
}
