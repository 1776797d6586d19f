//! Checkpoints: what was changed in memory goes to places that nothing durable uses, then a superblock says that it counts.
//!
//! 1. freeze, with the state locked for a moment: the trees as values, new places for their changed nodes, copies of bitmap pages.
//! 2. the log up to there is synced (the data blocks that the trees name are durable with it).
//! 3. data that only the log has, nodes and pages are written, flush; a superblock, flush; its copy, flush.
//! 4. what was replaced is free, the log's tail moves up, the trees let go of what is now on the device.
//!
//! A power cut before the flush of 3 leaves the checkpoint before as it was: nothing of it was overwritten, but for data that the log
//! has, which is done again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::batch;
use super::inner::{LastCheckpoint, StoreCore};
use crate::disk::QueueClass;
use crate::error::Error;
use crate::layout::superblock::{COPIES, Root, Superblock};
use crate::layout::{NODE_BYTES, bitmap};
use crate::page::Page;
use crate::space::blocks::GROUP_BLOCKS;
use crate::space::nodes::SnapshotGuard;
use crate::tree::{NodeAt, Tree};
use crate::units::{Block, Extent, Lsn};

/// Nodes written in one go.
const NODES_AT_ONCE: usize = 64;
const PAGES_AT_ONCE: usize = 256;

/// What a superblock is to say beside what the checkpoint itself knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointMark {
    pub(super) clean: bool,
    pub(super) life: u64,
    /// The last batch, and where the log goes on behind it, if the log does not know itself (recovery).
    pub(super) log: Option<(Lsn, u64)>,
    /// Also if nothing has changed.
    pub(super) always: bool,
}

struct FrozenState {
    lsn: Lsn,
    trees: [Tree; 2],
    /// Of nodes first, then of data blocks.
    pages: Vec<(usize, Box<[u64]>)>,
    left: Vec<u32>,
    reader: SnapshotGuard,
    filled: Vec<(Block, Page)>,
}

impl StoreCore {
    /// For callers that wait for it.
    pub(super) fn checkpoint(&self) -> Result<(), Error> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let done = self.checkpoint_ahead();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        done
    }

    /// Before anybody has to wait for it.
    pub(super) fn checkpoint_ahead(&self) -> Result<(), Error> {
        let mut last = self.last.lock();
        let mark = CheckpointMark { clean: false, life: last.superblock.life, log: None, always: false };
        self.checkpoint_as(&mut last, mark)
    }

    pub(super) fn checkpoint_as(&self, last: &mut LastCheckpoint, mark: CheckpointMark) -> Result<(), Error> {
        self.log.check()?;
        let Some(frozen) = self.freeze(last, mark)? else { return Ok(()) };
        let done = self.write_frozen(last, frozen, mark);
        self.writing.store(0, Ordering::Relaxed);
        if let Err(error) = done {
            // What was frozen is not known as changed any more: only opening again puts that right.
            self.log.fail(error);
            return Err(error);
        }
        let mut state = self.state.write();
        for tree in batch::TreeId::ALL {
            state.trees[tree as usize].settle(|at, node| self.cache.put(at, node));
        }
        let dirty = state.dirty();
        drop(state);
        self.tell_budget(dirty);
        self.discard();
        Ok(())
    }

    /// None: nothing has changed.
    fn freeze(&self, last: &LastCheckpoint, mark: CheckpointMark) -> Result<Option<FrozenState>, Error> {
        let mut state = self.state.write();
        state.check()?;
        let lsn = mark.log.map_or_else(|| self.log.last(), |(lsn, _)| lsn);
        let homeless: Vec<usize> = state.trees.iter().map(Tree::homeless).collect();
        let all: usize = homeless.iter().sum();
        if all == 0 && state.left.is_empty() && lsn == last.superblock.lsn && !mark.always {
            return Ok(None);
        }
        let mut nodes = self.nodes.lock();
        nodes.settle();
        let mut slots = nodes.take(all).ok_or(Error::NoNodes)?;
        let left = std::mem::take(&mut state.left);
        if !nodes.replaced(&left) {
            let error = Error::Damaged { what: "a tree has a node twice, or one that is not in use", at: last.superblock.shape.page_at(0) };
            state.broken = Some(error);
            self.log.fail(error);
            return Err(error);
        }
        let mut pages = nodes.bits().take_dirty();
        drop(nodes);
        let node_pages = self.shape.node_pages() as usize;
        pages.extend(state.used.take_dirty().into_iter().map(|(page, words)| (node_pages + page, words)));
        let files = slots.split_off(homeless[0]);
        let [names, of_files] = &mut state.trees;
        let trees = [names.freeze(slots), of_files.freeze(files)];
        let reader = std::mem::replace(&mut state.reader, Arc::new(()));
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.writing.store(all as u64, Ordering::Relaxed);
        Ok(Some(FrozenState { lsn, trees, pages, left, reader, filled: self.filled.frozen() }))
    }

    fn write_frozen(&self, last: &mut LastCheckpoint, frozen: FrozenState, mark: CheckpointMark) -> Result<(), Error> {
        if mark.log.is_none() {
            self.sync(frozen.lsn)?;
        }
        if mark.log.is_some() && !frozen.filled.is_empty() {
            // Who wrote the log may have been killed before its flush: it comes first.
            self.disk.flush()?;
        }
        self.write_filled(&frozen.filled)?;
        drop(frozen.filled);
        let mut roots = last.superblock.roots;
        for tree in batch::TreeId::ALL {
            let frozen = &frozen.trees[tree as usize];
            roots[tree as usize] = Root { at: self.write_nodes(tree, frozen)?, level: frozen.level() };
        }
        drop(frozen.trees);
        let generation = last.superblock.generation + 1;
        let slots = self.write_pages(last, &frozen.pages, generation)?;
        self.disk.flush()?;
        let log_position = mark.log.map_or_else(|| self.log.behind(frozen.lsn), |(_, position)| position);
        let superblock =
            Superblock { generation, clean: mark.clean, life: mark.life, lsn: frozen.lsn, log_position, roots, ..last.superblock };
        self.write_superblock(&superblock)?;
        (last.superblock, last.slots) = (superblock, slots);
        self.nodes.lock().leave(frozen.reader, frozen.left);
        self.log.release(frozen.lsn, log_position);
        self.filled.settle(frozen.lsn);
        self.saved.store(frozen.lsn.0, Ordering::Release);
        self.release();
        Ok(())
    }

    /// One copy after the other, so that one is whole at any time. As long as they differ nothing is used anew that the older one
    /// needs: either is enough to open the store.
    fn write_superblock(&self, superblock: &Superblock) -> Result<(), Error> {
        for at in COPIES {
            self.disk.write_blocks(QueueClass::Control, &[(at, &superblock.encode(at))])?;
            self.disk.flush()?;
        }
        Ok(())
    }

    fn write_nodes(&self, tree: batch::TreeId, frozen: &Tree) -> Result<NodeAt, Error> {
        let mut waiting: Vec<(Block, Box<[u8]>)> = Vec::with_capacity(NODES_AT_ONCE);
        let root = frozen.write_out(self.stamp(tree), |slot, page| -> Result<(), Error> {
            let at = self.shape.node_at(slot).expect("a slot that was given out");
            debug_assert_eq!(page.len(), NODE_BYTES);
            waiting.push((at, page));
            if waiting.len() == NODES_AT_ONCE { self.write_sorted(&mut waiting, QueueClass::Metadata) } else { Ok(()) }
        })?;
        self.write_sorted(&mut waiting, QueueClass::Metadata)?;
        Ok(root)
    }

    fn write_sorted(&self, waiting: &mut Vec<(Block, Box<[u8]>)>, class: QueueClass) -> Result<(), Error> {
        waiting.sort_by_key(|(at, _)| *at);
        let writes: Vec<(Block, &[u8])> = waiting.iter().map(|(at, page)| (*at, &**page)).collect();
        self.disk.write_blocks(class, &writes)?;
        waiting.clear();
        Ok(())
    }

    /// Each to the slot that does not count. Returns which ones count then.
    fn write_pages(&self, last: &LastCheckpoint, pages: &[(usize, Box<[u64]>)], generation: u64) -> Result<Vec<u8>, Error> {
        let mut slots = last.slots.clone();
        for some in pages.chunks(PAGES_AT_ONCE) {
            let mut waiting = Vec::with_capacity(some.len());
            for (page, words) in some {
                slots[*page] ^= 1;
                let at = self.shape.page_at(*page as u64).after(u64::from(slots[*page]));
                waiting.push((at, bitmap::encode(words, at, generation, last.superblock.image()).into_boxed_slice()));
            }
            self.write_sorted(&mut waiting, QueueClass::Metadata)?;
        }
        Ok(slots)
    }

    /// Tells the device of long rows of blocks that were freed and are free still. Who allocates does not get them meanwhile. A
    /// device that fails to discard has lost nothing.
    fn discard(&self) {
        if !self.settings.discard || !self.disk.geometry().discard {
            return;
        }
        let rows = self.freed.lock().take_discards();
        for row in rows {
            let mut from = row.start;
            while from < row.end {
                let to = row.end.min((from / GROUP_BLOCKS + 1) * GROUP_BLOCKS);
                if self.blocks.claim(from..to) {
                    let extent = Extent::new(self.shape.data_start().after(from), (to - from) as u32);
                    let _ = self.disk.discard(extent);
                    self.blocks.give(from..to);
                }
                from = to;
            }
        }
    }
}
