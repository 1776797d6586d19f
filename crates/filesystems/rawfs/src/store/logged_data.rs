//! Data that the log has, and its place on the device not yet. A checkpoint brings it there; until then it is read from here.
//!
//! A small sync writes its data with its batch: one request, not two. What is overwritten or freed before the next checkpoint is
//! never written anywhere else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::page::Page;
use crate::units::{BLOCK_BYTES, Block, Extent, Lsn};

/// Data in the log that is not in its place yet. Changed with the store's state locked.
#[derive(Default)]
pub struct LoggedData {
    /// By block: the last batch that filled it.
    blocks: Mutex<BTreeMap<u64, (Lsn, Page)>>,
    /// Of the map: a reader of a block need not lock it if nothing waits.
    count: AtomicUsize,
}

impl LoggedData {
    /// Returns the number of blocks that wait.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// A batch has filled blocks.
    pub fn put(&self, lsn: Lsn, start: Block, bytes: &[u8]) {
        let mut blocks = self.blocks.lock();
        for (at, page) in (start.0..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            blocks.insert(at, (lsn, Page::new(page.try_into().expect("a block"))));
        }
        self.count.store(blocks.len(), Ordering::Release);
    }

    /// Blocks are free; says whether one of them was here.
    pub fn forget(&self, extent: Extent) -> bool {
        if self.len() == 0 {
            return false;
        }
        let mut blocks = self.blocks.lock();
        let before = blocks.len();
        if u64::from(extent.blocks) < before as u64 {
            (extent.start.0..).take(extent.blocks as usize).for_each(|at| drop(blocks.remove(&at)));
        } else {
            let gone = extent.start.0..extent.start.0.saturating_add(u64::from(extent.blocks));
            blocks.retain(|at, _| !gone.contains(at));
        }
        self.count.store(blocks.len(), Ordering::Release);
        blocks.len() < before
    }

    /// All of them, in order.
    pub fn frozen(&self) -> Vec<(Block, Page)> {
        self.blocks.lock().iter().map(|(at, (_, page))| (Block(*at), page.clone())).collect()
    }

    /// What batches up to this one have filled is in its place.
    pub fn settle(&self, lsn: Lsn) {
        let mut blocks = self.blocks.lock();
        blocks.retain(|_, (filled, _)| *filled > lsn);
        self.count.store(blocks.len(), Ordering::Release);
    }

    /// Those for which this holds stay.
    pub fn retain(&self, stays: impl Fn(Block) -> bool) {
        let mut blocks = self.blocks.lock();
        blocks.retain(|at, _| stays(Block(*at)));
        self.count.store(blocks.len(), Ordering::Release);
    }

    /// Returns those of some blocks that are in the log, each with its index among them.
    pub fn of(&self, start: Block, blocks: usize) -> Vec<(usize, Page)> {
        let range = start.0..start.0.saturating_add(blocks as u64);
        self.blocks.lock().range(range).map(|(at, (_, page))| ((at - start.0) as usize, page.clone())).collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_last_bytes_count_until_a_checkpoint_has_them() {
        let filled = LoggedData::default();
        filled.put(Lsn(1), Block(10), &[[1; BLOCK_BYTES], [2; BLOCK_BYTES]].concat());
        filled.put(Lsn(2), Block(11), &[3; BLOCK_BYTES]);
        assert_eq!(filled.len(), 2);
        let of = |at: u64| filled.of(Block(at), 3).into_iter().map(|(at, page)| (at, page[0])).collect::<Vec<_>>();
        assert_eq!(of(9), [(1, 1), (2, 3)]);
        assert_eq!(filled.frozen().len(), 2);
        filled.settle(Lsn(1));
        assert_eq!(of(9), [(2, 3)]);
        assert!(!filled.forget(Extent::new(Block(12), 5)) && filled.forget(Extent::new(Block(0), 100)));
        assert_eq!(filled.len(), 0);
    }
}
