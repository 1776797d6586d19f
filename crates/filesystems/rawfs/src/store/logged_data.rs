//! Data that the log has, and its place on the device not yet. A checkpoint brings it there; until then it is read from here.
//!
//! A small sync writes its data with its batch: one request, not two. What is overwritten or freed before the next checkpoint is
//! never written anywhere else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::inner::StoreCore;
use crate::disk::QueueClass;
use crate::error::Error;
use crate::page::Page;
use crate::units::{BLOCK_BYTES, Block, Extent, Lsn};

/// Blocks brought to their places in one go; and where nobody waits for it, so that the syncs of others find the device free.
const AT_ONCE: usize = 128;
const AT_LEISURE: usize = 16;
/// Between two of those, at most.
const REST: Duration = Duration::from_millis(8);
/// What may be added to the log, and of what waits, while a checkpoint brings its blocks to their places: this part of all there is room
/// for. It begins when half is used.
const MEANWHILE: u64 = 4;
/// The part of the log that data in it may take, at most.
const LOG_PART: u64 = 2;

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

    /// What is here of some blocks, by their place among them.
    fn of(&self, start: Block, blocks: usize) -> Vec<(usize, Page)> {
        let range = start.0..start.0.saturating_add(blocks as u64);
        self.blocks.lock().range(range).map(|(at, (_, page))| ((at - start.0) as usize, page.clone())).collect()
    }
}

impl StoreCore {
    /// Blocks that may wait, at most.
    pub(super) fn fill_max(&self) -> usize {
        let log = self.shape.log_blocks / LOG_PART;
        (self.settings.filled_bytes / BLOCK_BYTES).min(log as usize)
    }

    /// Data blocks as they are for who uses the store, several rows at once.
    pub(super) fn read_data(&self, reads: &mut [(Block, &mut [u8])]) -> Result<(), Error> {
        if self.filled.len() == 0 {
            return self.disk.read_many(QueueClass::Data, reads);
        }
        // Looked for before the device is read: what leaves later is in its place by then.
        let here: Vec<Vec<(usize, Page)>> = reads.iter().map(|(at, to)| self.filled.of(*at, to.len() / BLOCK_BYTES)).collect();
        if here.iter().zip(&*reads).any(|(here, (_, to))| here.len() * BLOCK_BYTES < to.len()) {
            self.disk.read_many(QueueClass::Data, reads)?;
        }
        for (here, (_, to)) in here.iter().zip(reads) {
            here.iter().for_each(|(at, page)| to[at * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&page[..]));
        }
        Ok(())
    }

    /// Writes blocks to their places. Not on the queue class for data: a waiter for a checkpoint may have writes under way there.
    pub(super) fn write_filled(&self, blocks: &[(Block, Page)]) -> Result<(), Error> {
        let (begun, mut done) = (self.amounts(), 0);
        while done < blocks.len() {
            let waits = self.is_waited_for();
            let some = &blocks[done..blocks.len().min(done + if waits { AT_ONCE } else { AT_LEISURE })];
            let writes: Vec<(Block, &[u8])> = some.iter().map(|(at, page)| (*at, &page[..])).collect();
            self.disk.write_blocks(QueueClass::Metadata, &writes)?;
            done += some.len();
            let until = Instant::now() + REST;
            while done < blocks.len() && !self.is_waited_for() && self.is_ahead(begun, done, blocks.len()) && Instant::now() < until {
                std::thread::sleep(REST / 8);
            }
        }
        Ok(())
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes of the log in use, and blocks that wait.
    fn amounts(&self) -> [u64; 2] {
        [self.log.usage().1, self.filled.len() as u64]
    }

    /// Whether so much of it is done that it will have ended before much more has come.
    fn is_ahead(&self, begun: [u64; 2], done: usize, of: usize) -> bool {
        let room = [self.log.usage().0, self.fill_max() as u64].map(|room| room / MEANWHILE);
        let come = self.amounts();
        (0..2).all(|n| u128::from(come[n].saturating_sub(begun[n])) * of as u128 <= u128::from(room[n]) * done as u128)
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
