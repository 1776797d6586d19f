//! Trees on which batches are tried, before they are done as one for all.

use parking_lot::Mutex;

use super::batch::{self, Batch};
use super::inner::StoreCore;
use crate::error::Error;
use crate::space::nodes::SnapshotGuard;
use crate::tree::Tree;
use crate::units::Lsn;

/// Trees on which the batches of a transaction are tried.
pub struct TransactionOverlay {
    tried: Mutex<OverlayTree>,
    /// Keeps the nodes the trees began with.
    _reader: SnapshotGuard,
}

struct OverlayTree {
    trees: [Tree; 2],
    gathered: Batch,
}

impl TransactionOverlay {
    /// As everything is now.
    pub(super) fn of(inner: &StoreCore) -> Result<TransactionOverlay, Error> {
        let state = inner.state.read();
        state.check()?;
        let tried = OverlayTree { trees: state.trees.clone(), gathered: Batch::new() };
        Ok(TransactionOverlay { tried: Mutex::new(tried), _reader: state.reader.clone() })
    }

    /// As what was applied has made it.
    pub(super) fn tree(&self, tree: batch::TreeId) -> Tree {
        self.tried.lock().trees[tree as usize].clone()
    }

    /// After an error it is good for nothing.
    pub(super) fn apply(&self, inner: &StoreCore, batch: Batch) -> Result<Lsn, Error> {
        batch.check()?;
        let mut tried = self.tried.lock();
        if tried.gathered.bytes() + batch.bytes() > inner.log.place().batch_bytes_max() {
            return Err(Error::TooLarge("a batch of more than a quarter of the log"));
        }
        // What the live trees have is copied when it is changed, and its places stay theirs.
        let mut left = Vec::new();
        let OverlayTree { trees, gathered } = &mut *tried;
        for change in batch.changes().flatten() {
            inner.change_tree(trees, &mut left, change)?;
            left.clear();
        }
        gathered.extend(batch);
        Ok(inner.log.last())
    }

    pub(super) fn take(&self) -> Batch {
        std::mem::take(&mut self.tried.lock().gathered)
    }
}
