//! The metadata: an ordered key-value store with atomic batches, and the allocators of data blocks.
//!
//! A batch changes the trees in memory and is appended to the log ([`crate::log`]); `sync` writes what waits there and flushes, for
//! all waiters at once. Checkpoints bring the trees to the device in the background (`checkpoint.rs`), from a snapshot, to places
//! that nothing durable uses. Opening (`open.rs`) takes the last checkpoint and does again what the log has behind it.
//!
//! Data blocks are not overwritten while something durable names them: a batch names new ones and frees the old, and those are given
//! out again when the device itself says that the batch is durable. But what a batch has bytes for (`logged_data.rs`) is in the log, and
//! goes to its place with the next checkpoint.

mod apply;
mod batch;
mod cache;
mod check;
mod checkpoint;
mod checkpoint_signal;
mod checkpoint_thread;
mod data;
mod format;
mod inner;
mod logged_data;
mod open;
mod overlay;
mod resize;
pub mod salvage;
mod settings;
pub mod show;
#[cfg(test)]
mod test;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use batch::{Batch, Change, ChangeReader, InvalidBatch, KEY_BYTES_MAX, TreeId, VALUE_BYTES_MAX};
pub use check::StoreCheck;
pub use settings::{BudgetSettings, FormatOptions, Recovery, Settings, Usage};

use crate::budget::Budget;
use crate::disk::Disk;
use crate::error::Error;
use crate::layout::{NODE_BYTES, Shape};
pub use crate::tree::ScanStep;
use crate::units::{BLOCK_BYTES, Block, Extent, Lsn};
use checkpoint::CheckpointMark;
use checkpoint_thread::CheckpointThread;
use inner::StoreCore;
use overlay::TransactionOverlay;

/// A store of metadata on a disk. Dropped without [`Store::close`], it is as if the process had died there.
pub struct Store {
    /// Ends before the rest.
    keeper: Option<CheckpointThread>,
    inner: Arc<StoreCore>,
    /// What is read and changed instead of what all see.
    trial: Option<TransactionOverlay>,
}

impl Store {
    /// Makes an empty store. What was on the disk is gone.
    ///
    /// # Errors
    /// Sizes that do not fit, or the device's.
    pub fn format(disk: &Disk, options: &FormatOptions) -> Result<(), Error> {
        format::format(disk, options)
    }

    /// Opens what is on the disk, and puts right what a crash left. Whoever opened the disk sees to it that nobody else uses it.
    ///
    /// # Errors
    /// It is not there, damaged, of another version or size; or the device's.
    pub fn open(disk: Disk, settings: &Settings) -> Result<(Store, Recovery), Error> {
        let (inner, recovery) = open::open(disk, settings)?;
        let inner = Arc::new(inner);
        let keeper = if settings.background && !settings.read_only { Some(CheckpointThread::start(&inner)?) } else { None };
        Ok((Store { keeper, inner, trial: None }, recovery))
    }

    /// Opens a damaged store: all of it that can be read is there, and what cannot is reported (docs/formats.md has how). With
    /// [`Settings::read_only`] nothing is written; else it is whole again when this returns, and was untouched as long as it had not.
    /// `owns` tells the data blocks that an entry names.
    ///
    /// # Errors
    /// Both superblocks are damaged, or of a later version; the image is cut off; the device's.
    pub fn salvage(disk: Disk, settings: &Settings, owns: salvage::Owns<'_>) -> Result<(Store, Recovery, Vec<salvage::Damage>), Error> {
        let (inner, recovery, damages) = salvage::open(disk, settings, owns)?;
        Ok((Store { keeper: None, inner: Arc::new(inner), trial: None }, recovery, damages))
    }

    /// The value of a key, if it is there: `value` is replaced, else emptied.
    ///
    /// # Errors
    /// A node that cannot be read, or is damaged.
    pub fn get(&self, tree: TreeId, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        value.clear();
        Ok(self.get_with(tree, key, |found| value.extend_from_slice(found))?.is_some())
    }

    /// Gives the value of a key to `found` where it lies, if it is there; `found` must not call the store.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_with<T>(&self, tree: TreeId, key: &[u8], found: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
        match &self.trial {
            None => self.inner.get(tree, key, found),
            Some(trial) => trial.tree(tree).get(&self.inner.loader(tree), key, found),
        }
    }

    /// Gives the last key that is not behind this one, with its value, to `found`; `found` must not call the store.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn floor<T>(&self, tree: TreeId, key: &[u8], found: impl FnOnce(&[u8], &[u8]) -> T) -> Result<Option<T>, Error> {
        match &self.trial {
            None => self.inner.floor(tree, key, found),
            Some(trial) => trial.tree(tree).floor(&self.inner.loader(tree), key, found),
        }
    }

    /// Keys from `from` on, up to `to` without it, in order, as they were when the scan began.
    ///
    /// # Errors
    /// A node that cannot be read, or is damaged.
    pub fn scan(&self, tree: TreeId, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), Error> {
        if let Some(trial) = &self.trial {
            return trial.tree(tree).scan(&self.inner.loader(tree), from, Some(to), each);
        }
        let snapshot = self.inner.snapshot(tree)?;
        snapshot.tree.scan(&self.inner.loader(tree), from, Some(to), each)
    }

    /// Does what the batch says: seen at once by all, durable after [`Store::sync`]. Batches have one order.
    ///
    /// # Errors
    /// No space, or a batch that does not fit what is there: then nothing of it was done. [`Error::Failed`] after a failure.
    pub fn apply(&self, batch: Batch) -> Result<Lsn, Error> {
        match &self.trial {
            None => self.inner.apply(&batch),
            Some(trial) => trial.apply(&self.inner, batch),
        }
    }

    /// A store that begins as this one is now, and whose batches are seen by nobody else: what is applied to it is gathered, to be one
    /// batch ([`Store::tried`]). Costs nothing, as trees are values. Blocks are not looked at: those belong to this store.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub(crate) fn try_out(&self) -> Result<Store, Error> {
        Ok(Store { keeper: None, inner: Arc::clone(&self.inner), trial: Some(TransactionOverlay::of(&self.inner)?) })
    }

    /// All that was applied to a store of [`Store::try_out`], in order.
    pub(crate) fn tried(&self) -> Batch {
        self.trial.as_ref().map(TransactionOverlay::take).unwrap_or_default()
    }

    /// Returns when this batch, and all before it, survive a loss of power.
    ///
    /// # Errors
    /// A write or flush failed: then for all that had not been durable, until the store is opened again.
    pub fn sync(&self, lsn: Lsn) -> Result<(), Error> {
        self.inner.sync(lsn)
    }

    /// What is known to survive a loss of power.
    pub fn synced(&self) -> Lsn {
        self.inner.log.durable()
    }

    /// Returns the number of the last applied batch.
    pub fn applied(&self) -> Lsn {
        self.inner.log.last()
    }

    /// The memory budget that it shares with the layer above, if there is one.
    pub(crate) fn budget(&self) -> Option<&Arc<Budget>> {
        self.inner.budget.as_ref()
    }

    /// Nodes that may be changed before a checkpoint begins.
    pub(crate) fn changed_max(&self) -> usize {
        self.inner.settings.dirty_bytes / NODE_BYTES
    }

    /// Free blocks in a row, near `goal` if that is wanted; perhaps fewer. They are the caller's until a batch uses them or they
    /// are given back; a crash gives them back.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or a failure while freed blocks were made durable.
    pub fn allocate(&self, goal: Option<Block>, blocks: u32) -> Result<Extent, Error> {
        self.inner.allocate(goal, blocks)
    }

    /// Whether a batch may fill so many blocks ([`Batch::fill_blocks`]); else there is too much of that in memory or for the log, and they
    /// are to be written to their place.
    pub fn may_fill(&self, blocks: usize) -> bool {
        let fits = blocks * BLOCK_BYTES <= self.batch_bytes_max() / 2;
        fits && self.inner.filled.len() + blocks <= self.inner.fill_max()
    }

    /// Whether blocks that applied batches use may be filled with other bytes: recovery does not compare them with their checksums any
    /// more. If not, the next sync but one makes it so.
    pub fn may_overwrite(&self) -> bool {
        self.inner.written.load(Ordering::Acquire) <= self.inner.log.recorded().0
    }

    /// Reads data blocks, several rows at once, as batches have made them.
    ///
    /// # Errors
    /// The first that failed; what the others hold is not said.
    pub fn read_data(&self, reads: &mut [(Block, &mut [u8])]) -> Result<(), Error> {
        self.inner.read_data(reads)
    }

    /// Gives back what was allocated and no batch has used. No request to it is under way.
    ///
    /// # Panics
    /// If it is not so.
    pub fn abandon(&self, extent: Extent) {
        self.inner.abandon(extent);
    }

    /// Writes what has changed to its place, so that the log's room is free again.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.inner.checkpoint()
    }

    /// Makes everything durable, and marks the store as clean.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn close(mut self) -> Result<(), Error> {
        self.keeper = None;
        if self.inner.settings.read_only {
            return Ok(());
        }
        let mut last = self.inner.last.lock();
        let mark = CheckpointMark { clean: true, life: last.superblock.life, log: None, always: true };
        self.inner.checkpoint_as(&mut last, mark)
    }

    /// From a data block on, counted from the region's first, no free one is given out until some there are freed and released.
    pub(crate) fn fence(&self, from: u64) {
        self.inner.blocks.fence(from);
    }

    /// Blocks that can be given out now.
    pub(crate) fn free_now(&self) -> u64 {
        self.inner.blocks.free()
    }

    /// Gives the image so many blocks in all, and closes it. Log and nodes stay as they are; what is behind the new end is free.
    /// Whatever is interrupted, the image has the old size or the new one.
    ///
    /// # Errors
    /// Blocks in use behind the new end; sizes that do not go together; the device's.
    pub fn resize(self, blocks: u64) -> Result<Shape, Error> {
        resize::resize(self, blocks)
    }

    /// Reads all nodes and compares them with the allocators. Other calls wait meanwhile.
    ///
    /// # Errors
    /// A node that cannot be read, or is damaged.
    pub fn check(&self) -> Result<StoreCheck, Error> {
        self.inner.check()
    }

    /// Each row of data blocks in use, in order. `each` must not call the store.
    pub fn each_used(&self, mut each: impl FnMut(Extent)) {
        self.inner.each_used(&mut each);
    }

    /// Returns how full the store is.
    pub fn usage(&self) -> Usage {
        self.inner.usage()
    }

    /// Data blocks that are free, or will be at the next sync.
    pub fn blocks_free(&self) -> u64 {
        self.inner.blocks_free()
    }

    /// Bytes of a batch, at most.
    pub fn batch_bytes_max(&self) -> usize {
        self.inner.log.place().batch_bytes_max()
    }

    /// Returns the sizes of its regions.
    pub fn shape(&self) -> Shape {
        self.inner.shape
    }

    /// Reports whether the store refuses batches.
    pub fn is_read_only(&self) -> bool {
        self.inner.settings.read_only
    }

    /// Returns the UUID that names the image.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.uuid
    }

    /// Returns the disk that holds the store.
    pub fn disk(&self) -> &Disk {
        &self.inner.disk
    }
}
