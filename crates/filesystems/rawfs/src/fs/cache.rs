//! Blocks of files as the store has them, kept for the next reader; a bounded number.
//!
//! By the file's number and the block's place in it, so that who finds one need not ask where it is on the device. What is kept is right
//! until the file gets other bytes there, and write-back puts those here (or takes the block out); a truncation or hole punch
//! takes it out here. Numbers of files are never used again. In shards, each a clock: a block that had a hit survives one turn
//! of the hand. It may have what others leave of the memory for all ([`Budget`]), and lets go when they need more.
//!
//! Not `pagecache`: its metadata is about dirty pages and their order, which the store keeps here; what is left is a map.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::BLOCK_BYTES;
use crate::budget::Budget;
use crate::page::{Bytes, Page};

const SHARDS: usize = 32;

/// A file's number, and a block's place in the file.
type BlockKey = (u64, u64);

/// What a block takes with what is known of it, and what the allocator adds, in bytes.
pub const EACH_BYTES: usize = BLOCK_BYTES + 160;
/// Blocks let go of that wait to be used again, at most.
pub const SPARES_MAX: usize = 512;

/// A bounded cache of file blocks as the device has them.
pub struct BlockCache {
    shards: Vec<Mutex<CacheShard>>,
    /// In all shards.
    blocks: AtomicUsize,
    /// The shard that the next one is taken from.
    next: AtomicUsize,
    /// Memory for the next ones: the allocator takes long over blocks of this size.
    spares: Mutex<Vec<Page>>,
    /// Blocks that it may have in any case.
    least: usize,
    /// What else it may have.
    budget: Option<Arc<Budget>>,
}

#[derive(Default)]
struct CacheShard {
    places: HashMap<BlockKey, usize>,
    slots: Vec<CacheSlot>,
    hand: usize,
}

struct CacheSlot {
    key: BlockKey,
    page: Page,
    again: bool,
}

impl BlockCache {
    /// Of so many bytes, at least one block a shard; of all that is left of a budget, if there is one.
    pub fn new(bytes: usize, budget: Option<Arc<Budget>>) -> BlockCache {
        BlockCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            blocks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            spares: Mutex::default(),
            least: (bytes / EACH_BYTES).max(SHARDS),
            budget,
        }
    }

    fn shard(&self, (ino, block): BlockKey) -> &Mutex<CacheShard> {
        // Rows of blocks are spread, and stay together a little.
        &self.shards[ino.wrapping_mul(11).wrapping_add(block / 8) as usize % SHARDS]
    }

    /// A block that is here.
    pub fn get(&self, ino: u64, block: u64) -> Option<Page> {
        let mut shard = self.shard((ino, block)).lock();
        let at = *shard.places.get(&(ino, block))?;
        let slot = &mut shard.slots[at];
        slot.again = true;
        Some(slot.page.clone())
    }

    /// Inserts a block into the cache.
    pub fn put(&self, ino: u64, block: u64, page: Page) {
        // Counted first: what is here may be let go of at once.
        self.blocks.fetch_add(1, Ordering::Relaxed);
        let old = self.shard((ino, block)).lock().put((ino, block), page);
        if let Some(old) = old {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
            self.spare(old);
        }
        self.evict_excess();
    }

    /// Evicts blocks until the cache is within its budget.
    pub fn evict_excess(&self) {
        while self.blocks.load(Ordering::Relaxed) > self.most() {
            // Each shard in turn. A counted block that no shard has is being inserted or removed by another thread.
            let shard = &self.shards[self.next.fetch_add(1, Ordering::Relaxed) % SHARDS];
            let Some(page) = shard.lock().evict() else { continue };
            self.blocks.fetch_sub(1, Ordering::Relaxed);
            self.spare(page);
        }
    }

    fn most(&self) -> usize {
        self.budget.as_ref().map_or(0, |budget| budget.left() / EACH_BYTES).max(self.least)
    }

    /// Memory for a block, with these bytes.
    pub fn page(&self, bytes: &Bytes) -> Page {
        let spare = self.spares.lock().pop();
        match spare {
            Some(mut page) => {
                page.get_mut().expect("nobody else has it").copy_from_slice(bytes);
                page
            }
            None => Page::new(bytes),
        }
    }

    /// Takes back memory that nobody reads any more.
    fn spare(&self, mut page: Page) {
        if page.get_mut().is_some() {
            let mut spares = self.spares.lock();
            if spares.len() < SPARES_MAX {
                spares.push(page);
            }
        }
    }

    /// Blocks that are here, or wait to be used again.
    pub fn len(&self) -> usize {
        self.blocks.load(Ordering::Relaxed) + self.spares.lock().len()
    }

    /// These blocks have other bytes, or none.
    pub fn forget(&self, ino: u64, blocks: Range<u64>) {
        for block in blocks {
            let gone = self.shard((ino, block)).lock().remove((ino, block));
            if let Some(page) = gone {
                self.blocks.fetch_sub(1, Ordering::Relaxed);
                self.spare(page);
            }
        }
    }
}

impl CacheShard {
    /// Returns what was there.
    fn put(&mut self, key: BlockKey, page: Page) -> Option<Page> {
        if let Some(at) = self.places.get(&key) {
            return Some(std::mem::replace(&mut self.slots[*at].page, page));
        }
        self.places.insert(key, self.slots.len());
        self.slots.push(CacheSlot { key, page, again: false });
        None
    }

    /// The first that nobody asked for again since the hand came by.
    fn evict(&mut self) -> Option<Page> {
        while !self.slots.is_empty() {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            if !std::mem::take(&mut self.slots[at].again) {
                // The last, which came last, takes its place: the hand is past it.
                return self.remove(self.slots[at].key);
            }
        }
        None
    }

    fn remove(&mut self, key: BlockKey) -> Option<Page> {
        let at = self.places.remove(&key)?;
        let gone = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(moved.key, at);
        }
        Some(gone.page)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::budget::MemoryPart;

    #[test]
    fn it_is_bounded_and_what_it_says_is_right() {
        let mut rng = crate::testing::rng();
        let budget = Arc::new(Budget::new(SHARDS * 9 * EACH_BYTES, SHARDS * 4 * EACH_BYTES));
        let cache = BlockCache::new(SHARDS * 4 * EACH_BYTES, Some(Arc::clone(&budget)));
        let mut model = std::collections::HashMap::new();
        for n in 0..20_000u32 {
            let (ino, block) = (rng.u64(1..20), rng.u64(0..50));
            match rng.u8(0..5) {
                0 => {
                    cache.put(ino, block, cache.page(&[n as u8; BLOCK_BYTES]));
                    model.insert((ino, block), n as u8);
                }
                1 => {
                    cache.forget(ino, block..block + 1);
                    model.remove(&(ino, block));
                }
                2 => {
                    budget.set(MemoryPart::Changed, rng.usize(0..10) * SHARDS * EACH_BYTES);
                    cache.evict_excess();
                    let here: usize = cache.shards.iter().map(|shard| shard.lock().slots.len()).sum();
                    assert!(here == cache.blocks.load(Ordering::Relaxed) && here <= (budget.left() / EACH_BYTES).max(4 * SHARDS));
                }
                _ => assert!(cache.get(ino, block).is_none_or(|page| Some(&page[17]) == model.get(&(ino, block)))),
            }
        }
        assert!(cache.len() <= SHARDS * 9 + SPARES_MAX);
    }
}
