//! Reads and writes of data blocks: what the log has of them is read from memory, and written to its place by a checkpoint.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::inner::StoreCore;
use crate::disk::QueueClass;
use crate::error::Error;
use crate::page::Page;
use crate::units::{BLOCK_BYTES, Block};

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
