//! Nodes as they are on the device, in bounded memory. A node that was used since the hand last came by stays (CLOCK).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::budget::{Budget, MemoryPart};
use crate::layout::NODE_BYTES;
use crate::tree::NodeAt;
use crate::tree::node::Node;

const SHARDS: usize = 16;
/// With what a node has beside its page.
const EACH_BYTES: usize = NODE_BYTES + 256;
/// Nodes of a shard in any case.
const LEAST: usize = 2;

/// Slots are numbers that lie side by side: they are their own hash.
#[derive(Default)]
struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }
    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }
}

/// A bounded cache of tree nodes as the device has them.
pub struct NodeCache {
    shards: [RwLock<CacheShard>; SHARDS],
    /// Nodes of a shard.
    most: usize,
    /// Nodes of all shards.
    nodes: AtomicUsize,
    /// The shard that gives way next.
    next: AtomicUsize,
    misses: AtomicU64,
    budget: Option<Arc<Budget>>,
}

#[derive(Default)]
struct CacheShard {
    places: HashMap<u32, usize, BuildHasherDefault<SlotHasher>>,
    entries: Vec<CachedNode>,
    hand: usize,
}

struct CachedNode {
    at: NodeAt,
    node: Arc<Node>,
    hot: AtomicBool,
}

impl NodeCache {
    /// Of so many bytes; a few nodes in any case.
    pub fn new(bytes: usize, budget: Option<Arc<Budget>>) -> NodeCache {
        let most = (bytes / EACH_BYTES / SHARDS).max(LEAST);
        NodeCache {
            shards: std::array::from_fn(|_| RwLock::default()),
            most,
            nodes: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            misses: AtomicU64::new(0),
            budget,
        }
    }

    fn shard(&self, at: NodeAt) -> &RwLock<CacheShard> {
        &self.shards[at.slot as usize % SHARDS]
    }

    /// A node, if it is here.
    pub fn get(&self, at: NodeAt) -> Option<Arc<Node>> {
        let shard = self.shard(at).read();
        let entry = shard.places.get(&at.slot).map(|place| &shard.entries[*place]).filter(|entry| entry.at == at);
        if let Some(entry) = entry
            && !entry.hot.load(Ordering::Relaxed)
        {
            entry.hot.store(true, Ordering::Relaxed);
        }
        entry.map(|entry| Arc::clone(&entry.node))
    }

    /// Keeps a node, in place of what was known to be there, or of one that nobody has used for long.
    pub fn put(&self, at: NodeAt, node: Arc<Node>) {
        let mut shard = self.shard(at).write();
        let entry = CachedNode { at, node, hot: AtomicBool::new(false) };
        if let Some(place) = shard.places.get(&at.slot).copied() {
            shard.entries[place] = entry;
        } else if shard.entries.len() < LEAST || shard.entries.len() < self.most && !self.is_short_of(EACH_BYTES) {
            let place = shard.entries.len();
            shard.entries.push(entry);
            shard.places.insert(at.slot, place);
            drop(shard);
            self.nodes.fetch_add(1, Ordering::Relaxed);
            self.tell();
        } else {
            let place = shard.coldest();
            let old = std::mem::replace(&mut shard.entries[place], entry);
            shard.places.remove(&old.at.slot);
            shard.places.insert(at.slot, place);
        }
    }

    fn is_short_of(&self, bytes: usize) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.is_short_of(bytes))
    }

    fn tell(&self) {
        if let Some(budget) = &self.budget {
            budget.set(MemoryPart::Nodes, self.nodes.load(Ordering::Relaxed) * EACH_BYTES);
        }
    }

    /// Evicts nodes while other parts need the memory.
    pub fn release_memory(&self) {
        let mut empty = 0;
        while empty < SHARDS && self.is_short_of(0) {
            let mut shard = self.shards[self.next.fetch_add(1, Ordering::Relaxed) % SHARDS].write();
            if shard.entries.len() <= LEAST {
                empty += 1;
                continue;
            }
            let place = shard.coldest();
            let gone = shard.entries.swap_remove(place);
            shard.places.remove(&gone.at.slot);
            if let Some(moved) = shard.entries.get(place).map(|entry| entry.at.slot) {
                shard.places.insert(moved, place);
            }
            drop(shard);
            empty = 0;
            self.nodes.fetch_sub(1, Ordering::Relaxed);
            self.tell();
        }
    }

    /// A node had to be read.
    pub fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often a node was not in the cache.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Returns about how many bytes are in use.
    pub fn bytes(&self) -> u64 {
        (self.nodes.load(Ordering::Relaxed) * EACH_BYTES) as u64
    }
}

impl CacheShard {
    fn coldest(&mut self) -> usize {
        loop {
            let at = self.hand % self.entries.len();
            self.hand = at + 1;
            if !self.entries[at].hot.swap(false, Ordering::Relaxed) {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn nodes_make_room_for_what_has_to_stay_down_to_a_few() {
        let budget = Arc::new(Budget::new(100 * EACH_BYTES, 10 * EACH_BYTES));
        let cache = Arc::new(NodeCache::new(80 * EACH_BYTES, Some(Arc::clone(&budget))));
        let weak = Arc::downgrade(&cache);
        budget.on_growth(move || weak.upgrade().expect("alive").release_memory());
        let at = |slot| NodeAt { slot, sum: slot };
        let node = || Arc::new(Node::empty());
        for slot in 0..200 {
            cache.put(at(slot), node());
            assert!(cache.get(at(slot)).is_some());
        }
        assert_eq!(cache.bytes() as usize, 80 * EACH_BYTES);
        budget.set(MemoryPart::Changed, 40 * EACH_BYTES);
        assert_eq!(cache.bytes() as usize, 50 * EACH_BYTES);
        budget.set(MemoryPart::Unwritten, 60 * EACH_BYTES);
        assert_eq!(cache.bytes() as usize, LEAST * SHARDS * EACH_BYTES);
        // What is read meanwhile takes the place of another.
        (0..40).for_each(|slot| cache.put(at(slot), node()));
        assert_eq!(cache.bytes() as usize, LEAST * SHARDS * EACH_BYTES);
        let here = (0..200).filter(|slot| cache.get(at(*slot)).is_some()).count();
        assert_eq!(here, LEAST * SHARDS);
    }
}
