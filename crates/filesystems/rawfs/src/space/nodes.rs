//! The allocator of nodes. A checkpoint takes; what it replaced is free when it is durable and no reader looks at it any more.

use std::sync::Arc;

use super::bits::Bitmap;
use crate::layout::bitmap::PAGE_WORDS;

/// Held by readers of a snapshot: its nodes are not reused meanwhile.
pub type SnapshotGuard = Arc<()>;

/// The allocator of tree nodes on the device.
pub struct NodeAllocator {
    /// As the next checkpoint will write it.
    used: Bitmap,
    /// Slots that are in `used` no more, but still to be left alone, with the readers that may look at them.
    leaving: Vec<(SnapshotGuard, Vec<u32>)>,
    /// Bits set: cannot be given out.
    taken: Vec<u64>,
    free: u64,
    next: usize,
}

impl NodeAllocator {
    /// What is in use is taken.
    pub fn new(used: Bitmap) -> NodeAllocator {
        let mut taken = used.as_words().to_vec();
        if let Some(last) = taken.last_mut()
            && !used.len().is_multiple_of(64)
        {
            *last |= u64::MAX << (used.len() % 64);
        }
        let free = used.len() - used.used();
        NodeAllocator { used, leaving: Vec::new(), taken, free, next: 0 }
    }

    /// How many can be given out.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Returns the number of nodes of the region.
    pub fn len(&self) -> u64 {
        self.used.len()
    }

    /// How many the trees have.
    pub fn used(&self) -> u64 {
        self.used.used()
    }

    /// Returns the memory it takes in bytes.
    pub fn bytes(&self) -> u64 {
        self.used.bytes() + self.taken.len() as u64 * 8
    }

    /// So many for a checkpoint, in a row where that can be. None: there are fewer.
    pub fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.free < count as u64 {
            return None;
        }
        let mut slots = Vec::with_capacity(count);
        let words = self.taken.len();
        for step in 0..=words {
            let word = (self.next + step) % words;
            while self.taken[word] != u64::MAX && slots.len() < count {
                let bit = self.taken[word].trailing_ones();
                self.taken[word] |= 1 << bit;
                slots.push((word * 64) as u32 + bit);
            }
            if slots.len() == count {
                self.next = word;
                break;
            }
        }
        assert!(slots.len() == count, "as many as were counted");
        self.free -= count as u64;
        for slot in &slots {
            self.used.set(u64::from(*slot)..u64::from(*slot) + 1, true);
        }
        Some(slots)
    }

    /// The trees have these no more, from the next checkpoint on. False: one of them was not theirs (a damaged tree).
    #[must_use]
    pub fn replaced(&mut self, slots: &[u32]) -> bool {
        let mut right = true;
        for slot in slots {
            let bit = u64::from(*slot)..u64::from(*slot) + 1;
            if bit.end > self.used.len() || !self.used.all(bit.clone(), true) {
                right = false;
                continue;
            }
            self.used.set(bit, false);
        }
        right
    }

    /// The checkpoint that had them replaced is durable: they are free when this reader, and all who held the same, are gone.
    pub fn leave(&mut self, reader: SnapshotGuard, slots: Vec<u32>) {
        self.leaving.push((reader, slots));
        self.settle();
    }

    /// Frees what nobody looks at any more: older readers may look at what later ones do, so in order.
    pub fn settle(&mut self) {
        while let Some((reader, _)) = self.leaving.first() {
            if Arc::strong_count(reader) > 1 {
                return;
            }
            for slot in self.leaving.remove(0).1 {
                self.taken[slot as usize / 64] &= !(1 << (slot % 64));
                self.free += 1;
            }
        }
    }

    /// Returns the bitmap of nodes in use, to change it.
    pub fn bits(&mut self) -> &mut Bitmap {
        &mut self.used
    }

    /// Returns the bitmap of nodes in use.
    pub fn used_bits(&self) -> &Bitmap {
        &self.used
    }
}

const _: () = assert!(PAGE_WORDS > 0);
