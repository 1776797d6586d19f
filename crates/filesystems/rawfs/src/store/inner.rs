//! What the store's threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::batch;
use super::cache::NodeCache;
use super::checkpoint_signal::CheckpointSignal;
use super::logged_data::LoggedData;
use super::settings::{Settings, Usage};
use crate::budget::{Budget, MemoryPart};
use crate::disk::{Disk, QueueClass};
use crate::error::Error;
use crate::layout::superblock::Superblock;
use crate::layout::{NODE_BYTES, Shape};
use crate::log::Log;
use crate::space::bits::Bitmap;
use crate::space::blocks::BlockAllocator;
use crate::space::freed::FreedBlocks;
use crate::space::nodes::{NodeAllocator as NodeSpace, SnapshotGuard};
use crate::tree::node::Node;
use crate::tree::{DamagedNodeError, NodeAt, NodeStamp, Nodes, Tree};
use crate::units::{BLOCK_BYTES, Block, Extent, Lsn};

/// The state that all threads of a store share.
pub struct StoreCore {
    pub(super) disk: Disk,
    pub(super) shape: Shape,
    pub(super) uuid: [u8; 16],
    /// Of the image, in nodes.
    pub(super) tag: u32,
    pub(super) settings: Settings,
    /// Batches change it one after the other. Taken before all locks below.
    pub(super) state: RwLock<StoreState>,
    pub(super) log: Log,
    pub(super) blocks: BlockAllocator,
    pub(super) freed: Mutex<FreedBlocks>,
    pub(super) filled: LoggedData,
    /// The last batch that named data blocks with their checksums.
    pub(super) written: AtomicU64,
    /// The last batch that the last checkpoint has.
    pub(super) saved: AtomicU64,
    pub(super) nodes: Mutex<NodeSpace>,
    pub(super) cache: Arc<NodeCache>,
    /// What others may take of the memory that is there for all, if that is one number.
    pub(super) budget: Option<Arc<Budget>>,
    /// Nodes that a checkpoint has under way.
    pub(super) writing: AtomicU64,
    /// Of the checkpoint that is durable; held by the thread that makes the next one. Taken before the state.
    pub(super) last: Mutex<LastCheckpoint>,
    /// Of the latest checkpoint started: no node is newer.
    pub(super) generation: AtomicU64,
    /// Wakes the checkpoint thread.
    pub(super) bell: CheckpointSignal,
    /// Waiters for a checkpoint; plus one as long as no thread makes them in the background.
    pub(super) waiting: AtomicUsize,
}

/// What batches change, behind one lock.
pub struct StoreState {
    pub(super) trees: [Tree; 2],
    /// Slots of nodes that the trees have no more since the last freeze.
    pub(super) left: Vec<u32>,
    /// Data blocks in use.
    pub(super) used: Bitmap,
    /// Held by readers of what was frozen last, or later.
    pub(super) reader: SnapshotGuard,
    /// A batch was done half, because a node could not be read: what is here is not to be shown.
    pub(super) broken: Option<Error>,
}

/// What the last durable checkpoint recorded.
pub struct LastCheckpoint {
    pub(super) superblock: Superblock,
    /// By page of the bitmaps: which slot counts.
    pub(super) slots: Vec<u8>,
}

/// A tree at a moment, and what keeps its nodes from being used anew.
pub struct TreeSnapshot {
    pub(super) tree: Tree,
    _reader: SnapshotGuard,
}

impl StoreState {
    pub(super) fn check(&self) -> Result<(), Error> {
        self.broken.map_or(Ok(()), Err)
    }

    /// Changed since the last freeze, about.
    pub(super) fn dirty(&self) -> u64 {
        self.trees.iter().map(|tree| tree.dirty() as u64).sum()
    }
}

/// Loads nodes of one tree: from the cache, else from the device.
pub struct NodeLoader<'a> {
    inner: &'a StoreCore,
    tree: batch::TreeId,
}

impl Nodes for NodeLoader<'_> {
    type Error = Error;

    fn load(&self, at: NodeAt) -> Result<Arc<Node>, Error> {
        if let Some(node) = self.inner.cache.get(at) {
            return Ok(node);
        }
        let node = Arc::new(self.inner.read_node(self.tree, at)?);
        self.inner.cache.put(at, Arc::clone(&node));
        Ok(node)
    }

    fn most(&self) -> u64 {
        // With those of the live tree that have no place yet.
        2 * self.inner.shape.nodes + 4096
    }
}

impl From<DamagedNodeError> for Error {
    fn from(damaged: DamagedNodeError) -> Error {
        Error::Damaged { what: damaged.0, at: Block(0) }
    }
}

/// Gives only what is in memory.
pub struct MemoryLoader<'a>(&'a NodeCache);

/// What a search in memory ends with.
pub enum MemoryMiss {
    /// A node would have to be read.
    Absent,
    /// It cannot be had.
    Wrong(Error),
}

impl From<DamagedNodeError> for MemoryMiss {
    fn from(damaged: DamagedNodeError) -> MemoryMiss {
        MemoryMiss::Wrong(damaged.into())
    }
}

impl Nodes for MemoryLoader<'_> {
    type Error = MemoryMiss;

    fn load(&self, at: NodeAt) -> Result<Arc<Node>, MemoryMiss> {
        self.0.get(at).ok_or(MemoryMiss::Absent)
    }
}

impl StoreCore {
    pub(super) fn loader(&self, tree: batch::TreeId) -> NodeLoader<'_> {
        NodeLoader { inner: self, tree }
    }

    pub(super) fn in_memory(&self) -> MemoryLoader<'_> {
        MemoryLoader(&self.cache)
    }

    pub(super) fn stamp(&self, tree: batch::TreeId) -> NodeStamp {
        NodeStamp { tag: self.tag, generation: self.generation.load(Ordering::Relaxed), tree: tree as u8 }
    }

    fn read_node(&self, tree: batch::TreeId, at: NodeAt) -> Result<Node, Error> {
        self.cache.missed();
        let block = self.shape.node_at(at.slot).ok_or(Error::Damaged { what: "the place of a node", at: Block(u64::from(at.slot)) })?;
        let mut page = vec![0; NODE_BYTES].into_boxed_slice();
        self.disk.read_blocks(QueueClass::Metadata, block, &mut page)?;
        Node::parse(page, at, self.stamp(tree)).map_err(|damaged| Error::Damaged { what: damaged.0, at: block })
    }

    /// The present state of the tree.
    ///
    /// # Errors
    /// The store is broken.
    pub(super) fn snapshot(&self, tree: batch::TreeId) -> Result<TreeSnapshot, Error> {
        let state = self.state.read();
        state.check()?;
        Ok(TreeSnapshot { tree: state.trees[tree as usize].clone(), _reader: Arc::clone(&state.reader) })
    }

    pub(super) fn get<T>(&self, tree: batch::TreeId, key: &[u8], found: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
        let mut found = Some(found);
        let mut once = |value: &[u8]| found.take().expect("one key has one value")(value);
        {
            let state = self.state.read();
            state.check()?;
            match state.trees[tree as usize].get(&self.in_memory(), key, &mut once) {
                Ok(value) => return Ok(value),
                Err(MemoryMiss::Wrong(error)) => return Err(error),
                Err(MemoryMiss::Absent) => {}
            }
        }
        self.snapshot(tree)?.tree.get(&self.loader(tree), key, once)
    }

    pub(super) fn floor<T>(&self, tree: batch::TreeId, key: &[u8], found: impl FnOnce(&[u8], &[u8]) -> T) -> Result<Option<T>, Error> {
        let mut found = Some(found);
        let mut once = |key: &[u8], value: &[u8]| found.take().expect("one entry is the last")(key, value);
        {
            let state = self.state.read();
            state.check()?;
            match state.trees[tree as usize].floor(&self.in_memory(), key, &mut once) {
                Ok(value) => return Ok(value),
                Err(MemoryMiss::Wrong(error)) => return Err(error),
                Err(MemoryMiss::Absent) => {}
            }
        }
        self.snapshot(tree)?.tree.floor(&self.loader(tree), key, once)
    }

    /// Gives blocks out anew that were freed by what the device knows to be durable.
    pub(super) fn release(&self) {
        let (recorded, saved) = (self.log.recorded(), Lsn(self.saved.load(Ordering::Acquire)));
        let mut freed = self.freed.lock();
        while let Some(range) = freed.pop(recorded, saved) {
            let taken = self.blocks.give(range);
            assert!(taken, "what was freed had been taken");
        }
    }

    pub(super) fn sync(&self, lsn: Lsn) -> Result<(), Error> {
        self.log.sync(&self.disk, lsn)?;
        self.release();
        Ok(())
    }

    pub(super) fn allocate(&self, goal: Option<Block>, blocks: u32) -> Result<Extent, Error> {
        let start = self.shape.data_start();
        let goal = goal.and_then(|goal| goal.0.checked_sub(start.0));
        let extent = |range: std::ops::Range<u64>| Extent::new(start.after(range.start), (range.end - range.start) as u32);
        if let Some(range) = self.blocks.allocate(goal, blocks) {
            return Ok(extent(range));
        }
        if self.freed.lock().blocks() > 0 {
            self.log.sync(&self.disk, self.log.last())?;
            self.log.record(&self.disk)?;
            self.release();
        }
        if let Some(range) = self.blocks.allocate(goal, blocks) {
            return Ok(extent(range));
        }
        let held = self.freed.lock().wants_checkpoint();
        if held {
            self.checkpoint()?;
        }
        self.blocks.allocate(goal, blocks).map(extent).ok_or(Error::NoSpace)
    }

    pub(super) fn abandon(&self, extent: Extent) {
        let range = self.shape.data_range(extent).expect("what was allocated is in the data region");
        let used = !self.state.read().used.all(range.clone(), false);
        let taken = !used && self.blocks.give(range);
        assert!(taken, "only what was allocated and not used is given back: {extent:?}");
    }

    pub(super) fn blocks_free(&self) -> u64 {
        self.blocks.free() + self.freed.lock().blocks()
    }

    /// Tells who shares the memory what is in use of it. `dirty`: nodes that are changed.
    pub(super) fn tell_budget(&self, dirty: u64) {
        if let Some(budget) = &self.budget {
            budget.set(MemoryPart::Changed, (dirty + self.writing.load(Ordering::Relaxed)) as usize * NODE_BYTES);
            budget.set(MemoryPart::Filled, self.filled.len() * BLOCK_BYTES);
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let (dirty, bitmap) = {
            let state = self.state.read();
            (state.dirty(), state.used.bytes())
        };
        let (log_bytes, log_used) = self.log.usage();
        let nodes = self.nodes.lock();
        Usage {
            blocks: self.shape.data_blocks,
            blocks_free: self.blocks_free(),
            nodes: nodes.len(),
            nodes_free: nodes.free(),
            nodes_dirty: dirty,
            log_bytes,
            log_used,
            memory_bytes: self.cache.bytes()
                + (dirty + self.writing.load(Ordering::Relaxed)) * NODE_BYTES as u64
                + (self.filled.len() * BLOCK_BYTES) as u64,
            node_reads: self.cache.misses(),
            bitmap_bytes: bitmap + nodes.bytes() + self.blocks.bytes(),
        }
    }
}
