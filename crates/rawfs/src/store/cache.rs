//! Nodes as they are on the device, in bounded memory. A node that was used since the hand last came by stays (CLOCK).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::layout::NODE_BYTES;
use crate::tree::NodeAt;
use crate::tree::node::Node;

const SHARDS: usize = 16;
/// Of a node beside its page.
const OVERHEAD_BYTES: usize = 256;

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

/// See the module.
pub struct Cache {
    shards: [RwLock<Shard>; SHARDS],
    /// Nodes of a shard.
    most: usize,
    misses: AtomicU64,
}

#[derive(Default)]
struct Shard {
    places: HashMap<u32, usize, BuildHasherDefault<SlotHasher>>,
    entries: Vec<Entry>,
    hand: usize,
}

struct Entry {
    at: NodeAt,
    node: Arc<Node>,
    hot: AtomicBool,
}

impl Cache {
    /// Of so many bytes; a few nodes in any case.
    pub fn new(bytes: usize) -> Cache {
        let most = (bytes / (NODE_BYTES + OVERHEAD_BYTES) / SHARDS).max(2);
        Cache { shards: std::array::from_fn(|_| RwLock::default()), most, misses: AtomicU64::new(0) }
    }

    fn shard(&self, at: NodeAt) -> &RwLock<Shard> {
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
        let entry = Entry { at, node, hot: AtomicBool::new(false) };
        if let Some(place) = shard.places.get(&at.slot).copied() {
            shard.entries[place] = entry;
        } else if shard.entries.len() < self.most {
            let place = shard.entries.len();
            shard.entries.push(entry);
            shard.places.insert(at.slot, place);
        } else {
            let place = shard.coldest();
            let old = std::mem::replace(&mut shard.entries[place], entry);
            shard.places.remove(&old.at.slot);
            shard.places.insert(at.slot, place);
        }
    }

    /// A node had to be read.
    pub fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// How often.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Bytes in use, about.
    pub fn bytes(&self) -> u64 {
        let nodes: usize = self.shards.iter().map(|shard| shard.read().entries.len()).sum();
        (nodes * (NODE_BYTES + OVERHEAD_BYTES)) as u64
    }
}

impl Shard {
    fn coldest(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            if !self.entries[at].hot.swap(false, Ordering::Relaxed) {
                return at;
            }
        }
    }
}
